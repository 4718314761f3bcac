package peer

import (
	"context"

	"golang.org/x/sync/singleflight"
)

func singleflightKind() Kind {
	return Kind{
		Name: "singleflight", Module: "golang.org/x/sync", How: "aside inside one x/sync Group a process",
		Tiers: Tiers{Redis: true, RedisOnly: true, Virtual: true},
		Open: func(_ context.Context, s Setup) (Peer, error) {
			return &shared{aside: aside{s}}, nil
		},
	}
}

// shared is cache-aside whose calls of one process share their work.
type shared struct {
	aside

	group singleflight.Group
}

func (p *shared) Get(ctx context.Context, key string) (*Product, error) {
	v, err, _ := p.group.Do(key, func() (any, error) { return p.aside.Get(ctx, key) })
	product, _ := v.(*Product)
	return product, err
}
