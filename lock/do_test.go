package lock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/herdgate/herdgate/lock"
)

var errWork = errors.New("work failed")

// refuses is isHeld with a ctx that may carry the lease.
func (w *world) refuses(ctx context.Context) {
	w.Helper()
	_, err := w.store.Acquire(ctx, lock.Request{Name: "job", Owner: "somebody else", TTL: time.Minute})
	w.wants(err, lock.ErrNotAcquired)
}

func TestDoRunsUnderTheLockAndFreesIt(t *testing.T) {
	for name, want := range map[string]error{"work succeeds": nil, "work fails": errWork} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
				var cause func() error
				err := lock.Do(w.Context(), w.engine, "job", func(ctx context.Context) error {
					cause = func() error { return context.Cause(ctx) }
					w.refuses(ctx)
					time.Sleep(3 * ttl) // in the bubble
					w.must(ctx.Err())
					w.must(lock.Do(ctx, w.engine, "job", func(context.Context) error { return nil })) // it is inside
					w.refuses(ctx)
					return want
				})
				if !errors.Is(err, want) || errors.Is(err, lock.ErrLost) {
					w.Errorf("got error %v, want %v", err, want)
				}
				w.wants(cause(), lock.ErrReleased)
				w.isFree()
			})
		})
	}
}

func TestDoRunsNothingWithoutTheLock(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl, MaxWait: time.Minute}, func(w *world) {
		w.occupy(time.Hour)
		err := lock.Do(w.Context(), w.engine, "job", func(context.Context) error {
			w.Error("it runs without the lock")
			return nil
		})
		w.wants(err, lock.ErrNotAcquired)
		w.at(time.Minute)
	})
}

func TestDoTellsOfALossWhateverTheWorkReturns(t *testing.T) {
	for name, want := range map[string]error{"work succeeds": nil, "work fails": errWork} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
				w.faults.OnRenew(down)
				err := lock.Do(w.Context(), w.engine, "job", func(ctx context.Context) error {
					<-ctx.Done()
					w.at(ttl - drift)
					w.wants(context.Cause(ctx), lock.ErrLost)
					return want
				})
				w.wants(err, lock.ErrLost, errDown)
				if want != nil {
					w.wants(err, want)
				}
			})
		})
	}
}

func TestDoTellsOfALossThatOnlyTheStoreKnows(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		w.faults.OnRelease(func(context.Context, func() error) error { return lock.ErrNotHeld })
		err := lock.Do(w.Context(), w.engine, "job", func(context.Context) error { return errWork })
		w.wants(err, lock.ErrLost, lock.ErrNotHeld, errWork)
	})
}

func TestDoTellsOfAnUnlockWithoutAnAnswer(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		w.faults.OnRelease(down)
		err := lock.Do(w.Context(), w.engine, "job", func(context.Context) error { return nil })
		w.wants(err, errDown)
		if errors.Is(err, lock.ErrLost) {
			w.Errorf("%v: matches ErrLost, and nothing was lost", err)
		}
	})
}

func TestDoDoesNotCallAStopALoss(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		w.must(lock.Do(w.Context(), w.engine, "job", func(ctx context.Context) error {
			inner, err := w.engine.Lock(ctx, "job")
			w.must(err)
			return inner.Stop()
		}))
		w.isFree()
	})
}

func TestDoFreesTheLockWhenTheCallersContextEnds(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		ctx, cancel := context.WithCancelCause(w.Context())
		err := lock.Do(ctx, w.engine, "job", func(ctx context.Context) error {
			cancel(errWork)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		w.wants(err, errWork)
		if errors.Is(err, lock.ErrLost) {
			w.Errorf("%v: matches ErrLost, and nothing was lost", err)
		}
		w.isFree()
	})
}

func TestDoFreesTheLockWhenTheWorkPanicsOrExits(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		var recovered any
		func() {
			defer func() { recovered = recover() }()
			_ = lock.Do(w.Context(), w.engine, "job", func(context.Context) error { panic("of the work") })
		}()
		if recovered != "of the work" {
			w.Errorf("recovered %v, want what the work panicked with", recovered)
		}
		w.isFree()

		exited := make(chan struct{})
		go func() {
			defer close(exited)
			_ = lock.Do(w.Context(), w.engine, "job", func(context.Context) error {
				runtime.Goexit()
				return nil
			})
			w.Error("it goes on after Goexit")
		}()
		<-exited
		w.isFree()
	})
}
