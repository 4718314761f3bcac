package scenario

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// fleet: how the cost of one hot key grows with the number of instances.
func fleet() Scenario {
	return Scenario{
		Name:  "fleet",
		About: "N instances, in virtual time, over one modelled Redis; first all ask at once for one cold key, loader 200 ms; then each reads it 10 times a second while it expires every 5 s, ten times (four in fleets above 1 000), stale for up to 30 s by peers that can",
		Variants: func(o Options) []string {
			var names []string
			for _, n := range []int{8, 32, 128, 512, 1000, 2000, 5000, 10_000} {
				if n <= max(8, o.Instances) {
					names = append(names, "n"+strconv.Itoa(n))
				}
			}
			return names
		},
		Unfit: virtual,
		Limit: 30 * time.Minute, // 10 000 instances take six on an idle core; up to 1 000 take less than one in all
		Run: func(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
			n, err := strconv.Atoi(strings.TrimPrefix(variant, "n"))
			if err != nil {
				return result.Measured{}, err
			}
			args := fleetArgs{Peer: k.Name, Memory: k.Tiers.Memory, Instances: n, TTLs: pick(e.Options, 10, 2)}
			if n > 1000 {
				args.TTLs = 4 // a simulated second takes seconds
			}
			figures, err := rig.Simulate[result.Figures](ctx, "fleet", args)
			return result.Measured{Figures: figures}, err
		},
		Compare: func(variants map[string]result.Figures) {
			least := variants["n8"]
			if least == nil {
				return
			}
			each := func(f result.Figures) float64 { return f["calls_per_expiry"] / f["instances"] }
			for _, figures := range variants {
				figures["x_n8"] = each(figures) / each(least)
			}
		},
	}
}

type fleetArgs struct {
	Peer      string
	Memory    bool
	Instances int
	TTLs      int
}

func simulateFleet(t *testing.T, a fleetArgs) result.Figures {
	t.Helper()
	const (
		ttl     = 5 * time.Second
		loading = 200 * time.Millisecond
	)
	kinds, err := peer.Choose(a.Peer)
	if err != nil {
		t.Fatal(err)
	}
	f := openFleet(t, kinds[0], a.Instances, rig.NewLink(true), loading, peer.Setup{
		TTL: ttl, Stale: 30 * time.Second, Memory: a.Memory, Keys: 1, Spread: true,
		MemoryBytes: 1 << 20, // there is one key, and 10 000 instances have to fit into this process
	})
	figures := result.Figures{"instances": float64(a.Instances)}
	f.link.Record()
	f.cold(t, figures)
	f.read(t, ttl, 1) // until the first expiry: all instances are alike after it
	f.steady(t, figures, ttl, a.TTLs)
	figures["burst_calls"] = float64(f.link.Burst(100 * time.Millisecond))
	figures["burst_per_instance"] = figures["burst_calls"] / figures["instances"]
	return figures
}

const hotKey = "hot"

// cold lets all instances ask at once for a key that is nowhere.
func (f *virtualFleet) cold(t *testing.T, figures result.Figures) {
	t.Helper()
	before, _ := f.link.Traffic()
	start := time.Now()
	delays := rig.NewLatency()
	var calling sync.WaitGroup
	for _, p := range f.peers {
		calling.Go(func() {
			if _, err := p.Get(t.Context(), hotKey); err != nil {
				t.Errorf("a cold Get: %v", err)
			}
			delays.Record(time.Since(start) - f.loading)
		})
	}
	calling.Wait()
	after, _ := f.link.Traffic()
	figures["loads"] = float64(len(f.loadsBegun()))
	figures["calls"] = float64(after.Sub(before).Calls)
	figures["p50_ms"] = millis(delays.Quantile(0.5))
	figures["p99_ms"] = millis(delays.Quantile(0.99))
	figures["max_ms"] = millis(delays.Max())
}

// steady reads for some TTLs and measures what they cost.
func (f *virtualFleet) steady(t *testing.T, figures result.Figures, ttl time.Duration, ttls int) {
	t.Helper()
	from := len(f.loadsBegun())
	before, messagesBefore := f.link.Traffic()
	f.read(t, ttl, ttls)
	after, messages := f.link.Traffic()
	sent := after.Sub(before)
	seconds := (ttl * time.Duration(ttls)).Seconds()
	figures["loads_per_expiry"] = loadsPerTTL(f.loadsBegun()[from:], ttl, ttls)
	figures["calls_per_expiry"] = float64(sent.Calls) / float64(ttls)
	figures["commands_s"] = float64(sent.Calls+sent.Heartbeats) / seconds
	figures["messages_s"] = float64(messages-messagesBefore) / seconds
}

// loadsPerTTL counts from one expiry to another, so that it does not matter where in
// an interval the count begins and ends. Loads with less than a quarter of a TTL
// between them belong to one expiry; if that tells no two apart, it divides by ttls.
func loadsPerTTL(loads []time.Time, ttl time.Duration, ttls int) float64 {
	var firsts []int
	for i, at := range loads {
		if i == 0 || at.Sub(loads[i-1]) > ttl/4 {
			firsts = append(firsts, i)
		}
	}
	if len(firsts) < 2 {
		return float64(len(loads)) / float64(ttls)
	}
	first, last := firsts[0], firsts[len(firsts)-1]
	return float64(last-first) / (float64(loads[last].Sub(loads[first])) / float64(ttl))
}

// read lets every instance read for some TTLs, each at a pace of its own.
func (f *virtualFleet) read(t *testing.T, ttl time.Duration, ttls int) {
	t.Helper()
	const interval = 100 * time.Millisecond
	end := time.Now().Add(ttl * time.Duration(ttls))
	var reading sync.WaitGroup
	for _, p := range f.peers {
		reading.Go(func() {
			time.Sleep(rand.N(interval))
			for time.Now().Before(end) {
				if _, err := p.Get(t.Context(), hotKey); err != nil {
					t.Errorf("a Get: %v", err)
				}
				time.Sleep(interval)
			}
		})
	}
	reading.Wait()
}
