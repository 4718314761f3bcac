package herdgate

import (
	"strconv"
	"sync"
	"testing"
)

func TestHitsAreAllCounted(t *testing.T) {
	const goroutines, each = 100, 1_000
	c := newHitCounter()
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range each {
				c.add()
			}
		})
	}
	wg.Wait()
	if n := c.sum(); n != goroutines*each {
		t.Errorf("%d hits were counted, want %d", n, goroutines*each)
	}
}

func TestOneInSixteenHitsIsASampleHoweverRegularlyKeysAreAskedFor(t *testing.T) {
	for _, period := range []int{1, 2, 3, 7, 10, 16, 64, 100} {
		t.Run(strconv.Itoa(period), func(t *testing.T) {
			const each = 10_000
			c := newHitCounter()
			samples := make([]int, period) // of each key
			for i := range period * each {
				if c.add() {
					samples[i%period]++
				}
			}
			for key, n := range samples {
				if n < each/sampling*8/10 || n > each/sampling*12/10 {
					t.Errorf("of %d hits, %d of key %d were samples, want one in %d", each, n, key, sampling)
				}
			}
		})
	}
}

func TestGoroutinesCountInDifferentCells(t *testing.T) {
	const goroutines = minHitCells
	c := newHitCounter()
	var wg, added sync.WaitGroup
	added.Add(goroutines)
	for range goroutines {
		wg.Go(func() {
			c.add()
			added.Done()
			added.Wait() // so that none takes the stack of another
		})
	}
	wg.Wait()
	used := 0
	for i := range c.cells {
		if c.cells[i].n.Load() > 0 {
			used++
		}
	}
	if used < goroutines/3 {
		t.Errorf("%d goroutines used %d of %d cells", goroutines, used, len(c.cells))
	}
}
