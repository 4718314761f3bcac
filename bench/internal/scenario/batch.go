package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// batch: many values at once, which are in Redis and not in the process, beside one
// plain pipeline of GETs and decode with a client of its own, round by round.
func batch() Scenario {
	return Scenario{
		Name:     "batch",
		About:    "GetMany of 100 of 4 096 keys, no local tier, one goroutine, on one server and on a Cluster of 3 masters, beside a plain pipeline of GETs",
		Variants: fixed("single", "cluster"),
		Unfit: func(t peer.Tiers, _ string) string {
			if !t.Batch {
				return "it does not get many keys at once from Redis alone"
			}
			return ""
		},
		Limit: time.Minute,
		Run:   runBatch,
	}
}

const batchSize = 100

func runBatch(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	s, err := startService(ctx, e, k, 1, workerSetup{TTL: time.Hour, Keys: remoteKeys, Calm: true, Cluster: variant == "cluster"})
	if err != nil {
		return result.Measured{}, err
	}
	figures, err := rig.Call[result.Figures](ctx, s.workers[0], "batch", pick(e.Options, 6*time.Second, 50*time.Millisecond))
	return result.Measured{Figures: figures}, joinClose(err, s)
}

// batch measures in the worker.
func (w *worker) batch(ctx context.Context, d time.Duration) (result.Figures, error) {
	subject, ok := w.peer.(peer.Batcher)
	if !ok {
		return nil, errors.New("the peer has no GetMany")
	}
	for i := range remoteKeys {
		if err := w.peer.Set(ctx, strconv.Itoa(i), peer.NewProduct(0, 1, time.Now())); err != nil {
			return nil, err
		}
		if err := plainSet(ctx, w.plain, rawKey(i)); err != nil {
			return nil, err
		}
	}
	ours, theirs := rig.NewLatency(), rig.NewLatency()
	before := w.commands.Counts()
	g := gang{Goroutines: 1, Each: 16}
	rounds, err := interleave(ctx, g, d,
		timed(ours, func(i int) error {
			values, err := subject.GetMany(ctx, batchKeys(i, strconv.Itoa))
			if err == nil && len(values) != batchSize {
				err = fmt.Errorf("%d values of %d", len(values), batchSize)
			}
			return err
		}),
		timed(theirs, func(i int) error { return plainGetMany(ctx, w.plain, batchKeys(i, rawKey)) }))
	if err != nil {
		return nil, err
	}
	sent := w.commands.Counts().Sub(before)
	return result.Figures{
		"ops_s":             float64(time.Second) / g.perOp(rounds[0], nanos),
		"raw_ops_s":         float64(time.Second) / g.perOp(rounds[1], nanos),
		"x_raw":             ratio(rounds[1], rounds[0]),
		"round_trips":       float64(sent.RoundTrips) / float64(ours.Count()),
		"calls_per_request": float64(sent.Calls) / float64(ours.Count()),
		"p50_us":            micros(ours.Quantile(0.5)),
		"p99_us":            micros(ours.Quantile(0.99)),
		"raw_p50_us":        micros(theirs.Quantile(0.5)),
		"raw_p99_us":        micros(theirs.Quantile(0.99)),
	}, nil
}

// batchKeys are the keys of the i-th batch.
func batchKeys(i int, name func(int) string) []string {
	keys := make([]string, batchSize)
	for k := range keys {
		keys[k] = name((i*batchSize + k) % remoteKeys)
	}
	return keys
}

// plainGetMany is what a service does for many remote hits without a library.
func plainGetMany(ctx context.Context, rdb redis.UniversalClient, keys []string) error {
	found := make([]*redis.StringCmd, len(keys))
	if _, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			found[i] = p.Get(ctx, key)
		}
		return nil
	}); err != nil {
		return err
	}
	values := make(map[string]*peer.Product, len(keys))
	for i, key := range keys {
		p := new(peer.Product)
		if err := msgpack.Unmarshal([]byte(found[i].Val()), p); err != nil {
			return err
		}
		values[key] = p
	}
	return nil
}
