package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

func TestCloseLetsLoadsFinishAndLeavesNothing(t *testing.T) { // I10
	everywhere(t, func(w *world) {
		o := newOrigin(200 * time.Millisecond)
		g := w.gate()
		c := newCache(w.T, g, o.load, herdgate.Policy{})
		got := make(chan string, 1)
		go func() { got <- get(w.T, c, "k") }()
		<-o.begun
		if err := g.Close(w.Context()); err != nil {
			w.Fatal(err)
		}
		if v := <-got; v != "k#1" {
			w.Errorf("got %q", v)
		}
		if err := g.Close(w.Context()); err != nil {
			w.Errorf("second Close: %v", err)
		}
		if _, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrClosed) {
			w.Errorf("Get: %v", err)
		}
		if err := c.Delete(w.Context(), "k"); !errors.Is(err, herdgate.ErrClosed) {
			w.Errorf("Delete: %v", err)
		}
		for _, local := range []time.Duration{0, herdgate.Off} {
			if _, err := herdgate.New[int](g, "late", nil, herdgate.Policy{LocalTTL: local}); !errors.Is(err, herdgate.ErrClosed) {
				w.Errorf("New: %v", err)
			}
		}
		if rdb := w.connect(); rdb.Exists(w.Context(), entryKey).Val() != 1 {
			w.Error("the value was not stored")
		}
	})
}

func TestCloseCancelsLoadsThatTakeTooLongAndReleasesTheirLeases(t *testing.T) { // I10
	everywhere(t, func(w *world) {
		o := newOrigin(time.Hour)
		g := w.gate()
		c := newCache(w.T, g, o.load, herdgate.Policy{LoadTimeout: 2 * time.Hour, LockTTL: time.Minute})
		got := make(chan error, 1)
		go func() {
			_, err := c.Get(w.Context(), "k")
			got <- err
		}()
		<-o.begun
		ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			w.Fatal(err)
		}
		if err := <-got; !errors.Is(err, herdgate.ErrClosed) {
			w.Errorf("got %v", err)
		}
		if b := w.connect().Get(w.Context(), buildKey).Val(); b != "" && b[0] == 'L' {
			w.Errorf("the lease is still there: %q", b)
		}
	})
}

func TestCloseUnderLoadNeitherPanicsNorLeavesALease(t *testing.T) { // I10
	everywhere(t, func(w *world) {
		rdb := w.connect()
		for round := range 10 {
			o := newOrigin(time.Millisecond)
			g := w.gate()
			c := newCache(w.T, g, o.load, herdgate.Policy{TTL: 5 * time.Millisecond, Stale: time.Second})
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for n := 0; ; n++ {
						key := fmt.Sprint(round, (i+n)%5)
						if _, err := c.Get(w.Context(), key); errors.Is(err, herdgate.ErrClosed) {
							return
						}
						if n%7 == 0 {
							_ = c.Set(w.Context(), key, "v")
						}
						if n%11 == 0 {
							_ = c.Delete(w.Context(), key)
						}
					}
				})
			}
			w.pass(20 * time.Millisecond)
			if err := g.Close(w.Context()); err != nil {
				w.Fatal(err)
			}
			wg.Wait()
			for _, key := range rdb.Keys(w.Context(), "test:b:*").Val() {
				if b := rdb.Get(w.Context(), key).Val(); b != "" && b[0] == 'L' {
					w.Fatalf("a lease is left: %s %s", key, b)
				}
			}
		}
	})
}

func TestAfterALossOnTheBusNoCopyIsFreshUnchecked(t *testing.T) { // I9, C11
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	var lost, confirmed atomic.Int64
	g := openGate(t, herdgate.Options{Namespace: "test", Redis: testutil.NewClient(t, proxy.Addr()), Observer: herdgate.ObserverFunc(func(e herdgate.Event) {
		switch e.Kind {
		case herdgate.EventBusLost:
			lost.Add(1)
		case herdgate.EventBusConfirmed:
			confirmed.Add(1)
		default:
		}
	})})
	policy := herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour}
	a := newCache[string](t, g, nil, policy)
	b := newCache[string](t, openGate(t, herdgate.Options{Namespace: "test", Redis: server.Client(t)}), nil, policy)
	if err := b.Set(t.Context(), "k", "old"); err != nil {
		t.Fatal(err)
	}
	isLocal(t, a, "old")
	if lost.Load() != 0 {
		t.Fatal("lost too early")
	}
	proxy.Cut()
	testutil.Eventually(t, 5*time.Second, func() bool { return lost.Load() > 0 }, "the loss is noticed")
	if err := b.Set(t.Context(), "k", "new"); err != nil {
		t.Fatal(err)
	}
	proxy.Resume()
	testutil.Eventually(t, 10*time.Second, func() bool { return confirmed.Load() > 1 }, "the bus is confirmed again")
	isUp(t, g, true) // until a probe is answered, the old value is served as stale
	if v := get(t, a, "k"); v != "new" {
		t.Errorf("got %q after the gap", v)
	}
}

// isLocal waits until a cache serves the value from its local tier.
func isLocal(t *testing.T, c *herdgate.Cache[string], value string) {
	t.Helper()
	testutil.Eventually(t, 5*time.Second, func() bool {
		r, err := c.Lookup(t.Context(), "k")
		return err == nil && r.Value == value && r.Outcome == herdgate.OutcomeLocal
	}, "the value "+value+" is served locally")
}

func TestInAGapNothingLocalIsFresh(t *testing.T) { // I9
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	var lost atomic.Int64
	a := newCache[string](t, openGate(t, herdgate.Options{
		Namespace: "test", Redis: testutil.NewClient(t, proxy.Addr()),
		Observer: herdgate.ObserverFunc(func(e herdgate.Event) {
			if e.Kind == herdgate.EventBusLost {
				lost.Add(1)
			}
		}),
	}), nil, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour})
	b := newCache[string](t, openGate(t, herdgate.Options{Namespace: "test", Redis: server.Client(t)}), nil, herdgate.Policy{TTL: time.Hour})
	if err := b.Set(t.Context(), "k", "0"); err != nil {
		t.Fatal(err)
	}
	isLocal(t, a, "0")
	// The subscription ends and no new one is confirmed, while commands work.
	release := proxy.HoldRequests(testutil.Command("subscribe"), -1)
	defer release()
	if err := server.Client(t).ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return lost.Load() > 0 }, "the loss is noticed")
	for i := range 5 {
		v := fmt.Sprint("in the gap ", i)
		if err := b.Set(t.Context(), "k", v); err != nil {
			t.Fatal(err)
		}
		if got := get(t, a, "k"); got != v {
			t.Errorf("got %q, want %q", got, v)
		}
	}
}

func TestALostMessageIsBoundedByLocalTTL(t *testing.T) { // C11
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	policy := herdgate.Policy{TTL: time.Hour, LocalTTL: 300 * time.Millisecond}
	a := newCache[string](t, openGate(t, herdgate.Options{Namespace: "test", Redis: testutil.NewClient(t, proxy.Addr())}), nil, policy)
	b := newCache[string](t, openGate(t, herdgate.Options{Namespace: "test", Redis: server.Client(t)}), nil, policy)
	if err := b.Set(t.Context(), "k", "old"); err != nil {
		t.Fatal(err)
	}
	isLocal(t, a, "old")
	proxy.DropMessages(testutil.Containing("things k"), 1)
	if err := b.Set(t.Context(), "k", "new"); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return get(t, a, "k") == "new" }, "the copy is checked")
	if r, err := a.Lookup(t.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeLocal {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestStatsAddUpAndEventsAreTheSame(t *testing.T) {
	everywhere(t, func(w *world) {
		var events atomic.Int64
		g := w.gate(func(o *herdgate.Options) {
			o.Observer = herdgate.ObserverFunc(func(e herdgate.Event) {
				if e.Kind == herdgate.EventGet {
					events.Add(1)
				}
				if e.Kind.String() == "unknown" || e.Outcome.String() == "unknown" {
					w.Errorf("event without a name: %+v", e)
				}
			})
		})
		o := newOrigin(200 * time.Millisecond)
		c := newCache(w.T, g, o.load, herdgate.Policy{})
		other, err := herdgate.New(g, "other", o.load, herdgate.Policy{LocalTTL: herdgate.Off})
		if err != nil {
			w.Fatal(err)
		}
		for range 5 {
			get(w.T, c, "k")
			get(w.T, other, "k")
		}
		herd(w.T, 10, func() (string, error) { return c.Get(w.Context(), "herd") })
		s := g.Stats()
		if s.Gets != 20 || s.Local != 4 || s.Remote != 4 || s.Loaded != 12 || s.Loads != 3 || s.Coalesced != 9 || s.LeasesWon != 3 || s.CommitsStored != 3 {
			w.Errorf("stats %+v", s)
		}
		if events.Load() != 20 {
			w.Errorf("%d events", events.Load())
		}
		if c.Stats().Gets+other.Stats().Gets != s.Gets {
			w.Error("the caches do not add up to the gate")
		}
		if all := g.CacheStats(); len(all) != 2 || all["other"] != other.Stats() || all["things"] != c.Stats() {
			w.Errorf("stats of the caches %+v", all)
		}
	})
}

func TestCachesOfOtherNamesNamespacesVersionsAndCodecsDoNotMix(t *testing.T) { // I13, I7
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		ns := w.gate(func(o *herdgate.Options) { o.Namespace = "elsewhere" })
		g := w.gate()
		a := newCache(w.T, g, o.load, herdgate.Policy{Version: 1})
		get(w.T, a, "k")
		b, err := herdgate.New(g, "other", o.load, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, b, "k"); v != "k#2" {
			w.Errorf("another name reads %q", v)
		}
		if v := get(w.T, newCache(w.T, ns, o.load, herdgate.Policy{Version: 1}), "k"); v != "k#3" {
			w.Errorf("another namespace reads %q", v)
		}
		// A newer version rebuilds; the older one then loads for itself and leaves it alone.
		newer := newCache(w.T, w.gate(), o.load, herdgate.Policy{Version: 2, LocalTTL: herdgate.Off})
		w.pass(110 * time.Millisecond)
		if v := get(w.T, newer, "k"); v != "k#4" {
			w.Errorf("a newer version reads %q", v)
		}
		older := newCache(w.T, w.gate(), o.load, herdgate.Policy{Version: 1})
		if r, err := older.Lookup(w.Context(), "k"); err != nil || r.Value != "k#5" || r.Outcome != herdgate.OutcomeUnlocked {
			w.Errorf("the older version: %+v, %v", r, err)
		}
		if v := get(w.T, newer, "k"); v != "k#4" {
			w.Errorf("the newer version lost its entry: %q", v)
		}
		// A change hits every version.
		if err := older.Delete(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, newer, "k"); v != "k#6" {
			w.Errorf("after a delete by the older: %q", v)
		}
	})
}

func TestWithCloneNobodySeesAnothersChanges(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache(w.T, w.gate(), func(context.Context, string) ([]int, error) { return []int{1, 2}, nil }, herdgate.Policy{},
			herdgate.WithClone(func(v []int) []int { return append([]int(nil), v...) }),
			herdgate.WithSize(func(v []int) int64 { return int64(8 * len(v)) }))
		values, errs := herd(w.T, 5, func() ([]int, error) {
			v, err := c.Get(w.Context(), "k")
			if err == nil {
				v[0] = 99
			}
			return v, err
		})
		if err := errors.Join(errs...); err != nil || len(values) != 5 {
			w.Fatal(err)
		}
		if v := get(w.T, c, "k"); v[0] != 1 {
			w.Errorf("got %v", v)
		}
	})
}

func TestACallBesideACloseThatWaitsIsNotHeldUp(t *testing.T) { // I3, I10
	virtually(t, func(w *world) {
		h := newHolding("evalsha")
		g := w.gate(func(o *herdgate.Options) {
			o.Redis.AddHook(h)
			o.RedisTimeout = time.Minute
		})
		c := newCache(w.T, g, newOrigin(0).load, herdgate.Policy{})
		h.arm()
		deleted, closed := make(chan error, 1), make(chan error, 1)
		go func() { deleted <- c.Delete(w.Context(), "k") }()
		synctest.Wait()
		go func() { closed <- g.Close(context.WithoutCancel(w.Context())) }()
		synctest.Wait() // it waits for the delete
		if _, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrClosed) {
			w.Errorf("got %v", err)
		}
		h.release()
		if err := errors.Join(<-deleted, <-closed); err != nil {
			w.Error(err)
		}
	})
}

func TestNoCallOfAClosedGateAsksRedis(t *testing.T) { // I10
	virtually(t, func(w *world) {
		rdb := w.connect()
		count := &counting{}
		rdb.AddHook(count)
		g := w.gate(func(o *herdgate.Options) { o.Redis = rdb })
		c := newCache(w.T, g, newOrigin(0).load, herdgate.Policy{Tags: []string{"t"}})
		if err := g.Close(w.Context()); err != nil {
			w.Fatal(err)
		}
		before := count.n.Load()
		for what, call := range map[string]func() error{
			"get":             func() error { _, err := c.Get(w.Context(), "k"); return err },
			"get many":        func() error { _, err := c.GetMany(w.Context(), []string{"k"}); return err },
			"refresh":         func() error { _, err := c.Refresh(w.Context(), "k"); return err },
			"peek":            func() error { _, _, err := c.Peek(w.Context(), "k"); return err },
			"set":             func() error { return c.Set(w.Context(), "k", "v") },
			"delete":          func() error { return c.Delete(w.Context(), "k") },
			"clear":           func() error { return c.Clear(w.Context()) },
			"invalidate tags": func() error { return c.InvalidateTags(w.Context(), "t") },
		} {
			if err := call(); !errors.Is(err, herdgate.ErrClosed) {
				w.Errorf("%s: %v", what, err)
			}
			if n := count.n.Load() - before; n > 0 {
				w.Fatalf("%s sent %d commands", what, n)
			}
		}
	})
}
