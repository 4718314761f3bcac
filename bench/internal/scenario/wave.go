package scenario

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// wave: many keys that were written together expire together. In real time the peak
// would be what the machine can load in 100 ms; in virtual time it is what the policy
// lets coincide.
func wave() Scenario {
	return Scenario{
		Name:     "wave",
		About:    "10 000 keys are written together, TTL 10 s, and from 8.5 s on each is read 10 times a second; loader 20 ms, MaxLoads off, without and with jitter and early refresh; in virtual time, on a Redis that takes no time",
		Variants: fixed("plain", "shielded"),
		Unfit:    virtual,
		Limit:    3 * time.Minute, // a peer that runs a script for each read takes one
		Run: func(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
			args := waveArgs{Peer: k.Name, Memory: k.Tiers.Memory, Keys: pick(e.Options, 10_000, 200), Shielded: variant == "shielded"}
			figures, err := rig.Simulate[result.Figures](ctx, "wave", args)
			return result.Measured{Figures: figures}, err
		},
		Compare: func(variants map[string]result.Figures) {
			plain, shielded := variants["plain"], variants["shielded"]
			if plain != nil && shielded != nil {
				shielded["x_plain"] = shielded["peak_loads"] / plain["peak_loads"]
			}
		},
	}
}

type waveArgs struct {
	Peer     string
	Memory   bool
	Keys     int
	Shielded bool
}

func simulateWave(t *testing.T, a waveArgs) result.Figures {
	t.Helper()
	const (
		ttl      = 10 * time.Second
		interval = 100 * time.Millisecond
		loading  = 20 * time.Millisecond
		quiet    = 8 * time.Second        // nothing can expire in it
		until    = ttl*11/10 + 2*interval // the end of the first wave, with jitter
	)
	kinds, err := peer.Choose(a.Peer)
	if err != nil {
		t.Fatal(err)
	}
	f := openFleet(t, kinds[0], 1, rig.NewLink(false), loading, peer.Setup{
		TTL: ttl, Memory: a.Memory, Keys: a.Keys, Spread: a.Shielded, MaxLoadsOff: true,
	})
	p, ctx := f.peers[0], t.Context()
	var writing sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i := range a.Keys {
		writing.Go(func() {
			if err := p.Set(ctx, strconv.Itoa(i), peer.NewProduct(0, 1, time.Now())); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	writing.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	written := time.Now()
	time.Sleep(quiet)
	end := written.Add(until)
	var reading sync.WaitGroup
	for i := range a.Keys {
		key := strconv.Itoa(i)
		reading.Go(func() {
			time.Sleep(rand.N(interval))
			for time.Now().Before(end) {
				if _, err := p.Get(ctx, key); err != nil {
					t.Errorf("Get(%q): %v", key, err)
				}
				time.Sleep(interval)
			}
		})
	}
	reading.Wait()
	loads := f.loadsBegun()
	return result.Figures{"loads": float64(len(loads)), "peak_loads": float64(peak(loads, interval))}
}
