package herdgate

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ticking runs a test on a clock whose hits are many.
func ticking(t *testing.T, test func(k *clock)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := newClock()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { k.run(stop) })
		defer wg.Wait()
		defer close(stop)
		time.Sleep(time.Hour)
		k.sampled()
		k.sampled()
		synctest.Wait()
		if k.ahead.Load() == 0 {
			t.Fatal("the clock stands after two samples at the same time")
		}
		test(k)
	})
}

func TestTheClockOfHitsIsNeverBehindAndLittleAhead(t *testing.T) {
	ticking(t, func(k *clock) {
		for range 10_000 {
			if rand.IntN(4) == 0 {
				k.sampled()
			}
			if lead := k.ceiling() - k.now(); lead < 0 || lead > hitLead {
				t.Fatalf("after %v a hit reads a time that is %v ahead", k.now(), lead)
			}
			time.Sleep(rand.N(hitTick))
		}
	})
}

func TestTheClockOfHitsStandsWhenTheyGetFew(t *testing.T) {
	ticking(t, func(k *clock) {
		time.Sleep(3 * hitTick)
		for range 100 {
			k.sampled()
			synctest.Wait()
			if k.ahead.Load() != 0 {
				t.Fatal("the clock runs for a sample in a second")
			}
			if k.ceiling() != k.now() {
				t.Fatalf("a hit reads %v at %v", k.ceiling(), k.now())
			}
			time.Sleep(time.Second)
		}
	})
}

// On a busy machine the goroutine that keeps the clock may not run for a long time.
func TestManyHitsReadTheirClockBeforeItsGoroutineRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newClock()
		time.Sleep(time.Hour)
		k.sampled()
		k.sampled()
		if lead := k.ceiling() - k.now(); lead != hitLead {
			t.Errorf("a hit reads a time that is %v ahead, want %v", lead, hitLead)
		}
		select {
		case <-k.begin:
		default:
			t.Error("nobody is told to keep the clock")
		}
	})
}

// Nobody ticks here: the goroutine that should gets no CPU.
func TestHitsSetTheirClockWhereItsTicksAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newClock()
		k.ahead.Store(1)
		for range 100 {
			time.Sleep(time.Second)
			k.sampled()
			if lead := k.ceiling() - k.now(); lead < 0 || lead > hitLead {
				t.Fatalf("after a sample a hit reads a time that is %v ahead", lead)
			}
		}
	})
}

// Nobody would set the clock again.
func TestASampleDoesNotStartAClockThatWasStopped(t *testing.T) {
	k := newClock()
	const seen = 1
	k.ahead.Store(0) // between the sample's look at it and what comes of that
	k.push(seen, time.Hour)
	if at := k.ahead.Load(); at != 0 {
		t.Errorf("the clock was set to %v", time.Duration(at))
	}
}
