package lock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

// heedful is a store whose requests end at their deadline and take no notice of a cancel.
type heedful struct {
	lock.Backend

	stalls atomic.Bool
	from   atomic.Pointer[string] // the goroutine that has sent the last request
}

func newHeedful(t *testing.T) *heedful {
	t.Helper()
	h := &heedful{Backend: memlock.New()}
	if !h.Capabilities().Prompt {
		t.Fatal("memlock is not prompt")
	}
	return h
}

// goroutine is the name of the calling one.
func goroutine() *string {
	var b [64]byte
	name, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), " [")
	return &name
}

func (h *heedful) send(ctx context.Context) error {
	h.from.Store(goroutine())
	if !h.stalls.Load() {
		return nil
	}
	end, _ := ctx.Deadline()
	<-time.NewTimer(time.Until(end)).C
	return errors.New("i/o timeout")
}

func (h *heedful) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := h.send(ctx); err != nil {
		return lock.Grant{}, err
	}
	return h.Backend.Acquire(ctx, req)
}

func (h *heedful) Release(ctx context.Context, claim lock.Claim) error {
	if err := h.send(ctx); err != nil {
		return err
	}
	return h.Backend.Release(ctx, claim)
}

// sentHere tells whether the calling goroutine has sent the last request.
func (h *heedful) sentHere() bool { return *h.from.Load() == *goroutine() }

func TestRequestsToAPromptBackendNeedNoGoroutine(t *testing.T) {
	h := newHeedful(t)
	engine, err := lock.New(h, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := engine.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if !h.sentHere() {
		t.Error("a goroutine was started for the acquire")
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if !h.sentHere() {
		t.Error("a goroutine was started for the release")
	}
}

// The first who finds the store hanging is kept by it, for a part of CallTimeout; the next are not.
func TestAStoreThatHangsKeepsACancelledCallerNotForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeedful(t)
		engine, err := lock.New(h, lock.Options{CallTimeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		kept := func() time.Duration {
			start := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			if _, err := engine.Lock(ctx, "job"); !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want context.Canceled", err)
			}
			return time.Since(start)
		}
		h.stalls.Store(true)
		if d := kept(); d != 100*time.Millisecond {
			t.Errorf("the first was kept for %v, want a tenth of CallTimeout", d)
		}
		if d := kept(); d != 10*time.Millisecond {
			t.Errorf("the second was kept for %v, want until its cancel", d)
		}
		start := time.Now()
		if _, err := engine.Lock(t.Context(), "job"); err == nil || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("got error %v, want one that says that there was no answer", err)
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("it was given up after %v, want after two requests", d)
		}
		if err := engine.Close(t.Context()); err != nil { // waits for what was left behind
			t.Error(err)
		}
	})
}

func TestAStoreThatAnswersInTimeAgainIsAskedDirectlyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeedful(t)
		engine, err := lock.New(h, lock.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h.stalls.Store(true)
		if _, err := engine.TryLock(t.Context(), "job"); err == nil {
			t.Fatal("a store that does not answer gives a lock")
		}
		h.stalls.Store(false)
		for _, direct := range []bool{false, true} {
			lease, err := engine.TryLock(t.Context(), "job")
			if err != nil {
				t.Fatal(err)
			}
			if got := h.sentHere(); got != direct {
				t.Errorf("the caller has sent the request: %t, want %t", got, direct)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := engine.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
