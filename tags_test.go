package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// tagged loads like o and tags each entry with the first letter of its key.
func tagged(o *origin) rich {
	return func(ctx context.Context, load *herdgate.Load[string]) (string, error) {
		v, err := o.load(ctx, load.Key())
		load.SetTags(load.Key()[:1])
		return v, err
	}
}

func TestClearRemovesTheCacheEverywhereAndNothingElse(t *testing.T) { // C20
	everywhere(t, func(w *world) {
		rdb := w.connect()
		o := newOrigin(0)
		ga, gb := w.gate(), w.gate()
		a, b := newCache(w.T, ga, o.load, herdgate.Policy{Stale: time.Hour}), newCache(w.T, gb, o.load, herdgate.Policy{Stale: time.Hour})
		other, err := herdgate.New(ga, "others", o.load, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		get(w.T, other, "k")
		rdb.Set(w.Context(), "a stranger's", "value", 0)
		for i := range 20 {
			get(w.T, a, fmt.Sprint(i))
			get(w.T, b, fmt.Sprint(i))
		}
		before := o.loads.Load()
		if err := a.Clear(w.Context()); err != nil {
			w.Fatal(err)
		}
		for i := range 20 {
			if _, found, err := a.Peek(w.Context(), fmt.Sprint(i)); found || err != nil {
				w.Errorf("%d is still there: %v", i, err)
			}
		}
		w.until("the other instance has heard of it", func() bool {
			_, found, _ := b.Peek(w.Context(), "0")
			return !found
		})
		for i := range 20 {
			if v := get(w.T, b, fmt.Sprint(i)); v == fmt.Sprintf("%d#%d", i, i+2) {
				w.Errorf("%d has its old value", i)
			}
			get(w.T, a, fmt.Sprint(i))
		}
		if n := o.loads.Load() - before; n != 20 {
			w.Errorf("%d loads of 20 keys", n)
		}
		if v := get(w.T, other, "k"); v != "k#1" {
			w.Errorf("another cache has %q", v)
		}
		if v := rdb.Get(w.Context(), "a stranger's").Val(); v != "value" {
			w.Errorf("a stranger has %q", v)
		}
	})
}

func TestAGateWithoutRedisCanBeCleared(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(100 * time.Millisecond)
		c := newCache(w.T, openGate(w.T, herdgate.Options{}), o.load, herdgate.Policy{MinRebuildInterval: time.Millisecond})
		get(w.T, c, "k")
		running := make(chan string)
		go func() { running <- get(w.T, c, "running") }()
		synctest.Wait()
		if err := c.Clear(w.Context()); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, c, "running"); v == "running#2" {
			w.Errorf("got %q, whose load began before", v)
		}
		<-running
		if v := get(w.T, c, "k"); v == "k#1" {
			w.Errorf("got %q", v)
		}
	})
}

func TestALoadFromBeforeAClearIsNotServedAfterIt(t *testing.T) { // I2
	t.Parallel()
	for _, who := range []string{"the loading instance", "another instance"} {
		t.Run(who, func(t *testing.T) {
			everywhere(t, func(w *world) {
				o := newOrigin(300 * time.Millisecond)
				a, b := newCache(w.T, w.gate(), o.load, herdgate.Policy{}), newCache(w.T, w.gate(), o.load, herdgate.Policy{})
				first := make(chan error)
				go func() {
					_, err := a.Get(w.Context(), "k")
					first <- err
				}()
				<-o.begun
				clearer := map[string]*herdgate.Cache[string]{"the loading instance": a, "another instance": b}[who]
				if err := clearer.Clear(w.Context()); err != nil {
					w.Fatal(err)
				}
				if v := get(w.T, clearer, "k"); v == "k#1" {
					w.Errorf("got %q", v)
				}
				if err := <-first; err != nil {
					w.Error(err)
				}
				for _, c := range []*herdgate.Cache[string]{a, b} {
					if v := get(w.T, c, "k"); v == "k#1" {
						w.Errorf("afterwards %q", v)
					}
				}
			})
		})
	}
}

func TestAClearWhoseMessageIsLostIsNoticedWithAHeartbeat(t *testing.T) { // I9
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		a := newCache(w.T, w.gate(), o.load, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Second})
		get(w.T, a, "k")
		// Another instance's Clear, without its message.
		w.connect().Set(w.Context(), "test:g:things", "9000000000000000", 0)
		w.until("it is noticed", func() bool { return get(w.T, a, "k") == "k#2" })
	})
}

func TestAGenerationKeyThatWasLostInvalidatesAndNoMore(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		policy := herdgate.Policy{TTL: time.Hour, LocalTTL: time.Second}
		a, b := newCache(w.T, w.gate(), o.load, policy), newCache(w.T, w.gate(), o.load, policy)
		get(w.T, a, "k")
		get(w.T, b, "k")
		w.pass(10 * time.Millisecond) // a new generation is of another time
		if err := w.connect().Del(w.Context(), "test:g:things").Err(); err != nil {
			w.Fatal(err)
		}
		w.until("both read the same new entry", func() bool {
			v := get(w.T, a, "k")
			return v != "k#1" && v == get(w.T, b, "k")
		})
		for range 10 {
			if v, n := get(w.T, a, "k"), o.loads.Load(); v != get(w.T, b, "k") || n > 4 {
				w.Errorf("%q after %d loads", v, n)
			}
		}
	})
}

func TestTagsInvalidateWhatHasThemEverywhere(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		a, b := newRich(w.T, w.gate(), tagged(o), herdgate.Policy{Stale: time.Hour}), newRich(w.T, w.gate(), tagged(o), herdgate.Policy{Stale: time.Hour})
		for _, key := range []string{"a1", "a2", "b1"} {
			get(w.T, a, key)
			get(w.T, b, key)
		}
		if n := o.loads.Load(); n != 3 {
			w.Fatalf("%d loads of 3 keys", n)
		}
		if err := a.InvalidateTags(w.Context(), "a", "none has this"); err != nil {
			w.Fatal(err)
		}
		for _, key := range []string{"a1", "a2"} {
			if _, found, err := a.Peek(w.Context(), key); found || err != nil {
				w.Errorf("%s is still there: %v", key, err)
			}
		}
		w.until("the other instance has heard of it", func() bool {
			_, found, _ := b.Peek(w.Context(), "a1")
			return !found
		})
		for _, c := range []*herdgate.Cache[string]{b, a} {
			for key, want := range map[string]bool{"a1": true, "a2": true, "b1": false} {
				v := get(w.T, c, key)
				if anew := !strings.HasSuffix(v, "#1") && !strings.HasSuffix(v, "#2") && !strings.HasSuffix(v, "#3"); anew != want {
					w.Errorf("%s is %q", key, v)
				}
			}
		}
		if n := o.loads.Load(); n != 5 {
			w.Errorf("%d loads, want 5", n)
		}
	})
}

func TestTagsWorkWithoutRedis(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(100 * time.Millisecond)
		c := newRich(w.T, openGate(w.T, herdgate.Options{}), tagged(o), herdgate.Policy{MinRebuildInterval: time.Millisecond})
		get(w.T, c, "a")
		get(w.T, c, "b")
		running := make(chan string)
		go func() { running <- get(w.T, c, "a2") }()
		synctest.Wait()
		if err := c.InvalidateTags(w.Context(), "a"); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, c, "a2"); v == "a2#3" {
			w.Errorf("got %q, whose load began before", v)
		}
		<-running
		if a, b := get(w.T, c, "a"), get(w.T, c, "b"); a == "a#1" || b != "b#2" {
			w.Errorf("got %q and %q", a, b)
		}
	})
}

func TestALoadFromBeforeATagsInvalidationIsNotServedAfterIt(t *testing.T) { // I2 with tags
	t.Parallel()
	for _, who := range []string{"the loading instance", "another instance"} {
		t.Run(who, func(t *testing.T) {
			everywhere(t, func(w *world) {
				o := newOrigin(300 * time.Millisecond)
				a, b := newRich(w.T, w.gate(), tagged(o), herdgate.Policy{}), newRich(w.T, w.gate(), tagged(o), herdgate.Policy{})
				first := make(chan error)
				go func() {
					_, err := a.Get(w.Context(), "k")
					first <- err
				}()
				<-o.begun
				caller := map[string]*herdgate.Cache[string]{"the loading instance": a, "another instance": b}[who]
				if err := caller.InvalidateTags(w.Context(), "k"); err != nil {
					w.Fatal(err)
				}
				if v := get(w.T, caller, "k"); v == "k#1" {
					w.Errorf("got %q", v)
				}
				if err := <-first; err != nil {
					w.Error(err)
				}
				for _, c := range []*herdgate.Cache[string]{a, b} {
					w.until("nobody reads the old value", func() bool { return get(w.T, c, "k") != "k#1" })
				}
			})
		})
	}
}

func TestTheTagsOfAPolicyHoldForEveryEntry(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		c, err := herdgate.New(w.gate(), "things", func(ctx context.Context, key string) (string, error) {
			if key == "none" {
				o.loads.Add(1)
				return "", herdgate.ErrNotFound
			}
			return o.load(ctx, key)
		}, herdgate.Policy{Tags: []string{"all"}})
		if err != nil {
			w.Fatal(err)
		}
		get(w.T, c, "loaded")
		if _, err := c.Get(w.Context(), "none"); !errors.Is(err, herdgate.ErrNotFound) {
			w.Fatal(err)
		}
		if err := c.Set(w.Context(), "set", "v"); err != nil {
			w.Fatal(err)
		}
		if err := c.InvalidateTags(w.Context(), "all"); err != nil {
			w.Fatal(err)
		}
		for _, key := range []string{"loaded", "none", "set"} {
			if _, found, err := c.Peek(w.Context(), key); found {
				w.Errorf("%s is still there: %v", key, err)
			}
		}
	})
}

func TestAValueIsSetWithALifetimeAndTagsOfItsOwn(t *testing.T) {
	everywhere(t, func(w *world) {
		rdb := w.connect()
		c := newCache[string](w.T, w.gate(), nil, herdgate.Policy{Stale: time.Hour})
		if err := c.Set(w.Context(), "k", "v", herdgate.EntryTTL(time.Second), herdgate.EntryStale(herdgate.Off), herdgate.EntryTags("t")); err != nil {
			w.Fatal(err)
		}
		if ttl := rdb.PTTL(w.Context(), "test:v:things:{k}").Val(); ttl > time.Second || ttl < 500*time.Millisecond {
			w.Errorf("it lives for %v", ttl)
		}
		if v := get(w.T, c, "k"); v != "v" {
			w.Errorf("got %q", v)
		}
		if err := c.InvalidateTags(w.Context(), "t"); err != nil {
			w.Fatal(err)
		}
		if _, found, _ := c.Peek(w.Context(), "k"); found {
			w.Error("it is still there")
		}
		err := c.Set(w.Context(), "k", "v", herdgate.EntryTTL(-time.Second))
		if config, ok := errors.AsType[*herdgate.ConfigError](err); !ok || config.Field != "EntryTTL" {
			w.Errorf("got %v", err)
		}
	})
}

func TestATaggedEntryCostsOneMoreCommandWhereItsTagsAreNotKnown(t *testing.T) { // the cost table
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		load := rich(func(ctx context.Context, load *herdgate.Load[string]) (string, error) {
			load.SetTags("one", "two", "three")
			return o.load(ctx, load.Key())
		})
		a := newRich(w.T, w.gate(), load, herdgate.Policy{})
		keys := []string{"1", "2", "3", "4", "5"}
		for _, key := range keys {
			get(w.T, a, key)
		}
		rdb := w.connect()
		count := &counting{}
		rdb.AddHook(count)
		b := newRich(w.T, w.gate(func(o *herdgate.Options) { o.Redis = rdb }), load, herdgate.Policy{LocalTTL: time.Hour})
		least := func(keys ...string) int64 { // a machine that stalls may cost one of them more
			var costs []int64
			for _, key := range keys {
				before := count.n.Load()
				get(w.T, b, key)
				costs = append(costs, count.n.Load()-before)
			}
			return slices.Min(costs)
		}
		least("1") // also the server's time, and the generation
		if n := least(keys[1:]...); n > 1 {
			w.Errorf("%d commands where the tags are known", n)
		}
		for range 3 {
			if n := least("2"); n != 0 {
				w.Errorf("%d commands for a local hit", n)
			}
		}
		if err := a.InvalidateTags(w.Context(), "three"); err != nil {
			w.Fatal(err)
		}
		w.until("it is loaded anew", func() bool { return get(w.T, b, "2") != "2#2" })
	})
}

func TestATagKeyThatWasLostInvalidatesAndNoMore(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		a := newRich(w.T, w.gate(), tagged(o), herdgate.Policy{})
		get(w.T, a, "k")
		if err := a.InvalidateTags(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		get(w.T, a, "k") // k#2, with the number of that invalidation
		rdb := w.connect()
		rdb.Del(w.Context(), "test:t:{things}:k")
		b := newRich(w.T, w.gate(), tagged(o), herdgate.Policy{})
		if v := get(w.T, b, "k"); v != "k#2" {
			w.Errorf("the sequence is still known, but the other instance reads %q", v)
		}
		rdb.Del(w.Context(), "test:t:{things}:k", "test:t:{things}")
		c := newRich(w.T, w.gate(), tagged(o), herdgate.Policy{})
		if v := get(w.T, c, "k"); v != "k#3" {
			w.Errorf("nothing is known any more, but a third instance reads %q", v)
		}
		if v := get(w.T, c, "k"); v != "k#3" {
			w.Errorf("then %q", v)
		}
	})
}

func TestAClearOrAnInvalidationOfTagsThatFailsSaysSoAndDropsTheCopies(t *testing.T) {
	gate, _, proxy := behindProxy(t)
	c, err := herdgate.New(gate, "things", newOrigin(0).load, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour, Tags: []string{"t"}})
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func() error{
		"clear things":               func() error { return c.Clear(t.Context()) },
		`invalidate tags things "t"`: func() error { return c.InvalidateTags(t.Context(), "t") },
	} {
		isLocal(t, c, get(t, c, "k"))
		release := proxy.HoldRequests(testutil.Command("evalsha"), -1)
		err := change()
		change, ok := errors.AsType[*herdgate.ChangeError](err)
		if !ok || !errors.Is(err, herdgate.ErrRedisTimeout) || !strings.Contains(change.Error(), what) {
			t.Errorf("got %v", err)
		}
		release()
		testutil.Eventually(t, 5*time.Second, func() bool {
			r, err := c.Lookup(t.Context(), "k")
			return err == nil && r.Outcome == herdgate.OutcomeLocal && r.Value != "k#1"
		}, "another value is local")
		get(t, c, "k")
	}
}

func TestTagsThatCannotBeAreRefused(t *testing.T) {
	gate := openGate(t, herdgate.Options{})
	c := newCache[string](t, gate, nil, herdgate.Policy{})
	if err := c.InvalidateTags(t.Context(), "fine", ""); err == nil || !strings.Contains(err.Error(), "want tags of 1 to 256 bytes") {
		t.Errorf("got %v", err)
	}
	if err := c.InvalidateTags(t.Context()); err != nil {
		t.Errorf("no tags at all: %v", err)
	}
	if _, err := herdgate.New(gate, "more", newOrigin(0).load, herdgate.Policy{Tags: make([]string, 65)}); err == nil {
		t.Error("a policy with 65 tags was taken")
	}
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprint("tag ", i)
	}
	if err := c.InvalidateTags(t.Context(), many...); err != nil {
		t.Errorf("200 tags: %v", err)
	}
}

func TestAValueReadBeforeAClearOrATagsInvalidationIsNotUsedAfterIt(t *testing.T) { // I2
	for what, change := range map[string]func(context.Context, *herdgate.Cache[string]) error{
		"clear": func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Clear(ctx) },
		"tags":  func(ctx context.Context, c *herdgate.Cache[string]) error { return c.InvalidateTags(ctx, "k") },
	} {
		for _, command := range []string{"get", "evalsha"} {
			for _, asks := range []bool{true, false} { // whether somebody asks before the reply comes
				for _, who := range []string{"the same instance", "another instance"} {
					t.Run(fmt.Sprintf("%s/%s/%s/%v", what, command, who, asks), func(t *testing.T) {
						virtually(t, func(w *world) {
							h := newHolding(command)
							o := newOrigin(0)
							policy := herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour, MinRebuildInterval: time.Millisecond}
							a := newRich(w.T, w.gate(func(o *herdgate.Options) {
								o.Redis.AddHook(h)
								o.RedisTimeout = time.Minute
							}), tagged(o), policy)
							b := newRich(w.T, w.gate(), tagged(o), policy)
							if command == "get" {
								get(w.T, b, "k")
							}
							// What is not asked for again: generation, time, and the tag's number.
							if err := a.Set(w.Context(), "k2", "v", herdgate.EntryTags("k")); err != nil {
								w.Fatal(err)
							}
							get(w.T, a, "k2")
							h.arm()
							first := make(chan string, 1)
							go func() { first <- get(w.T, a, "k") }()
							synctest.Wait()
							h.disarm()
							changer := map[string]*herdgate.Cache[string]{"the same instance": a, "another instance": b}[who]
							if err := change(w.Context(), changer); err != nil {
								w.Fatal(err)
							}
							synctest.Wait() // the message has arrived
							old := "k#1"
							second := make(chan string, 1)
							if asks {
								go func() { second <- get(w.T, a, "k") }()
								synctest.Wait()
							}
							h.release()
							<-first
							if !asks {
								second <- get(w.T, a, "k")
							}
							if v := <-second; v == old && command == "get" {
								w.Errorf("who asked after it got %q", v)
							}
							for range 2 {
								if v := get(w.T, a, "k"); v == old && command == "get" {
									w.Errorf("then %q", v)
								}
							}
							if v, w2 := get(w.T, a, "k"), get(w.T, b, "k"); v != w2 {
								w.Errorf("one instance reads %q, the other %q", v, w2)
							}
						})
					})
				}
			}
		}
	}
}

func TestAfterAGapGenerationAndTagsAreAskedForAgain(t *testing.T) { // I9
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	o := newOrigin(0)
	gate := openGate(t, herdgate.Options{Namespace: "test", Redis: testutil.NewClient(t, proxy.Addr())})
	policy := herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour}
	a := newRich(t, gate, tagged(o), policy)
	b := newRich(t, openGate(t, herdgate.Options{Namespace: "test", Redis: server.Client(t)}), tagged(o), policy)
	for what, change := range map[string]func() error{
		"clear": func() error { return b.Clear(t.Context()) },
		"tags":  func() error { return b.InvalidateTags(t.Context(), "k") },
	} {
		old := get(t, a, "k")
		isLocal(t, a, old)
		release := proxy.HoldRequests(testutil.Command("subscribe"), -1)
		if err := server.Client(t).ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, 5*time.Second, func() bool { return !gate.Connected() }, "the loss is noticed")
		if err := change(); err != nil {
			t.Fatal(err)
		}
		release()
		testutil.Eventually(t, 5*time.Second, gate.Connected, "the bus is back")
		if v := get(t, a, "k"); v == old {
			t.Errorf("%s: %q is served that was invalidated in the gap", what, v)
		}
	}
}

// A link between the nodes of a Cluster that is cut loses messages, and nothing shows it.
func TestALostInvalidationOfATagIsMadeUpForAfterLocalTTL(t *testing.T) { // I9
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	var version atomic.Int64
	open := func(addr string) (*herdgate.Gate, *herdgate.Cache[string]) {
		g := openGate(t, herdgate.Options{Redis: testutil.NewClient(t, addr), Namespace: "test"})
		return g, newCache(t, g, func(context.Context, string) (string, error) {
			return fmt.Sprint("version ", version.Load()), nil
		}, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Second, Tags: []string{"tag"}})
	}
	_, c := open(server.Addr())
	g, deaf := open(proxy.Addr())
	isLocal(t, deaf, get(t, deaf, "k"))
	proxy.DropMessages(testutil.Containing("\nT "), 1)
	version.Store(1)
	if err := c.InvalidateTags(t.Context(), "tag"); err != nil {
		t.Fatal(err)
	}
	// Nobody else has read the key: Redis has the entry that the copy is of, and only the
	// number of its tag tells.
	testutil.Eventually(t, topologyPatience, func() bool { return get(t, deaf, "k") == "version 1" }, "the new value is seen")
	if s := g.Stats(); s.BusLost != 0 || s.Outdated == 0 {
		t.Errorf("%+v: the loss was noticed, or is not what was made up for", s)
	}
}

// slowTags lets commands for the numbers of tags take 200 ms.
type slowTags struct{ redis.Hook }

func (slowTags) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 3 {
			if key, ok := args[3].(string); ok && strings.HasPrefix(key, "test:t:") {
				time.Sleep(200 * time.Millisecond)
			}
		}
		return next(ctx, cmd)
	}
}

// DialHook implements redis.Hook.
func (slowTags) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (slowTags) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestAValueWhoseTimeEndsWhileItsTagsAreAskedForIsNotServed(t *testing.T) { // I11
	virtually(t, func(w *world) {
		o := newOrigin(0)
		p := herdgate.Policy{TTL: time.Second, Jitter: herdgate.Off, Tags: []string{"x"}, EarlyBeta: herdgate.Off}
		rdb := w.connect()
		rdb.AddHook(slowTags{})
		a := newCache(w.T, w.gate(), o.load, p)
		b := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Redis = rdb }), o.load, p)
		get(w.T, a, "k")
		w.pass(900 * time.Millisecond)
		if r, err := b.Lookup(w.Context(), "k"); err != nil || r.Age > time.Second || o.loads.Load() != 2 {
			w.Errorf("got %+v, %v after %d loads, want a second load", r, err, o.loads.Load())
		}
	})
}
