package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

const (
	entryKey = "test:v:things:{k}"
	buildKey = "test:b:things:{k}"
)

// behindProxy is a gate whose client talks to a real server through a proxy.
func behindProxy(t *testing.T, change ...func(*herdgate.Options)) (*herdgate.Gate, *testutil.Redis, *testutil.Proxy) {
	t.Helper()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	options := herdgate.Options{Redis: testutil.NewClient(t, proxy.Addr()), Namespace: "test"}
	for _, c := range change {
		c(&options)
	}
	return openGate(t, options), server, proxy
}

func TestAGrantWhoseReplyIsLostIsOurs(t *testing.T) { // C7
	t.Parallel()
	g, _, proxy := behindProxy(t)
	o := newOrigin(10 * time.Millisecond)
	c := newCache(t, g, o.load, herdgate.Policy{})
	proxy.SwallowReplies(testutil.Containing(buildKey), 1)
	r, err := c.Lookup(t.Context(), "k")
	if err != nil || r.Value != "k#1" || r.Outcome != herdgate.OutcomeLoaded {
		t.Fatalf("got %+v, %v", r, err)
	}
	if s := c.Stats(); s.LeasesWon != 1 || s.CommitsStored != 1 || s.Degraded != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestACommitWhoseReplyIsLostIsStored(t *testing.T) {
	t.Parallel()
	g, server, proxy := behindProxy(t)
	var loads atomic.Int64
	c := newCache(t, g, func(context.Context, string) (string, error) {
		loads.Add(1)
		proxy.SwallowReplies(testutil.Containing(buildKey), 1)
		return "v", nil
	}, herdgate.Policy{})
	if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Value != "v" {
		t.Fatalf("got %+v, %v", r, err)
	}
	if s := c.Stats(); s.CommitsStored != 1 || s.CommitsFailed != 0 || s.CommitsRefused != 0 {
		t.Errorf("stats %+v", s)
	}
	if b := server.Client(t).Get(t.Context(), buildKey).Val(); strings.HasPrefix(b, "L") {
		t.Errorf("the lease is still there: %q", b)
	}
}

func TestAFrozenRedisHoldsNobodyLongerThanItsContextAllows(t *testing.T) { // C8
	t.Parallel()
	g, server, _ := behindProxy(t, func(o *herdgate.Options) { o.RedisTimeout = 100 * time.Millisecond })
	c := newCache(t, g, newOrigin(10*time.Millisecond).load, herdgate.Policy{})
	server.Freeze()
	defer server.Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, "k"); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	// With more patience the value comes by the degraded path.
	r, err := c.Lookup(t.Context(), "other")
	if err != nil || r.Value == "" || r.Outcome != herdgate.OutcomeUnlocked {
		t.Errorf("got %+v, %v", r, err)
	}
	if c.Stats().Degraded == 0 {
		t.Error("degraded calls are not counted")
	}
}

func TestWhileRedisIsOutLoadsAreBoundedAndAfterwardsItIsUsedAgain(t *testing.T) { // I6
	t.Parallel()
	g, server, _ := behindProxy(t, func(o *herdgate.Options) {
		o.RedisTimeout = 100 * time.Millisecond
		o.MaxLoads = 4
	})
	o := newOrigin(10 * time.Millisecond)
	c := newCache(t, g, o.load, herdgate.Policy{})
	get(t, c, "warm")
	server.Kill()
	if r, err := c.Lookup(t.Context(), "warm"); err != nil || r.Value != "warm#1" {
		t.Errorf("a local value: %+v, %v", r, err)
	}
	var n atomic.Int64
	_, errs := herd(t, 40, func() (string, error) { return c.Get(t.Context(), fmt.Sprint(n.Add(1)%20)) })
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if most := o.most.Load(); most > 4 {
		t.Errorf("%d loaders at once", most)
	}
	if err := c.Delete(t.Context(), "warm"); err == nil {
		t.Error("a delete that reached nobody returned nil")
	}
	if r, err := c.Lookup(t.Context(), "warm"); err != nil || r.Value == "warm#1" {
		t.Errorf("the own copy outlived a delete: %+v, %v", r, err)
	}
	server.Restart()
	testutil.Eventually(t, 10*time.Second, func() bool {
		r, err := c.Lookup(t.Context(), fmt.Sprint("new", rand.Int()))
		return err == nil && r.Outcome == herdgate.OutcomeLoaded
	}, "values are stored in Redis again")
}

func TestScriptsThatTheServerForgotAreSentAgain(t *testing.T) { // C10
	everywhere(t, func(w *world) {
		rdb := w.connect()
		flush := func() {
			if err := rdb.ScriptFlush(w.Context()).Err(); err != nil {
				w.Error(err)
			}
		}
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			flush()
			return "v", nil
		}, herdgate.Policy{})
		flush()
		get(w.T, c, "k")
		if s := c.Stats(); s.CommitsStored != 1 {
			w.Errorf("stats %+v", s)
		}
		flush()
		if err := c.Delete(w.Context(), "k"); err != nil {
			w.Error(err)
		}
		flush()
		if err := c.Set(w.Context(), "k", "w"); err != nil {
			w.Error(err)
		}
	})
}

func TestABadEntryIsAMissAndIsReplaced(t *testing.T) { // C25, I7
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		c := newCache(w.T, w.gate(patient), func(ctx context.Context, key string) ([]int, error) {
			_, err := o.load(ctx, key)
			return []int{1, 2, 3}, err
		}, herdgate.Policy{LocalTTL: herdgate.Off, MinRebuildInterval: time.Millisecond})
		rdb := w.connect()
		get(w.T, c, "k")
		good := rdb.Get(w.Context(), entryKey).Val()
		bad := []string{"", "x", "\xdd\xff\xff\xff\xff", good[:47], good[:48], good + "\x00", strings.Repeat("\x00", 100)}
		for i := range 100 {
			b := []byte(good)
			// The build time is the server's, and says only how old the entry is.
			at := rand.N(len(b) - 8)
			if at >= 16 {
				at += 8
			}
			b[at] ^= byte(1 + i)
			bad = append(bad, string(b))
		}
		for _, entry := range bad {
			rdb.Set(w.Context(), entryKey, entry, time.Minute)
			before := o.loads.Load()
			if v := get(w.T, c, "k"); len(v) != 3 {
				w.Fatalf("entry %q: got %v", entry, v)
			}
			if o.loads.Load() != before+1 {
				// A newer format byte is left alone, but loaded all the same.
				w.Fatalf("entry %q was not a miss", entry)
			}
		}
		rdb.Del(w.Context(), entryKey)
		rdb.RPush(w.Context(), entryKey, "a list")
		if v := get(w.T, c, "k"); len(v) != 3 {
			w.Errorf("a list: got %v", v)
		}
		if rdb.Get(w.Context(), entryKey).Err() != nil {
			w.Error("the list was not replaced")
		}
	})
}

func TestALifetimeInRedisIsTheOneOfThePolicy(t *testing.T) { // C12, C13
	everywhere(t, func(w *world) {
		g := w.gate()
		rdb := w.connect()
		for _, c := range []struct {
			policy herdgate.Policy
			most   time.Duration
		}{
			{herdgate.Policy{TTL: time.Millisecond}, 2 * time.Millisecond},
			{herdgate.Policy{TTL: 500 * time.Millisecond}, 550 * time.Millisecond},
			{herdgate.Policy{TTL: 500 * time.Millisecond, Stale: time.Second, Jitter: herdgate.Off}, 1500 * time.Millisecond},
			{herdgate.Policy{TTL: 2500 * time.Millisecond, Jitter: 1}, 5 * time.Second},
		} {
			name := fmt.Sprintf("ttl%d", c.most)
			cache, err := herdgate.New(g, name, newOrigin(0).load, c.policy)
			if err != nil {
				w.Fatal(err)
			}
			get(w.T, cache, "k")
			for range 20 {
				if err := cache.Set(w.Context(), "s", "v"); err != nil {
					w.Fatal(err)
				}
				for _, key := range []string{"k", "s"} {
					if ttl := rdb.PTTL(w.Context(), "test:v:"+name+":{"+key+"}").Val(); ttl == -1 || ttl > c.most {
						w.Fatalf("%+v: %s lives %v", c.policy, key, ttl)
					}
				}
			}
		}
		for _, key := range rdb.Keys(w.Context(), "*").Val() {
			if rdb.PTTL(w.Context(), key).Val() == -1 && !strings.HasPrefix(key, "test:g:") { // one generation a cache
				w.Errorf("%s lives for ever", key)
			}
		}
	})
}

func TestAKeyCanBeSetAtOnceAfterItsExpiry(t *testing.T) { // C24
	everywhere(t, func(w *world) {
		c := newCache[string](w.T, w.gate(), nil, herdgate.Policy{TTL: 50 * time.Millisecond, Jitter: herdgate.Off})
		for i := range 5 {
			v := fmt.Sprint(i)
			if err := c.Set(w.Context(), "k", v); err != nil {
				w.Fatal(err)
			}
			if got := get(w.T, c, "k"); got != v {
				w.Errorf("got %q, want %q", got, v)
			}
			w.pass(50 * time.Millisecond)
			if got, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrNoLoader) {
				w.Errorf("past its expiry: %q, %v", got, err)
			}
		}
	})
}

func TestOneCommandForARemoteHitAndFewForAMiss(t *testing.T) { // the cost table
	everywhere(t, func(w *world) {
		count := &counting{}
		a := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Redis.AddHook(count) }), newOrigin(10*time.Millisecond).load,
			herdgate.Policy{LocalTTL: herdgate.Off})
		b := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Redis.AddHook(count) }), newOrigin(0).load,
			herdgate.Policy{})
		for _, c := range []*herdgate.Cache[string]{a, b} {
			if _, _, err := c.Peek(w.Context(), "nothing"); err != nil { // the generation is known
				w.Fatal(err)
			}
		}
		for _, step := range []struct {
			name string
			most int64
			do   func()
		}{
			{"cold miss", 3, func() { get(w.T, a, "k") }},
			{"remote hit", 1, func() { get(w.T, a, "k") }},
			{"set", 1, func() { _ = a.Set(w.Context(), "s", "v") }},
			{"delete", 1, func() { _ = a.Delete(w.Context(), "s") }},
			{"another instance's first hit, which asks the time", 2, func() { get(w.T, b, "k") }},
			{"local hit", 0, func() { get(w.T, b, "k") }},
			{"expire", 1, func() { _ = a.Expire(w.Context(), "k") }},
		} {
			count.n.Store(0)
			step.do()
			if n := count.n.Load(); n > step.most {
				w.Errorf("%s: %d commands, want at most %d", step.name, n, step.most)
			}
		}
	})
}

// counting counts the commands of a client that the cost table counts.
type counting struct{ n atomic.Int64 }

func (*counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch cmd.Name() {
		case "hello", "client", "subscribe", "script", "publish", "info":
		default:
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (*counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestOpenSaysWhatRedisRefuses(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	before := server.Client(t)
	if err := before.ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := herdgate.Open(t.Context(), herdgate.Options{Redis: server.Client(t)}); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("got %v", err)
	}
}

func TestAClusterIsUsedLikeASingleServer(t *testing.T) {
	t.Parallel()
	cluster := testutil.StartCluster(t)
	gate := func() *herdgate.Gate {
		return openGate(t, herdgate.Options{Namespace: "test", Redis: cluster.Client(t)})
	}
	o := newOrigin(20 * time.Millisecond)
	policy := herdgate.Policy{MinRebuildInterval: time.Millisecond}
	a, b := newCache(t, gate(), o.load, policy), newCache(t, gate(), o.load, policy)
	keys := []string{"", "1", "2", "3", "{tag}1", "{tag}2", "a}b", "{}x", "ü\x00\n %"}
	for _, key := range keys {
		values, errs := herd(t, 10, func() (string, error) { return a.Get(t.Context(), key) })
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("key %q: %v", key, err)
		}
		if v := get(t, b, key); v != values[0] {
			t.Errorf("key %q: %q and %q", key, values[0], v)
		}
	}
	if n := o.loads.Load(); n != int64(len(keys)) {
		t.Errorf("%d loads of %d keys", n, len(keys))
	}
	if err := a.Delete(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		testutil.Eventually(t, 5*time.Second, func() bool {
			n, _ := strconv.Atoi(get(t, b, key)[len(key)+1:])
			return n > len(keys)
		}, fmt.Sprintf("the copy of key %q is dropped", key))
	}
}

func TestWhatAReplicaMayHaveSaidIsNotKept(t *testing.T) { // I9
	t.Parallel()
	cluster := testutil.StartCluster(t)
	o := newOrigin(0)
	load := func(change func(*redis.ClusterOptions)) *herdgate.Cache[string] {
		return newCache(t, openGate(t, herdgate.Options{Namespace: "test", Redis: cluster.Client(t, change)}), o.load, herdgate.Policy{})
	}
	get(t, load(func(*redis.ClusterOptions) {}), "k")
	for name, change := range map[string]func(*redis.ClusterOptions){
		"read only": func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"latency":   func(o *redis.ClusterOptions) { o.RouteByLatency = true },
		"random":    func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		c := load(change)
		for range 3 {
			if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeRemote {
				t.Errorf("%s: %v, %v", name, r.Outcome, err)
			}
		}
	}
}

func TestAGateOpensWhileRedisIsOut(t *testing.T) { // I6
	t.Parallel()
	server := testutil.StartRedis(t)
	server.Kill()
	g := openGate(t, herdgate.Options{Namespace: "test", Redis: server.Client(t), RedisTimeout: 100 * time.Millisecond})
	o := newOrigin(0)
	c := newCache(t, g, o.load, herdgate.Policy{})
	if r, err := c.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeUnlocked {
		t.Errorf("got %+v, %v", r, err)
	}
	server.Restart()
	testutil.Eventually(t, 10*time.Second, func() bool {
		r, err := c.Lookup(t.Context(), "k")
		return err == nil && r.Outcome == herdgate.OutcomeLocal
	}, "Redis is used once it is there")
}
