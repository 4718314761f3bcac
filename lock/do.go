package lock

import (
	"context"
	"errors"
	"fmt"
)

// Do waits for the lock as locker.Lock does, runs f, and unlocks, also when f panics or ends its goroutine by
// runtime.Goexit. To skip the work where somebody else is at it, call TryLock.
//
// The ctx of f carries the lease, by WithLease, so f may lock the same name again. It is cancelled when the lease ends, with
// the lease's Err as the cause, which matches ErrLost when the lock was lost. Do does not leave f then: it waits for f,
// which has to mind its ctx.
//
// The error is that of locker.Lock, and then f was not run; or it joins that of f, of a loss, and of the unlock. It matches
// ErrLost if the lock was lost before f returned, as far as is known here or at the store, whatever f returns: somebody else
// may have had the lock meanwhile, so what f did should be looked at. If f was run and returned nil, any other error is that of an
// unlock that got no answer: what f did stands, and the lock is free at the latest when its TTL has passed.
func Do(ctx context.Context, locker Locker, name string, f func(ctx context.Context) error) error {
	lease, err := locker.Lock(ctx, name)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // it panics or exits, and goes on with that
			_ = lease.Unlock(ctx)
		}
	}()
	err = f(WithLease(lease.Context(ctx), lease))
	returned = true
	// Unlock has the store's word alone, which may not know yet of a deadline that has passed.
	lost := lease.Err()
	unlocked := lease.Unlock(ctx)
	switch {
	case errors.Is(lost, ErrLost):
	case errors.Is(unlocked, ErrNotHeld):
		lost, unlocked = fmt.Errorf("%w: %w", ErrLost, unlocked), nil
	default:
		lost = nil
	}
	return errors.Join(err, lost, unlocked)
}
