package herdgate

import (
	"context"
	"time"
)

// OpenAt is Open in a process that has this wall clock.
func OpenAt(ctx context.Context, options Options, wall func() time.Time) (*Gate, error) {
	return open(ctx, options, wall)
}
