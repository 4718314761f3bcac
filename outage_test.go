package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/herdgatetest"
	"github.com/herdgate/herdgate/internal/testutil"
)

// isUp waits until a gate finds Redis up, or down.
func isUp(t *testing.T, g *herdgate.Gate, up bool) {
	t.Helper()
	testutil.Eventually(t, 10*time.Second, func() bool { return g.RedisUp() == up }, fmt.Sprintf("the gate finds Redis up: %v", up))
}

// findsDown calls until a gate finds Redis down.
func findsDown[V any](t *testing.T, g *herdgate.Gate, c *herdgate.Cache[V]) {
	t.Helper()
	testutil.Eventually(t, 10*time.Second, func() bool {
		_, _, _ = c.Peek(t.Context(), "anything")
		return !g.RedisUp()
	}, "the gate finds Redis down")
}

func tiers() map[string]func(*herdgate.Options, *herdgate.Policy) {
	return map[string]func(*herdgate.Options, *herdgate.Policy){
		"with local tier":      func(*herdgate.Options, *herdgate.Policy) {},
		"without local tier":   func(_ *herdgate.Options, p *herdgate.Policy) { p.LocalTTL = herdgate.Off },
		"without local memory": func(o *herdgate.Options, _ *herdgate.Policy) { o.LocalBytes = herdgate.Off },
	}
}

func TestWhileRedisIsOutEachKeyIsLoadedOnceInItsTTL(t *testing.T) { // I6
	const (
		keys = 20
		ttl  = 2 * time.Second
		out  = 10 * time.Second
	)
	for name, tier := range tiers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := herdgatetest.NewRedis(t)
				policy := herdgate.Policy{TTL: ttl}
				g := r.Open(func(o *herdgate.Options) { tier(o, &policy) })
				o := newOrigin(20 * time.Millisecond)
				c := newCache(t, g, o.load, policy)
				for k := range keys {
					get(t, c, strconv.Itoa(k))
				}
				r.Down()
				findsDown(t, g, c)
				before := o.loads.Load()
				start := time.Now()
				var callers sync.WaitGroup
				for range 4 {
					callers.Go(func() {
						for n := 0; time.Since(start) < out; n++ {
							began := time.Now()
							if _, err := c.Get(t.Context(), strconv.Itoa(n%keys)); err != nil {
								t.Error(err)
							}
							if took := time.Since(began); took > o.delay {
								t.Errorf("a call took %v, want at most the loader's %v", took, o.delay)
							}
							time.Sleep(time.Millisecond)
						}
					})
				}
				callers.Wait()
				if n := o.loads.Load() - before; n > keys*int64(out/ttl) {
					t.Errorf("%d loads of %d keys in %d TTLs", n, keys, out/ttl)
				}
				r.Up()
				isUp(t, g, true)
				testutil.Eventually(t, 10*time.Second, func() bool { return g.Connected() }, "messages arrive again")
				synctest.Wait()
				if r, err := c.Lookup(t.Context(), "0"); err != nil || r.Outcome != herdgate.OutcomeLoaded && r.Outcome != herdgate.OutcomeRemote {
					t.Errorf("with Redis back: %+v, %v", r, err)
				}
				if s := g.Stats(); s.RedisDown != 1 || s.RedisUp != 1 {
					t.Errorf("%d times down, %d times up", s.RedisDown, s.RedisUp)
				}
			})
		})
	}
}

func TestADeadRedisDoesNotMultiplyLatency(t *testing.T) { // C9
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"refusing": func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }, "hanging": hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, connect := testutil.NewBubbleRedis(t)
				var dead atomic.Bool
				rdb := connect(func(o *redis.Options) {
					usual := o.Dialer
					o.DialTimeout = time.Minute
					o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						if dead.Load() {
							return dial(ctx, network, addr)
						}
						return usual(ctx, network, addr)
					}
				})
				g, err := herdgate.Open(t.Context(), herdgate.Options{Redis: rdb, Namespace: "test"})
				if err != nil {
					t.Fatal(err)
				}
				o := newOrigin(time.Millisecond)
				c := newCache(t, g, o.load, herdgate.Policy{})
				get(t, c, "cached")
				synctest.Wait() // miniredis may not be closed while somebody dials
				dead.Store(true)
				m.Close()
				start := time.Now()
				for range 100 {
					get(t, c, "cached")
					get(t, c, "uncached")
				}
				if took := time.Since(start); took > 800*time.Millisecond {
					t.Errorf("200 calls took %v", took)
				}
				if n := o.loads.Load(); n > 3 {
					t.Errorf("%d loads of two keys", n)
				}
				_ = g.Close(t.Context()) // says that the client does not let go
				time.Sleep(10 * time.Minute)
			})
		})
	}
}

func TestWhileRedisIsOutAStaleValueIsServedAndLoadedOnceBehind(t *testing.T) { // I5, I6
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		g := r.Open()
		o := newOrigin(20 * time.Millisecond)
		c := newCache(t, g, o.load, herdgate.Policy{TTL: time.Second, Stale: time.Hour})
		get(t, c, "k")
		r.Down()
		findsDown(t, g, c)
		for want := int64(2); want < 5; want++ {
			time.Sleep(2 * time.Second)
			start, degraded := time.Now(), c.Stats().Degraded
			for range 100 {
				if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Value != fmt.Sprint("k#", want-1) || r.Outcome != herdgate.OutcomeStale || !r.Stale {
					t.Errorf("got %+v, %v", r, err)
				}
			}
			if took := time.Since(start); took > 0 {
				t.Errorf("stale hits took %v", took)
			}
			if n := c.Stats().Degraded - degraded; n > 0 {
				t.Errorf("%d stale hits asked for Redis", n)
			}
			time.Sleep(o.delay)
			synctest.Wait()
			if n := o.loads.Load(); n != want {
				t.Errorf("%d loads, want %d", n, want)
			}
		}
		r.Up()
		isUp(t, g, true)
	})
}

func TestWhileRedisIsOutAFailedLoadIsNotTriedAgainAtOnce(t *testing.T) { // I12
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		g := r.Open()
		var loads atomic.Int64
		boom := errors.New("boom")
		c := newCache(t, g, func(context.Context, string) (string, error) {
			loads.Add(1)
			return "", boom
		}, herdgate.Policy{FailureBackoff: 100 * time.Millisecond, MaxFailureBackoff: 800 * time.Millisecond})
		r.Down()
		findsDown(t, g, c)
		for range 100 {
			if _, err := c.Get(t.Context(), "k"); !errors.Is(err, boom) && !errors.Is(err, herdgate.ErrBackoff) {
				t.Errorf("got %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := loads.Load(); n != 4 { // at 0, 100, 300 and 700 ms
			t.Errorf("%d loads in a second, want 4", n)
		}
		r.Up()
		isUp(t, g, true)
	})
}

func TestANotFoundIsRememberedWhileRedisIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		g := r.Open()
		var loads atomic.Int64
		c := newCache(t, g, func(context.Context, string) (string, error) {
			loads.Add(1)
			return "", herdgate.ErrNotFound
		}, herdgate.Policy{LocalTTL: herdgate.Off})
		r.Down()
		findsDown(t, g, c)
		for range 10 {
			if _, err := c.Get(t.Context(), "k"); !errors.Is(err, herdgate.ErrNotFound) {
				t.Errorf("got %v", err)
			}
		}
		if n := loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
		r.Up()
		isUp(t, g, true)
	})
}

func TestWhatWasKeptForAnOutageIsDroppedAfterIt(t *testing.T) {
	for name, tier := range tiers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := herdgatetest.NewRedis(t)
				policy := herdgate.Policy{TTL: time.Hour}
				ours := r.Client()
				g := r.Open(func(o *herdgate.Options) { o.Redis = ours; tier(o, &policy) })
				c := newCache(t, g, newOrigin(0).load, policy)
				for range 2 {
					r.Isolate(ours)
					findsDown(t, g, c)
					if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeUnlocked {
						t.Errorf("at first: %+v, %v, want it loaded", r, err)
					}
					if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeStale {
						t.Errorf("then: %+v, %v, want the copy", r, err)
					}
					r.Rejoin(ours)
					isUp(t, g, true)
					time.Sleep(time.Second)
				}
			})
		})
	}
}

func TestAValueLoadedWithoutRedisIsNotServedAsFresh(t *testing.T) { // I9
	t.Parallel()
	g, _, proxy := behindProxy(t, func(o *herdgate.Options) { o.RedisTimeout = 100 * time.Millisecond })
	c := newCache(t, g, newOrigin(0).load, herdgate.Policy{})
	release := proxy.HoldRequests(testutil.Command("get"), -1)
	defer release()
	for _, want := range []herdgate.Outcome{herdgate.OutcomeUnlocked, herdgate.OutcomeStale} {
		if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != want || r.Value != "k#1" {
			t.Errorf("got %+v, %v, want the outcome %v", r, err, want)
		}
	}
}

func TestADeleteWhileRedisIsOutIsMadeWhenItIsBack(t *testing.T) { // C28
	for name, change := range map[string]func(context.Context, *herdgate.Cache[string]) error{
		"delete": func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Delete(ctx, "k") },
		"set":    func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Set(ctx, "k", "set") },
		"expire": func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Expire(ctx, "k") },
		"clear":  func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Clear(ctx) },
		"tags":   func(ctx context.Context, c *herdgate.Cache[string]) error { return c.InvalidateTags(ctx, "tag") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := herdgatetest.NewRedis(t)
				ours := r.Client()
				a, b := r.Open(func(o *herdgate.Options) { o.Redis = ours }), r.Open()
				var version atomic.Int64
				load := func(context.Context, string) (string, error) { return fmt.Sprint("version ", version.Load()), nil }
				policy := herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour, Tags: []string{"tag"}}
				ca, cb := newCache(t, a, load, policy), newCache(t, b, load, policy)
				get(t, ca, "k")
				get(t, cb, "k")
				r.Isolate(ours)
				findsDown(t, a, ca)
				version.Store(1)
				start := time.Now()
				if err := change(t.Context(), ca); !errors.Is(err, herdgate.ErrJournaled) {
					t.Errorf("got %v", err)
				}
				if v := get(t, ca, "k"); v != "version 1" {
					t.Errorf("our own copy is %q", v)
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("the change took %v", took)
				}
				if v := get(t, cb, "k"); v != "version 0" {
					t.Errorf("the other's copy is %q", v)
				}
				r.Rejoin(ours)
				testutil.Eventually(t, 10*time.Second, func() bool { return get(t, cb, "k") == "version 1" }, "the other hears of it")
				synctest.Wait()
				if s := a.Stats(); s.Journaled != 1 || s.Replayed != 1 || s.ChangesFailed != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

func TestNothingIsReadFromRedisBeforeTheJournalIsEmpty(t *testing.T) { // C28, I6
	t.Parallel()
	g, server, proxy := behindProxy(t, func(o *herdgate.Options) { o.RedisTimeout = 100 * time.Millisecond })
	other := openGate(t, herdgate.Options{Namespace: "test", Redis: server.Client(t)})
	var version atomic.Int64
	load := func(context.Context, string) (string, error) { return fmt.Sprint("version ", version.Load()), nil }
	c, b := newCache(t, g, load, herdgate.Policy{LocalTTL: herdgate.Off}), newCache(t, other, load, herdgate.Policy{})
	get(t, c, "k")
	proxy.Cut()
	findsDown(t, g, c)
	version.Store(1)
	if err := c.Delete(t.Context(), "k"); !errors.Is(err, herdgate.ErrJournaled) {
		t.Fatalf("got %v", err)
	}
	release := proxy.HoldRequests(testutil.Containing(entryKey), -1) // the reads are not held: there must be none
	defer release()
	held := proxy.Count(testutil.Command("evalsha", "eval"))
	proxy.Resume()
	isUp(t, g, true)
	testutil.Eventually(t, 10*time.Second, func() bool { return held.Load() > 0 }, "the delete is on its way")
	for range 50 {
		if v := get(t, c, "k"); v != "version 1" {
			t.Fatalf("read %q", v)
		}
	}
	// The held change may have the server found down again: then the copy is there.
	if r, found, err := c.Peek(t.Context(), "k"); found && r.Value != "version 1" || err != nil {
		t.Errorf("peek: %+v, %v, %v", r, found, err)
	}
	release()
	testutil.Eventually(t, 10*time.Second, func() bool { return c.Stats().Replayed == 1 && get(t, b, "k") == "version 1" }, "the delete is made")
	isUp(t, g, true)
	testutil.Eventually(t, 10*time.Second, func() bool {
		r, err := c.Lookup(t.Context(), "k")
		return err == nil && r.Outcome == herdgate.OutcomeRemote
	}, "Redis is read again")
}

func TestASetOfUnknownOutcomeEndsAsAnInvalidationThoughItComesLater(t *testing.T) {
	t.Parallel()
	g, server, proxy := behindProxy(t, func(o *herdgate.Options) { o.RedisTimeout = time.Second })
	c := newCache(t, g, newOrigin(0).load, herdgate.Policy{})
	get(t, c, "k")
	asked := proxy.Count(testutil.Command("time"))
	release := proxy.HoldRequests(func(request []byte) bool {
		return testutil.Command("evalsha")(request) && testutil.Containing("set")(request)
	}, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Set(ctx, "k", "late"); !errors.Is(err, herdgate.ErrJournaled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return asked.Load() > 0 || c.Stats().Replayed > 0 }, "the journal is at work")
	release()
	direct := server.Client(t)
	testutil.Eventually(t, 5*time.Second, func() bool { return direct.Exists(t.Context(), entryKey).Val() == 1 }, "the set arrives")
	testutil.Eventually(t, 10*time.Second, func() bool { return c.Stats().Replayed == 1 }, "the journal is empty")
	if v, err := direct.Get(t.Context(), entryKey).Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("%q is stored, %v", v, err)
	}
}

func TestWhatIsLoadedAfterAJournaledInvalidationIsKeptWhileRedisIsOut(t *testing.T) { // I6
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		g := r.Open()
		o := newOrigin(0)
		c := newCache(t, g, o.load, herdgate.Policy{TTL: time.Hour, Tags: []string{"tag"}})
		r.Down()
		findsDown(t, g, c)
		if err := c.InvalidateTags(t.Context(), "tag"); !errors.Is(err, herdgate.ErrJournaled) {
			t.Fatalf("got %v", err)
		}
		for range 10 {
			get(t, c, "k")
			time.Sleep(time.Second)
		}
		if n := o.loads.Load(); n != 1 {
			t.Errorf("%d loads, want 1: the journal tries in vain", n)
		}
		r.Up()
		isUp(t, g, true)
		testutil.Eventually(t, time.Minute, func() bool { return g.Stats().Replayed == 1 }, "the invalidation is made")
	})
}

// The numbers of tags are forgotten now and then, so that they are asked for again. What
// this process knew to be invalid is so still.
func TestAnInvalidatedValueIsNotServedWhileRedisIsOut(t *testing.T) { // I2
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		o := newOrigin(0)
		g := r.Open()
		policy := herdgate.Policy{Tags: []string{"tag"}, TTL: time.Minute, Stale: time.Hour}
		c, other := newCache(t, g, o.load, policy), newCache(t, r.Open(), o.load, policy)
		for n, by := range []*herdgate.Cache[string]{c, other} {
			get(t, c, "k")
			if err := by.InvalidateTags(t.Context(), "tag"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second) // two LocalTTLs
			r.Down()
			testutil.Eventually(t, time.Minute, func() bool { return !g.Connected() }, "the gap is noticed")
			want := fmt.Sprintf("k#%d", 2*n+2)
			for range 2 {
				if v := get(t, c, "k"); v != want {
					t.Errorf("got %q, want %q, loaded after the invalidation and kept", v, want)
				}
			}
			r.Up()
			testutil.Eventually(t, time.Minute, func() bool { return g.RedisUp() && g.Connected() }, "Redis is back")
			get(t, c, "k") // what was kept is dropped
			if err := c.Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			o.loads.Store(int64(2 * (n + 1)))
		}
	})
}

func TestASetBeforeRedisWasEverSeenIsJournaled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		r.Down()
		g := r.Open()
		c := newCache(t, g, newOrigin(0).load, herdgate.Policy{Tags: []string{"tag"}})
		if err := c.Set(t.Context(), "k", "set"); !errors.Is(err, herdgate.ErrJournaled) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Set(ctx, "k", "set"); errors.Is(err, herdgate.ErrJournaled) || !errors.Is(err, context.Canceled) {
			t.Errorf("of a caller who is gone: %v", err)
		}
		r.Up()
		testutil.Eventually(t, 10*time.Second, func() bool { return c.Stats().Replayed == 1 }, "it is made")
	})
}

func TestWhatIsMarkedStaleWhileRedisIsOutIsServedWhileItIsLoaded(t *testing.T) { // I5
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		g := r.Open()
		o := newOrigin(time.Second)
		c := newCache(t, g, o.load, herdgate.Policy{Stale: time.Hour})
		get(t, c, "k")
		r.Down()
		findsDown(t, g, c)
		_ = c.Expire(t.Context(), "k")
		start := time.Now()
		if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Value != "k#1" || !r.Stale || time.Since(start) > 0 {
			t.Errorf("got %+v, %v after %v", r, err, time.Since(start))
		}
		time.Sleep(2 * o.delay)
		if v := get(t, c, "k"); v != "k#2" {
			t.Errorf("got %q", v)
		}
		r.Up()
		testutil.Eventually(t, 10*time.Second, func() bool { return c.Stats().Replayed == 1 }, "it is made")
	})
}

func TestAJournaledChangeMayCountAsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		g := r.Open(func(o *herdgate.Options) { o.AcceptJournaled = true })
		c := newCache(t, g, newOrigin(0).load, herdgate.Policy{})
		r.Down()
		findsDown(t, g, c)
		if err := errors.Join(c.Delete(t.Context(), "1", "2"), c.Set(t.Context(), "3", ""), c.Expire(t.Context(), "4"), c.Clear(t.Context())); err != nil {
			t.Error(err)
		}
		if s := c.Stats(); s.Journaled != 5 {
			t.Errorf("%d journaled", s.Journaled)
		}
		r.Up()
		testutil.Eventually(t, 10*time.Second, func() bool { return c.Stats().Replayed == 5 }, "all are made")
	})
}

func TestCloseSaysWhatRedisHasNotGot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := herdgatetest.NewRedis(t)
		g, err := herdgate.Open(t.Context(), herdgate.Options{Redis: r.Client()})
		if err != nil {
			t.Fatal(err)
		}
		c := newCache(t, g, newOrigin(0).load, herdgate.Policy{})
		r.Down()
		findsDown(t, g, c)
		_ = c.Delete(t.Context(), "k")
		if err := g.Close(t.Context()); !errors.Is(err, herdgate.ErrJournaled) {
			t.Errorf("got %v", err)
		}
	})
}

// decodings counts what a codec decodes.
type decodings struct {
	codec.Codec
	n *atomic.Int64
}

func (d decodings) Unmarshal(data []byte, v any) error {
	d.n.Add(1)
	return d.Codec.Unmarshal(data, v)
}

func TestACopyFromBeforeAGapIsCheckedAndNotDecodedAgain(t *testing.T) { // I9
	t.Parallel()
	g, server, _ := behindProxy(t)
	var n atomic.Int64
	c := newCache(t, g, newOrigin(0).load, herdgate.Policy{LocalTTL: time.Minute, Codec: decodings{codec.Msgpack(), &n}})
	get(t, c, "k")
	isLocal(t, c, "k#1")
	if err := server.Client(t).ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 5*time.Second, func() bool { s := g.Stats(); return s.BusLost > 0 && s.BusConfirmed > 1 }, "the bus was lost")
	if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeRemote || r.Value != "k#1" {
		t.Errorf("got %+v, %v", r, err)
	}
	isLocal(t, c, "k#1")
	if n.Load() > 0 {
		t.Errorf("%d decodings", n.Load())
	}
}

func TestARedisWithoutMemoryCostsOneLoadATTL(t *testing.T) { // I6
	t.Parallel()
	for name, tier := range tiers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := herdgate.Policy{TTL: time.Hour}
			g, server, _ := behindProxy(t, func(o *herdgate.Options) { tier(o, &policy) })
			o := newOrigin(0)
			c := newCache(t, g, o.load, policy)
			if err := server.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				if v := get(t, c, "k"); v != "k#1" {
					t.Errorf("got %q", v)
				}
			}
			if !g.RedisUp() {
				t.Error("a server that answers is down")
			}
		})
	}
}

func TestAReadOnlyRedisIsDown(t *testing.T) { // I6
	t.Parallel()
	g, server, _ := behindProxy(t)
	o := newOrigin(0)
	c := newCache(t, g, o.load, herdgate.Policy{LocalTTL: herdgate.Off})
	get(t, c, "before")
	direct := server.Client(t)
	if err := direct.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 10*time.Second, func() bool {
		get(t, c, fmt.Sprint("other", o.loads.Load()))
		return !g.RedisUp()
	}, "a replica is found down")
	for range 20 {
		get(t, c, "k")
	}
	if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeStale {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := direct.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	isUp(t, g, true)
	testutil.Eventually(t, 10*time.Second, func() bool {
		r, err := c.Lookup(t.Context(), "k")
		return err == nil && r.Outcome == herdgate.OutcomeRemote
	}, "Redis is used again")
}

func TestAnExhaustedPoolIsARedisThatIsOut(t *testing.T) { // I6
	t.Parallel()
	server := testutil.StartRedis(t)
	rdb := server.Client(t, func(o *redis.Options) { o.PoolSize, o.ReadTimeout = 1, time.Minute })
	g := openGate(t, herdgate.Options{Redis: rdb, Namespace: "test", RedisTimeout: 100 * time.Millisecond})
	o := newOrigin(0)
	c := newCache(t, g, o.load, herdgate.Policy{TTL: time.Hour, LocalTTL: herdgate.Off})
	get(t, c, "before")
	var blocked sync.WaitGroup
	blocked.Go(func() { rdb.BLPop(t.Context(), 0, "queue") })
	testutil.Eventually(t, 10*time.Second, func() bool {
		get(t, c, fmt.Sprint("other", o.loads.Load()))
		return !g.RedisUp()
	}, "it is found out")
	get(t, c, "k")
	if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeStale {
		t.Errorf("got %+v, %v", r, err)
	}
	server.Client(t).RPush(t.Context(), "queue", "go on")
	blocked.Wait()
	isUp(t, g, true)
}
