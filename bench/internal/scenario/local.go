package scenario

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// local: values that are in the process, with the whole public Get of a peer, beside
// raw ristretto and the floor in the same process, round by round.
func local() Scenario {
	return Scenario{
		Name:     "local",
		About:    "10 000 keys in the process; Zipf 1.1 and one hot key; 1 and 2 Ps, a goroutine each",
		Variants: fixed("hot-1p", "hot-2p", "zipf-1p", "zipf-2p"),
		Unfit: func(t peer.Tiers, _ string) string {
			if !t.Memory {
				return "it keeps nothing in the process"
			}
			return ""
		},
		Limit: time.Minute,
		Run:   runLocal,
	}
}

type localArgs struct {
	Keys int
	Zipf bool
	Ps   int
	Each int // most Gets of one goroutine in one round: so many that to start it takes no share of that
	For  time.Duration
}

func runLocal(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	args := localArgs{
		Keys: pick(e.Options, 10_000, 200), Each: pick(e.Options, 400_000, 20_000),
		For: pick(e.Options, 5*time.Second, 50*time.Millisecond), Ps: 1,
	}
	keys, ps, _ := strings.Cut(variant, "-")
	args.Zipf = keys == "zipf"
	if ps == "2p" {
		args.Ps = 2
	}
	s, err := startService(ctx, e, k, 1, workerSetup{TTL: time.Hour, Memory: true, Keys: args.Keys, Calm: true})
	if err != nil {
		return result.Measured{}, err
	}
	figures, err := rig.Call[result.Figures](ctx, s.workers[0], "local", args)
	return result.Measured{Figures: figures}, joinClose(err, s)
}

// local measures in the worker.
func (w *worker) local(ctx context.Context, a localArgs) (result.Figures, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(a.Ps))
	setup := w.peerSetup()
	ristretto, err := openRaw(ctx, setup, "ristretto")
	if err != nil {
		return nil, err
	}
	floor, err := peer.OpenFloor(ctx, setup)
	if err != nil {
		return nil, err
	}
	figures := result.Figures{}
	subject, err := w.subject(ctx)
	if err != nil {
		return nil, err
	}
	if figures["entry_b"], err = fill(ctx, subject, a.Keys); err != nil {
		return nil, err
	}
	if figures["ristretto_entry_b"], err = fill(ctx, ristretto, a.Keys); err != nil {
		return nil, err
	}
	if _, err = fill(ctx, floor, a.Keys); err != nil {
		return nil, err
	}

	sequence := asked(a)
	g := gang{Goroutines: a.Ps, Each: a.Each}
	sides := []side{getAll(ctx, subject, sequence), getAll(ctx, ristretto, sequence), getAll(ctx, floor, sequence)}
	if a.Ps > 1 {
		alone := getAll(ctx, subject, sequence)
		alone.alone = true
		sides = append(sides, alone)
	}
	if g.Each, err = g.atMost(sides[0], a.For/25); err != nil {
		return nil, err
	}
	rounds, err := interleave(ctx, g, a.For, sides...)
	if err != nil {
		return nil, err
	}
	if a.Ps > 1 {
		figures["speedup"] = float64(a.Ps) * ratio(rounds[3], rounds[0])
	}
	figures["ns_op"] = g.perOp(rounds[0], nanos)
	// A few allocations of the runtime's own in a round are nobody's.
	figures["allocs_op"] = math.Floor(g.perOp(rounds[0], allocs) + 0.01)
	figures["b_op"] = math.Floor(g.perOp(rounds[0], heap) + 0.01)
	figures["x_ristretto"] = ratio(rounds[0], rounds[1])
	figures["x_floor"] = ratio(rounds[0], rounds[2])
	return figures, nil
}

// subject is the peer to be measured. What is measured are hits: one that may load
// would hide that a key was lost.
func (w *worker) subject(ctx context.Context) (peer.Peer, error) {
	kinds, err := peer.Choose(w.setup.Peer)
	if err != nil {
		return nil, err
	}
	setup := w.peerSetup()
	setup.Prefix += "-local"
	setup.Load = func(_ context.Context, key string) (*peer.Product, error) {
		return nil, fmt.Errorf("key %q was not in memory", key)
	}
	return kinds[0].Open(ctx, setup)
}

func openRaw(ctx context.Context, s peer.Setup, name string) (peer.Peer, error) {
	kinds, err := peer.Choose(name)
	if err != nil {
		return nil, err
	}
	return kinds[0].Open(ctx, s)
}

// fill stores all keys and returns the heap that each takes.
func fill(ctx context.Context, p peer.Peer, keys int) (float64, error) {
	before := liveHeap()
	for i := range uint64(keys) {
		if err := p.Set(ctx, localKey(i), peer.NewProduct(int64(i), 1, time.Now())); err != nil {
			return 0, fmt.Errorf("fill: %w", err)
		}
		// A peer that stores without keeping a copy keeps what it has read.
		if _, err := p.Get(ctx, localKey(i)); err != nil {
			return 0, fmt.Errorf("fill: %w", err)
		}
	}
	return max(0, liveHeap()-before) / float64(keys), nil
}

func liveHeap() float64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held on to
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func localKey(i uint64) string { return "product:" + strconv.FormatUint(i, 10) }

// asked are the keys in the order they are asked for, none of them the string that
// was stored: a service makes its keys anew, too.
func asked(a localArgs) []string {
	const length = 1 << 16
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(a.Keys)-1)
	keys := make([]string, length)
	for i := range keys {
		k := uint64(1)
		if a.Zipf {
			k = zipf.Uint64()
		}
		keys[i] = localKey(k)
	}
	return keys
}

func getAll(ctx context.Context, p peer.Peer, keys []string) side {
	return side{run: func(from, n int) error {
		for i := range n {
			if v, err := p.Get(ctx, keys[(from+i)%len(keys)]); err != nil || v == nil {
				return fmt.Errorf("a key was lost: %w", err)
			}
		}
		return nil
	}}
}
