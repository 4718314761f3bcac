package peer

import (
	"context"

	"github.com/Yiling-J/theine-go"
)

func theineKind() Kind {
	return Kind{
		Name: "theine", Module: "github.com/Yiling-J/theine-go", How: "a simple cache, SetWithTTL",
		Tiers: Tiers{Memory: true}, Open: openTheine,
	}
}

func openTheine(_ context.Context, s Setup) (Peer, error) {
	c, err := theine.NewBuilder[string, *Product](int64(2 * s.Keys)).Build()
	if err != nil {
		return nil, err
	}
	return memory{
		get: c.Get,
		set: func(key string, p *Product) bool { return c.SetWithTTL(key, p, 1, s.TTL) },
		del: c.Delete, close: c.Close,
	}, nil
}
