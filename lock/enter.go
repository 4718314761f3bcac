package lock

import (
	"context"
	"errors"
	"fmt"
)

// WithLease returns a child of ctx that carries lease, so that a function which locks what its caller holds already
// does not wait for itself: TryLock and Lock of the same engine and name, with that ctx, return another lease of the
// same hold at once, without asking the store. Each of them has to be unlocked, and the last Unlock frees the lock. All of
// them end when the hold is lost.
//
// Goroutines have no identity, so who is inside is said by the ctx: give it only to work that belongs to the lease. A
// lease that was lost makes a lock with its ctx fail with ErrLost. A shared lease is entered by TryRLock and RLock
// only, an exclusive one by all.
func WithLease(ctx context.Context, lease *Lease) context.Context {
	outer, _ := ctx.Value(carriedKey{}).(*carried)
	return context.WithValue(ctx, carriedKey{}, &carried{lease: lease, outer: outer})
}

type carriedKey struct{}

// carried are the leases of a ctx, the latest first.
type carried struct {
	lease *Lease
	outer *carried
}

// enter is another lease of the hold that ctx carries for this lock; nil if it carries none.
func (e *Engine) enter(ctx context.Context, req Request) (*Lease, error) {
	c, _ := ctx.Value(carriedKey{}).(*carried)
	for ; c != nil; c = c.outer {
		h := c.lease.held
		if h.engine != e || h.claim.Name != req.Name || errors.Is(c.lease.Err(), ErrReleased) {
			continue
		}
		if h.shared && !req.Shared {
			return nil, fmt.Errorf("lock: enter %q: ctx carries a shared lease of it: must be unlocked before the lock is taken exclusively", req.Name)
		}
		lease, err := h.enter()
		if err != nil {
			return nil, fmt.Errorf("lock: enter %q: %w", req.Name, err)
		}
		return lease, nil
	}
	return nil, nil
}

// enter adds a lease, unless the hold has ended.
func (h *held) enter() (*Lease, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	return h.lease(), nil
}
