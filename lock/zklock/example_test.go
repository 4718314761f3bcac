package zklock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/zklock"
)

// A TTL is at most half of the session's timeout, which the servers may bound.
func Example() { //nolint:testableexamples // it needs a ZooKeeper
	ctx := context.Background()
	backend, err := zklock.Open(ctx, []string{"zk-1:2181", "zk-2:2181", "zk-3:2181"}, zklock.Options{
		Namespace:      "shop",
		SessionTimeout: 20 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	engine, err := lock.New(backend, lock.Options{TTL: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}

	lease, err := engine.Lock(ctx, "nightly-report") // in the order of those who wait
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)
	fmt.Println("locked, with the fence", lease.Token())
}
