package herdgate_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
)

func TestManyCallersOnManyInstancesLoadAColdKeyOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(200 * time.Millisecond)
		var caches []*herdgate.Cache[string]
		for range 5 {
			caches = append(caches, newCache(w.T, w.gate(), o.load, herdgate.Policy{TTL: time.Minute}))
		}
		next := make(chan *herdgate.Cache[string], 100)
		for i := range cap(next) {
			next <- caches[i%len(caches)]
		}
		values, errs := herd(w.T, cap(next), func() (string, error) { return (<-next).Get(w.Context(), "k") })
		for i := range values {
			if errs[i] != nil || values[i] != "k#1" {
				w.Fatalf("caller %d got %q, %v", i, values[i], errs[i])
			}
		}
		if n := o.loads.Load(); n != 1 {
			w.Errorf("%d loads, want 1", n)
		}
	})
}

func TestAStaleValueIsServedWhileOneCallerRefreshes(t *testing.T) {
	t.Parallel()
	for _, local := range []time.Duration{0, herdgate.Off} {
		t.Run(fmt.Sprint("local ", local), func(t *testing.T) {
			everywhere(t, func(w *world) {
				o := newOrigin(100 * time.Millisecond)
				policy := herdgate.Policy{TTL: 300 * time.Millisecond, Stale: time.Minute, LocalTTL: local, Jitter: herdgate.Off, EarlyBeta: herdgate.Off}
				a := newCache(w.T, w.gate(), o.load, policy)
				b := newCache(w.T, w.gate(), o.load, policy)
				get(w.T, a, "k")
				get(w.T, b, "k")
				w.pass(310 * time.Millisecond)
				for _, c := range []*herdgate.Cache[string]{a, b, a, b} {
					r, err := c.Lookup(w.Context(), "k")
					if err != nil || r.Value != "k#1" || !r.Stale || r.Outcome != herdgate.OutcomeStale {
						w.Fatalf("got %+v, %v, want the stale value", r, err)
					}
				}
				w.until("both read the new value", func() bool {
					return get(w.T, a, "k") == "k#2" && get(w.T, b, "k") == "k#2"
				})
				if n := o.loads.Load(); n != 2 {
					w.Errorf("%d loads, want 2", n)
				}
			})
		})
	}
}

func TestAnExpiredKeyIsWaitedFor(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(10 * time.Millisecond)
		c := newCache(w.T, w.gate(), o.load, herdgate.Policy{TTL: 200 * time.Millisecond, EarlyBeta: herdgate.Off})
		get(w.T, c, "k")
		w.pass(230 * time.Millisecond)
		if v := get(w.T, c, "k"); v != "k#2" {
			w.Errorf("got %q after the TTL", v)
		}
	})
}

func TestAnotherInstanceReadsWhatOneHasLoaded(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		a := newCache(w.T, w.gate(), o.load, herdgate.Policy{})
		b := newCache(w.T, w.gate(), o.load, herdgate.Policy{})
		get(w.T, a, "k")
		w.pass(20 * time.Millisecond)
		r, err := b.Lookup(w.Context(), "k")
		if err != nil || r.Value != "k#1" || r.Outcome != herdgate.OutcomeRemote || r.Stale || r.Age <= 0 || r.Age > time.Second {
			w.Errorf("got %+v, %v", r, err)
		}
		if r, err = b.Lookup(w.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeLocal {
			w.Errorf("second time %+v, %v, want it local", r, err)
		}
	})
}

func TestANotFoundIsRemembered(t *testing.T) {
	everywhere(t, func(w *world) {
		loads := 0
		load := func(context.Context, string) (string, error) {
			loads++
			return "", fmt.Errorf("row 7: %w", herdgate.ErrNotFound)
		}
		a := newCache(w.T, w.gate(), load, herdgate.Policy{})
		b := newCache(w.T, w.gate(), load, herdgate.Policy{})
		for _, c := range []*herdgate.Cache[string]{a, a, b, b} {
			if _, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrNotFound) {
				w.Fatalf("got %v", err)
			}
		}
		if loads != 1 {
			w.Errorf("%d loads, want 1", loads)
		}
	})
}

func TestAGateWithoutRedisLoadsOnceAndKeeps(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(100 * time.Millisecond)
		g := openGate(w.T, herdgate.Options{})
		c := newCache(w.T, g, o.load, herdgate.Policy{TTL: time.Minute, Stale: time.Minute, Jitter: herdgate.Off, EarlyBeta: herdgate.Off})
		values, errs := herd(w.T, 100, func() (string, error) { return c.Get(w.Context(), "k") })
		for i := range values {
			if errs[i] != nil || values[i] != "k#1" {
				w.Fatalf("got %q, %v", values[i], errs[i])
			}
		}
		w.pass(59 * time.Second)
		if r, err := c.Lookup(w.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeLocal {
			w.Errorf("got %+v, %v", r, err)
		}
		w.pass(2 * time.Second)
		if r, err := c.Lookup(w.Context(), "k"); err != nil || !r.Stale || r.Value != "k#1" {
			w.Errorf("past its TTL: %+v, %v", r, err)
		}
		w.pass(time.Second)
		if v := get(w.T, c, "k"); v != "k#2" {
			w.Errorf("after the refresh: %q", v)
		}
		if err := c.Delete(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, c, "k"); v != "k#3" {
			w.Errorf("after a delete: %q", v)
		}
		if err := c.Set(w.Context(), "k", "mine"); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, c, "k"); v != "mine" {
			w.Errorf("after a set: %q", v)
		}
		if err := c.Expire(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if r, err := c.Lookup(w.Context(), "k"); err != nil || !r.Stale || r.Value != "mine" {
			w.Errorf("after an expire: %+v, %v", r, err)
		}
	})
}

func TestAHotLocalCopyIsCheckedBehindItsCallers(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(time.Second)
		a := newCache(w.T, w.gate(), o.load, herdgate.Policy{LocalTTL: time.Second})
		b := newCache(w.T, w.gate(), o.load, herdgate.Policy{LocalTTL: time.Second})
		get(w.T, a, "k")
		get(w.T, b, "k")
		for range 300 {
			w.pass(20 * time.Millisecond)
			if r, err := b.Lookup(w.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeLocal {
				w.Fatalf("got %+v, %v", r, err)
			}
		}
		if s := b.Stats(); s.LeasesWon+s.LeasesHeld+s.Refreshes != 0 {
			w.Errorf("a check is no refresh: %+v", s)
		}
	})
}

func TestWithoutRedisACallThatFindsNothingWaitsForARunningRefresh(t *testing.T) { // I1
	virtually(t, func(w *world) {
		o := newOrigin(time.Second)
		c := newCache(w.T, openGate(w.T, herdgate.Options{}), o.load, herdgate.Policy{
			TTL: 100 * time.Millisecond, Stale: 100 * time.Millisecond, Jitter: herdgate.Off, EarlyBeta: herdgate.Off,
		})
		get(w.T, c, "k")
		w.pass(150 * time.Millisecond)
		if r, err := c.Lookup(w.Context(), "k"); err != nil || !r.Stale {
			w.Fatalf("got %+v, %v", r, err)
		}
		w.pass(100 * time.Millisecond) // the old value is gone, the refresh still runs
		values, _ := herd(w.T, 10, func() (string, error) { return c.Get(w.Context(), "k") })
		for _, v := range values {
			if v != "k#2" {
				w.Errorf("got %q", v)
			}
		}
		if n := o.loads.Load(); n != 2 {
			w.Errorf("%d loads", n)
		}
	})
}

func TestANotFoundThatIsNotRememberedDropsTheOldValue(t *testing.T) {
	everywhere(t, func(w *world) {
		var gone atomic.Bool
		load := func(context.Context, string) (string, error) {
			if gone.Load() {
				return "", herdgate.ErrNotFound
			}
			return "here", nil
		}
		c := newCache(w.T, w.gate(), load, herdgate.Policy{
			TTL: 50 * time.Millisecond, Stale: time.Minute, NegativeTTL: herdgate.Off, LocalTTL: herdgate.Off,
		})
		get(w.T, c, "k")
		gone.Store(true)
		w.pass(60 * time.Millisecond)
		w.until("the old value is gone", func() bool {
			_, err := c.Get(w.Context(), "k")
			return errors.Is(err, herdgate.ErrNotFound)
		})
	})
}

func TestAnEntryStampedByAnotherClockIsStaleOnce(t *testing.T) { // I11, C23
	t.Parallel()
	for _, off := range []time.Duration{24 * time.Hour, -24 * time.Hour, -100 * 365 * 24 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			virtually(t, func(w *world) {
				o := newOrigin(10 * time.Millisecond)
				c := newCache(w.T, w.gate(), o.load, herdgate.Policy{Stale: time.Hour})
				other := newCache(w.T, w.gate(), o.load, herdgate.Policy{Stale: time.Hour})
				get(w.T, c, "k")
				rdb := w.connect()
				entry := []byte(rdb.Get(w.Context(), entryKey).Val())
				binary.BigEndian.PutUint64(entry[16:], uint64(time.Now().Add(off).UnixMilli()))
				rdb.Set(w.Context(), entryKey, entry, time.Hour)
				r, err := other.Lookup(w.Context(), "k")
				if err != nil || !r.Stale || r.Value != "k#1" {
					w.Errorf("got %+v, %v", r, err)
				}
				for range 50 {
					w.pass(20 * time.Millisecond)
					get(w.T, other, "k")
				}
				if n := o.loads.Load(); n != 2 {
					w.Errorf("%d loads, want one refresh", n)
				}
			})
		})
	}
}

func TestWhileABackoffRunsNobodyAsksForTheLease(t *testing.T) { // I5, I12
	virtually(t, func(w *world) {
		count := &counting{}
		var loads atomic.Int64
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Redis.AddHook(count) }), func(context.Context, string) (string, error) {
			if loads.Add(1) > 1 {
				return "", errors.New("boom")
			}
			return "old", nil
		}, herdgate.Policy{TTL: 50 * time.Millisecond, Stale: time.Minute, LocalTTL: herdgate.Off, FailureBackoff: 10 * time.Second})
		get(w.T, c, "k")
		w.pass(60 * time.Millisecond)
		get(w.T, c, "k")
		w.pass(time.Second) // the refresh has failed
		get(w.T, c, "k")    // meets the mark
		w.pass(time.Second)
		count.n.Store(0)
		for range 50 {
			get(w.T, c, "k")
			w.pass(20 * time.Millisecond)
		}
		if n := count.n.Load(); n != 50 {
			w.Errorf("%d commands for 50 stale hits", n)
		}
	})
}

func TestWhoMetAnothersRefreshAsksAgainForTheNextEntry(t *testing.T) { // I5
	virtually(t, func(w *world) {
		o := newOrigin(100 * time.Millisecond)
		policy := herdgate.Policy{TTL: 300 * time.Millisecond, Stale: time.Minute, LocalTTL: herdgate.Off, LockTTL: time.Minute, Jitter: herdgate.Off, EarlyBeta: herdgate.Off}
		a, b := newCache(w.T, w.gate(), o.load, policy), newCache(w.T, w.gate(), o.load, policy)
		get(w.T, a, "k")
		w.pass(310 * time.Millisecond)
		get(w.T, a, "k")
		<-o.begun
		<-o.begun        // a refreshes,
		get(w.T, b, "k") // b finds it held
		w.pass(time.Second)
		get(w.T, b, "k") // and is now the only one to read
		w.pass(time.Second)
		if v := get(w.T, b, "k"); v != "k#3" {
			w.Errorf("got %q", v)
		}
	})
}

func TestAMarkStopsRefreshesAlsoIfTheEntryIsGone(t *testing.T) { // I5, I12
	virtually(t, func(w *world) {
		count := &counting{}
		var fail atomic.Bool
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Redis.AddHook(count) }), func(context.Context, string) (string, error) {
			if fail.Load() {
				return "", errors.New("boom")
			}
			return "v", nil
		}, herdgate.Policy{TTL: time.Second, Stale: time.Hour, LocalTTL: time.Minute, FailureBackoff: 10 * time.Second})
		get(w.T, c, "k")
		fail.Store(true)
		w.connect().Del(w.Context(), "test:v:things:{k}", "test:b:things:{k}")
		w.pass(2 * time.Second)
		count.n.Store(0)
		for range 800 {
			get(w.T, c, "k")
			w.pass(time.Millisecond)
		}
		if n := count.n.Load(); n > 6 {
			w.Errorf("%d commands for one stale key in 0.8 s of a back-off", n)
		}
	})
}

func TestACopyMarkedStaleIsNeverServedAsFresh(t *testing.T) { // I2
	t.Parallel()
	really(t, func(w *world) {
		c := newCache[int](w.T, w.gate(), nil, herdgate.Policy{})
		for i := range 300 {
			if err := c.Set(w.Context(), "k", i); err != nil {
				w.Fatal(err)
			}
			if err := c.Expire(w.Context(), "k"); err != nil {
				w.Fatal(err)
			}
			_, errs := herd(w.T, 30, func() (int, error) { return c.Get(w.Context(), "k") })
			for _, err := range errs {
				if !errors.Is(err, herdgate.ErrNoLoader) {
					w.Fatalf("served after an Expire without a stale window: %v", err)
				}
			}
		}
	})
}

func TestAWaitEndsThoughTheEntryGoesFromBadToWorse(t *testing.T) { // I3, I7
	virtually(t, func(w *world) {
		h := newHolding("get")
		o := newOrigin(0)
		c := newCache(w.T, w.gate(func(o *herdgate.Options) {
			o.Redis.AddHook(h)
			o.RedisTimeout = time.Minute
		}), o.load, herdgate.Policy{WaitTimeout: time.Second})
		rdb := w.connect()
		rdb.Set(w.Context(), entryKey, strings.Repeat("x", 100), time.Hour)
		h.arm()
		got := make(chan string, 1)
		go func() { got <- get(w.T, c, "k") }()
		synctest.Wait() // it has read 100 bad bytes
		rdb.Set(w.Context(), entryKey, "short", time.Hour)
		h.release()
		if v := <-got; v != "k#1" {
			w.Errorf("got %q", v)
		}
	})
}
