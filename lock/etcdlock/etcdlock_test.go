package etcdlock_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/etcdlock"
	"github.com/herdgate/herdgate/lock/locktest"
)

func TestMain(m *testing.M) {
	os.Exit(testutil.Main(m, map[string]testutil.Role{"holder": holder}))
}

// patience bounds what a test waits for.
const patience = 30 * time.Second

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newClient(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	must(tb, err)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func addrs(servers []*testutil.Server) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return all
}

func newBackend(tb testing.TB, client *clientv3.Client) *etcdlock.Backend {
	tb.Helper()
	backend, err := etcdlock.New(client, etcdlock.Options{Namespace: "test"})
	must(tb, err)
	return backend
}

func newEngine(tb testing.TB, backend lock.Backend, opts lock.Options) *lock.Engine {
	tb.Helper()
	engine, err := lock.New(backend, opts)
	must(tb, err)
	tb.Cleanup(func() { must(tb, engine.Close(context.WithoutCancel(tb.Context()))) })
	return engine
}

// keysOf are the keys of the locks of a name.
func keysOf(tb testing.TB, client *clientv3.Client, name string) []string {
	tb.Helper()
	resp, err := client.Get(tb.Context(), "test/"+name+"/", clientv3.WithPrefix())
	must(tb, err)
	var keys []string
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func TestBackendConformsOnASingleMember(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	client := newClient(t, server.Addr())
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return newBackend(tb, client)
	})
}

func TestBackendConformsOnThreeMembers(t *testing.T) {
	client := newClient(t, addrs(testutil.StartEtcd(t, 3))...)
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return newBackend(tb, client)
	})
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	if _, err := etcdlock.New(nil, etcdlock.Options{Namespace: "shop"}); err == nil || !strings.Contains(err.Error(), "client") {
		t.Errorf("no client: got error %v, want one that names the client", err)
	}
	client := newClient(t, "127.0.0.1:1")
	for _, namespace := range []string{"", "a b", "a/b", "ä"} {
		if _, err := etcdlock.New(client, etcdlock.Options{Namespace: namespace}); err == nil || !strings.Contains(err.Error(), "Namespace") {
			t.Errorf("namespace %q: got error %v, want one that names Namespace", namespace, err)
		}
	}
}

func TestTokensRiseOverRestarts(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	engine := newEngine(t, newBackend(t, newClient(t, server.Addr())), lock.Options{CallTimeout: patience})
	var last uint64
	for range 3 {
		lease, err := engine.Lock(t.Context(), "job")
		must(t, err)
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		must(t, lease.Unlock(t.Context()))
		server.Kill()
		server.Start()
	}
}

// stale is a member that answers keep-alives as the leader it was, in an earlier term, and renews nothing.
type stale struct {
	clientv3.Lease
	term uint64 // 0: it does not answer
}

func (s *stale) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := s.Lease.KeepAliveOnce(ctx, id)
	if err == nil && s.term != 0 {
		resp.RaftTerm = s.term
	}
	return resp, err
}

func TestAKeepAliveOfALeaderThatWasReplacedDoesNotCount(t *testing.T) {
	client := newClient(t, testutil.StartEtcd(t, 1)[0].Addr())
	leader := &stale{Lease: client.Lease}
	client.Lease = leader
	backend := newBackend(t, client)
	grant, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: time.Minute})
	must(t, err)
	claim := lock.Claim{Name: "job", Owner: "a", Token: grant.Token}
	must(t, backend.Renew(t.Context(), claim, time.Minute))

	leader.term = 1
	if err := backend.Renew(t.Context(), claim, time.Minute); err == nil || errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	must(t, backend.Release(t.Context(), claim))
	// The lease of that lock is at hand for the next, and renewed in the same way.
	if _, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "b", TTL: time.Minute}); err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	leader.term = 0
	_, err = backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "b", TTL: time.Minute})
	must(t, err)
}

func TestUncontendedLocksShareALease(t *testing.T) {
	client := newClient(t, testutil.StartEtcd(t, 1)[0].Addr())
	engine := newEngine(t, newBackend(t, client), lock.Options{CallTimeout: patience})
	for range 20 {
		lease, err := engine.TryLock(t.Context(), "job")
		must(t, err)
		_, err = engine.TryLock(t.Context(), "job")
		if !errors.Is(err, lock.ErrNotAcquired) {
			t.Fatalf("got error %v, want ErrNotAcquired", err)
		}
		must(t, lease.Unlock(t.Context()))
	}
	leases, err := client.Leases(t.Context())
	must(t, err)
	if n := len(leases.Leases); n > 2 {
		t.Errorf("etcd has %d leases after locks one after the other, want one for the holder and one for who is refused", n)
	}
}

func TestALeaseThatEndedInReserveIsNotUsed(t *testing.T) {
	client := newClient(t, testutil.StartEtcd(t, 1)[0].Addr())
	engine := newEngine(t, newBackend(t, client), lock.Options{CallTimeout: patience})
	for range 3 {
		lease, err := engine.TryLock(t.Context(), "job")
		must(t, err)
		must(t, lease.Unlock(t.Context()))
		leases, err := client.Leases(t.Context())
		must(t, err)
		for _, l := range leases.Leases {
			_, err := client.Revoke(t.Context(), l.ID)
			must(t, err)
		}
	}
}

// ending lets a lease that is to be renewed end as soon as there is something on it.
type ending struct {
	clientv3.Lease
	put clientv3.WatchChan
}

func (e *ending) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	<-e.put
	if _, err := e.Revoke(ctx, id); err != nil {
		return nil, err
	}
	return nil, rpctypes.ErrLeaseNotFound
}

func TestALeaseThatEndsWhenAClaimIsOnItIsReplaced(t *testing.T) {
	client := newClient(t, testutil.StartEtcd(t, 1)[0].Addr())
	lessor := client.Lease
	backend := newBackend(t, client)
	claim := lock.Claim{Name: "job", Owner: "a"}
	req := lock.Request{Name: claim.Name, Owner: claim.Owner, TTL: time.Minute}
	_, err := backend.Acquire(t.Context(), req)
	must(t, err)
	must(t, backend.Release(t.Context(), claim)) // its lease is at hand for the next
	now, err := client.Get(t.Context(), "test")
	must(t, err)
	client.Lease = &ending{lessor, client.Watch(t.Context(), "test/job/", clientv3.WithPrefix(), clientv3.WithRev(now.Header.Revision+1))}
	grant, err := backend.Acquire(t.Context(), req)
	must(t, err)
	claim.Token = grant.Token
	client.Lease = lessor
	must(t, backend.Renew(t.Context(), claim, time.Minute))
	must(t, backend.Release(t.Context(), claim))
}

// watches counts the watches of a client.
type watches struct {
	clientv3.Watcher
	keys chan string
}

func (w watches) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.keys <- key
	return w.Watcher.Watch(ctx, key, opts...)
}

func TestAReleaseWakesOnlyTheNext(t *testing.T) {
	client := newClient(t, testutil.StartEtcd(t, 1)[0].Addr())
	watched := watches{client.Watcher, make(chan string, 100)}
	client.Watcher = watched
	backend := newBackend(t, client)
	place := func(owner string) (claim lock.Claim, got chan error) {
		turn, err := backend.Queue(t.Context(), lock.Request{Name: "job", Owner: owner, TTL: time.Hour})
		must(t, err)
		got = make(chan error, 1)
		go func() { got <- turn(t.Context()) }()
		return lock.Claim{Name: "job", Owner: owner}, got
	}
	const waiters = 10
	var claims []lock.Claim
	var got []chan error
	for i := range waiters {
		claim, ended := place(string(rune('a' + i)))
		claims, got = append(claims, claim), append(got, ended)
		if i > 0 {
			if key, want := <-watched.keys, "test/job/x/"+claims[i-1].Owner; key != want {
				t.Errorf("waiter %d watches %s, want %s", i, key, want)
			}
		}
	}
	for i, claim := range claims {
		must(t, <-got[i])
		must(t, backend.Release(t.Context(), claim))
	}
	if n := len(watched.keys); n > 0 {
		t.Errorf("%d watches were made anew, though only the first in the queue has gone each time", n)
	}
}

func TestAWaiterWhoseServerIsKilledGoesOnWaiting(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	client := newClient(t, server.Addr())
	contended := make(chan struct{}, 10)
	engine := newEngine(t, newBackend(t, client), lock.Options{TTL: time.Minute, CallTimeout: patience, Monitor: func(e lock.Event) {
		if e.Kind == lock.Contended {
			contended <- struct{}{}
		}
	}})
	held, err := engine.Lock(t.Context(), "job")
	must(t, err)
	got := make(chan error, 1)
	go func() {
		lease, err := engine.Lock(t.Context(), "job")
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		got <- err
	}()
	<-contended
	testutil.Eventually(t, patience, func() bool { return len(keysOf(t, client, "job")) == 2 }, "the waiter is in the queue")
	server.Kill()
	server.Start()
	must(t, held.Unlock(t.Context()))
	must(t, <-got)
	testutil.Eventually(t, patience, func() bool { return len(keysOf(t, client, "job")) == 0 }, "no claim is left")
}

func TestARequestWhoseReplyWasLostLeavesNoLock(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	direct := newClient(t, server.Addr())
	link := testutil.NewLink(t, server.Addr())
	client := newClient(t, link.Addr())
	engine := newEngine(t, newBackend(t, client), lock.Options{CallTimeout: time.Second})

	warm, err := engine.TryLock(t.Context(), "job")
	must(t, err)
	must(t, warm.Unlock(t.Context()))
	link.SwallowReplies()
	_, err = engine.TryLock(t.Context(), "job")
	if err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	link.Speak()
	testutil.Eventually(t, patience, func() bool {
		lease, err := engine.TryLock(t.Context(), "job")
		return err == nil && lease.Unlock(t.Context()) == nil
	}, "the lock can be had again")
	testutil.Eventually(t, patience, func() bool { return len(keysOf(t, direct, "job")) == 0 }, "no claim is left")
}

func TestAHolderThatIsCutOffIsToldBeforeEtcdGivesTheLockAway(t *testing.T) {
	t.Parallel()
	for name, cutOff := range map[string]func(*testutil.Link){
		"cut":        (*testutil.Link).Cut,
		"frozen":     (*testutil.Link).Freeze,
		"no replies": (*testutil.Link).SwallowReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testutil.StartEtcd(t, 1)[0]
			link := testutil.NewLink(t, server.Addr())
			lossy := newEngine(t, newBackend(t, newClient(t, link.Addr())), lock.Options{TTL: 2 * time.Second})
			steady := newEngine(t, newBackend(t, newClient(t, server.Addr())), lock.Options{TTL: time.Minute, CallTimeout: patience})
			held, err := lossy.Lock(t.Context(), "job")
			must(t, err)
			cutOff(link)
			next, err := steady.Lock(t.Context(), "job")
			must(t, err)
			if err := held.Err(); !errors.Is(err, lock.ErrLost) {
				t.Errorf("another holds the lock, and the lease's error is %v, want ErrLost", err)
			}
			must(t, next.Unlock(t.Context()))
		})
	}
}

func TestALeaseOutlivesItsLeader(t *testing.T) {
	members := testutil.StartEtcd(t, 3)
	client := newClient(t, addrs(members)...)
	renewed := make(chan struct{}, 1024)
	engine := newEngine(t, newBackend(t, client), lock.Options{TTL: 10 * time.Second, Monitor: func(e lock.Event) {
		if e.Kind == lock.Renewed {
			renewed <- struct{}{}
		}
	}})
	held, err := engine.Lock(t.Context(), "job")
	must(t, err)
	leader := leaderOf(t, client, members)
	leader.Freeze()
	for range 2 { // by the leader that follows, though the client has a connection to the frozen one
		select {
		case <-renewed:
		case <-held.Done():
			t.Fatal(held.Err())
		}
	}
	leader.Thaw()
	must(t, held.Err())
	must(t, held.Unlock(t.Context()))
}

func TestAFrozenMajorityLosesTheLockInTimeAndGivesItOnWhenItThaws(t *testing.T) {
	members := testutil.StartEtcd(t, 3)
	engine := newEngine(t, newBackend(t, newClient(t, addrs(members)...)), lock.Options{TTL: 2 * time.Second})
	held, err := engine.Lock(t.Context(), "job")
	must(t, err)
	members[0].Freeze()
	members[1].Freeze()
	<-held.Done()
	if err := held.Err(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the lease's error is %v, want ErrLost", err)
	}
	members[0].Thaw()
	members[1].Thaw()
	testutil.Eventually(t, patience, func() bool {
		next, err := engine.TryLock(t.Context(), "job")
		return err == nil && next.Unlock(t.Context()) == nil
	}, "the lock can be had again")
}

func leaderOf(tb testing.TB, client *clientv3.Client, members []*testutil.Server) *testutil.Server {
	tb.Helper()
	for _, member := range members {
		status, err := client.Status(tb.Context(), member.Addr())
		must(tb, err)
		if status.Header.MemberId == status.Leader {
			return member
		}
	}
	tb.Fatal("no member leads")
	return nil
}

// holderReport is what the holder process tells its parent.
type holderReport struct {
	Lost   bool
	Unlock string // error of the unlock
}

// holder is a process that holds the lock until it has lost it.
func holder(ctx context.Context, args testutil.Args) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{args["addr"]}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	backend, err := etcdlock.New(client, etcdlock.Options{Namespace: "test"})
	if err != nil {
		return err
	}
	engine, err := lock.New(backend, lock.Options{TTL: 2 * time.Second})
	if err != nil {
		return err
	}
	lease, err := engine.TryLock(ctx, "job")
	if err != nil {
		return err
	}
	if err := testutil.Emit(holderReport{}); err != nil {
		return err
	}
	select {
	case <-lease.Done():
	case <-ctx.Done():
	}
	report := holderReport{Lost: errors.Is(lease.Err(), lock.ErrLost)}
	if err := lease.Unlock(ctx); err != nil {
		report.Unlock = err.Error()
	}
	return testutil.Emit(report)
}

func TestAHolderThatWasFrozenKnowsThatItLostAndHarmsNobody(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	engine := newEngine(t, newBackend(t, newClient(t, server.Addr())), lock.Options{TTL: time.Minute, CallTimeout: patience})
	child := testutil.Spawn(t, "holder", testutil.Args{"addr": server.Addr()})
	var report holderReport
	child.Next(patience, &report)

	child.Freeze()
	next, err := engine.Lock(t.Context(), "job")
	must(t, err)
	child.Thaw()
	child.Next(patience, &report)
	if !report.Lost || !strings.Contains(report.Unlock, lock.ErrNotHeld.Error()) {
		t.Errorf("the thawed holder says %+v, want that it lost the lock and its unlock found it not held", report)
	}
	must(t, next.Extend(t.Context(), time.Minute)) // the next still holds it
	must(t, next.Unlock(t.Context()))
	must(t, child.Wait(patience))
}

func TestAHolderThatWasKilledLeavesTheLockAfterItsTTL(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	engine := newEngine(t, newBackend(t, newClient(t, server.Addr())), lock.Options{})
	child := testutil.Spawn(t, "holder", testutil.Args{"addr": server.Addr()})
	var report holderReport
	child.Next(patience, &report)
	child.Kill()
	lease, err := engine.Lock(t.Context(), "job")
	must(t, err)
	must(t, lease.Unlock(t.Context()))
}
