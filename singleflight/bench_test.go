package singleflight_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	xsf "golang.org/x/sync/singleflight"
)

// The whole life of a flight: started, waited for, finished.
func BenchmarkFlightAlone(b *testing.B) {
	b.Run("herdgate", func(b *testing.B) {
		var g group
		ctx := b.Context()
		fn := func(*flight) (int, error) { return 1, nil }
		b.ReportAllocs()
		for b.Loop() {
			_, _, _ = g.Do(ctx, "key", fn)
		}
	})
	b.Run("x-sync-DoChan", func(b *testing.B) {
		var g xsf.Group
		fn := func() (any, error) { return 1, nil }
		b.ReportAllocs()
		for b.Loop() {
			<-g.DoChan("key", fn)
		}
	})
}

// One more caller of a flight that runs. The channel that DoChan returns stays
// with its flight, so the flight is renewed before the list of them dominates.
func BenchmarkJoin(b *testing.B) {
	const perFlight = 1_000
	b.Run("herdgate", func(b *testing.B) {
		var g group
		ctx := b.Context()
		release := make(chan struct{})
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if i%perFlight == 0 {
				close(release)
				_ = g.Wait(ctx)
				release = make(chan struct{})
			}
			g.Join(ctx, "key", hold(release, 1))
		}
		close(release)
	})
	b.Run("x-sync-DoChan", func(b *testing.B) {
		var g xsf.Group
		release := make(chan struct{})
		var first <-chan xsf.Result
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if i%perFlight == 0 {
				close(release)
				if first != nil {
					<-first
				}
				release = make(chan struct{})
			}
			held := release
			ch := g.DoChan("key", func() (any, error) { <-held; return 1, nil })
			if i%perFlight == 0 {
				first = ch
			}
		}
		close(release)
	})
}

// All Ps start and finish flights of their own keys through one group: what its
// one mutex costs.
func BenchmarkFlightsInParallel(b *testing.B) {
	var worker atomic.Int64
	b.Run("herdgate", func(b *testing.B) {
		var g group
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			key := strconv.FormatInt(worker.Add(1), 10)
			fn := func(*flight) (int, error) { return 1, nil }
			for pb.Next() {
				_, _, _ = g.Do(b.Context(), key, fn)
			}
		})
	})
	b.Run("x-sync-DoChan", func(b *testing.B) {
		var g xsf.Group
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			key := strconv.FormatInt(worker.Add(1), 10)
			fn := func() (any, error) { return 1, nil }
			for pb.Next() {
				<-g.DoChan(key, fn)
			}
		})
	})
}
