package redislock_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/redislock"
)

const (
	// redlockKey is where the nodes keep the lock of these tests.
	redlockKey = "test:lock:{job}"
	// calm is a node timeout that a busy machine keeps.
	calm = 2 * time.Second
	// endless is a time that no test waits out.
	endless = time.Hour
)

// quintet are five masters that know nothing of each other.
type quintet [5]*testutil.Redis

func startQuintet(t *testing.T) quintet {
	t.Helper()
	var q quintet
	for i := range q {
		q[i] = testutil.StartRedis(t)
	}
	return q
}

// clients are those of the five, with opts.
func (q quintet) clients(tb testing.TB, opts ...func(*redis.Options)) []redis.UniversalClient {
	tb.Helper()
	clients := make([]redis.UniversalClient, len(q))
	for i, server := range q {
		clients[i] = server.Client(tb, opts...)
	}
	return clients
}

// votes are the nodes that have the lock of these tests.
func (q quintet) votes(t *testing.T) int {
	t.Helper()
	n := 0
	for _, server := range q {
		n += int(server.Client(t).Exists(t.Context(), redlockKey).Val())
	}
	return n
}

func newRedlock(tb testing.TB, clients []redis.UniversalClient, opts redislock.RedlockOptions) *redislock.Redlock {
	tb.Helper()
	opts.Namespace = "test"
	if opts.NodeTimeout == 0 {
		opts.NodeTimeout = calm
	}
	backend, err := redislock.NewRedlock(clients, opts)
	must(tb, err)
	tb.Cleanup(backend.Close)
	return backend
}

func TestARedlockConformsOnFiveRedisServers(t *testing.T) {
	clients := startQuintet(t).clients(t)
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return newRedlock(tb, clients, redislock.RedlockOptions{})
	})
}

func TestARedlockConformsOnMiniredisInABubble(t *testing.T) {
	locktest.RunInBubble(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		clients := make([]redis.UniversalClient, 3)
		for i := range clients {
			_, client := testutil.NewBubbleRedis(tb.(*testing.T))
			clients[i] = bubbleClient{client(func(o *redis.Options) { o.Protocol = 2 })}
		}
		return newRedlock(tb, clients, redislock.RedlockOptions{})
	})
}

// bubbleClient hides that all servers in a bubble have the same address.
type bubbleClient struct{ redis.UniversalClient }

func TestARedlockConformsWithAMinorityOfItsNodesDown(t *testing.T) {
	nodes := startQuintet(t)
	clients := nodes.clients(t, refused)
	nodes[0].Kill()
	nodes[3].Kill()
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return newRedlock(tb, clients, redislock.RedlockOptions{})
	})
}

// refused makes go-redis take a refused connection for an answer.
func refused(o *redis.Options) {
	o.DialerRetries = 1
	o.PoolSize = 1 << 14 // as many failed dials begin a goroutine that outlives the client
}

func TestNewRedlockNamesWhatIsWrong(t *testing.T) {
	client := func(addr string) redis.UniversalClient { return testutil.NewClient(t, addr) }
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	ring := redis.NewRing(&redis.RingOptions{})
	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _, _, _ = cluster.Close(), ring.Close(), failover.Close() })
	good := []redis.UniversalClient{client("127.0.0.1:1"), client("127.0.0.1:2"), client("127.0.0.1:3")}
	with := func(third redis.UniversalClient) []redis.UniversalClient {
		return []redis.UniversalClient{good[0], good[1], third}
	}
	opts := redislock.RedlockOptions{Namespace: "shop"}
	for name, bad := range map[string]struct {
		nodes []redis.UniversalClient
		opts  redislock.RedlockOptions
	}{
		"nodes is 0":            {nil, opts},
		"nodes is 1":            {good[:1], opts},
		"nodes is 4":            {append(with(good[2]), client("127.0.0.1:4")), opts},
		"node 2 is ni":          {with(nil), opts},
		"a Cluster":             {with(cluster), opts},
		"a Ring":                {with(ring), opts},
		"a Sentinel":            {with(failover), opts},
		"the same, 127.0.0.1:1": {with(client("127.0.0.1:1")), opts},
		"NodeTimeout":           {good, redislock.RedlockOptions{Namespace: "shop", NodeTimeout: lock.Off}},
		"RestartDelay":          {good, redislock.RedlockOptions{Namespace: "shop", RestartDelay: -time.Second}},
		"Namespace":             {good, redislock.RedlockOptions{}},
	} {
		if _, err := redislock.NewRedlock(bad.nodes, bad.opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got error %v, want one that says %q", err, name)
		}
	}
	backend, err := redislock.NewRedlock(good, opts)
	must(t, err)
	if backend.Capabilities().Fence {
		t.Error("it promises a fence")
	}
	backend.Close()
	backend.Close() // again
	if _, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: time.Second}); err == nil {
		t.Error("an acquire after Close: got no error")
	}
}

func TestTheLossOfAMinorityFreesNoRedlockAndStopsNobody(t *testing.T) {
	nodes := startQuintet(t)
	engine := newEngine(t, newRedlock(t, nodes.clients(t, refused), redislock.RedlockOptions{}), lock.Options{TTL: time.Minute, CallTimeout: 20 * time.Second})
	lease, err := engine.TryLock(t.Context(), "job")
	must(t, err)
	nodes[1].Kill()
	nodes[4].Kill()

	_, err = engine.TryLock(t.Context(), "job")
	if !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("the lock is held: got error %v, want ErrNotAcquired", err)
	}
	must(t, lease.Extend(t.Context(), time.Minute))
	must(t, lease.Unlock(t.Context()))
	lease, err = engine.TryLock(t.Context(), "job")
	must(t, err)
	must(t, lease.Unlock(t.Context()))
}

func TestARedlockWithoutAMajorityIsAnErrorAndNotContention(t *testing.T) {
	nodes := startQuintet(t)
	engine := newEngine(t, newRedlock(t, nodes.clients(t, refused), redislock.RedlockOptions{}), lock.Options{TTL: time.Minute})
	held, err := engine.TryLock(t.Context(), "held")
	must(t, err)
	for _, i := range []int{0, 2, 3} {
		nodes[i].Kill()
	}
	undecided := func(what string, err error) {
		t.Helper()
		quorum := (*redislock.QuorumError)(nil)
		if !errors.As(err, &quorum) || errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("%s: got error %v, want a QuorumError and nothing else", what, err)
			return
		}
		if quorum.Nodes != 5 || quorum.Yes != 2 || quorum.No != 0 || len(quorum.Errs) != 3 ||
			!strings.Contains(err.Error(), "2 of 5 nodes answered") || !strings.Contains(err.Error(), nodes[3].Addr()+": ") {
			t.Errorf("%s: got error %v, want that 2 of 5 nodes answered, and why %s did not", what, err, nodes[3].Addr())
		}
	}
	_, err = engine.TryLock(t.Context(), "job")
	undecided("acquire", err)
	must(t, engine.Close(t.Context()))
	for _, i := range []int{1, 4} {
		if n := nodes[i].Client(t).Exists(t.Context(), redlockKey).Val(); n != 0 {
			t.Errorf("node %d keeps a vote for nobody", i)
		}
	}
	undecided("renew", held.Extend(t.Context(), 2*time.Minute))
	must(t, held.Err())
	if err := held.Unlock(t.Context()); err == nil || errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("unlock: got error %v, want one that leaves the outcome open", err)
	}
}

func TestARedlockWaitsForAFrozenNodeNoLongerThanNodeTimeout(t *testing.T) {
	nodes := startQuintet(t)
	patient := func(o *redis.Options) { o.ReadTimeout = endless }
	backend := newRedlock(t, nodes.clients(t, patient), redislock.RedlockOptions{NodeTimeout: 300 * time.Millisecond})
	engine := newEngine(t, backend, lock.Options{TTL: time.Minute, CallTimeout: 20 * time.Second})
	nodes[2].Freeze()
	for range 2 {
		lease, err := engine.TryLock(t.Context(), "job")
		must(t, err)
		must(t, lease.Extend(t.Context(), time.Minute))
		must(t, lease.Unlock(t.Context()))
	}
	nodes[2].Thaw() // so that Close has not to wait for an hour
}

func TestARenewalOfARedlockWithAFrozenNodeEndsBeforeItsContext(t *testing.T) {
	nodes := startQuintet(t)
	backend := newRedlock(t, nodes.clients(t), redislock.RedlockOptions{NodeTimeout: endless})
	_, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: time.Minute})
	must(t, err)
	nodes[2].Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	must(t, backend.Renew(ctx, lock.Claim{Name: "job", Owner: "a"}, time.Minute))
	must(t, ctx.Err())
	nodes[2].Thaw()
}

func TestNodesThatRestartEmptyOneByOneLoseNoRedlock(t *testing.T) {
	nodes := startQuintet(t)
	clients := nodes.clients(t, refused)
	holder := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{}), lock.Options{TTL: endless})
	other := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{}), lock.Options{TTL: endless})
	lease, err := holder.TryLock(t.Context(), "job")
	must(t, err)
	for i, node := range nodes {
		node.Restart()
		if _, err := other.TryLock(t.Context(), "job"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Fatalf("after the restart of node %d: got error %v, want ErrNotAcquired", i, err)
		}
		must(t, lease.Extend(t.Context(), endless))
		if n := nodes.votes(t); n != 5 {
			t.Errorf("after a renewal %d nodes have the lock, want 5", n)
		}
	}
	must(t, lease.Unlock(t.Context()))
	if n := nodes.votes(t); n != 0 {
		t.Errorf("%d nodes still have the lock", n)
	}
}

// What is not promised: that a lock outlives the loss of the data of a majority.
func TestARedlockThatAMajorityForgotIsLostAtTheNextRenewal(t *testing.T) {
	nodes := startQuintet(t)
	clients := nodes.clients(t, refused)
	holder := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{}), lock.Options{TTL: endless})
	other := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{}), lock.Options{TTL: endless})
	first, err := holder.TryLock(t.Context(), "job")
	must(t, err)
	for _, node := range nodes[:3] {
		node.Restart()
	}
	second, err := other.TryLock(t.Context(), "job")
	must(t, err)
	must(t, first.Err()) // two holders
	if err := first.Extend(t.Context(), endless); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("got error %v, want ErrLost and ErrNotHeld", err)
	}
	must(t, second.Extend(t.Context(), endless))
	must(t, second.Unlock(t.Context()))
}

// A lock of a bare majority does not outlive the loss of one of it, unless nodes that were restarted do not vote.
func TestRestartDelayKeepsForgetfulNodesOfARedlockFromVoting(t *testing.T) {
	nodes := startQuintet(t)
	clients := nodes.clients(t, refused)
	nodes[0].Kill()
	nodes[1].Kill()
	holder := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{}), lock.Options{TTL: endless})
	first, err := holder.TryLock(t.Context(), "job")
	must(t, err)
	for _, node := range nodes[:3] {
		node.Restart()
	}

	careful := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{RestartDelay: endless}), lock.Options{TTL: endless})
	_, err = careful.TryLock(t.Context(), "job")
	if quorum := (*redislock.QuorumError)(nil); !errors.As(err, &quorum) || quorum.No != 2 || !strings.Contains(err.Error(), "has been up") {
		t.Errorf("got error %v, want a QuorumError with 2 that say no and 3 that have not been up for long enough", err)
	}
	must(t, first.Err())

	careless := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{}), lock.Options{TTL: endless})
	second, err := careless.TryLock(t.Context(), "job")
	must(t, err)
	must(t, first.Err()) // two holders
	must(t, second.Unlock(t.Context()))
	must(t, first.Stop())
}

// give puts votes of an owner on nodes, each for a time.
func (q quintet) give(t *testing.T, owner string, ttls map[int]time.Duration) {
	t.Helper()
	for i, ttl := range ttls {
		must(t, q[i].Client(t).Set(t.Context(), redlockKey, owner+":1", ttl).Err())
	}
}

func TestARedlockThatNobodyWonIsGivenBackAndTriedAgainSoon(t *testing.T) {
	nodes := startQuintet(t)
	backend := newRedlock(t, nodes.clients(t), redislock.RedlockOptions{})
	nodes.give(t, "x", map[int]time.Duration{0: endless, 1: endless})
	nodes.give(t, "y", map[int]time.Duration{2: endless, 3: endless})
	_, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "z", TTL: endless})
	if held := (*lock.ContendedError)(nil); !errors.As(err, &held) || held.RetryAfter <= 0 || held.RetryAfter > time.Second {
		t.Errorf("got error %#v, want a ContendedError that is over soon", err)
	}
	if n := nodes.votes(t); n != 4 {
		t.Errorf("%d nodes have given their vote, want the 4 of the others", n)
	}
}

func TestARedlockThatIsHeldIsFreeWhenEnoughNodesAre(t *testing.T) {
	nodes := startQuintet(t)
	backend := newRedlock(t, nodes.clients(t, refused), redislock.RedlockOptions{})
	nodes.give(t, "x", map[int]time.Duration{0: 30 * time.Minute, 1: 10 * time.Minute, 2: 20 * time.Minute})
	wants := func(from, to time.Duration) {
		t.Helper()
		_, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "y", TTL: endless})
		if held := (*lock.ContendedError)(nil); !errors.As(err, &held) || held.RetryAfter <= from || held.RetryAfter > to {
			t.Errorf("got error %#v, want a ContendedError that is over in %v to %v", err, from, to)
		}
	}
	wants(5*time.Minute, 10*time.Minute) // then 3 nodes are free
	nodes[3].Kill()
	wants(15*time.Minute, 20*time.Minute)
	nodes[0].Kill() // x has only 2 votes that are known, and perhaps a third
	wants(15*time.Minute, 20*time.Minute)
}

func TestAnUndoOfARedlockThatComesLateTakesNothingFromALaterRequest(t *testing.T) {
	nodes := startQuintet(t)
	clients := nodes.clients(t)
	proxy := testutil.NewProxy(t, nodes[4].Addr())
	clients[4] = testutil.NewClient(t, proxy.Addr())
	backend := newRedlock(t, clients, redislock.RedlockOptions{NodeTimeout: time.Second})
	nodes.give(t, "x", map[int]time.Duration{0: endless, 1: endless, 2: endless})
	req := lock.Request{Name: "job", Owner: "a", TTL: endless}

	scripts := testutil.Command("evalsha", "eval")
	undo := func(request []byte) bool { // its last word is the name of the lock
		return scripts(request) && slices.Contains(testutil.Words(request), "job")
	}
	letGo := proxy.HoldRequests(undo, 1)
	if _, err := backend.Acquire(t.Context(), req); !errors.Is(err, lock.ErrNotAcquired) {
		t.Fatalf("got error %v, want ErrNotAcquired", err)
	}
	for _, node := range nodes[:3] {
		must(t, node.Client(t).Del(t.Context(), redlockKey).Err())
	}
	_, err := backend.Acquire(t.Context(), req)
	must(t, err)
	letGo()
	backend.Close() // waits for the undo
	if n := nodes.votes(t); n != 5 {
		t.Errorf("%d nodes have the lock, want all 5", n)
	}
}

func TestARedlockWhoseCallerGaveUpWhileTheNodesVotedIsGivenBack(t *testing.T) {
	nodes := startQuintet(t)
	scripts := testutil.Command("evalsha", "eval")
	undo := func(request []byte) bool { // its last word is the name of the lock
		return scripts(request) && slices.Contains(testutil.Words(request), "job")
	}
	vote := func(request []byte) bool { return scripts(request) && !undo(request) }
	var clients []redis.UniversalClient
	var votes, undone []*atomic.Int64
	var letGo []func()
	for _, node := range nodes {
		proxy := testutil.NewProxy(t, node.Addr())
		clients = append(clients, testutil.NewClient(t, proxy.Addr()))
		votes = append(votes, proxy.Count(vote))
		undone = append(undone, proxy.Count(undo))
		letGo = append(letGo, proxy.HoldRequests(vote, 1))
	}
	backend := newRedlock(t, clients, redislock.RedlockOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := backend.Acquire(ctx, lock.Request{Name: "job", Owner: "a", TTL: endless})
		gaveUp <- err
	}()
	everywhere := func(counts []*atomic.Int64) func() bool {
		return func() bool {
			return !slices.ContainsFunc(counts, func(n *atomic.Int64) bool { return n.Load() == 0 })
		}
	}
	testutil.Eventually(t, calm, everywhere(votes), "every node is asked")
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want that of the context", err)
	}
	testutil.Eventually(t, calm, everywhere(undone), "every node is told to forget it")
	for _, let := range letGo {
		let()
	}
	backend.Close() // waits for the calls
	if n := nodes.votes(t); n != 0 {
		t.Errorf("%d nodes have a lock that nobody holds, want none", n)
	}
}

func TestARedlockThatComesTooLateIsAnErrorAndGivenBack(t *testing.T) {
	nodes := startQuintet(t)
	clients := nodes.clients(t)
	for i := range 3 {
		proxy := testutil.NewProxy(t, nodes[i].Addr())
		proxy.DelayReplies(testutil.Command("evalsha", "eval"), 400*time.Millisecond)
		clients[i] = testutil.NewClient(t, proxy.Addr())
	}
	backend := newRedlock(t, clients, redislock.RedlockOptions{})
	_, err := backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: 300 * time.Millisecond})
	if err == nil || errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), "less than the TTL") {
		t.Errorf("got error %v, want one that says that the votes took too long", err)
	}
}

func TestOneOfEightRacersHoldsARedlockAtATime(t *testing.T) {
	nodes := startQuintet(t)
	const racers, rounds = 8, 6
	var inside, total atomic.Int32
	var wg sync.WaitGroup
	for i := range racers {
		clients := nodes.clients(t)
		slices.Reverse(clients[i%5:]) // not all of them ask in the same order
		engine := newEngine(t, newRedlock(t, clients, redislock.RedlockOptions{}), lock.Options{
			TTL: time.Minute, RetryMin: 5 * time.Millisecond, RetryMax: 100 * time.Millisecond, CallTimeout: 20 * time.Second,
		})
		wg.Go(func() {
			for range rounds {
				lease, err := engine.Lock(t.Context(), "job")
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				if err := lease.Extend(t.Context(), time.Minute); err != nil { // some time in which others try
					t.Error(err)
				}
				total.Add(1)
				inside.Add(-1)
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := total.Load(); n != racers*rounds {
		t.Errorf("the lock was got %d times, want %d", n, racers*rounds)
	}
}

func TestAHolderOfARedlockThatWasKilledLeavesItAfterItsTTL(t *testing.T) {
	nodes := startQuintet(t)
	addrs := make([]string, len(nodes))
	for i, node := range nodes {
		addrs[i] = node.Addr()
	}
	engine := newEngine(t, newRedlock(t, nodes.clients(t), redislock.RedlockOptions{}), lock.Options{})
	child := testutil.Spawn(t, "holder", testutil.Args{"addr": strings.Join(addrs, ",")})
	var report holderReport
	child.Next(30*time.Second, &report)
	if _, err := engine.TryLock(t.Context(), "job"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("while it lives: got error %v, want ErrNotAcquired", err)
	}
	child.Kill()
	lease, err := engine.Lock(t.Context(), "job")
	must(t, err)
	must(t, lease.Unlock(t.Context()))
}

// BenchmarkRedlockHandover is what a lock costs that so many clients contend for, each of which keeps it for 5 ms.
func BenchmarkRedlockHandover(b *testing.B) {
	var nodes quintet
	for i := range nodes {
		nodes[i] = testutil.StartRedis(b)
	}
	for _, clients := range []int{1, 8, 32} {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			engines := make([]*lock.Engine, clients)
			for i := range engines {
				engines[i] = newEngine(b, newRedlock(b, nodes.clients(b), redislock.RedlockOptions{}), lock.Options{CallTimeout: 20 * time.Second})
			}
			b.ResetTimer()
			for _, engine := range engines {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						lease, err := engine.Lock(b.Context(), "job")
						if err == nil {
							time.Sleep(5 * time.Millisecond) // the work
							err = lease.Unlock(b.Context())
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
