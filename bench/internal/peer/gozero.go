package peer

import (
	"context"
	"errors"

	"github.com/zeromicro/go-zero/core/stores/cache"
	"github.com/zeromicro/go-zero/core/stores/redis"
	"github.com/zeromicro/go-zero/core/syncx"
)

func gozeroKind() Kind {
	return Kind{
		Name: "gozero", Module: "github.com/zeromicro/go-zero", How: "a cache node over its own Redis client, Take",
		Tiers: Tiers{Redis: true, RedisOnly: true}, Open: openGozero,
	}
}

type gozeroPeer struct {
	cache.Cache

	s Setup
}

func openGozero(_ context.Context, s Setup) (Peer, error) {
	rds, err := redis.NewRedis(redis.RedisConf{Host: s.Addr, Type: redis.NodeType, NonBlock: true}, redis.WithHook(s.Hook))
	if err != nil {
		return nil, err
	}
	node := cache.NewNode(rds, syncx.NewSingleFlight(), cache.NewStat(s.Prefix), errors.New("not found"), cache.WithExpiry(s.TTL))
	return gozeroPeer{Cache: node, s: s}, nil
}

func (p gozeroPeer) name(key string) string { return p.s.Prefix + ":" + key }

func (p gozeroPeer) Get(ctx context.Context, key string) (*Product, error) {
	v := new(Product)
	err := p.TakeCtx(ctx, v, p.name(key), func(val any) error {
		loaded, err := p.s.Load(ctx, key)
		if err == nil {
			*val.(*Product) = *loaded
		}
		return err
	})
	return v, err
}

func (p gozeroPeer) Set(ctx context.Context, key string, v *Product) error {
	return p.SetCtx(ctx, p.name(key), v)
}

func (p gozeroPeer) Delete(ctx context.Context, key string) error {
	return p.DelCtx(ctx, p.name(key))
}

func (gozeroPeer) Close(context.Context) error { return nil }
