package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// Hold is one lease in a history, or an attempt at one. Times are counted from the start of the history.
type Hold struct {
	// Client is the index of the engine.
	Client int
	// Waits: it was Lock or RLock, else TryLock or TryRLock.
	Waits bool
	// Shared: it was RLock or TryRLock.
	Shared bool
	// Token is the fence, 0 without one.
	Token uint64

	// Asked is before the call that asked for the lock, Got is after it.
	Asked, Got time.Duration
	// Err is what that call returned. If it is set, nothing below is.
	Err error
	// Valid is the last time at which the lease is known to have been valid, by its Err.
	Valid time.Duration
	// Unlocked is before the call of Unlock, Gone is after it.
	Unlocked, Gone time.Duration
	// Lost is what the lease's Err was at Unlocked, UnlockErr what Unlock returned.
	Lost, UnlockErr error
}

// Record lets every engine get the lock of that name rounds times, by turns waiting and not, as a reader every third
// time if shared, keep it for about keep, and unlock it. An attempt that fails counts.
func Record(tb testing.TB, engines []*lock.Engine, name string, rounds int, keep time.Duration, shared bool) []Hold {
	tb.Helper()
	began := time.Now()
	histories := make([][]Hold, len(engines))
	var wg sync.WaitGroup
	for client, engine := range engines {
		wg.Go(func() {
			for round := range rounds {
				h := Hold{Client: client, Waits: (client+round)%2 == 0, Shared: shared && round%3 != 0}
				histories[client] = append(histories[client], h.record(tb.Context(), engine, name, began, keep))
			}
		})
	}
	wg.Wait()
	return slices.Concat(histories...)
}

func (h Hold) record(ctx context.Context, engine *lock.Engine, name string, began time.Time, keep time.Duration) Hold {
	get := map[[2]bool]func(context.Context, string) (*lock.Lease, error){
		{false, false}: engine.TryLock, {true, false}: engine.Lock,
		{false, true}: engine.TryRLock, {true, true}: engine.RLock,
	}[[2]bool{h.Waits, h.Shared}]
	h.Asked = time.Since(began)
	lease, err := get(ctx, name)
	h.Got, h.Err = time.Since(began), err
	if err != nil {
		return h
	}
	h.Token = lease.Token()
	for valid := time.Since(began); lease.Err() == nil; valid = time.Since(began) {
		h.Valid = valid
		if valid >= h.Got+keep {
			break
		}
		timer := time.NewTimer(keep / 4)
		select {
		case <-timer.C:
		case <-lease.Done():
		}
		timer.Stop()
	}
	h.Unlocked, h.Lost = time.Since(began), lease.Err()
	h.UnlockErr = lease.Unlock(ctx)
	h.Gone = time.Since(began)
	return h
}

// CheckHolds returns an error unless no lease was valid while another one was that excludes it, and tokens rise with
// time, where there are any. It is what must hold of every history, whatever went wrong in it.
func CheckHolds(history []Hold) error {
	var errs []error
	held := slices.DeleteFunc(slices.Clone(history), func(h Hold) bool { return h.Err != nil })
	slices.SortFunc(held, func(a, b Hold) int { return cmp.Compare(a.Got, b.Got) })
	for i, a := range held {
		for _, b := range held[i+1:] {
			if a.Shared && b.Shared {
				continue
			}
			if b.Got < a.Valid {
				errs = append(errs, fmt.Errorf("client %d got the lock at %v, and client %d held it until %v", b.Client, b.Got, a.Client, a.Valid))
			}
			if a.Token != 0 && b.Token <= a.Token {
				errs = append(errs, fmt.Errorf("token %d at %v, after %d at %v", b.Token, b.Got, a.Token, a.Got))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *suite) historyHolds() {
	faults := NewFaults(s.backend)
	var engines []*lock.Engine
	for client := range 6 {
		backend := s.backend
		if client%2 == 0 {
			backend = faults // polls, loses replies
		}
		engines = append(engines, s.engine(backend, lock.Options{
			TTL: watched, CallTimeout: watched, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond,
		}))
	}
	var mu sync.Mutex
	calls := 0
	sometimes := func(_ context.Context, pass func() error) error {
		mu.Lock()
		calls++
		n := calls
		mu.Unlock()
		switch {
		case n%7 == 0: // the request is lost
			return errFault
		case n%5 == 0: // the reply is lost
			_ = pass()
			return errFault
		}
		return pass()
	}
	faults.OnAcquire(sometimes)
	faults.OnRelease(sometimes)
	history := Record(s, engines, s.name, 12, 2*time.Millisecond, s.backend.Capabilities().Shared)
	if err := CheckHolds(history); err != nil {
		s.Error(err)
	}
	got := 0
	for _, h := range history {
		switch {
		case h.Err == nil:
			got++
		case errors.Is(h.Err, lock.ErrNotAcquired) && !h.Waits, errors.Is(h.Err, errFault):
		case errors.Is(h.Err, context.DeadlineExceeded): // a slow machine
		default:
			s.Errorf("client %d: %v", h.Client, h.Err)
		}
	}
	if got == 0 {
		s.Error("nobody ever got the lock")
	}
}
