package main

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

const (
	localKeys = 10_000
	sequence  = 1 << 16 // keys asked for before they repeat
	longAfter = time.Hour
)

func localKey(i uint64) string { return "product:" + strconv.FormatUint(i, 10) }

// asked are the keys in the order they are asked for, none of them the string that
// was stored: a service makes its keys anew, too.
func asked(next func() uint64) []string {
	keys := make([]string, sequence)
	for i := range keys {
		keys[i] = localKey(next())
	}
	return keys
}

// BenchmarkLocalHit is Cache.Get of values in the local tier, beside ristretto and
// the floor: a sync.Map of slots whose content is swapped atomically, with no limit,
// expiry, invalidation or count.
func BenchmarkLocalHit(b *testing.B) {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, localKeys-1)
	hot, skewed := asked(func() uint64 { return 1 }), asked(zipf.Uint64)
	for _, run := range []struct {
		name       string
		keys       []string
		goroutines int
	}{
		{"hot/serial", hot, 1},
		{"hot/parallel", hot, runtime.GOMAXPROCS(0)},
		{"zipf/serial", skewed, 1},
		{"zipf/parallel", skewed, runtime.GOMAXPROCS(0)},
	} {
		// A round is no whole number of sequences: goroutines and rounds start at
		// different places of them.
		b.Run(run.name, func(b *testing.B) { localHit(b, run.keys, crowd{goroutines: run.goroutines, each: 50_000}) })
	}
}

func localHit(b *testing.B, keys []string, c crowd) {
	b.Helper()
	cache := filledCache(b)
	policy := filledRistretto(b)
	floor := filledFloor()

	ctx := b.Context()
	before := cache.Stats()
	interleave(
		b, c,
		side{"herdgate", func(from, n int) {
			for i := range n {
				if v, err := cache.Get(ctx, keys[(from+i)%sequence]); err != nil || v == nil {
					b.Errorf("got %v, %v", v, err)
				}
			}
		}},
		side{"ristretto", func(from, n int) {
			for i := range n {
				if v, ok := policy.Get(keys[(from+i)%sequence]); !ok || v == nil {
					b.Error("ristretto has lost a key")
				}
			}
		}},
		side{"floor", func(from, n int) {
			for i := range n {
				s, _ := floor.Load(keys[(from+i)%sequence])
				if s.(*atomic.Pointer[product]).Load() == nil {
					b.Error("the map has lost a key")
				}
			}
		}},
	)
	if after := cache.Stats(); after.Gets-before.Gets != after.Local-before.Local {
		b.Errorf("not every Get was a local hit: %+v", after)
	}
}

// filledCache returns a cache, over a Redis, with all keys in its local tier.
func filledCache(b *testing.B) *herdgate.Cache[*product] {
	b.Helper()
	in := newInstance(b, testutil.StartRedis(b))
	load := func(context.Context, string) (*product, error) { return new(newProduct()), nil }
	cache, err := herdgate.New(in.gate, "product", load, herdgate.Policy{TTL: longAfter, LocalTTL: longAfter})
	if err != nil {
		b.Fatal(err)
	}
	for i := range uint64(localKeys) {
		if _, err := cache.Get(b.Context(), localKey(i)); err != nil {
			b.Fatal(err)
		}
	}
	return cache
}

func filledRistretto(b *testing.B) *ristretto.Cache[string, *product] {
	b.Helper()
	c, err := ristretto.NewCache(&ristretto.Config[string, *product]{NumCounters: 10 * localKeys, MaxCost: 64 << 20, BufferItems: 64})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	for i := range uint64(localKeys) {
		if !c.SetWithTTL(localKey(i), new(newProduct()), payloadSize, longAfter) {
			b.Fatal("ristretto did not take a key")
		}
		c.Wait()
	}
	return c
}

func filledFloor() *sync.Map {
	var m sync.Map
	for i := range uint64(localKeys) {
		slot := new(atomic.Pointer[product])
		slot.Store(new(newProduct()))
		m.Store(localKey(i), slot)
	}
	return &m
}
