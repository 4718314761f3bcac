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

// A function that locks what its caller holds already says so by its ctx.
func ExampleWithLease() {
	ctx := context.Background()
	engine, err := lock.New(memlock.New(), lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	audit := func(ctx context.Context) error {
		lease, err := engine.Lock(ctx, "ledger")
		if err != nil {
			return err
		}
		return lease.Unlock(ctx)
	}

	lease, err := engine.Lock(ctx, "ledger")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(audit(lock.WithLease(ctx, lease)), lease.Err())
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// <nil> <nil>
	// <nil>
}

// Work under a lock, with a ctx that ends when the lock is lost.
func ExampleDo() {
	ctx := context.Background()
	engine, err := lock.New(memlock.New(), lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = lock.Do(ctx, engine, "cleanup", func(ctx context.Context) error {
		fmt.Println("cleaning up")
		return ctx.Err()
	})
	if errors.Is(err, lock.ErrLost) {
		fmt.Println("somebody else may have cleaned up meanwhile")
	}
	fmt.Println(err)
	// Output:
	// cleaning up
	// <nil>
}

// Several locks are taken in one order, so that a transfer the other way does not wait for this one in a circle.
func ExampleAll() {
	ctx := context.Background()
	engine, err := lock.New(memlock.New(), lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	accounts, err := lock.All(ctx, engine, "account-7", "account-3")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, lease := range accounts {
		fmt.Println(lease.Name())
	}
	fmt.Println(accounts.Unlock(ctx))
	// Output:
	// account-3
	// account-7
	// <nil>
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
