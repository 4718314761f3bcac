package peer

import (
	"context"

	"github.com/dgraph-io/ristretto/v2"
)

func ristrettoKind() Kind {
	return Kind{
		Name: "ristretto", Module: "github.com/dgraph-io/ristretto/v2", How: "Cache[string, *T] filled by SetWithTTL, metrics off, BufferItems 64, ten counters a key",
		Tiers: Tiers{Memory: true}, Open: openRistretto,
	}
}

func openRistretto(_ context.Context, s Setup) (Peer, error) {
	c, err := ristretto.NewCache(&ristretto.Config[string, *Product]{
		NumCounters: int64(10 * s.Keys), MaxCost: int64(s.Keys) * 10 * PayloadSize, BufferItems: 64,
	})
	if err != nil {
		return nil, err
	}
	return memory{
		get: c.Get,
		set: func(key string, p *Product) bool {
			ok := c.SetWithTTL(key, p, PayloadSize, s.TTL)
			c.Wait()
			return ok
		},
		del: c.Del, close: c.Close,
	}, nil
}
