// Package herdgate_test is a file of the tests of the root: see package coretest.
package herdgate_test

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/etcdlock"
)

// openLocks opens the locks of a namespace in an etcd.
func openLocks(addr, namespace string) (backend lock.Backend, closeLocks func() error, err error) { //nolint:unused // the other tests of its package are those of the root
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, nil, err
	}
	backend, err = etcdlock.New(client, etcdlock.Options{Namespace: namespace})
	return backend, client.Close, err
}
