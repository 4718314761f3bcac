package lock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

func TestNewNamesTheOptionThatIsOutOfRange(t *testing.T) {
	for want, opts := range map[string]lock.Options{
		"TTL is 400µs":       {TTL: 400 * time.Microsecond},
		"TTL is -1ns":        {TTL: lock.Off},
		"Drift is 10s":       {TTL: ttl, Drift: ttl},
		"Drift is -2ns":      {Drift: -2},
		"Watchdog is 10s":    {TTL: ttl, Watchdog: ttl},
		"Watchdog is -1s":    {Watchdog: -time.Second},
		"MaxHold is 1s":      {TTL: ttl, MaxHold: time.Second},
		"MaxWait is -2ns":    {MaxWait: -2},
		"CallTimeout is -1":  {CallTimeout: lock.Off},
		"RetryMin is -1ns":   {RetryMin: lock.Off},
		"RetryMax is 49.9ms": {RetryMax: 49900 * time.Microsecond},
	} {
		if _, err := lock.New(memlock.New(), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	if _, err := lock.New(nil, lock.Options{}); err == nil {
		t.Error("no backend: got no error")
	}
}

func TestOffIsLegalWhereThereIsSomethingToSwitchOff(t *testing.T) {
	opts := lock.Options{Watchdog: lock.Off, MaxWait: lock.Off, MaxHold: lock.Off, Drift: lock.Off}
	if _, err := lock.New(memlock.New(), opts); err != nil {
		t.Error(err)
	}
}

func TestAStoreThatCannotBeAskedIsNeverContention(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		w.faults.OnAcquire(down)
		for _, get := range []func(context.Context, string) (*lock.Lease, error){w.engine.TryLock, w.engine.Lock} {
			_, err := get(w.Context(), "job")
			w.wants(err, errDown)
			if errors.Is(err, lock.ErrNotAcquired) {
				w.Errorf("%v: matches ErrNotAcquired", err)
			}
		}
		w.at(0) // nobody waited for it
		w.must(w.engine.Close(w.Context()))
		w.happened(lock.AcquireFailed, lock.AcquireFailed)
	})
}

func TestAStoreThatDoesNotAnswerIsLeft(t *testing.T) {
	inBubble(t, lock.Options{CallTimeout: time.Second}, func(w *world) {
		hung, end := hang()
		w.faults.OnAcquire(hung)
		_, err := w.engine.TryLock(w.Context(), "job")
		w.wants(err, context.DeadlineExceeded)
		w.at(2 * time.Second) // it was asked twice
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.wants(w.engine.Close(ctx), context.DeadlineExceeded)
		end()
		w.must(w.engine.Close(w.Context()))
		_, err = w.engine.TryLock(w.Context(), "job")
		w.wants(err, lock.ErrClosed)
	})
}

func TestAnEmptyNameIsRefused(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		_, err := w.engine.Lock(w.Context(), "")
		if err == nil || !strings.Contains(err.Error(), "name is empty") {
			w.Errorf("got error %v, want one that says that the name is empty", err)
		}
	})
}

func TestAGrantThatComesTooLateIsGivenBack(t *testing.T) {
	inBubble(t, lock.Options{TTL: time.Second, CallTimeout: time.Minute}, func(w *world) {
		w.faults.OnAcquire(func(_ context.Context, pass func() error) error {
			err := pass()
			time.Sleep(time.Second - time.Millisecond) // past the deadline, before the expiry
			return err
		})
		_, err := w.engine.TryLock(w.Context(), "job")
		w.wants(err, lock.ErrLost)
		w.isFree()
	})
}

func TestEveryAcquisitionHasAnOwnerOfItsOwn(t *testing.T) {
	owners := make(map[string]bool)
	engine, err := lock.New(ownersOf{memlock.New(), owners}, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		lease, err := engine.TryLock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(owners) != 100 {
		t.Errorf("%d owners, want 100", len(owners))
	}
	for owner := range owners {
		if len(owner) != 32 || strings.Trim(owner, "0123456789abcdef") != "" {
			t.Errorf("the owner is %q, want 16 bytes in hex", owner)
		}
	}
}

type ownersOf struct {
	lock.Backend
	seen map[string]bool
}

func (o ownersOf) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	o.seen[req.Owner] = true
	return o.Backend.Acquire(ctx, req)
}

func TestTryLockDoesNotWait(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		w.occupy(time.Minute)
		_, err := w.engine.TryLock(w.Context(), "job")
		w.wants(err, lock.ErrNotAcquired)
		contended := (*lock.ContendedError)(nil)
		if !errors.As(err, &contended) || contended.Name != "job" || contended.RetryAfter != time.Minute {
			w.Errorf("got error %#v, want a ContendedError for job with a minute to go", err)
		}
		w.at(0)
		w.happened(lock.Contended)
	})
}

func TestMaxWaitEndsAWaitThatCtxWouldNot(t *testing.T) {
	inBubble(t, lock.Options{MaxWait: 5 * time.Second}, func(w *world) {
		w.occupy(time.Hour)
		_, err := w.engine.Lock(w.Context(), "job")
		w.at(5 * time.Second)
		w.wants(err, lock.ErrNotAcquired)
		if errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "MaxWait") {
			w.Errorf("got error %v, want one that blames MaxWait and no ctx", err)
		}
		w.happened(lock.Contended, lock.TimedOut)
	})
}

func TestTheCauseOfACancelledWaitIsKept(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		w.occupy(time.Hour)
		cause := errors.New("the user has left")
		ctx, cancel := context.WithCancelCause(w.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		_, err := w.engine.Lock(ctx, "job")
		w.at(time.Second)
		w.wants(err, lock.ErrNotAcquired, context.Canceled, cause)
	})
}

func TestAWaitThatEndsDuringARequestSaysSoToo(t *testing.T) {
	inBubble(t, lock.Options{CallTimeout: time.Hour}, func(w *world) {
		w.occupy(time.Hour)
		hung, end := hang()
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		var asked atomic.Bool
		w.faults.OnAcquire(func(ctx context.Context, pass func() error) error {
			if asked.Swap(true) {
				return hung(ctx, pass)
			}
			return pass()
		})
		_, err := w.engine.Lock(ctx, "job")
		w.wants(err, lock.ErrNotAcquired, context.DeadlineExceeded)
		end()
		w.must(w.engine.Close(w.Context()))
	})
}

func TestAStoreThatFailsEndsAWait(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		w.occupy(time.Hour)
		time.AfterFunc(time.Minute, func() { w.faults.OnAcquire(down) })
		_, err := w.engine.Lock(w.Context(), "job")
		w.wants(err, errDown)
		if errors.Is(err, lock.ErrNotAcquired) {
			w.Errorf("%v: matches ErrNotAcquired", err)
		}
		w.must(w.engine.Close(w.Context()))
	})
}

func TestAWaiterComesWhenTheHoldIsKnownToEnd(t *testing.T) {
	inBubble(t, lock.Options{RetryMin: 10 * time.Millisecond, RetryMax: time.Hour}, func(w *world) {
		time.Sleep(time.Hour) // so that the first steps of the backoff do not matter
		w.occupy(time.Second)
		lease, err := w.engine.Lock(w.Context(), "job")
		w.must(err)
		if waited := time.Since(w.began) - time.Hour; waited < time.Second || waited >= time.Second+10*time.Millisecond {
			w.Errorf("got the lock after %v, want it within RetryMin of its expiry after 1s", waited)
		}
		w.must(lease.Unlock(w.Context()))
	})
}

func TestWaitersAskNoMoreOftenThanTheirSchedule(t *testing.T) {
	const waiters, held = 100, 5 * time.Second
	// The shortest waits between 50 ms and 1 s are 50, 100, 200, 400, and then 500 ms: 13 of them reach 5 s.
	const most = waiters * (1 + 13)
	inBubble(t, lock.Options{TTL: time.Hour}, func(w *world) {
		claim := w.occupy(time.Hour)
		var asked atomic.Int32
		w.faults.OnAcquire(func(_ context.Context, pass func() error) error {
			asked.Add(1)
			return pass()
		})
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(w.Context(), held)
		defer cancel()
		for range waiters {
			wg.Go(func() {
				_, err := w.engine.Lock(ctx, "job")
				w.wants(err, lock.ErrNotAcquired)
			})
		}
		wg.Wait()
		if n := asked.Load(); n > most {
			w.Errorf("%d waiters asked %d times in %v, want at most %d", waiters, n, held, most)
		}
		w.must(w.store.Release(w.Context(), claim))
	})
}

func TestAWaiterIsWokenByARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, err := lock.New(memlock.New(), lock.Options{TTL: time.Hour, RetryMin: time.Hour, RetryMax: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		held, err := engine.TryLock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *lock.Lease)
		go func() {
			lease, err := engine.Lock(t.Context(), "job")
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		synctest.Wait()
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease := <-got
		if waited := time.Since(began); waited != 0 {
			t.Errorf("woken after %v, want at once", waited)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// deaf is a Notifier whose wake-ups are lost.
type deaf struct {
	lock.Backend
	before func() // runs before a registration returns
}

func (d deaf) Notify(context.Context, string) (released <-chan struct{}, stop func(), err error) {
	if d.before != nil {
		d.before()
	}
	return make(chan struct{}), func() {}, nil
}

func TestALostWakeUpCostsAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		req := lock.Request{Name: "job", Owner: "somebody else", TTL: time.Hour}
		if _, err := store.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		engine, err := lock.New(deaf{Backend: store}, lock.Options{})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() {
			if err := store.Release(t.Context(), lock.Claim{Name: req.Name, Owner: req.Owner}); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		lease, err := engine.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > time.Minute+lock.DefaultRetryMax {
			t.Errorf("got the lock after %v, want it within RetryMax of the release after a minute", waited)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAReleaseBeforeTheRegistrationIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		req := lock.Request{Name: "job", Owner: "somebody else", TTL: time.Hour}
		if _, err := store.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		release := func() {
			if err := store.Release(t.Context(), lock.Claim{Name: req.Name, Owner: req.Owner}); err != nil {
				t.Error(err)
			}
		}
		engine, err := lock.New(deaf{store, release}, lock.Options{RetryMin: time.Hour, RetryMax: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		lease, err := engine.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("got the lock after %v, want it at once", waited)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// forever is a store whose lock is held for longer than any time that comes after now.
type forever struct {
	lock.Backend
	asked int
}

func (f *forever) Acquire(_ context.Context, req lock.Request) (lock.Grant, error) {
	if f.asked++; f.asked > 1000 {
		return lock.Grant{}, errDown // else it would never end
	}
	return lock.Grant{}, &lock.ContendedError{Name: req.Name, RetryAfter: math.MaxInt64}
}

func TestWhoWaitsForALockThatIsHeldForEverDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &forever{Backend: memlock.New()}
		engine, err := lock.New(store, lock.Options{MaxWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := engine.Lock(t.Context(), "job"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("got error %v, want ErrNotAcquired", err)
		}
		if store.asked > 130 {
			t.Errorf("the store was asked %d times in a minute, want at most twice a second", store.asked)
		}
	})
}
