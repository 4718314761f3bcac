package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

// Work that only one instance does at a time stops when the lease is lost.
func Example() {
	ctx := context.Background()
	engine, err := lock.New(memlock.New(), lock.Options{TTL: 5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}

	lease, err := engine.Lock(ctx, "nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = lease.Unlock(ctx) }()

	report := func(ctx context.Context) error { return ctx.Err() }
	fmt.Println(report(lease.Context(ctx)), lease.Unlock(ctx))
	// Output: <nil> <nil>
}

// TryLock is for work that somebody else is doing already.
func ExampleEngine_TryLock() {
	ctx := context.Background()
	engine, err := lock.New(memlock.New(), lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := engine.TryLock(ctx, "cleanup")
	if err != nil {
		fmt.Println(err)
		return
	}

	_, err = engine.TryLock(ctx, "cleanup")
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// true
	// <nil>
}

// A store that is given the token can refuse a holder that was frozen and does not know yet that it lost the lock.
func ExampleLease_Token() {
	ctx := context.Background()
	engine, err := lock.New(memlock.New(), lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		lease, err := engine.Lock(ctx, "ledger")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("token", lease.Token())
		if err := lease.Unlock(ctx); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// token 1
	// token 2
}

// A Monitor feeds logs and metrics.
func ExampleMonitor() {
	ctx := context.Background()
	engine, err := lock.New(memlock.New(), lock.Options{
		Monitor: func(e lock.Event) { fmt.Println(e.Name, e.Kind) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := engine.TryLock(ctx, "cleanup")
	if err != nil {
		return
	}
	_, _ = engine.TryLock(ctx, "cleanup")
	_ = lease.Unlock(ctx)
	// Output:
	// cleanup acquired
	// cleanup contended
	// cleanup released
}
