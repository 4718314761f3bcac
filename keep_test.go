package herdgate_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
)

func TestAKeptKeyIsRefreshedThoughNobodyReadsIt(t *testing.T) {
	withAndWithoutRedis(t, func(w *world, g *herdgate.Gate) {
		o := newOrigin(100 * time.Millisecond)
		c := newCache(w.T, g, o.load, herdgate.Policy{TTL: time.Second, Stale: time.Minute, EarlyFraction: 0.5, Jitter: herdgate.Off})
		if err := c.Keep(w.Context(), 0, "a", "b"); err != nil {
			w.Fatal(err)
		}
		w.pass(10 * time.Second)
		// Each is loaded, and again half a second after each load of 100 ms.
		if n := o.loads.Load(); n < 32 || n > 36 {
			w.Errorf("%d loads in 10 s", n)
		}
		r, err := c.Lookup(w.Context(), "a")
		if err != nil || r.Outcome != herdgate.OutcomeLocal || r.Age > 700*time.Millisecond {
			w.Errorf("got %+v, %v", r, err)
		}
		c.Unkeep("a", "b")
		before := o.loads.Load()
		w.pass(10 * time.Second)
		if n := o.loads.Load() - before; n > 2 {
			w.Errorf("%d loads after the end", n)
		}
	})
}

func TestAKeyThatManyInstancesKeepIsLoadedByOne(t *testing.T) { // I1
	for name, localTTL := range map[string]time.Duration{"local tier": 0, "remote only": herdgate.Off} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				o := newOrigin(100 * time.Millisecond)
				policy := herdgate.Policy{TTL: time.Second, Stale: time.Minute, EarlyFraction: 0.5, Jitter: herdgate.Off, LocalTTL: localTTL}
				for range 5 {
					if err := newCache(w.T, w.gate(), o.load, policy).Keep(w.Context(), 0, "k"); err != nil {
						w.Fatal(err)
					}
				}
				w.pass(10 * time.Second)
				if n := o.loads.Load(); n < 12 || n > 18 {
					w.Errorf("%d loads in 10 s", n)
				}
				if n := o.most.Load(); n > 1 {
					w.Errorf("%d loads at once", n)
				}
			})
		})
	}
}

func TestAKeyThatNobodyReadsAnyMoreIsGivenUp(t *testing.T) {
	withAndWithoutRedis(t, func(w *world, g *herdgate.Gate) {
		o := newOrigin(10 * time.Millisecond)
		c := newCache(w.T, g, o.load, herdgate.Policy{TTL: time.Second, Stale: time.Minute, EarlyFraction: 0.5})
		if err := c.Keep(w.Context(), 5*time.Second, "k"); err != nil {
			w.Fatal(err)
		}
		for range 10 {
			w.pass(time.Second)
			if r, err := c.Lookup(w.Context(), "k"); err != nil || r.Stale {
				w.Errorf("got %+v, %v", r, err)
			}
		}
		w.pass(7 * time.Second)
		before := o.loads.Load()
		w.pass(time.Minute)
		if n := o.loads.Load() - before; n != 0 {
			w.Errorf("%d loads after it was given up", n)
		}
	})
}

func TestAKeptKeyWhoseLoadFailsIsTriedAgain(t *testing.T) {
	withAndWithoutRedis(t, func(w *world, g *herdgate.Gate) {
		o := newOrigin(0)
		c := newCache(w.T, g, func(ctx context.Context, key string) (string, error) {
			if o.loads.Load() < 5 {
				o.loads.Add(1)
				return "", errors.New("not yet")
			}
			return o.load(ctx, key)
		}, herdgate.Policy{TTL: time.Minute})
		if err := c.Keep(w.Context(), 0, "k"); err != nil {
			w.Fatal(err)
		}
		w.pass(30 * time.Second)
		if _, found, err := c.Peek(w.Context(), "k"); !found || err != nil {
			w.Errorf("after %d loads it is not there: %v", o.loads.Load(), err)
		}
	})
}

func TestKeepSaysWhatItCannotKeep(t *testing.T) {
	g := openGate(t, herdgate.Options{})
	none := newCache[string](t, g, nil, herdgate.Policy{})
	if err := none.Keep(t.Context(), 0, "k"); !errors.Is(err, herdgate.ErrNoLoader) {
		t.Errorf("got %v", err)
	}
	if err := none.Keep(t.Context(), -time.Second); err == nil || !strings.Contains(err.Error(), "idle is -1s") {
		t.Errorf("got %v", err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := none.Keep(t.Context(), 0); !errors.Is(err, herdgate.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestAStaleValueIsTakenWhenTheSoftTimeoutHasPassed(t *testing.T) {
	for name, localTTL := range map[string]time.Duration{"local tier": 0, "remote only": herdgate.Off} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				o := newOrigin(100 * time.Millisecond)
				policy := herdgate.Policy{
					TTL: time.Second, Stale: time.Minute, SoftTimeout: 300 * time.Millisecond,
					Jitter: herdgate.Off, EarlyBeta: herdgate.Off, LocalTTL: localTTL,
				}
				a, b := newCache(w.T, w.gate(), o.load, policy), newCache(w.T, w.gate(), o.load, policy)
				get(w.T, a, "k")
				w.pass(1500 * time.Millisecond)
				values, errs := herd(w.T, 5, func() (string, error) { return a.Get(w.Context(), "k") })
				for i, v := range values {
					if v != "k#2" || errs[i] != nil {
						w.Errorf("a quick load: %q, %v", v, errs[i])
					}
				}
				w.pass(1500 * time.Millisecond)
				o.delay = time.Second
				start := time.Now()
				r, err := a.Lookup(w.Context(), "k")
				if took := time.Since(start); err != nil || r.Value != "k#2" || !r.Stale || took > 320*time.Millisecond || took < 250*time.Millisecond {
					w.Errorf("a slow load: %+v, %v after %v", r, err, took)
				}
				if r, err := b.Lookup(w.Context(), "k"); err != nil || r.Value != "k#2" || !r.Stale {
					w.Errorf("another instance: %+v, %v", r, err)
				}
				w.pass(time.Second)
				if v := get(w.T, b, "k"); v != "k#3" {
					w.Errorf("afterwards %q", v)
				}
			})
		})
	}
}

func TestAFailedRefreshWithinTheSoftTimeoutServesTheStaleValue(t *testing.T) {
	virtually(t, func(w *world) {
		var fail atomic.Bool
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			if fail.Load() {
				return "", errors.New("boom")
			}
			return "old", nil
		}, herdgate.Policy{TTL: time.Second, Stale: time.Minute, SoftTimeout: time.Second})
		get(w.T, c, "k")
		fail.Store(true)
		w.pass(2 * time.Second)
		if v := get(w.T, c, "k"); v != "old" {
			w.Errorf("got %q", v)
		}
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, _ = c.Get(ctx, "k")
		synctest.Wait()
	})
}

func TestADefaultStandsInForAFailedLoad(t *testing.T) {
	virtually(t, func(w *world) {
		boom := errors.New("boom")
		var asked []error
		c, err := herdgate.New(w.gate(), "things", func(_ context.Context, key string) (string, error) {
			switch key {
			case "none":
				return "", herdgate.ErrNotFound
			case "fine":
				return "v", nil
			}
			return "", boom
		}, herdgate.Policy{}, herdgate.WithDefault(func(key string, err error) (string, bool) {
			asked = append(asked, err)
			return "default of " + key, key != "refused"
		}))
		if err != nil {
			w.Fatal(err)
		}
		r, err := c.Lookup(w.Context(), "k")
		if err != nil || r.Value != "default of k" || r.Outcome != herdgate.OutcomeDefault || r.Outcome.String() != "default" {
			w.Errorf("got %+v, %v", r, err)
		}
		w.pass(300 * time.Millisecond)
		_, _ = c.Get(w.Context(), "k") // fails once more
		if v, err := c.Get(w.Context(), "k"); err != nil || v != "default of k" {
			w.Errorf("in the back-off %q, %v", v, err)
		}
		if !errors.Is(asked[0], boom) || !errors.Is(asked[len(asked)-1], herdgate.ErrBackoff) {
			w.Errorf("asked with %v", asked)
		}
		if v, err := c.Get(w.Context(), "refused"); !errors.Is(err, boom) || v != "" {
			w.Errorf("where there is no default %q, %v", v, err)
		}
		if _, err := c.Get(w.Context(), "none"); !errors.Is(err, herdgate.ErrNotFound) {
			w.Errorf("a not-found is %v", err)
		}
		if _, err := c.Refresh(w.Context(), "other"); !errors.Is(err, boom) {
			w.Errorf("a refresh is %v", err)
		}
		if s := c.Stats(); s.Default != 3 || s.Gets != 6 {
			w.Errorf("stats %+v", s)
		}
	})
}
