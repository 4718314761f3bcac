package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

// queuing is a store with a queue that goes wrong on demand.
type queuing struct {
	*memlock.Backend
	queue func(pass func() error) error                                     // stands around the taking of a place
	turn  func(ctx context.Context, pass func(context.Context) error) error // stands around the turn
}

func (q queuing) Queue(ctx context.Context, req lock.Request) (func(context.Context) error, error) {
	var turn func(context.Context) error
	take := func() (err error) {
		turn, err = q.Backend.Queue(context.WithoutCancel(ctx), req)
		return err
	}
	stand := func(ctx context.Context) error {
		if q.turn == nil {
			return turn(ctx)
		}
		return q.turn(ctx, turn)
	}
	if q.queue == nil {
		return stand, take()
	}
	return stand, q.queue(take)
}

// queued runs test with an engine over store, whose lock "job" is held.
func queued(t *testing.T, store queuing, opts lock.Options, test func(t *testing.T, engine *lock.Engine, held *lock.Lease)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store.Backend = memlock.New()
		engine, err := lock.New(store, opts)
		if err != nil {
			t.Fatal(err)
		}
		held, err := engine.TryLock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		test(t, engine, held)
		if err := engine.Close(t.Context()); err != nil {
			t.Error(err)
		}
		// Nothing is left behind, neither a lock nor a place.
		if _, err := store.Acquire(t.Context(), lock.Request{Name: "job", Owner: "last", TTL: time.Second}); err != nil {
			t.Error(err)
		}
	})
}

func TestALeaseFromTheQueueCountsItsTimeFromTheGrant(t *testing.T) {
	queued(t, queuing{}, lock.Options{TTL: ttl, Watchdog: lock.Off}, func(t *testing.T, engine *lock.Engine, held *lock.Lease) {
		time.AfterFunc(ttl/2, func() {
			if err := held.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		lease, err := engine.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(lease.Deadline()); left != ttl-drift {
			t.Errorf("the lease has %v to go, want %v", left, ttl-drift)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAPlaceThatWasLostIsTakenAnew(t *testing.T) {
	var lost atomic.Bool
	store := queuing{turn: func(ctx context.Context, pass func(context.Context) error) error {
		if !lost.Swap(true) {
			return lock.ErrNotAcquired
		}
		return pass(ctx)
	}}
	queued(t, store, lock.Options{TTL: ttl}, func(t *testing.T, engine *lock.Engine, held *lock.Lease) {
		time.AfterFunc(time.Minute, func() {
			if err := held.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		lease, err := engine.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAQueueThatFailsEndsTheWaitAndLeavesNoPlace(t *testing.T) {
	for name, store := range map[string]queuing{
		"taking a place": {queue: func(pass func() error) error {
			_ = pass()
			return errDown
		}},
		"standing there": {turn: func(context.Context, func(context.Context) error) error { return errDown }},
	} {
		t.Run(name, func(t *testing.T) {
			queued(t, store, lock.Options{TTL: ttl}, func(t *testing.T, engine *lock.Engine, held *lock.Lease) {
				_, err := engine.Lock(t.Context(), "job")
				if !errors.Is(err, errDown) || errors.Is(err, lock.ErrNotAcquired) {
					t.Errorf("got error %v, want the store's and not ErrNotAcquired", err)
				}
				if err := held.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAPlaceThatIsTakenAfterItsCallerGaveUpIsLeft(t *testing.T) {
	store := queuing{queue: func(pass func() error) error {
		time.Sleep(time.Minute) // whatever its ctx says
		return pass()
	}}
	queued(t, store, lock.Options{TTL: time.Hour, MaxWait: time.Second, CallTimeout: time.Minute - 1}, func(t *testing.T, engine *lock.Engine, held *lock.Lease) {
		if _, err := engine.Lock(t.Context(), "job"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("got error %v, want ErrNotAcquired", err)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAWaitInTheQueueThatEndsSaysSoAndLeavesNoPlace(t *testing.T) {
	queued(t, queuing{}, lock.Options{TTL: ttl, MaxWait: 3 * ttl}, func(t *testing.T, engine *lock.Engine, held *lock.Lease) {
		_, err := engine.Lock(t.Context(), "job")
		if !errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), "MaxWait") {
			t.Errorf("got error %v, want ErrNotAcquired that blames MaxWait", err)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// shortLived is a store that cannot keep long TTLs.
type shortLived struct{ lock.Backend }

func (shortLived) Capabilities() lock.Capabilities { return lock.Capabilities{MaxTTL: time.Second} }

func TestATTLBeyondWhatTheBackendKeepsIsRefused(t *testing.T) {
	store := shortLived{memlock.New()}
	if _, err := lock.New(store, lock.Options{TTL: time.Second + 1}); err == nil || !strings.Contains(err.Error(), "at most 1s") {
		t.Errorf("got error %v, want one that says that a TTL is at most 1s", err)
	}
	engine, err := lock.New(store, lock.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.RLock(t.Context(), "job"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("sharing: got error %v, want ErrUnsupported", err)
	}
}
