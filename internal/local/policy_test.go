//go:build !race

// Under the race detector sync.Pool drops what it is given at random, and with it
// nearly all that ristretto collects of its Gets.

package local

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

func TestOftenLoadedKeysOutliveAStreamOfOthers(t *testing.T) {
	const hot, stream = 100, 50_000
	tier := newTier(t, 512<<10) // room for about a thousand entries
	m := NewMap[int](tier)
	for i := range hot {
		m.Store("hot"+strconv.Itoa(i), new(i), 100)
	}
	for i := range stream {
		m.Store(strconv.Itoa(i), new(i), 100)
		for j := range 10 {
			if key := "hot" + strconv.Itoa((i*10+j)%hot); ask(m, key) == nil {
				m.Store(key, new(i), 100)
			}
		}
	}
	settle(t, tier, m)
	left := 0
	for i := range hot {
		if m.Load("hot"+strconv.Itoa(i)) != nil {
			left++
		}
	}
	if left < hot*9/10 {
		t.Errorf("%d of %d hot keys are left", left, hot)
	}
	if s := tier.Stats(); s.Rejected == 0 {
		t.Errorf("%+v: none of the stream was rejected", s)
	}
}

// A load that tells a policy of a key while it closes sends on a closed channel.
func TestLoadsMayRunWhileTheTierCloses(t *testing.T) {
	for range 30 {
		tier := newTier(t, mib)
		var stop atomic.Bool
		var loads atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := uint64(0); !stop.Load(); i++ {
					tier.touch(i)
					loads.Add(1)
				}
			})
		}
		for loads.Load() < 1_000 {
			tier.touch(0)
		}
		tier.Close()
		stop.Store(true)
		wg.Wait()
	}
}
