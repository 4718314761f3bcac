package main

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// BenchmarkRemoteHit is Cache.Get without a local tier, beside GET and decode with
// the same client. Calls of one key at the same time share a flight: 4 096 keys,
// each of them asked for once a round of 64 goroutines, show what a hit costs, and
// one key what sharing saves.
func BenchmarkRemoteHit(b *testing.B) {
	for _, run := range []struct {
		name string
		keys int
		crowd
	}{
		{"goroutines=1", 1 << 12, crowd{goroutines: 1, each: 256}},
		{"goroutines=64", 1 << 12, crowd{goroutines: 64, each: 64}},
		{"goroutines=64,onekey", 1, crowd{goroutines: 64, each: 64}},
	} {
		b.Run(run.name, func(b *testing.B) { remoteHit(b, run.keys, run.crowd) })
	}
}

func remoteHit(b *testing.B, keys int, c crowd) {
	b.Helper()
	in := newInstance(b, testutil.StartRedis(b))
	cache := newCache(b, in, nil, herdgate.Policy{TTL: longAfter, LocalTTL: herdgate.Off})
	data := encoded(b, newProduct())
	ctx := b.Context()
	names := make([]string, keys)
	for i := range names {
		names[i] = strconv.Itoa(i)
		if err := cache.Set(ctx, names[i], newProduct()); err != nil {
			b.Fatal(err)
		}
		if err := in.rdb.Set(ctx, "raw:"+names[i], data, longAfter).Err(); err != nil {
			b.Fatal(err)
		}
	}

	var ours, raw stopwatch
	interleave(
		b, c,
		side{"herdgate", ours.time(func(i int) {
			if _, err := cache.Get(ctx, names[i%keys]); err != nil {
				b.Error(err)
			}
		})},
		side{"raw", raw.time(func(i int) {
			if _, err := rawGet(ctx, in.rdb, "raw:"+names[i%keys]); err != nil {
				b.Error(err)
			}
		})},
	)
	if s := cache.Stats(); s.Gets != s.Remote {
		b.Errorf("not every Get was a remote hit: %+v", s)
	}
	ours.report(b, "")
	raw.report(b, "raw-")
}

// rawGet is what a service does for a remote hit without a library.
func rawGet(ctx context.Context, rdb *redis.Client, key string) (product, error) {
	var p product
	data, err := rdb.Get(ctx, key).Bytes()
	if err == nil {
		err = msgpack.Unmarshal(data, &p)
	}
	return p, err
}

// BenchmarkColdMiss is Cache.Get of keys that nobody has asked for before, with a
// loader that takes no time, beside GET and SET.
func BenchmarkColdMiss(b *testing.B) {
	server := testutil.StartRedis(b)
	in := newInstance(b, server)
	load := func(context.Context, string) (product, error) { return newProduct(), nil }
	cache := newCache(b, in, load, herdgate.Policy{LocalTTL: herdgate.Off})
	rdb, sent := server.Client(b), &commands{}
	rdb.AddHook(sent)
	ctx := b.Context()

	var ours, raw stopwatch
	interleave(
		b, crowd{goroutines: 1, each: 128},
		side{"herdgate", ours.time(func(i int) {
			if _, err := cache.Get(ctx, strconv.Itoa(i)); err != nil {
				b.Error(err)
			}
		})},
		side{"raw", raw.time(func(i int) {
			if err := rawMiss(ctx, rdb, strconv.Itoa(i)); err != nil {
				b.Error(err)
			}
		})},
	)
	ours.report(b, "")
	raw.report(b, "raw-")
	b.ReportMetric(float64(total(in.sent.paid()))/float64(len(ours.took)), "commands/op")
	b.ReportMetric(float64(total(sent.paid()))/float64(len(raw.took)), "raw-commands/op")
}

// rawMiss is what a service does for a cold miss without a library.
func rawMiss(ctx context.Context, rdb *redis.Client, key string) error {
	if _, err := rawGet(ctx, rdb, key); !errors.Is(err, redis.Nil) {
		return err
	}
	data, err := msgpack.Marshal(newProduct())
	if err != nil {
		return err
	}
	return rdb.Set(ctx, key, data, time.Minute).Err()
}
