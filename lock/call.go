package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// call runs f and waits for it until ctx ends or limit has passed. Neither a caller nor a deadline waits for a backend
// that ignores its ctx: call leaves f then, and its goroutine ends when f returns.
func call[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	type reply struct {
		value T
		err   error
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	replies := make(chan reply, 1) // buffered, so that f never waits for a caller that has left
	go func() {
		value, err := f(bounded)
		replies <- reply{value, err}
		cancel()
	}()
	select {
	case r := <-replies:
		return r.value, r.err
	case <-bounded.Done():
		// Both may be ready, and the cancel above is no end: the reply wins.
		select {
		case r := <-replies:
			return r.value, r.err
		default:
		}
		var zero T
		return zero, noAnswer(ctx, limit)
	}
}

// direct is call without a goroutine, for a backend that is prompt.
func direct[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	value, err := f(bounded)
	if err != nil && bounded.Err() != nil && !errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrNotHeld) {
		err = noAnswer(ctx, limit)
	}
	return value, err
}

// callDetached is call with a ctx that nobody cancels.
func callDetached[T any](ctx context.Context, backend Backend, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	if backend.Capabilities().Prompt {
		return direct(ctx, limit, f)
	}
	return call(ctx, limit, f)
}

// noAnswer is the error of a call that was ended by ctx, or else by its limit.
func noAnswer(ctx context.Context, limit time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("no answer within %v: %w", limit, context.DeadlineExceeded)
}

// backoff is the time before try number n+1: it doubles from low to high, drawn from the upper half of each step.
func backoff(n int, low, high time.Duration) time.Duration {
	step := high
	if n < 16 && low<<(n+1) < high {
		step = low << (n + 1)
	}
	return max(low, jitter(step))
}

// jitter draws from the upper half of d, so that those who failed together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/2+1)
}

// pause waits for d, or less if wake receives; false if ctx ended first.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-timer.C:
	}
	return true
}
