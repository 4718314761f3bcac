package redislock_test

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/redislock"
)

// startPair starts a master and its replica, which is in step.
func startPair(t *testing.T) (master, replica *testutil.Redis) {
	t.Helper()
	master = testutil.StartRedis(t)
	replica = testutil.StartRedis(t, "--replicaof", strings.ReplaceAll(master.Addr(), ":", " "))
	inStep(t, replica.Client(t))
	return master, replica
}

func inStep(t *testing.T, replica *redis.Client) {
	t.Helper()
	testutil.Eventually(t, 30*time.Second, func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	}, "the replica is in step")
}

// cutOff freezes a replica, and drops what is on the way to it.
func cutOff(t *testing.T, master, replica *testutil.Redis) {
	t.Helper()
	replica.Freeze()
	must(t, master.Client(t).Do(t.Context(), "client", "kill", "type", "replica").Err())
}

func TestABackendThatWaitsForItsReplicaConforms(t *testing.T) {
	master, _ := startPair(t)
	client := master.Client(t)
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return newBackend(tb, client, redislock.Options{Fence: true, Replicas: 1, ReplicaTimeout: 2 * time.Second})
	})
}

// What is not promised: that a lock outlives a failover to a replica that has not seen it.
func TestWithoutReplicasAFailoverMayForgetALock(t *testing.T) {
	sentinel := testutil.StartSentinel(t)
	master, replica := sentinel.Nodes[0], sentinel.Nodes[1]
	client := sentinel.Client(t)
	engine := newEngine(t, newBackend(t, client, redislock.Options{}), lock.Options{TTL: time.Hour})
	must(t, client.Ping(t.Context()).Err())

	cutOff(t, master, replica)
	first, err := engine.TryLock(t.Context(), "job")
	must(t, err)
	master.Kill()
	replica.Thaw()
	var second *lock.Lease
	testutil.Eventually(t, 30*time.Second, func() bool {
		second, err = engine.TryLock(t.Context(), "job")
		return err == nil
	}, "the new master gives the same lock again")
	must(t, first.Err())
	must(t, second.Err()) // two holders
	must(t, second.Unlock(t.Context()))
	must(t, first.Stop())
}

func TestALockThatItsReplicaHasSurvivesAFailover(t *testing.T) {
	sentinel := testutil.StartSentinel(t)
	client := sentinel.Client(t)
	backend := newBackend(t, client, redislock.Options{Replicas: 1, ReplicaTimeout: 2 * time.Second, NoWakeUp: true})
	engine := newEngine(t, backend, lock.Options{TTL: time.Hour, CallTimeout: 20 * time.Second})
	must(t, client.Ping(t.Context()).Err())
	lease, err := engine.TryLock(t.Context(), "job")
	must(t, err)
	sentinel.Failover()
	testutil.Eventually(t, 30*time.Second, func() bool {
		_, err := engine.TryLock(t.Context(), "job")
		return errors.Is(err, lock.ErrNotAcquired)
	}, "the new master knows the lock")
	must(t, lease.Stop())
}

func TestALockThatNoReplicaAcknowledgesIsRefusedAndFreed(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, master, replica *testutil.Redis){
		"cut off": cutOff,
		// Connected, and so counted by a WAIT on a connection that has written nothing.
		"frozen": func(_ *testing.T, _, replica *testutil.Redis) { replica.Freeze() },
	} {
		t.Run(name, func(t *testing.T) {
			master, replica := startPair(t)
			client := master.Client(t)
			backend := newBackend(t, client, redislock.Options{Replicas: 1, ReplicaTimeout: time.Second})
			engine := newEngine(t, backend, lock.Options{TTL: time.Minute, CallTimeout: 20 * time.Second})
			lease, err := engine.TryLock(t.Context(), "held")
			must(t, err)
			lose(t, master, replica)

			_, err = engine.TryLock(t.Context(), "job")
			if !errors.Is(err, redislock.ErrNotReplicated) || errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), "0 of 1") {
				t.Errorf("acquire: got error %v, want ErrNotReplicated, 0 of 1", err)
			}
			testutil.Eventually(t, 10*time.Second, func() bool {
				return client.Exists(t.Context(), "test:lock:{job}").Val() == 0
			}, "the refused lock is free")

			// The TTL stays as it is, so the script has nothing to change, and yet something to be acknowledged.
			if err := lease.Extend(t.Context(), lock.MinTTL*10); !errors.Is(err, redislock.ErrNotReplicated) {
				t.Errorf("extend: got error %v, want ErrNotReplicated", err)
			}
			must(t, lease.Err())
			_, err = backend.Acquire(t.Context(), lock.Request{Name: "held", Owner: "b", TTL: time.Minute})
			if !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("a contended acquire: got error %v, want ErrNotAcquired and no wait", err)
			}

			replica.Thaw()
			inStep(t, replica.Client(t))
			testutil.Eventually(t, 30*time.Second, func() bool {
				err = lease.Extend(t.Context(), time.Minute)
				return !errors.Is(err, redislock.ErrNotReplicated)
			}, "the replica acknowledges again")
			must(t, err)
			must(t, lease.Unlock(t.Context()))
			must(t, engine.Close(t.Context()))
		})
	}
}

func TestALeaseWhoseRenewalsNoReplicaAcknowledgesIsLostAtItsDeadline(t *testing.T) {
	master, replica := startPair(t)
	backend := newBackend(t, master.Client(t), redislock.Options{Replicas: 1, ReplicaTimeout: 2 * time.Second})
	var refused atomic.Int32
	engine := newEngine(t, backend, lock.Options{TTL: 2 * time.Second, CallTimeout: 20 * time.Second, Monitor: func(e lock.Event) {
		if e.Kind == lock.RenewRetried && errors.Is(e.Err, redislock.ErrNotReplicated) {
			refused.Add(1)
		}
	}})
	lease, err := engine.TryLock(t.Context(), "job")
	must(t, err)
	cutOff(t, master, replica)
	select {
	case <-lease.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the lease lasts without its replica")
	}
	if err := lease.Err(); !errors.Is(err, lock.ErrLost) || refused.Load() == 0 {
		t.Errorf("got error %v and %d renewals that were not replicated, want ErrLost and some", err, refused.Load())
	}
	_ = lease.Unlock(t.Context())
	replica.Thaw()
}

func TestInAClusterTheReplicaOfTheLocksOwnMasterIsWaitedFor(t *testing.T) {
	cluster := testutil.StartCluster(t)
	client := cluster.Client(t)
	withReplica := addReplica(t, cluster)
	backend := newBackend(t, client, redislock.Options{Replicas: 1, ReplicaTimeout: time.Second})
	acquired, refused := 0, 0
	for i := 0; acquired < 3 || refused < 2; i++ {
		name := strconv.Itoa(i)
		master, err := client.MasterForKey(t.Context(), "test:lock:{"+name+"}")
		must(t, err)
		_, err = backend.Acquire(t.Context(), lock.Request{Name: name, Owner: "a", TTL: time.Minute})
		if master.Options().Addr == withReplica {
			acquired++
			must(t, err)
		} else if refused++; !errors.Is(err, redislock.ErrNotReplicated) {
			t.Errorf("lock %s, whose master has no replica: got error %v, want ErrNotReplicated", name, err)
		}
	}
}

// addReplica gives one master of the cluster a replica, and returns the master's address.
func addReplica(t *testing.T, cluster *testutil.Cluster) string {
	t.Helper()
	master := cluster.Nodes[0].Client(t)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	_, free, _ := net.SplitHostPort(listener.Addr().String())
	must(t, listener.Close())
	replica := testutil.StartRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", free).Client(t)

	id := master.Do(t.Context(), "cluster", "myid").Val()
	var host, port, bus string
	for node := range strings.Lines(master.ClusterNodes(t.Context()).Val()) {
		if strings.Contains(node, "myself") { // id host:port@bus flags …
			addr, busPort, _ := strings.Cut(strings.Fields(node)[1], "@")
			bus = busPort
			host, port, err = net.SplitHostPort(addr)
			must(t, err)
		}
	}
	must(t, replica.Do(t.Context(), "cluster", "meet", host, port, bus).Err())
	testutil.Eventually(t, 30*time.Second, func() bool {
		return replica.Do(t.Context(), "cluster", "replicate", id).Err() == nil
	}, "the replica knows its master")
	inStep(t, replica)
	return net.JoinHostPort(host, port)
}

func TestNewNamesWhatIsWrongWithReplicas(t *testing.T) {
	client := testutil.NewClient(t, "127.0.0.1:1")
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _ = ring.Close() })
	for _, bad := range []struct {
		client redis.UniversalClient
		opts   redislock.Options
		name   string
	}{
		{client, redislock.Options{Replicas: -1}, "Replicas is -1"},
		{client, redislock.Options{ReplicaTimeout: -1}, "ReplicaTimeout"},
		{client, redislock.Options{Replicas: 1, ReplicaTimeout: 400 * time.Microsecond}, "ReplicaTimeout is 400"},
		{client, redislock.Options{Replicas: 1, ReplicaTimeout: time.Minute}, "the client's ReadTimeout, "},
		{ring, redislock.Options{Replicas: 1}, "*redis.Ring"},
	} {
		bad.opts.Namespace = "test"
		if _, err := redislock.New(bad.client, bad.opts); err == nil || !strings.Contains(err.Error(), bad.name) {
			t.Errorf("%+v: got error %v, want one that says %q", bad.opts, err, bad.name)
		}
	}
}
