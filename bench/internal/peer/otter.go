package peer

import (
	"context"

	"github.com/maypok86/otter/v2"
)

func otterKind() Kind {
	return Kind{
		Name: "otter", Module: "github.com/maypok86/otter/v2", How: "MaximumSize, expiry after writing",
		Tiers: Tiers{Memory: true}, Open: openOtter,
	}
}

func openOtter(_ context.Context, s Setup) (Peer, error) {
	c, err := otter.New(&otter.Options[string, *Product]{
		MaximumSize: 2 * s.Keys, ExpiryCalculator: otter.ExpiryWriting[string, *Product](s.TTL),
	})
	if err != nil {
		return nil, err
	}
	return memory{
		get: c.GetIfPresent,
		set: func(key string, p *Product) bool {
			c.Set(key, p)
			return true
		},
		del:   func(key string) { c.Invalidate(key) },
		close: func() { c.StopAllGoroutines() },
	}, nil
}
