package herdgate_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

func TestRefreshLoadsAFreshValueAnew(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(20 * time.Millisecond)
		a, b := newCache(w.T, w.gate(), o.load, herdgate.Policy{}), newCache(w.T, w.gate(), o.load, herdgate.Policy{})
		get(w.T, a, "k")
		for want := range 3 {
			v, err := a.Refresh(w.Context(), "k")
			if err != nil || v != []string{"k#2", "k#3", "k#4"}[want] {
				w.Fatalf("got %q, %v", v, err)
			}
			if v := get(w.T, b, "k"); want == 0 && v != "k#2" {
				w.Errorf("the other instance reads %q", v)
			}
		}
		if v, err := b.Refresh(w.Context(), "new"); err != nil || v != "new#5" {
			w.Errorf("of a key that is not there: %q, %v", v, err)
		}
	})
}

func TestWithoutRedisRefreshLoadsAFreshValueAnew(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(20 * time.Millisecond)
		c := newCache(w.T, openGate(w.T, herdgate.Options{}), o.load, herdgate.Policy{})
		get(w.T, c, "k")
		values, errs := herd(w.T, 5, func() (string, error) { return c.Refresh(w.Context(), "k") })
		for i, v := range values {
			if errs[i] != nil || v != "k#2" {
				w.Errorf("got %q, %v", v, errs[i])
			}
		}
		if v := get(w.T, c, "k"); v != "k#2" {
			w.Errorf("afterwards %q", v)
		}
	})
}

func TestRefreshesInAFleetShareOneLoad(t *testing.T) { // I1
	everywhere(t, func(w *world) {
		o := newOrigin(200 * time.Millisecond)
		a, b := newCache(w.T, w.gate(), o.load, herdgate.Policy{}), newCache(w.T, w.gate(), o.load, herdgate.Policy{})
		get(w.T, a, "k")
		get(w.T, b, "k")
		next := make(chan *herdgate.Cache[string], 20)
		for i := range cap(next) {
			next <- []*herdgate.Cache[string]{a, b}[i%2]
		}
		values, errs := herd(w.T, cap(next), func() (string, error) { return (<-next).Refresh(w.Context(), "k") })
		for i, v := range values {
			if errs[i] != nil || v != "k#2" {
				w.Errorf("got %q, %v", v, errs[i])
			}
		}
		if n := o.loads.Load(); n != 2 {
			w.Errorf("%d loads", n)
		}
	})
}

func TestARefreshThatFailsLeavesTheValue(t *testing.T) { // I12
	everywhere(t, func(w *world) {
		boom := errors.New("boom")
		var fail atomic.Bool
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			if fail.Load() {
				return "", boom
			}
			return "v", nil
		}, herdgate.Policy{})
		get(w.T, c, "k")
		fail.Store(true)
		if _, err := c.Refresh(w.Context(), "k"); !errors.Is(err, boom) {
			w.Errorf("got %v", err)
		}
		if v := get(w.T, c, "k"); v != "v" {
			w.Errorf("afterwards %q", v)
		}
		none, err := herdgate.New[int](w.gate(), "none", nil, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		if _, err := none.Refresh(w.Context(), "k"); !errors.Is(err, herdgate.ErrNoLoader) {
			w.Errorf("without a loader: %v", err)
		}
	})
}

func TestPeekNeverLoads(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		policy := herdgate.Policy{TTL: 100 * time.Millisecond, Stale: time.Minute, Jitter: herdgate.Off}
		a, b := newCache(w.T, w.gate(), o.load, policy), newCache(w.T, w.gate(), o.load, policy)
		if r, found, err := b.Peek(w.Context(), "k"); found || err != nil {
			w.Errorf("of nothing: %+v, %v, %v", r, found, err)
		}
		get(w.T, a, "k")
		if r, found, err := b.Peek(w.Context(), "k"); !found || err != nil || r.Value != "k#1" || r.Stale {
			w.Errorf("fresh: %+v, %v, %v", r, found, err)
		}
		w.pass(110 * time.Millisecond)
		if r, found, err := b.Peek(w.Context(), "k"); !found || err != nil || r.Value != "k#1" || !r.Stale {
			w.Errorf("stale: %+v, %v, %v", r, found, err)
		}
		w.pass(20 * time.Millisecond)
		if n := o.loads.Load(); n != 1 {
			w.Errorf("%d loads", n)
		}
		missing, err := herdgate.New(w.gate(), "missing", func(context.Context, string) (string, error) { return "", herdgate.ErrNotFound }, herdgate.Policy{LocalTTL: herdgate.Off})
		if err != nil {
			w.Fatal(err)
		}
		_, _ = missing.Get(w.Context(), "k")
		if _, found, err := missing.Peek(w.Context(), "k"); !found || !errors.Is(err, herdgate.ErrNotFound) {
			w.Errorf("a remembered not-found: %v, %v", found, err)
		}
	})
}

func TestPeekTellsThatRedisDidNotAnswer(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	c := newCache[int](t, openGate(t, herdgate.Options{Redis: server.Client(t), RedisTimeout: 100 * time.Millisecond}), nil, herdgate.Policy{})
	server.Freeze()
	defer server.Thaw()
	if _, found, err := c.Peek(t.Context(), "k"); found || !errors.Is(err, herdgate.ErrRedisTimeout) {
		t.Errorf("got %v, %v", found, err)
	}
}

func TestPeekTakesNoRefreshFromTheCallsThatLoad(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(0)
		c := newCache(w.T, w.gate(), o.load, herdgate.Policy{TTL: time.Second, Stale: time.Minute, LocalTTL: 30 * time.Second})
		get(w.T, c, "k")
		w.pass(2 * time.Second)
		for range 10 {
			if _, _, err := c.Peek(w.Context(), "k"); err != nil {
				w.Error(err)
			}
			get(w.T, c, "k")
			w.pass(20 * time.Millisecond)
		}
		if n := o.loads.Load(); n != 2 {
			w.Errorf("%d loads", n)
		}
	})
}

func TestPeekOfNothingIsNotCloned(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache[*thing](w.T, w.gate(), nil, herdgate.Policy{}, herdgate.WithClone(cloneThing))
		if r, found, err := c.Peek(w.Context(), "k"); found || err != nil || r.Value != nil {
			w.Errorf("got %+v, %v, %v", r, found, err)
		}
	})
}

func TestAfterARefreshNoCopyOfTheOldEntryIsServed(t *testing.T) {
	t.Parallel()
	t.Run("its commit's replies are lost", func(t *testing.T) {
		t.Parallel()
		g, _, proxy := behindProxy(t)
		o := newOrigin(0)
		c := newCache(t, g, func(ctx context.Context, key string) (string, error) {
			v, err := o.load(ctx, key)
			if v == "k#2" {
				proxy.SwallowReplies(testutil.Command("evalsha"), 2)
			}
			return v, err
		}, herdgate.Policy{})
		get(t, c, "k")
		if v, err := c.Refresh(t.Context(), "k"); err != nil || v != "k#2" {
			t.Fatalf("got %q, %v", v, err)
		}
		if v := get(t, c, "k"); v != "k#2" {
			t.Errorf("afterwards %q", v)
		}
	})
	t.Run("a read from before it comes late", func(t *testing.T) {
		t.Parallel()
		virtually(t, func(w *world) {
			h := newHolding("get")
			o := newOrigin(0)
			get(w.T, newCache(w.T, w.gate(), o.load, herdgate.Policy{}), "k")
			c := newCache(w.T, w.gate(func(o *herdgate.Options) {
				o.Redis.AddHook(h)
				o.RedisTimeout = time.Minute
			}), o.load, herdgate.Policy{})
			h.arm()
			late := make(chan string, 1)
			go func() { late <- get(w.T, c, "k") }()
			synctest.Wait() // it has read k#1
			h.disarm()
			if v, err := c.Refresh(w.Context(), "k"); err != nil || v != "k#2" {
				w.Fatalf("got %q, %v", v, err)
			}
			h.release()
			<-late
			if v := get(w.T, c, "k"); v != "k#2" {
				w.Errorf("afterwards %q", v)
			}
		})
	})
}
