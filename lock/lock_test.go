package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// errDown is the error of a store that cannot be reached.
var errDown = errors.New("store is down")

// world is a store with faults, and an engine over it that tells what happens. It lives in a bubble.
type world struct {
	*testing.T
	store  *memlock.Backend
	faults *locktest.Faults
	engine *lock.Engine
	began  time.Time

	mu     sync.Mutex
	events []lock.Event // protected by mu
}

// inBubble runs test in a bubble. The store is no Notifier: the faults hide it.
func inBubble(t *testing.T, opts lock.Options, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		w := &world{T: t, store: store, faults: locktest.NewFaults(store), began: time.Now()}
		opts.Monitor = w.record
		engine, err := lock.New(w.faults, opts)
		w.must(err)
		w.engine = engine
		test(w)
	})
}

func (w *world) record(e lock.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// wants fails the test unless err matches all of targets.
func (w *world) wants(err error, targets ...error) {
	w.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			w.Errorf("got error %v, want one that matches %v", err, target)
		}
	}
}

// happened fails the test unless the events were of these kinds.
func (w *world) happened(kinds ...lock.EventKind) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []lock.EventKind
	for _, e := range w.events {
		got = append(got, e.Kind)
	}
	if !slices.Equal(got, kinds) {
		w.Errorf("the events were %v, want %v", got, kinds)
	}
}

func (w *world) count(kind lock.EventKind) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (w *world) hold() *lock.Lease {
	w.Helper()
	lease, err := w.engine.TryLock(w.Context(), "job")
	w.must(err)
	return lease
}

// at fails the test unless so much time has passed in the bubble.
func (w *world) at(want time.Duration) {
	w.Helper()
	if got := time.Since(w.began); got != want {
		w.Errorf("it is %v, want %v", got, want)
	}
}

// occupy takes the lock for somebody else.
func (w *world) occupy(ttl time.Duration) lock.Claim {
	w.Helper()
	claim := lock.Claim{Name: "job", Owner: "somebody else"}
	_, err := w.store.Acquire(w.Context(), lock.Request{Name: claim.Name, Owner: claim.Owner, TTL: ttl})
	w.must(err)
	return claim
}

func (w *world) isHeld() {
	w.Helper()
	_, err := w.store.Acquire(w.Context(), lock.Request{Name: "job", Owner: "somebody else", TTL: time.Minute})
	w.wants(err, lock.ErrNotAcquired)
}

func (w *world) isFree() {
	w.Helper()
	claim := w.occupy(time.Minute)
	w.must(w.store.Release(w.Context(), claim))
}

// hang never answers, whatever its ctx says, until the returned func is called.
func hang() (fault locktest.Fault, end func()) {
	ended := make(chan struct{})
	return func(context.Context, func() error) error {
		<-ended
		return errDown
	}, sync.OnceFunc(func() { close(ended) })
}

func down(context.Context, func() error) error { return errDown }

// These are 1 % of a TTL of 10 s, and 2 ms.
const (
	ttl   = 10 * time.Second
	drift = 102 * time.Millisecond
)
