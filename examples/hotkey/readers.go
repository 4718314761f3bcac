package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/herdgate/herdgate"
)

// reader is how a service reads a product: the only difference between the phases.
type reader interface {
	Get(ctx context.Context, id string) (product, error)
}

const (
	aside = "cache-aside"
	gated = "herdgate"
)

// cacheAside is what most services do.
type cacheAside struct {
	rdb    *redis.Client
	db     *database
	prefix string
	ttl    time.Duration
}

// Get implements reader.
func (c cacheAside) Get(ctx context.Context, id string) (product, error) {
	key := c.prefix + ":product:" + id
	stored, err := c.rdb.Get(ctx, key).Bytes()
	if err == nil {
		var p product
		return p, msgpack.Unmarshal(stored, &p)
	}
	if !errors.Is(err, redis.Nil) {
		return product{}, err
	}
	p, err := c.db.product(ctx, id)
	if err != nil {
		return product{}, err
	}
	if stored, err = msgpack.Marshal(p); err != nil {
		return product{}, err
	}
	return p, c.rdb.Set(ctx, key, stored, c.ttl).Err()
}

// newReader makes the reader of a phase; end closes what it has opened, and may be
// called again. observer, which may be nil, sees what its gate does if it has one.
func newReader(ctx context.Context, j job, rdb *redis.Client, db *database, observer herdgate.Observer) (r reader, end func(context.Context) error, err error) {
	if j.Phase == aside {
		return cacheAside{rdb: rdb, db: db, prefix: j.Namespace, ttl: j.TTL}, func(context.Context) error { return nil }, nil
	}
	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: j.Namespace, Observer: observer})
	if err != nil {
		return nil, nil, err
	}
	cache, err := herdgate.New(gate, "product", db.product, herdgate.Policy{TTL: j.TTL, Stale: staleTTLs * j.TTL})
	if err != nil {
		return nil, nil, errors.Join(err, gate.Close(ctx))
	}
	return cache, gate.Close, nil
}

// staleTTLs is the Stale window in TTLs.
const staleTTLs = 10
