package scenario

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
)

func TestThePeakIsTheMostWithinAnyWindow(t *testing.T) {
	start := time.Now()
	var moments []time.Time
	for _, ms := range []int{0, 10, 95, 105, 150, 194, 300} {
		moments = append(moments, start.Add(time.Duration(ms)*time.Millisecond))
	}
	if got := peak(moments, 100*time.Millisecond); got != 4 { // 95 to 194
		t.Errorf("the peak is %d, want 4", got)
	}
	if got := peak(nil, time.Second); got != 0 {
		t.Errorf("the peak of nothing is %d", got)
	}
}

func TestAProductHasTheSizeThatIsPromised(t *testing.T) {
	data, err := msgpack.Marshal(peer.NewProduct(42, 1, time.Unix(1_800_000_000, 0)))
	if err != nil || len(data) != peer.PayloadSize {
		t.Errorf("a product takes %d bytes (%v), want %d", len(data), err, peer.PayloadSize)
	}
}

func TestEveryPeerRunsWhereItsTiersAllow(t *testing.T) {
	runs := map[string]int{}
	for _, s := range All() {
		for _, variant := range s.Variants(Options{Instances: 8}) {
			for _, k := range peer.Kinds() {
				if s.Unfit(k.Tiers, variant) == "" {
					runs[k.Name]++
				}
			}
		}
	}
	for _, k := range peer.Kinds() {
		if runs[k.Name] == 0 {
			t.Errorf("%s runs nowhere", k.Name)
		}
	}
	if runs["herdgate"] <= runs["otter"] {
		t.Errorf("herdgate runs %d variants, otter %d", runs["herdgate"], runs["otter"])
	}
}

func TestFiguresOfSeveralVariantsAreComparedOfOnePeer(t *testing.T) {
	all := map[string]Scenario{}
	for _, s := range All() {
		all[s.Name] = s
	}
	fleet := map[string]result.Figures{
		"n8": {"instances": 8, "calls_per_expiry": 80}, "n32": {"instances": 32, "calls_per_expiry": 640},
	}
	all["fleet"].Compare(fleet)
	if fleet["n32"]["x_n8"] != 2 || fleet["n8"]["x_n8"] != 1 {
		t.Errorf("10 and 20 commands for each instance are compared as %v", fleet)
	}
}

func TestTheMedianRatioIsTakenRoundByRound(t *testing.T) {
	ours := []round{{took: 10}, {took: 100}, {took: 12}}
	theirs := []round{{took: 20}, {took: 200}, {took: 6}}
	if got := ratio(ours, theirs); got != 0.5 {
		t.Errorf("the ratio is %v, want 0.5", got)
	}
}

func TestASideAloneIsRunByOneOfTheGang(t *testing.T) {
	var ran atomic.Int64
	s := side{run: func(_, n int) error { ran.Add(int64(n)); return nil }}
	g := gang{Goroutines: 3, Each: 10}
	for alone, want := range map[bool]int64{false: 30, true: 10} {
		s.alone = alone
		ran.Store(0)
		if _, err := g.run(s, 0); err != nil || ran.Load() != want {
			t.Errorf("alone %v: %d operations, %v, want %d", alone, ran.Load(), err, want)
		}
	}
}

func TestLoadsAreCountedFromOneExpiryToAnother(t *testing.T) {
	start := time.Now()
	at := func(seconds ...float64) []time.Time {
		var all []time.Time
		for _, s := range seconds {
			all = append(all, start.Add(time.Duration(s*float64(time.Second))))
		}
		return all
	}
	for _, test := range []struct {
		loads []time.Time
		want  float64
	}{
		{at(1, 6, 11, 16), 1},
		{at(1, 1, 1, 6, 6.1, 6.2, 11, 11, 11), 3},
		{at(1, 2, 3, 4), 1}, // all the time: four loads in four TTLs
		{nil, 0},
	} {
		if got := loadsPerTTL(test.loads, 5*time.Second, 4); got != test.want {
			t.Errorf("%d loads are %v a TTL, want %v", len(test.loads), got, test.want)
		}
	}
}
