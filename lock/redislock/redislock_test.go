package redislock_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/redislock"
)

func TestMain(m *testing.M) {
	os.Exit(testutil.Main(m, map[string]testutil.Role{"holder": holder}))
}

func newBackend(tb testing.TB, client redis.UniversalClient, opts redislock.Options) *redislock.Backend {
	tb.Helper()
	opts.Namespace = "test"
	backend, err := redislock.New(client, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(backend.Close)
	return backend
}

func newEngine(tb testing.TB, backend lock.Backend, opts lock.Options) *lock.Engine {
	tb.Helper()
	engine, err := lock.New(backend, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return engine
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// variants are the options that change the scripts' work.
func variants() map[string]redislock.Options {
	return map[string]redislock.Options{
		"default":    {},
		"fence":      {Fence: true},
		"no wake-up": {NoWakeUp: true},
	}
}

func TestBackendConformsOnMiniredisInABubble(t *testing.T) {
	for name, opts := range variants() {
		t.Run(name, func(t *testing.T) {
			locktest.RunInBubble(t, func(tb testing.TB) lock.Backend {
				tb.Helper()
				_, client := testutil.NewBubbleRedis(tb.(*testing.T))
				resp2 := func(o *redis.Options) { o.Protocol = 2 } // the server below speaks RESP3
				return newBackend(tb, client(resp2), opts)
			})
		})
	}
}

func TestBackendConformsOnARedisServer(t *testing.T) {
	server := testutil.StartRedis(t)
	client := server.Client(t)
	for name, opts := range variants() {
		t.Run(name, func(t *testing.T) {
			locktest.Run(t, func(tb testing.TB) lock.Backend {
				tb.Helper()
				return newBackend(tb, client, opts)
			})
		})
	}
}

func TestBackendConformsOnACluster(t *testing.T) {
	client := testutil.StartCluster(t).Client(t)
	locktest.Run(t, func(tb testing.TB) lock.Backend {
		tb.Helper()
		return newBackend(tb, client, redislock.Options{Fence: true})
	})
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	if _, err := redislock.New(nil, redislock.Options{Namespace: "shop"}); err == nil || !strings.Contains(err.Error(), "client") {
		t.Errorf("no client: got error %v, want one that names the client", err)
	}
	client := redis.NewClient(&redis.Options{})
	defer func() { must(t, client.Close()) }()
	for _, namespace := range []string{"", "a b", "a:b", "{a}", "ä"} {
		if _, err := redislock.New(client, redislock.Options{Namespace: namespace}); err == nil || !strings.Contains(err.Error(), "Namespace") {
			t.Errorf("namespace %q: got error %v, want one that names Namespace", namespace, err)
		}
	}
}

// impatient makes go-redis give up on a reply soon.
func impatient(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond }

func TestAGrantWhoseReplyWasLostIsKnownAsOurs(t *testing.T) {
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	engine := newEngine(t, newBackend(t, testutil.NewClient(t, proxy.Addr(), impatient), redislock.Options{}), lock.Options{})
	proxy.SwallowReplies(testutil.Command("eval", "evalsha"), 1)

	lease, err := engine.TryLock(t.Context(), "job")
	must(t, err)
	if n := server.Client(t).Exists(t.Context(), "test:lock:{job}").Val(); n != 1 {
		t.Errorf("%d lock keys, want 1", n)
	}
	must(t, lease.Unlock(t.Context()))
}

func TestAReleaseWhoseReplyWasLostIsSentOnceAndUnknown(t *testing.T) {
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	backend := newBackend(t, testutil.NewClient(t, proxy.Addr(), impatient), redislock.Options{})
	release := func(name string) error {
		grant, err := backend.Acquire(t.Context(), lock.Request{Name: name, Owner: "a", TTL: time.Minute})
		must(t, err)
		return backend.Release(t.Context(), lock.Claim{Name: name, Owner: "a", Token: grant.Token})
	}
	must(t, release("first")) // now the server knows the script

	scripts := testutil.Command("eval", "evalsha")
	releases := proxy.Count(func(request []byte) bool {
		return scripts(request) && slices.Contains(testutil.Words(request), "test:lock:released")
	})
	proxy.SwallowReplies(testutil.Containing("test:lock:released"), 1)
	if err := release("second"); err == nil || errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	if n := releases.Load(); n != 1 {
		t.Errorf("the release was sent %d times, want once", n)
	}
}

func TestAnUnlockWhoseReplyWasLostFreesTheLockAndIsUnknown(t *testing.T) {
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	engine := newEngine(t, newBackend(t, testutil.NewClient(t, proxy.Addr(), impatient), redislock.Options{}), lock.Options{})
	lease, err := engine.TryLock(t.Context(), "job")
	must(t, err)
	proxy.SwallowReplies(testutil.Containing("test:lock:released"), 1)

	err = lease.Unlock(t.Context())
	if err == nil || errors.Is(err, lock.ErrNotHeld) || !strings.Contains(err.Error(), "earlier release") {
		t.Errorf("got error %v, want one that mentions the earlier release and is not ErrNotHeld", err)
	}
	if n := server.Client(t).Exists(t.Context(), "test:lock:{job}").Val(); n != 0 {
		t.Error("the lock is still there")
	}
}

func TestAServerThatForgotTheScriptsGetsThemAgain(t *testing.T) {
	client := testutil.StartRedis(t).Client(t)
	engine := newEngine(t, newBackend(t, client, redislock.Options{}), lock.Options{})
	for range 2 {
		lease, err := engine.TryLock(t.Context(), "job")
		must(t, err)
		must(t, client.ScriptFlush(t.Context()).Err())
		must(t, lease.Extend(t.Context(), time.Minute))
		must(t, client.ScriptFlush(t.Context()).Err())
		must(t, lease.Unlock(t.Context()))
		must(t, client.ScriptFlush(t.Context()).Err())
	}
}

func TestTokensRiseWithoutTheFenceAndWithoutTheClock(t *testing.T) {
	client := testutil.StartRedis(t).Client(t)
	engine := newEngine(t, newBackend(t, client, redislock.Options{Fence: true}), lock.Options{})
	const fence = "test:fence:{job}"
	next := func() uint64 {
		lease, err := engine.TryLock(t.Context(), "job")
		must(t, err)
		must(t, lease.Unlock(t.Context()))
		return lease.Token()
	}
	first := next()
	if ttl := client.PTTL(t.Context(), fence).Val(); ttl <= 0 || ttl > redislock.FenceLife {
		t.Errorf("the fence lives for %v, want up to %v", ttl, redislock.FenceLife)
	}
	must(t, client.Del(t.Context(), fence).Err()) // evicted
	second := next()
	if second <= first {
		t.Errorf("token %d after %d, when the fence was gone", second, first)
	}
	ahead := second + uint64(time.Hour.Microseconds()) // as if the clock had been stepped back by an hour
	must(t, client.Set(t.Context(), fence, ahead, time.Minute).Err())
	if third := next(); third != ahead+1 {
		t.Errorf("token %d after %d, want the next number", third, ahead)
	}
}

func TestAForeignValueAtTheKeyIsAnErrorAndNotContention(t *testing.T) {
	client := testutil.StartRedis(t).Client(t)
	engine := newEngine(t, newBackend(t, client, redislock.Options{}), lock.Options{})
	must(t, client.LPush(t.Context(), "test:lock:{job}", "x").Err())
	_, err := engine.TryLock(t.Context(), "job")
	if err == nil || errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got error %v, want Redis's WRONGTYPE and not ErrNotAcquired", err)
	}
	must(t, engine.Close(t.Context()))
}

func TestAWaiterHearsOfAReleaseItsSubscriptionMissed(t *testing.T) {
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	holder := newEngine(t, newBackend(t, server.Client(t), redislock.Options{}), lock.Options{TTL: time.Hour})
	contended := make(chan struct{}, 1)
	waiter := newEngine(t, newBackend(t, testutil.NewClient(t, proxy.Addr(), impatient), redislock.Options{}), lock.Options{
		TTL: time.Hour, RetryMin: time.Hour, RetryMax: time.Hour, // without a wake-up the next try is an hour away
		Monitor: func(e lock.Event) {
			if e.Kind == lock.Contended {
				contended <- struct{}{}
			}
		},
	})
	held, err := holder.TryLock(t.Context(), "job")
	must(t, err)
	acquires := proxy.Count(testutil.Containing("test:lock:{job}"))
	got := make(chan error, 1)
	go func() {
		lease, err := waiter.Lock(t.Context(), "job")
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		got <- err
	}()
	<-contended
	testutil.Eventually(t, 30*time.Second, func() bool { return acquires.Load() == 2 }, "the waiter has asked again after it subscribed")
	proxy.Cut()
	must(t, held.Unlock(t.Context()))
	proxy.Resume()
	select {
	case err := <-got:
		must(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the waiter slept on")
	}
}

func TestACloseLeavesWaitersToPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := testutil.NewBubbleRedis(t)
		backend := newBackend(t, client(), redislock.Options{})
		engine := newEngine(t, backend, lock.Options{})
		held, err := engine.TryLock(t.Context(), "job")
		must(t, err)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				lease, err := engine.Lock(t.Context(), "job")
				if err != nil {
					t.Error(err)
					return
				}
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		backend.Close()
		backend.Close() // again
		if _, _, err := backend.Notify(t.Context(), "job"); err == nil {
			t.Error("Notify after Close: got no error")
		}
		must(t, held.Unlock(t.Context()))
		wg.Wait()
	})
}

// holderReport is what the holder process tells its parent.
type holderReport struct {
	Lost   bool
	Unlock string // error of the unlock
}

// holderBackend is a Redlock if there are several clients.
func holderBackend(clients []redis.UniversalClient) (interface {
	lock.Backend
	Close()
}, error,
) {
	if len(clients) == 1 {
		return redislock.New(clients[0], redislock.Options{Namespace: "test"})
	}
	return redislock.NewRedlock(clients, redislock.RedlockOptions{Namespace: "test"})
}

// holder is a process that holds the lock until it has lost it.
func holder(ctx context.Context, args testutil.Args) error {
	var clients []redis.UniversalClient
	for addr := range strings.SplitSeq(args["addr"], ",") {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	defer func() {
		for _, client := range clients {
			_ = client.Close()
		}
	}()
	backend, err := holderBackend(clients)
	if err != nil {
		return err
	}
	defer backend.Close()
	renewed := make(chan struct{}, 1024)
	engine, err := lock.New(backend, lock.Options{TTL: time.Second, Monitor: func(e lock.Event) {
		if e.Kind == lock.Renewed {
			renewed <- struct{}{}
		}
	}})
	if err != nil {
		return err
	}
	lease, err := engine.TryLock(ctx, "job")
	if err != nil {
		return err
	}
	<-renewed // the watchdog is at work
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
	server := testutil.StartRedis(t)
	engine := newEngine(t, newBackend(t, server.Client(t), redislock.Options{}), lock.Options{TTL: time.Minute})
	child := testutil.Spawn(t, "holder", testutil.Args{"addr": server.Addr()})
	var report holderReport
	child.Next(30*time.Second, &report)

	child.Freeze()
	next, err := engine.Lock(t.Context(), "job")
	must(t, err)
	child.Thaw()
	child.Next(30*time.Second, &report)
	if !report.Lost || !strings.Contains(report.Unlock, lock.ErrNotHeld.Error()) {
		t.Errorf("the thawed holder says %+v, want that it lost the lock and its unlock found it not held", report)
	}
	must(t, next.Extend(t.Context(), time.Minute)) // the next still holds it
	must(t, next.Unlock(t.Context()))
	must(t, child.Wait(30*time.Second))
}

func TestAHolderThatWasKilledLeavesTheLockAfterItsTTL(t *testing.T) {
	server := testutil.StartRedis(t)
	engine := newEngine(t, newBackend(t, server.Client(t), redislock.Options{}), lock.Options{})
	child := testutil.Spawn(t, "holder", testutil.Args{"addr": server.Addr()})
	var report holderReport
	child.Next(30*time.Second, &report)
	child.Kill()
	lease, err := engine.Lock(t.Context(), "job")
	must(t, err)
	must(t, lease.Unlock(t.Context()))
}

// What Capabilities.Prompt says: go-redis' own timeouts would be a minute.
func TestRequestsEndAtTheDeadlineWhereTheClientHeedsIt(t *testing.T) {
	server := testutil.StartRedis(t)
	backend := func(heeds bool, opts redislock.Options) *redislock.Backend {
		return newBackend(t, server.Client(t, func(o *redis.Options) {
			o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout = heeds, time.Minute, time.Minute
		}), opts)
	}
	if backend(false, redislock.Options{}).Capabilities().Prompt {
		t.Error("a client that ignores deadlines makes a backend that is prompt")
	}
	if backend(true, redislock.Options{Replicas: 1}).Capabilities().Prompt {
		t.Error("a backend is prompt that waits for replicas")
	}
	b := backend(true, redislock.Options{})
	if !b.Capabilities().Prompt {
		t.Fatal("a client that heeds deadlines makes a backend that is not prompt")
	}
	req := lock.Request{Name: "job", Owner: "me", TTL: time.Minute}
	grant, err := b.Acquire(t.Context(), req)
	must(t, err)
	claim := lock.Claim{Name: req.Name, Owner: req.Owner, Token: grant.Token}
	server.Freeze()
	defer server.Thaw()
	for name, request := range map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error { _, err := b.Acquire(ctx, req); return err },
		"renew":   func(ctx context.Context) error { return b.Renew(ctx, claim, req.TTL) },
		"release": func(ctx context.Context) error { return b.Release(ctx, claim) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		err := request(ctx)
		cancel()
		if took := time.Since(start); err == nil || took > 30*time.Second {
			t.Errorf("%s: ended after %v with %v", name, took, err)
		}
	}
}

func TestABackendIsNotPromptWhoseClientSetsNoDeadlines(t *testing.T) {
	server := testutil.StartRedis(t)
	for name, set := range map[string]func(*redis.Options){
		"ReadTimeout":  func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -2, time.Minute },
		"WriteTimeout": func(o *redis.Options) { o.WriteTimeout = -2 },
	} {
		b := newBackend(t, server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true; set(o) }), redislock.Options{})
		if b.Capabilities().Prompt {
			t.Errorf("%s -2: the backend is prompt", name)
		}
	}
}
