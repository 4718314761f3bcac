package herdgate

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/local"
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

func TestSamplesAreAsManyOfHitsAsOfMissesAndOfEachKeyHoweverRegularlyTheyAreAskedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		clock time.Duration // 0: it stands, as hits are few
		bytes int64         // in a tier of 1 MiB
		share int
	}{
		"few hits":                    {0, 0, sampling},
		"few hits of a full tier":     {0, 1<<20 - 1_000, sampling},
		"many hits":                   {1, 0, sparseSampling},
		"many hits of a crowded tier": {1, 1<<20 - 1_000, sampling},
	} {
		tier, err := local.New(local.Limits{Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tier.Close)
		c := &Cache[int]{gate: &Gate{clock: newClock()}, copies: local.NewMap[copied[int]](tier)}
		c.gate.clock.ahead.Store(int64(tt.clock))
		c.copies.Store("large", &copied[int]{}, tt.bytes)
		for _, period := range []int{1, 2, 3, 10, 16, 100} {
			const want = 250
			each := want * tt.share
			hits := newHitCounter()
			samples, misses := make([]int, period), 0
			for i := range period * each {
				if c.sample(hits.add()) {
					samples[i%period]++
				}
				if c.sample(rand.Uint64()) {
					misses++
				}
			}
			for key, n := range samples {
				if n < want*8/10 || n > want*12/10 {
					t.Errorf("%s: of %d hits, %d of key %d of %d were samples, want one in %d", name, each, n, key, period, tt.share)
				}
			}
			if n := misses / period; n < want/2 || n > want*3/2 {
				t.Errorf("%s: of %d misses, %d were samples, want one in %d", name, period*each, misses, tt.share)
			}
		}
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
