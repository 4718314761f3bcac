package lock_test

import (
	"testing"
	"time"

	"github.com/herdgate/herdgate/lock"
)

func TestEventsSayHowLongALockWasWaitedForAndHeld(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		w.occupy(5 * time.Second)
		lease, err := w.engine.Lock(w.Context(), "job")
		w.must(err)
		waited := time.Since(w.began)
		time.Sleep(4 * time.Second)
		w.must(lease.Unlock(w.Context()))

		w.happened(lock.Contended, lock.Acquired, lock.Renewed, lock.Released)
		for i, want := range []lock.Event{
			{Waited: 0},
			{Waited: waited},
			{Held: ttl / 3},
			{Held: 4 * time.Second},
		} {
			if e := w.events[i]; e.Name != "job" || e.Waited != want.Waited || e.Held != want.Held {
				w.Errorf("%v: %+v, want job, waited for %v and held for %v", e.Kind, e, want.Waited, want.Held)
			}
		}
	})
}
