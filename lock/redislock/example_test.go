package redislock_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/redislock"
)

func Example() {
	server, err := miniredis.Run() // a Redis for this example
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()

	backend, err := redislock.New(client, redislock.Options{Namespace: "shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	engine, err := lock.New(backend, lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx := context.Background()
	lease, err := engine.Lock(ctx, "nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("locked", server.Keys())
	if err := lease.Unlock(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("unlocked", server.Keys())
	// Output:
	// locked [shop:lock:{nightly-report}]
	// unlocked []
}
