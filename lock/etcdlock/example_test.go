package etcdlock_test

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/etcdlock"
)

func Example() { //nolint:testableexamples // it needs an etcd
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	backend, err := etcdlock.New(client, etcdlock.Options{Namespace: "shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := lock.New(backend, lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx := context.Background()
	lease, err := engine.Lock(ctx, "nightly-report") // in the order of those who wait
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)
	fmt.Println("locked, with the fence", lease.Token())
}

// Many may read the price list at a time, and nobody while it is written.
func Example_readers() { //nolint:testableexamples // it needs an etcd
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"etcd-1:2379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	backend, err := etcdlock.New(client, etcdlock.Options{Namespace: "shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	var prices lock.RWLocker
	if prices, err = lock.New(backend, lock.Options{}); err != nil {
		fmt.Println(err)
		return
	}

	lease, err := prices.RLock(ctx, "prices")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)
	fmt.Println("reading")
}
