package peer

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

const sturdycModule = "github.com/viccon/sturdyc"

// It keeps a goroutine for ever, which virtual time would wait for.
func sturdycTiers() Tiers { return Tiers{Memory: true, Redis: true} }

func sturdycKind() Kind {
	return Kind{
		Name: "sturdyc", Module: sturdycModule, How: "distributed storage over Redis",
		Tiers: sturdycTiers(),
		Open: func(_ context.Context, s Setup) (Peer, error) {
			storage := redisStorage{rdb: s.Redis, prefix: s.Prefix, ttl: s.TTL}
			return openSturdyc(s, storage, s.memoryTTL(), sturdyc.WithDistributedStorage(storage)), nil
		},
	}
}

func sturdycEarlyKind() Kind {
	return Kind{
		Name: "sturdyc-early", Module: sturdycModule, How: "sturdyc with early refreshes from 0.8 TTL, in memory and in Redis; entries are kept for TTL and Stale, at least 2 TTL",
		Tiers: sturdycTiers(),
		Open: func(_ context.Context, s Setup) (Peer, error) {
			kept := s.TTL + max(s.TTL, s.Stale)
			storage := redisStorage{rdb: s.Redis, prefix: s.Prefix, ttl: kept}
			return openSturdyc(s, storage, kept,
				sturdyc.WithEarlyRefreshes(s.TTL*8/10, s.TTL, kept, time.Second),
				sturdyc.WithDistributedStorageEarlyRefreshes(storage, s.TTL),
			), nil
		},
	}
}

type sturdycPeer struct {
	client  *sturdyc.Client[*Product]
	storage redisStorage
	load    func(ctx context.Context, key string) (*Product, error)
}

func openSturdyc(s Setup, storage redisStorage, kept time.Duration, options ...sturdyc.Option) Peer {
	const shards, evictionPercentage = 10, 10 // as its README has them
	return sturdycPeer{
		client:  sturdyc.New[*Product](max(10_000, 2*s.Keys), shards, kept, evictionPercentage, options...),
		storage: storage, load: s.Load,
	}
}

func (p sturdycPeer) Get(ctx context.Context, key string) (*Product, error) {
	return p.client.GetOrFetch(ctx, key, func(ctx context.Context) (*Product, error) { return p.load(ctx, key) })
}

// Set fetches anew: the value in Redis goes, so that GetOrFetch writes both tiers.
func (p sturdycPeer) Set(ctx context.Context, key string, v *Product) error {
	if err := p.Delete(ctx, key); err != nil {
		return err
	}
	_, err := p.client.GetOrFetch(ctx, key, func(context.Context) (*Product, error) { return v, nil })
	return err
}

func (p sturdycPeer) Delete(ctx context.Context, key string) error {
	err := p.storage.rdb.Del(ctx, p.storage.name(key)).Err()
	p.client.Delete(key)
	return err
}

func (sturdycPeer) Close(context.Context) error { return nil }

// redisStorage is sturdyc's DistributedStorageWithDeletions. The interface has no
// errors: a Redis that does not answer has no value.
type redisStorage struct {
	rdb    redis.UniversalClient
	prefix string
	ttl    time.Duration
}

func (s redisStorage) name(key string) string { return s.prefix + ":" + key }

func (s redisStorage) Get(ctx context.Context, key string) ([]byte, bool) {
	data, err := s.rdb.Get(ctx, s.name(key)).Bytes()
	return data, err == nil
}

func (s redisStorage) Set(ctx context.Context, key string, value []byte) {
	_ = s.rdb.Set(ctx, s.name(key), value, s.ttl).Err()
}

func (s redisStorage) GetBatch(ctx context.Context, keys []string) map[string][]byte {
	found := map[string][]byte{}
	for _, key := range keys {
		if data, ok := s.Get(ctx, key); ok {
			found[key] = data
		}
	}
	return found
}

func (s redisStorage) SetBatch(ctx context.Context, records map[string][]byte) {
	for key, value := range records {
		s.Set(ctx, key, value)
	}
}

func (s redisStorage) Delete(ctx context.Context, key string) {
	_ = s.rdb.Del(ctx, s.name(key)).Err()
}

func (s redisStorage) DeleteBatch(ctx context.Context, keys []string) {
	for _, key := range keys {
		s.Delete(ctx, key)
	}
}
