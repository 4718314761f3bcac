package peer

import (
	"context"

	"github.com/go-redis/cache/v9"
)

func goredisCacheKind() Kind {
	return Kind{
		Name: "goredis-cache", Module: "github.com/go-redis/cache/v9", How: "Once, with TinyLFU as its local cache where there is one",
		Tiers: Tiers{Memory: true, Redis: true, RedisOnly: true, Virtual: true}, Open: openGoredisCache,
	}
}

// tinyLFUSlack makes room for all keys: 56 is added to the cost of 1 that each has.
const tinyLFUSlack = 57

type goredisCache struct {
	cache *cache.Cache
	s     Setup
}

func openGoredisCache(_ context.Context, s Setup) (Peer, error) {
	options := &cache.Options{Redis: s.Redis}
	if s.Memory {
		options.LocalCache = cache.NewTinyLFU(max(1000, s.Keys)*tinyLFUSlack, s.memoryTTL())
	}
	return goredisCache{cache: cache.New(options), s: s}, nil
}

func (p goredisCache) name(key string) string { return p.s.Prefix + ":" + key }

func (p goredisCache) Get(ctx context.Context, key string) (*Product, error) {
	v := new(Product)
	err := p.cache.Once(&cache.Item{
		Ctx: ctx, Key: p.name(key), Value: v, TTL: p.s.TTL,
		Do: func(item *cache.Item) (any, error) { return p.s.Load(item.Ctx, key) },
	})
	return v, err
}

func (p goredisCache) Set(ctx context.Context, key string, v *Product) error {
	return p.cache.Set(&cache.Item{Ctx: ctx, Key: p.name(key), Value: v, TTL: p.s.TTL})
}

func (p goredisCache) Delete(ctx context.Context, key string) error {
	return p.cache.Delete(ctx, p.name(key))
}

func (goredisCache) Close(context.Context) error { return nil }
