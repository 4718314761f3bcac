package herdgate

import (
	"sync/atomic"
	"time"
)

const (
	// hitTick is how often the clock of the hits is set while it runs.
	hitTick = time.Millisecond
	// hitLead is how far it is set ahead. The second tick is for one that comes late.
	hitLead = 2 * hitTick
	// hitPace is the time between two samples of hits below which it pays to run it:
	// a tick costs as much as a hundred readings of the real clock.
	hitPace = 50 * time.Microsecond
)

// clock is the monotonic time since a gate was opened, and the same a little ahead for
// local hits: to read the real one takes longer than the rest of a hit.
//
// Hits read a time that is up to hitLead ahead, never behind, so that none is served a
// copy past its time: at worst it takes the long way, which reads the real clock, that
// much too early. Only where the goroutine that sets the time gets no CPU for longer
// than a tick it falls behind, until one of the next hits, on average one in sparseSampling,
// sets it in its place.
//
// It runs while hits are many. Otherwise they read the real clock, and nothing ticks.
type clock struct {
	start time.Time // with a monotonic part
	ahead atomic.Int64
	asked atomic.Bool  // there was a sample since the last tick
	last  atomic.Int64 // when the last sample was, while the clock stands
	begin chan struct{}
}

func newClock() *clock { return &clock{start: time.Now(), begin: make(chan struct{}, 1)} }

func (k *clock) now() time.Duration { return time.Since(k.start) }

// ceiling is now or a little later.
func (k *clock) ceiling() time.Duration {
	if t := k.ahead.Load(); t != 0 {
		return time.Duration(t)
	}
	return k.now()
}

// runs reports whether hits are many.
func (k *clock) runs() bool { return k.ahead.Load() != 0 }

// sampled is told of the samples among the hits.
func (k *clock) sampled() {
	now := k.now()
	t := k.ahead.Load()
	switch {
	case t != 0:
		if !k.asked.Load() { // most find it set: the line stays in every processor's cache
			k.asked.Store(true)
		}
		k.push(t, now)
	case now-time.Duration(k.last.Swap(int64(now))) < hitPace:
		// At once, and then by the goroutine: that may have to wait for a processor.
		k.ahead.CompareAndSwap(0, int64(now+hitLead))
		select {
		case k.begin <- struct{}{}:
		default:
		}
	}
}

// push sets a clock forward that was seen to run, to t. It does not if the clock was
// stopped since: nobody would set it again.
func (k *clock) push(t int64, now time.Duration) {
	if to := int64(now + hitLead); to-t >= int64(hitTick) {
		k.ahead.CompareAndSwap(t, to)
	}
}

// run sets the clock until stop is closed.
func (k *clock) run(stop <-chan struct{}) {
	tick := time.NewTicker(hitTick)
	defer tick.Stop()
	for {
		tick.Stop()
		select {
		case <-k.begin:
		case <-stop:
			return
		}
		tick.Reset(hitTick)
		for asked := true; asked; asked = k.asked.Swap(false) {
			k.ahead.Store(int64(k.now() + hitLead))
			select {
			case <-tick.C:
			case <-stop:
			}
		}
		k.ahead.Store(0)
	}
}
