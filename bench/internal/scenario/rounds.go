package scenario

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A side is one of the things that are measured against each other in one process.
type side struct {
	// run does n operations and numbers them from, from+1, …, to choose keys by: no
	// two operations of a side share a number. Called by several goroutines at once.
	run func(from, n int) error

	alone bool // one goroutine runs it, of however many the gang has
}

// A gang is who runs the operations of a side.
type gang struct {
	Goroutines int
	Each       int // operations of one goroutine in one round
}

func (g gang) ops() int { return g.Goroutines * g.Each }

// atMost is Each, or as many operations of a side as a round may have that takes so long.
func (g gang) atMost(s side, d time.Duration) (int, error) {
	few := gang{Goroutines: g.Goroutines, Each: max(1, g.Each/100)}
	r, err := few.run(s, 0)
	if err != nil {
		return 0, err
	}
	return min(g.Each, int(float64(few.Each)*float64(d)/float64(r.took))), nil
}

// A round is what one side took for its share of one round.
type round struct {
	took          time.Duration
	allocs, bytes uint64
}

// interleave measures the sides in turn, round by round, for a time: whatever
// disturbs the machine disturbs them alike. The first rounds warm up.
func interleave(ctx context.Context, g gang, d time.Duration, sides ...side) ([][]round, error) {
	const warmUp = 2
	rounds := make([][]round, len(sides))
	end := time.Now().Add(d)
	for n := 0; n <= warmUp || time.Now().Before(end); n++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i := range sides {
			// Nobody always follows the same one: each finds caches and collector as
			// another has left them.
			i = (n + i) % len(sides)
			r, err := g.run(sides[i], n*g.ops())
			if err != nil {
				return nil, err
			}
			if n >= warmUp {
				rounds[i] = append(rounds[i], r)
			}
		}
	}
	return rounds, nil
}

// run lets the gang do one round of a side.
func (g gang) run(s side, from int) (round, error) {
	var before, after runtime.MemStats
	if s.alone {
		g.Goroutines = 1
	}
	errs := make([]error, g.Goroutines)
	runtime.ReadMemStats(&before)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range g.Goroutines {
		wg.Go(func() { errs[i] = s.run(from+i*g.Each, g.Each) })
	}
	wg.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	for _, err := range errs {
		if err != nil {
			return round{}, err
		}
	}
	return round{took: took, allocs: after.Mallocs - before.Mallocs, bytes: after.TotalAlloc - before.TotalAlloc}, nil
}

// perOp is the median over the rounds of what of says of each, by the operations.
func (g gang) perOp(rounds []round, of func(round) float64) float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r) / float64(g.ops())
	}
	return median(values)
}

func nanos(r round) float64  { return float64(r.took) }
func allocs(r round) float64 { return float64(r.allocs) }
func heap(r round) float64   { return float64(r.bytes) }

// ratio is how many times as long a took as b: the median over the rounds.
func ratio(a, b []round) float64 {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = float64(a[i].took) / float64(b[i].took)
	}
	return median(values)
}

// median sorts values; it is NaN of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
