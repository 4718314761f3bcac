package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

func TestWhoCarriesALeaseEntersItsLockAndTheLastUnlockFrees(t *testing.T) {
	for name, order := range map[string][]int{"inner first": {1, 2, 0}, "outer first": {0, 2, 1}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
				outer := w.hold()
				ctx := lock.WithLease(w.Context(), outer)
				inner, err := w.engine.Lock(ctx, "job")
				w.must(err)
				innermost, err := w.engine.TryLock(lock.WithLease(ctx, inner), "job")
				w.must(err)
				if inner.Token() != outer.Token() || innermost.Token() != outer.Token() {
					w.Errorf("the tokens are %d, %d and %d, want one", outer.Token(), inner.Token(), innermost.Token())
				}
				leases := []*lock.Lease{outer, inner, innermost}
				for i, n := range order {
					work := leases[n].Context(w.Context())
					w.must(leases[n].Unlock(w.Context()))
					w.must(leases[n].Unlock(w.Context())) // again, which must not count twice
					<-leases[n].Done()
					w.wants(leases[n].Err(), lock.ErrReleased)
					w.wants(context.Cause(work), lock.ErrReleased)
					for _, rest := range order[i+1:] {
						w.must(leases[rest].Err())
						w.isHeld()
					}
				}
				w.isFree()
				w.happened(lock.Acquired, lock.Released)
			})
		})
	}
}

func TestALossEndsAllLeasesOfTheHold(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		w.faults.OnRenew(down)
		outer := w.hold()
		ctx := lock.WithLease(w.Context(), outer)
		inner, err := w.engine.Lock(ctx, "job")
		w.must(err)
		<-inner.Done()
		<-outer.Done()
		w.at(ttl - drift)
		w.wants(inner.Err(), lock.ErrLost, errDown)
		w.wants(outer.Err(), lock.ErrLost, errDown)
		_, err = w.engine.Lock(ctx, "job")
		w.wants(err, lock.ErrLost) // its caller's work is not protected any more
		w.must(inner.Unlock(w.Context()))
		w.must(outer.Unlock(w.Context()))
	})
}

func TestALeaseIsNotEnteredAfterItsUnlock(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		outer := w.hold()
		ctx := lock.WithLease(w.Context(), outer)
		w.must(outer.Unlock(w.Context()))
		next, err := w.engine.Lock(ctx, "job")
		w.must(err)
		if next.Token() == outer.Token() {
			w.Error("the lease that was unlocked was entered")
		}
		w.must(next.Unlock(w.Context()))
	})
}

func TestALeaseIsEnteredOnlyByItsNameAndEngine(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		outer := w.hold()
		ctx := lock.WithLease(w.Context(), outer)
		other, err := w.engine.TryLock(ctx, "another")
		w.must(err)
		engine, err := lock.New(w.faults, lock.Options{})
		w.must(err)
		_, err = engine.TryLock(lock.WithLease(ctx, other), "job")
		w.wants(err, lock.ErrNotAcquired)
		again, err := w.engine.TryLock(lock.WithLease(ctx, other), "job") // though it is not the latest
		w.must(err)
		w.must(again.Unlock(w.Context()))
		w.must(other.Unlock(w.Context()))
		w.must(outer.Unlock(w.Context()))
	})
}

func TestAStopEndsAllLeasesButNotThroughOneThatHasLeft(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		outer := w.hold()
		ctx := lock.WithLease(w.Context(), outer)
		left, err := w.engine.TryLock(ctx, "job")
		w.must(err)
		inner, err := w.engine.TryLock(ctx, "job")
		w.must(err)
		w.must(left.Unlock(w.Context()))
		w.must(left.Stop())
		w.must(outer.Err())
		w.must(inner.Stop())
		w.wants(outer.Err(), lock.ErrReleased)
		w.must(outer.Unlock(w.Context()))
	})
}

func TestASharedLeaseIsNotEnteredExclusively(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		reader, err := w.engine.RLock(w.Context(), "job")
		w.must(err)
		ctx := lock.WithLease(w.Context(), reader)
		again, err := w.engine.RLock(ctx, "job")
		w.must(err)
		_, err = w.engine.Lock(ctx, "job") // would wait for itself
		if err == nil || !strings.Contains(err.Error(), "shared") {
			w.Errorf("got error %v, want one that says that the lease is shared", err)
		}
		w.must(again.Unlock(w.Context()))
		w.must(reader.Unlock(w.Context()))

		writer := w.hold()
		again, err = w.engine.RLock(lock.WithLease(w.Context(), writer), "job")
		w.must(err)
		w.must(writer.Unlock(w.Context()))
		w.isHeld()
		w.must(again.Unlock(w.Context()))
		w.isFree()
	})
}

func TestAllLocksInOneOrderWhateverTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, err := lock.New(memlock.New(), lock.Options{MaxWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			ended := make(chan error, 2)
			for _, names := range [][]string{{"a", "b", "c"}, {"c", "b", "a", "c"}} {
				go func() {
					all, err := lock.All(t.Context(), engine, names...)
					if err == nil && len(all) != 3 {
						err = errors.New("not three leases")
					}
					ended <- errors.Join(err, all.Err(), all.Unlock(t.Context()))
				}()
			}
			for range 2 {
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestAllOrNone(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl, MaxWait: time.Minute}, func(w *world) {
		w.occupy(time.Hour)
		all, err := lock.All(w.Context(), w.engine, "zebra", "job", "ant")
		w.wants(err, lock.ErrNotAcquired)
		if all != nil {
			w.Errorf("got leases %v with the error", all)
		}
		w.at(time.Minute)
		all, err = lock.All(w.Context(), w.engine, "zebra", "ant")
		w.must(err) // they were given back
		ctx := all.Context(w.Context())
		w.faults.OnRenew(down)
		<-ctx.Done()
		w.wants(context.Cause(ctx), lock.ErrLost)
		w.wants(all.Err(), lock.ErrLost)
		w.must(all.Unlock(w.Context()))
		none, err := lock.All(w.Context(), w.engine)
		w.must(errors.Join(err, none.Err(), none.Unlock(w.Context())))
	})
}
