package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/zklock"
)

func TestMain(m *testing.M) {
	os.Exit(testutil.Main(m, map[string]testutil.Role{"holder": holder}))
}

const (
	// patience bounds what a test waits for.
	patience = 30 * time.Second
	// brief is a session's timeout that tests wait out.
	brief = 2 * time.Second
	// long is one that no test waits out.
	long = 3 * time.Hour
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func open(tb testing.TB, addr string, timeout time.Duration) *zklock.Backend {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	backend, err := zklock.Open(ctx, []string{addr}, zklock.Options{Namespace: "test", SessionTimeout: timeout})
	must(tb, err)
	tb.Cleanup(backend.Close)
	return backend
}

func newEngine(tb testing.TB, backend lock.Backend, opts lock.Options) *lock.Engine {
	tb.Helper()
	engine, err := lock.New(backend, opts)
	must(tb, err)
	tb.Cleanup(func() { must(tb, engine.Close(context.WithoutCancel(tb.Context()))) })
	return engine
}

// silent is a logger of the client's.
type silent struct{}

func (silent) Printf(string, ...any) {}

// newClient is a client of the test's own, beside those of backends.
func newClient(tb testing.TB, addr string) *zk.Conn {
	tb.Helper()
	conn, events, err := zk.Connect([]string{addr}, patience, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	must(tb, err)
	tb.Cleanup(func() {
		conn.Close()
		for range events { // until it has ended
		}
	})
	return conn
}

// nodesOf are the claims of a name.
func nodesOf(tb testing.TB, client *zk.Conn, name string) []string {
	tb.Helper()
	nodes, _, err := client.Children("/test/" + name)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		tb.Fatal(err)
	}
	return nodes
}

func TestBackendConforms(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return open(tb, server.Addr(), long)
	})
}

func TestBackendConformsOnThreeServers(t *testing.T) {
	servers := testutil.StartZooKeeper(t, 3)
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return open(tb, servers[len(tb.Name())%3].Addr(), long)
	})
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	servers := []string{"127.0.0.1:1"}
	for want, open := range map[string]func() (*zklock.Backend, error){
		"servers": func() (*zklock.Backend, error) {
			return zklock.Open(t.Context(), nil, zklock.Options{Namespace: "shop"})
		},
		"Namespace": func() (*zklock.Backend, error) {
			return zklock.Open(t.Context(), servers, zklock.Options{Namespace: ".."})
		},
		"SessionTimeout": func() (*zklock.Backend, error) {
			return zklock.Open(t.Context(), servers, zklock.Options{Namespace: "shop", SessionTimeout: -1})
		},
		"Digest": func() (*zklock.Backend, error) {
			return zklock.Open(t.Context(), servers, zklock.Options{Namespace: "shop", Digest: "secret"})
		},
	} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got error %v, want one that names %s and no secret", err, want)
		}
	}
}

func TestOpenWaitsForASessionNoLongerThanItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := zklock.Open(ctx, []string{"127.0.0.1:1"}, zklock.Options{Namespace: "shop"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want that of ctx", err)
	}
}

func TestOpenTellsWhatCameOfEachServer(t *testing.T) {
	var listen net.ListenConfig
	mute, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0") // the system takes the connection, and nobody answers
	must(t, err)
	defer func() { _ = mute.Close() }()
	for addr, want := range map[string]string{
		"127.0.0.1:1":        "connection refused",
		mute.Addr().String(): "connected, and got no session",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		opened := make(chan error, 1)
		go func() {
			_, err := zklock.Open(ctx, []string{addr}, zklock.Options{Namespace: "shop"})
			opened <- err
		}()
		if addr == mute.Addr().String() {
			conn, err := mute.Accept()
			must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			_, err = conn.Read(make([]byte, 1)) // the client has sent its request
			must(t, err)
		}
		cancel()
		err := <-opened
		for _, want := range []string{addr + ": ", want, "must be"} {
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
				t.Errorf("got error %v, want that of ctx, with %q", err, want)
			}
		}
	}
}

func TestATTLIsAtMostHalfOfTheTimeoutThatTheServerGives(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	backend := open(t, server.Addr(), 10*time.Millisecond) // the server gives two ticks
	most := testutil.ZooKeeperTick
	if got := backend.Capabilities().MaxTTL; got != most {
		t.Errorf("MaxTTL is %v, want %v", got, most)
	}
	if _, err := lock.New(backend, lock.Options{TTL: most + 1}); err == nil {
		t.Error("an engine with a longer TTL was made")
	}
	req := lock.Request{Name: "job", Owner: "a", TTL: most + 1}
	if _, err := backend.Acquire(t.Context(), req); err == nil || !strings.Contains(err.Error(), "at most 200ms") {
		t.Errorf("got error %v, want one that says that a TTL is at most 200ms", err)
	}
}

func TestTokensRiseOverRestartsAndNewSequences(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	client := newClient(t, server.Addr())
	engine := newEngine(t, open(t, server.Addr(), patience), lock.Options{CallTimeout: patience})
	var last uint64
	for round := range 3 {
		var lease *lock.Lease
		testutil.Eventually(t, patience, func() bool {
			var err error
			lease, err = engine.Lock(t.Context(), "job")
			return err == nil
		}, "the lock can be had")
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		must(t, lease.Unlock(t.Context()))
		switch round {
		case 0:
			must(t, client.Delete("/test/job", -1)) // as ZooKeeper does after a while
		case 1:
			server.Kill()
			server.Start()
		}
	}
}

func TestTheTokenIsTheTransactionThatMadeTheNode(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	client := newClient(t, server.Addr())
	backend, other := open(t, server.Addr(), long), open(t, server.Addr(), long)
	request := func(owner string) lock.Request {
		return lock.Request{Name: "job", Owner: owner, TTL: time.Hour, Shared: true}
	}
	for i, b := range []*zklock.Backend{backend, other, backend} { // alone, and beside others
		owner := string(rune('a' + i))
		var tokens [2]uint64
		for j := range tokens { // the second time as if the first answer had been lost
			grant, err := b.Acquire(t.Context(), request(owner))
			must(t, err)
			tokens[j] = grant.Token
		}
		for _, node := range nodesOf(t, client, "job") {
			_, stat, err := client.Get("/test/job/" + node)
			must(t, err)
			if want := uint64(stat.Czxid); strings.HasPrefix(node, "s-"+owner) && tokens != [2]uint64{want, want} {
				t.Errorf("tokens %v of %s, want twice %d", tokens, node, want)
			}
		}
	}
	writer := lock.Request{Name: "job", Owner: "w", TTL: time.Hour}
	turn, err := backend.Queue(t.Context(), writer)
	must(t, err)
	for i, b := range []*zklock.Backend{backend, other, backend} {
		if _, err := b.Acquire(t.Context(), writer); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("got error %v, want ErrNotAcquired", err)
		}
		must(t, b.Release(t.Context(), lock.Claim{Name: "job", Owner: string(rune('a' + i))}))
	}
	must(t, turn(t.Context()))
	grant, err := backend.Acquire(t.Context(), writer)
	must(t, err)
	nodes := nodesOf(t, client, "job")
	if len(nodes) != 1 {
		t.Fatalf("nodes %v, want the writer's alone", nodes)
	}
	_, stat, err := client.Get("/test/job/" + nodes[0])
	must(t, err)
	if grant.Token != uint64(stat.Czxid) {
		t.Errorf("token %d of %s, want %d", grant.Token, nodes[0], stat.Czxid)
	}
	must(t, backend.Release(t.Context(), lock.Claim{Name: "job", Owner: "w", Token: grant.Token}))
}

func TestALockThatNobodyElseWantsTakesThreeRequests(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	engine := newEngine(t, open(t, server.Addr(), long), lock.Options{CallTimeout: patience})
	received := func() (n int) {
		t.Helper()
		for line := range strings.Lines(testutil.AskZooKeeper(t, server.Addr(), "srvr")) {
			if _, err := fmt.Sscanf(line, "Received: %d", &n); err == nil {
				return n
			}
		}
		t.Fatal("the server does not tell how many packets it received")
		return 0
	}
	const rounds, asking = 20, 2 // packets, at most, of the one who asks for their number
	before := 0
	for round := range 1 + rounds {
		if round == 1 { // the first makes the nodes above
			before = received()
		}
		lease, err := engine.TryLock(t.Context(), "job")
		must(t, err)
		must(t, lease.Unlock(t.Context()))
	}
	if n := received() - before; n < 3*rounds || n > 3*rounds+asking {
		t.Errorf("%d requests for %d locks, want three for each", n, rounds)
	}
}

func TestNobodyElseTouchesTheNodesOfADigest(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	backend, err := zklock.Open(t.Context(), []string{server.Addr()}, zklock.Options{Namespace: "test", Digest: "shop:secret"})
	must(t, err)
	defer backend.Close()
	_, err = backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: time.Second})
	must(t, err)
	if _, _, err := newClient(t, server.Addr()).Children("/test/job"); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a stranger got error %v, want ErrNoAuth", err)
	}
}

func TestAWaiterWatchesOnlyTheClaimBeforeItsOwn(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	backend := open(t, server.Addr(), long)
	const waiters = 10
	var ends []chan error
	owner := func(i int) string { return string(rune('a' + i)) }
	for i := range waiters {
		turn, err := backend.Queue(t.Context(), lock.Request{Name: "job", Owner: owner(i), TTL: time.Hour})
		must(t, err)
		end := make(chan error, 1)
		go func() { end <- turn(t.Context()) }()
		ends = append(ends, end)
	}
	for i := range waiters {
		must(t, <-ends[i])
		watches := "Total watches:" + strconv.Itoa(waiters-1-i)
		testutil.Eventually(t, patience, func() bool {
			return strings.Contains(testutil.AskZooKeeper(t, server.Addr(), "wchs"), watches)
		}, watches)
		must(t, backend.Release(t.Context(), lock.Claim{Name: "job", Owner: owner(i)}))
	}
}

func TestARequestWhoseReplyWasLostLeavesNoLockThoughTheSessionLives(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	client := newClient(t, server.Addr())
	link := testutil.NewLink(t, server.Addr())
	backend := open(t, link.Addr(), patience)
	grant, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "first", TTL: 2 * time.Second})
	must(t, err)
	must(t, backend.Release(t.Context(), lock.Claim{Name: "job", Owner: "first", Token: grant.Token}))
	link.SwallowReplies()
	asked := make(chan error, 1)
	go func() {
		// It comes back when the connection is closed.
		_, err := backend.Queue(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: 2 * time.Second})
		asked <- err
	}()
	testutil.Eventually(t, patience, func() bool { return len(nodesOf(t, client, "job")) == 1 }, "the node is made")
	link.Speak()
	if err := <-asked; err == nil {
		t.Error("a request without a reply succeeded")
	}
	// Nobody asks for it any more, and the session, which is the one that made it, keeps it.
	testutil.Eventually(t, patience, func() bool { return len(nodesOf(t, client, "job")) == 0 }, "no claim is left")
}

func TestALeaseSurvivesABlipSuspended(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	link := testutil.NewLink(t, server.Addr())
	events := make(chan lock.Event, 1024)
	engine := newEngine(t, open(t, link.Addr(), patience), lock.Options{TTL: patience / 2, Watchdog: 100 * time.Millisecond, Monitor: func(e lock.Event) {
		if e.Kind == lock.Renewed || errors.Is(e.Err, zklock.ErrSuspended) {
			events <- e
		}
	}})
	held, err := engine.Lock(t.Context(), "job")
	must(t, err)
	next := func(kind lock.EventKind) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if e.Kind == kind {
					return
				}
			case <-held.Done():
				t.Fatal(held.Err())
			}
		}
	}
	link.Cut()
	next(lock.RenewRetried)
	must(t, held.Err())
	link.Resume()
	for len(events) > 0 {
		<-events
	}
	next(lock.Renewed)
	must(t, held.Unlock(t.Context()))
}

func TestAHolderThatIsCutOffIsToldBeforeZooKeeperGivesTheLockAway(t *testing.T) {
	t.Parallel()
	for name, cutOff := range map[string]func(*testutil.Link){
		"cut":        (*testutil.Link).Cut,
		"frozen":     (*testutil.Link).Freeze,
		"no replies": (*testutil.Link).SwallowReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testutil.StartZooKeeper(t, 1)[0]
			link := testutil.NewLink(t, server.Addr())
			lossy := newEngine(t, open(t, link.Addr(), brief), lock.Options{TTL: brief / 2})
			steady := newEngine(t, open(t, server.Addr(), patience), lock.Options{TTL: time.Second, CallTimeout: patience})
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

func TestASessionThatExpiredIsFollowedByAnother(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	link := testutil.NewLink(t, server.Addr())
	engine := newEngine(t, open(t, link.Addr(), brief), lock.Options{TTL: brief / 2})
	other := newEngine(t, open(t, server.Addr(), patience), lock.Options{TTL: time.Second, CallTimeout: patience})
	held, err := engine.Lock(t.Context(), "job")
	must(t, err)
	link.Cut()
	next, err := other.Lock(t.Context(), "job") // the session has expired
	must(t, err)
	must(t, next.Unlock(t.Context()))
	link.Resume()
	if err := held.Err(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the lease's error is %v, want ErrLost", err)
	}
	testutil.Eventually(t, patience, func() bool {
		lease, err := engine.TryLock(t.Context(), "job")
		return err == nil && lease.Unlock(t.Context()) == nil
	}, "the next session locks")
}

func TestAServerThatThawsGivesLocksAgain(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	engine := newEngine(t, open(t, server.Addr(), brief), lock.Options{TTL: brief / 2})
	held, err := engine.Lock(t.Context(), "job")
	must(t, err)
	server.Freeze()
	<-held.Done()
	if err := held.Err(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the lease's error is %v, want ErrLost", err)
	}
	server.Thaw()
	testutil.Eventually(t, patience, func() bool {
		lease, err := engine.TryLock(t.Context(), "job")
		return err == nil && lease.Unlock(t.Context()) == nil
	}, "the lock can be had again")
}

func TestARenewalIsNotAnsweredByAServerThatIsCutOff(t *testing.T) {
	servers := testutil.StartZooKeeper(t, 3)
	var follower *testutil.Server
	for _, server := range servers {
		if strings.Contains(testutil.AskZooKeeper(t, server.Addr(), "srvr"), "Mode: follower") {
			follower = server
		}
	}
	backend := open(t, follower.Addr(), patience)
	grant, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: 10 * time.Second})
	must(t, err)
	claim := lock.Claim{Name: "job", Owner: "a", Token: grant.Token}
	must(t, backend.Renew(t.Context(), claim, 10*time.Second))
	for _, server := range servers {
		if server != follower {
			server.Freeze()
		}
	}
	if err := backend.Renew(t.Context(), claim, 10*time.Second); err == nil || errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
}

func TestCloseFreesAllLocksAndEndsWaits(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	client := newClient(t, server.Addr())
	backend := open(t, server.Addr(), patience)
	_, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: 10 * time.Second})
	must(t, err)
	turn, err := backend.Queue(t.Context(), lock.Request{Name: "job", Owner: "b", TTL: 10 * time.Second})
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- turn(t.Context()) }()
	backend.Close()
	backend.Close() // again
	if err := <-ended; err == nil {
		t.Error("the wait ended with the lock")
	}
	if _, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "c", TTL: time.Second}); err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want one that says that the backend is closed", err)
	}
	testutil.Eventually(t, patience, func() bool { return len(nodesOf(t, client, "job")) == 0 }, "no claim is left")
}

// holderReport is what the holder process tells its parent.
type holderReport struct {
	Lost   bool
	Unlock string // error of the unlock
}

// holder is a process that holds the lock until it has lost it.
func holder(ctx context.Context, args testutil.Args) error {
	backend, err := zklock.Open(ctx, []string{args["addr"]}, zklock.Options{Namespace: "test", SessionTimeout: brief})
	if err != nil {
		return err
	}
	defer backend.Close()
	engine, err := lock.New(backend, lock.Options{TTL: brief / 2})
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
	server := testutil.StartZooKeeper(t, 1)[0]
	engine := newEngine(t, open(t, server.Addr(), patience), lock.Options{CallTimeout: patience})
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
	must(t, next.Extend(t.Context(), lock.DefaultTTL)) // the next still holds it
	must(t, next.Unlock(t.Context()))
	must(t, child.Wait(patience))
}

func TestAHolderThatWasKilledLeavesTheLockAfterItsSession(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	engine := newEngine(t, open(t, server.Addr(), patience), lock.Options{})
	child := testutil.Spawn(t, "holder", testutil.Args{"addr": server.Addr()})
	var report holderReport
	child.Next(patience, &report)
	child.Kill()
	lease, err := engine.Lock(t.Context(), "job")
	must(t, err)
	must(t, lease.Unlock(t.Context()))
}

// An Engine asks again, with the same owner, while a first request that got no answer in time is still under way.
func TestAnOwnerThatAsksTwiceAtOnceLeavesNothingBehind(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	client, backend := newClient(t, server.Addr()), open(t, server.Addr(), long)
	for name, holders := range map[string]int{"free": 0, "held": 1} {
		t.Run(name, func(t *testing.T) {
			if holders > 0 {
				_, err := backend.Acquire(t.Context(), lock.Request{Name: name, Owner: "holder", TTL: time.Hour})
				must(t, err)
			}
			for n := range 200 {
				req := lock.Request{Name: name, Owner: "owner" + strconv.Itoa(n), TTL: time.Hour}
				var both sync.WaitGroup
				for range 2 {
					both.Go(func() {
						if _, err := backend.Acquire(t.Context(), req); err != nil && !errors.Is(err, lock.ErrNotAcquired) {
							t.Error(err)
						}
					})
				}
				both.Wait()
				if err := backend.Release(t.Context(), lock.Claim{Name: req.Name, Owner: req.Owner}); err != nil && !errors.Is(err, lock.ErrNotHeld) {
					t.Fatal(err)
				}
				if left := nodesOf(t, client, name); len(left) != holders {
					t.Fatalf("after %d acquisitions: claims %q, want %d: the lock can never be had again", n+1, left, holders)
				}
			}
		})
	}
}

func TestATryThatAFrozenServerKeepsLeavesNoClaimBehind(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	client, holder, backend := newClient(t, server.Addr()), open(t, server.Addr(), long), open(t, server.Addr(), long)
	_, err := holder.Acquire(t.Context(), lock.Request{Name: "job", Owner: "holder", TTL: time.Hour})
	must(t, err)
	engine, err := lock.New(backend, lock.Options{CallTimeout: 50 * time.Millisecond})
	must(t, err)
	server.Freeze()
	if _, err := engine.TryLock(t.Context(), "job"); err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want one of a store that could not be asked", err)
	}
	server.Thaw()
	must(t, engine.Close(t.Context())) // what the try has left behind has ended
	if left := nodesOf(t, client, "job"); len(left) != 1 {
		t.Errorf("claims %q, want the holder's", left)
	}
}
