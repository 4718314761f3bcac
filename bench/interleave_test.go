package main

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// A side is one of the things that are measured against each other.
type side struct {
	name string
	// run does n operations and numbers them from, from+1, …, to choose keys by: no
	// two operations of a side share a number. Called by several goroutines at once.
	run func(from, n int)
}

// A crowd is who runs the operations of a side.
type crowd struct {
	goroutines int
	each       int // operations of one goroutine in one round
}

func (c crowd) ops() int { return c.goroutines * c.each }

// A round is what one side took for its share of one round.
type round struct {
	took          time.Duration
	allocs, bytes uint64
}

// interleave measures the sides in turn, round by round, so that whatever disturbs
// the machine disturbs them alike: b.RunParallel would finish one before the next.
// It reports
//
//   - ns/op, ops/s, B/op and allocs/op of the first side;
//   - ns/op and allocs/op of each other side, as ns_name and allocs_name, and as
//     x_name how many times as long the first side took.
//
// All are medians over the rounds. One b.Loop is a round, not an operation.
func interleave(b *testing.B, c crowd, sides ...side) {
	b.Helper()
	rounds := make([][]round, len(sides))
	for n := 0; b.Loop(); n++ {
		for i := range sides {
			// Nobody always follows the same one: each finds caches and collector as
			// another has left them.
			i = (n + i) % len(sides)
			rounds[i] = append(rounds[i], c.run(sides[i], n*c.ops()))
		}
	}
	ops := float64(c.ops())
	nanos := func(r round) float64 { return float64(r.took) / ops }
	allocs := func(r round) float64 { return float64(r.allocs) / ops }
	size := func(r round) float64 { return float64(r.bytes) / ops }
	b.ReportAllocs()
	b.ReportMetric(median(rounds[0], nanos), "ns/op")
	b.ReportMetric(float64(time.Second)/median(rounds[0], nanos), "ops/s")
	b.ReportMetric(math.Floor(median(rounds[0], size)), "B/op")
	b.ReportMetric(math.Floor(median(rounds[0], allocs)), "allocs/op")
	for i, other := range sides[1:] {
		ratios := make([]float64, len(rounds[0]))
		for n, r := range rounds[0] {
			ratios[n] = float64(r.took) / float64(rounds[i+1][n].took)
		}
		b.ReportMetric(median(rounds[i+1], nanos), "ns_"+other.name)
		b.ReportMetric(math.Floor(median(rounds[i+1], allocs)), "allocs_"+other.name)
		b.ReportMetric(quantile(ratios, 0.5), "x_"+other.name)
	}
}

// run lets the crowd do one round of a side.
func (c crowd) run(s side, from int) round {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	var wg sync.WaitGroup
	for g := range c.goroutines {
		wg.Go(func() { s.run(from+g*c.each, c.each) })
	}
	wg.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return round{took: took, allocs: after.Mallocs - before.Mallocs, bytes: after.TotalAlloc - before.TotalAlloc}
}

// median is the middle of what of says of each round.
func median(rounds []round, of func(round) float64) float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return quantile(values, 0.5)
}

// quantile sorts values.
func quantile[N cmp.Ordered](values []N, q float64) N {
	slices.Sort(values)
	return values[int(q*float64(len(values)-1))]
}

// stopwatch keeps the latency of every operation.
type stopwatch struct {
	mu   sync.Mutex
	took []time.Duration // protected by mu
}

// time makes a side's run of one operation.
func (s *stopwatch) time(op func(i int)) func(from, n int) {
	return func(from, n int) {
		took := make([]time.Duration, n)
		for i := range n {
			start := time.Now()
			op(from + i)
			took[i] = time.Since(start)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.took = append(s.took, took...)
	}
}

// report adds p50 and p99 over all operations, in µs; prefix tells whose.
func (s *stopwatch) report(b *testing.B, prefix string) {
	b.Helper()
	for q, name := range map[float64]string{0.5: "p50-µs", 0.99: "p99-µs"} {
		b.ReportMetric(float64(quantile(s.took, q))/float64(time.Microsecond), prefix+name)
	}
}
