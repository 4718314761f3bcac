package scenario

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// remote: values that are in Redis and not in the process, beside plain GET and
// MessagePack decode with a client of its own, round by round.
func remote() Scenario {
	return Scenario{
		Name:     "remote",
		About:    "no local tier, 4 096 keys, at one time no two calls ask for one; 1 and 64 goroutines; 300-byte struct",
		Variants: fixed("g1", "g64"),
		Unfit:    func(t peer.Tiers, _ string) string { return tiers(t, "remote") },
		Limit:    time.Minute,
		Run:      runRemote,
	}
}

const remoteKeys = 1 << 12

type remoteArgs struct {
	Gang gang
	For  time.Duration
}

func runRemote(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	args := remoteArgs{Gang: gang{Goroutines: 1, Each: 256}, For: pick(e.Options, 8*time.Second, 50*time.Millisecond)}
	if variant == "g64" {
		args.Gang = gang{Goroutines: 64, Each: 64}
	}
	s, err := startService(ctx, e, k, 1, workerSetup{TTL: time.Hour, Keys: remoteKeys, Calm: true})
	if err != nil {
		return result.Measured{}, err
	}
	figures, err := rig.Call[result.Figures](ctx, s.workers[0], "remote", args)
	return result.Measured{Figures: figures}, joinClose(err, s)
}

// remote measures in the worker.
func (w *worker) remote(ctx context.Context, a remoteArgs) (result.Figures, error) {
	var ownCommands rig.Commands // both sides pay for being counted
	w.plain.AddHook(&ownCommands)
	figures := result.Figures{}
	entry, raw, err := w.store(ctx)
	if err != nil {
		return nil, err
	}
	figures["redis_entry_b"] = entry - raw
	keys, err := w.plain.DBSize(ctx).Result()
	if err != nil {
		return nil, err
	}
	figures["helper_keys"] = float64(keys - 2*remoteKeys)

	ours, theirs := rig.NewLatency(), rig.NewLatency()
	before := w.commands.Counts()
	rounds, err := interleave(ctx, a.Gang, a.For,
		timed(ours, func(i int) error {
			_, err := w.peer.Get(ctx, strconv.Itoa(i%remoteKeys))
			return err
		}),
		timed(theirs, func(i int) error {
			_, err := plainGet(ctx, w.plain, rawKey(i%remoteKeys))
			return err
		}))
	if err != nil {
		return nil, err
	}
	sent := w.commands.Counts().Sub(before)
	figures["calls_per_request"] = float64(sent.Calls) / float64(ours.Count())
	figures["ops_s"] = float64(time.Second) / a.Gang.perOp(rounds[0], nanos)
	figures["raw_ops_s"] = float64(time.Second) / a.Gang.perOp(rounds[1], nanos)
	figures["x_raw"] = ratio(rounds[1], rounds[0])
	figures["allocs_op"] = math.Round(a.Gang.perOp(rounds[0], allocs))
	figures["raw_allocs_op"] = math.Round(a.Gang.perOp(rounds[1], allocs))
	figures["p50_us"], figures["p99_us"] = micros(ours.Quantile(0.5)), micros(ours.Quantile(0.99))
	figures["raw_p50_us"], figures["raw_p99_us"] = micros(theirs.Quantile(0.5)), micros(theirs.Quantile(0.99))
	return figures, nil
}

// store fills Redis with the peer's entries and the raw ones, and returns what one of
// each takes.
func (w *worker) store(ctx context.Context) (entry, raw float64, err error) {
	empty, err := w.usedMemory(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range remoteKeys {
		if err := w.peer.Set(ctx, strconv.Itoa(i), peer.NewProduct(0, 1, time.Now())); err != nil {
			return 0, 0, err
		}
	}
	filled, err := w.usedMemory(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range remoteKeys {
		if err := plainSet(ctx, w.plain, rawKey(i)); err != nil {
			return 0, 0, err
		}
	}
	both, err := w.usedMemory(ctx)
	return (filled - empty) / remoteKeys, (both - filled) / remoteKeys, err
}

// usedMemory sums MEMORY USAGE over all keys.
func (w *worker) usedMemory(ctx context.Context) (float64, error) {
	var bytes float64
	for cursor := uint64(0); ; {
		keys, next, err := w.plain.Scan(ctx, cursor, "*", 1000).Result()
		if err != nil {
			return 0, err
		}
		usages := make([]*redis.IntCmd, len(keys))
		if _, err := w.plain.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, key := range keys {
				usages[i] = p.MemoryUsage(ctx, key)
			}
			return nil
		}); err != nil {
			return 0, err
		}
		for _, usage := range usages {
			bytes += float64(usage.Val())
		}
		if cursor = next; cursor == 0 {
			return bytes, nil
		}
	}
}

func rawKey(i int) string { return "raw:" + strconv.Itoa(i) }

// timed is a side whose every operation is timed.
func timed(l *rig.Latency, op func(i int) error) side {
	return side{run: func(from, n int) error {
		took := make([]time.Duration, n)
		for i := range n {
			start := time.Now()
			if err := op(from + i); err != nil {
				return err
			}
			took[i] = time.Since(start)
		}
		for _, d := range took {
			l.Record(d)
		}
		return nil
	}}
}
