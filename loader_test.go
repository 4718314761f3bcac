package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
)

// rich is a Loader made of a function.
type rich func(context.Context, *herdgate.Load[string]) (string, error)

func (r rich) Load(ctx context.Context, load *herdgate.Load[string]) (string, error) {
	return r(ctx, load)
}

func newRich(t *testing.T, g *herdgate.Gate, load rich, policy herdgate.Policy) *herdgate.Cache[string] {
	t.Helper()
	c, err := herdgate.NewLoader[string](g, "things", load, policy)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withAndWithoutRedis runs a test in virtual time on a gate with Redis and on one without.
func withAndWithoutRedis(t *testing.T, test func(w *world, g *herdgate.Gate)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) { virtually(t, func(w *world) { test(w, w.gate()) }) })
	t.Run("alone", func(t *testing.T) {
		virtually(t, func(w *world) { test(w, openGate(w.T, herdgate.Options{})) })
	})
}

func TestALoaderSeesWhatIsStored(t *testing.T) {
	withAndWithoutRedis(t, func(w *world, g *herdgate.Gate) {
		var seen []string
		c := newRich(w.T, g, func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			old, age, ok := load.Old()
			seen = append(seen, fmt.Sprintf("%s %q %v %v %q", load.Key(), old, age.Round(100*time.Millisecond), ok, load.Token()))
			n := fmt.Sprintf("v%d", len(seen))
			load.SetToken("etag-" + n)
			return n, nil
		}, herdgate.Policy{TTL: time.Second, Stale: time.Minute, Jitter: herdgate.Off, EarlyBeta: herdgate.Off})
		get(w.T, c, "k")
		w.pass(1500 * time.Millisecond)
		get(w.T, c, "k") // stale
		synctest.Wait()
		if _, err := c.Refresh(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		want := []string{`k "" 0s false ""`, `k "v1" 1.5s true "etag-v1"`, `k "v2" 100ms true "etag-v2"`}
		if got := strings.Join(seen, "\n"); got != strings.Join(want, "\n") {
			w.Errorf("the loader saw\n%s", got)
		}
	})
}

func TestARememberedNotFoundIsNoOldValueButHasItsToken(t *testing.T) {
	withAndWithoutRedis(t, func(w *world, g *herdgate.Gate) {
		var seen string
		c := newRich(w.T, g, func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			_, _, ok := load.Old()
			seen = fmt.Sprintf("%v %q", ok, load.Token())
			load.SetToken("none yet")
			return "", herdgate.ErrNotFound
		}, herdgate.Policy{})
		_, _ = c.Get(w.Context(), "k")
		if _, err := c.Refresh(w.Context(), "k"); !errors.Is(err, herdgate.ErrNotFound) {
			w.Errorf("got %v", err)
		}
		if seen != `false "none yet"` {
			w.Errorf("the loader saw %s", seen)
		}
	})
}

func TestNotModifiedMakesTheOldValueFreshAnew(t *testing.T) {
	withAndWithoutRedis(t, func(w *world, g *herdgate.Gate) {
		loads := 0
		c := newRich(w.T, g, func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			if loads++; loads == 1 {
				load.SetToken("etag")
				return "value", nil
			}
			if load.Token() != "etag" {
				w.Errorf("load %d has the token %q", loads, load.Token())
			}
			if _, err := load.NotModified(); err != nil {
				w.Error(err)
			}
			return "something else", nil
		}, herdgate.Policy{TTL: time.Second, Stale: time.Minute, Jitter: herdgate.Off, EarlyBeta: herdgate.Off})
		get(w.T, c, "k")
		for range 3 {
			w.pass(1500 * time.Millisecond)
			if v := get(w.T, c, "k"); v != "value" {
				w.Errorf("stale: %q", v)
			}
			synctest.Wait()
			r, err := c.Lookup(w.Context(), "k")
			if err != nil || r.Value != "value" || r.Stale || r.Age > time.Second {
				w.Errorf("after the refresh: %+v, %v", r, err)
			}
		}
		if loads != 4 {
			w.Errorf("%d loads", loads)
		}
	})
}

func TestNotModifiedStoresThePayloadAsItWas(t *testing.T) {
	everywhere(t, func(w *world) {
		codec := &countingCodec{}
		rdb := w.connect()
		c, err := herdgate.NewLoader[string](w.gate(), "things", rich(func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			if _, _, ok := load.Old(); ok {
				return load.NotModified()
			}
			load.SetTags("a", "b")
			return "value", nil
		}), herdgate.Policy{Codec: codec})
		if err != nil {
			w.Fatal(err)
		}
		get(w.T, c, "k")
		before, _ := rdb.Get(w.Context(), "test:v:things:{k}").Result()
		if _, err := c.Refresh(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		after, _ := rdb.Get(w.Context(), "test:v:things:{k}").Result()
		if before == after || len(before) != len(after) || before[48:] != after[48:] {
			w.Errorf("before %x\nafter  %x", before, after)
		}
		if n := codec.encoded.Load(); n != 1 {
			w.Errorf("encoded %d times", n)
		}
	})
}

func TestNotModifiedWithoutAnOldValueIsAFailedLoad(t *testing.T) {
	withAndWithoutRedis(t, func(w *world, g *herdgate.Gate) {
		c := newRich(w.T, g, func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			return load.NotModified()
		}, herdgate.Policy{})
		_, err := c.Get(w.Context(), "k")
		if _, ok := errors.AsType[*herdgate.LoadError](err); !ok || !strings.Contains(err.Error(), "no old value") {
			w.Errorf("got %v", err)
		}
	})
}

func TestALoaderSetsTheLifetimeOfItsEntry(t *testing.T) {
	everywhere(t, func(w *world) {
		rdb := w.connect()
		c := newRich(w.T, w.gate(), func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			switch load.Key() {
			case "short":
				load.SetTTL(300*time.Millisecond + time.Microsecond)
			case "long":
				load.SetTTL(time.Hour)
				load.SetStale(time.Hour)
			case "bare":
				load.SetTTL(time.Second)
				load.SetStale(herdgate.Off)
			case "gone":
				load.SetTTL(2 * time.Hour)
				load.SetStale(time.Hour)
				return "", herdgate.ErrNotFound
			}
			return "v", nil
		}, herdgate.Policy{TTL: time.Minute, Stale: time.Minute})
		for key, want := range map[string]time.Duration{"short": time.Minute + 300*time.Millisecond, "long": 2 * time.Hour, "bare": time.Second, "gone": 3 * time.Hour} {
			_, _ = c.Get(w.Context(), key)
			ttl := rdb.PTTL(w.Context(), "test:v:things:{"+key+"}").Val()
			if ttl > want || ttl < want-500*time.Millisecond {
				w.Errorf("%s lives for %v, want %v", key, ttl, want)
			}
		}
	})
}

func TestWhatIsNotToBeCachedIsNot(t *testing.T) {
	everywhere(t, func(w *world) {
		rdb := w.connect()
		var loads atomic.Int64
		var private atomic.Bool
		load := rich(func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			loads.Add(1)
			if private.Load() {
				load.DoNotCache()
			}
			return "v", nil
		})
		policy := herdgate.Policy{Stale: time.Minute, MinRebuildInterval: time.Millisecond}
		a, b := newRich(w.T, w.gate(), load, policy), newRich(w.T, w.gate(), load, policy)
		get(w.T, a, "k")
		get(w.T, b, "k")
		private.Store(true)
		if _, err := a.Refresh(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if n := rdb.Exists(w.Context(), "test:v:things:{k}").Val(); n != 0 {
			w.Error("the old value is still stored")
		}
		w.until("the other instance has no copy any more", func() bool {
			_, found, _ := b.Peek(w.Context(), "k")
			return !found
		})
		before := loads.Load()
		for range 3 {
			get(w.T, a, "k")
			get(w.T, b, "k")
		}
		if n := loads.Load() - before; n != 6 {
			w.Errorf("%d loads for 6 calls", n)
		}
	})
}

func TestASettingThatMakesNoSenseFailsTheLoad(t *testing.T) {
	for name, set := range map[string]func(*herdgate.Load[string]){
		"Load.SetTTL is -1s, want at least 1ms":            func(l *herdgate.Load[string]) { l.SetTTL(-time.Second) },
		"Load.SetTTL is 1µs, want at least 1ms":            func(l *herdgate.Load[string]) { l.SetTTL(time.Microsecond) },
		"Load.SetStale is 0s, want at least 1ms":           func(l *herdgate.Load[string]) { l.SetStale(0) },
		"Load.SetTTL is 1200h0m0s, want at least 1ms":      func(l *herdgate.Load[string]) { l.SetTTL(1200 * time.Hour) },
		"the entry's TTL is 720h0m0s, want with the stale": func(l *herdgate.Load[string]) { l.SetTTL(720 * time.Hour); l.SetStale(720 * time.Hour) },
		"Load.SetTags is [\"\"], want tags of 1 to 256":    func(l *herdgate.Load[string]) { l.SetTags("") },
		"Load.SetToken is 4097 bytes, want at most 4096 b": func(l *herdgate.Load[string]) { l.SetToken(strings.Repeat("x", 4097)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newRich(t, openGate(t, herdgate.Options{}), func(_ context.Context, load *herdgate.Load[string]) (string, error) {
				set(load)
				return "v", nil
			}, herdgate.Policy{})
			v, err := c.Get(t.Context(), "k")
			config, ok := errors.AsType[*herdgate.ConfigError](err)
			if !ok || v != "" || !strings.Contains(config.Error(), name) {
				t.Errorf("got %q, %v", v, err)
			}
		})
	}
}

func TestTagsAndTokenMakeNoDifferenceToTheValue(t *testing.T) {
	everywhere(t, func(w *world) {
		load := rich(func(_ context.Context, load *herdgate.Load[string]) (string, error) {
			load.SetTags("one", strings.Repeat("t", 256))
			load.SetToken(strings.Repeat("x", 4096))
			return load.Key() + "!", nil
		})
		a, b := newRich(w.T, w.gate(), load, herdgate.Policy{}), newRich(w.T, w.gate(), load, herdgate.Policy{})
		for _, c := range []*herdgate.Cache[string]{a, b} {
			if v := get(w.T, c, "k"); v != "k!" {
				w.Errorf("got %q", v)
			}
		}
		if n := a.Stats().Loads + b.Stats().Loads; n != 1 {
			w.Errorf("%d loads", n)
		}
	})
}

func TestAMuxChoosesLoaderAndPolicyByTheKey(t *testing.T) {
	everywhere(t, func(w *world) {
		rdb := w.connect()
		mux := herdgate.NewMux[string]()
		said := func(what string) herdgate.LoaderFunc[string] {
			return func(_ context.Context, key string) (string, error) { return what + " " + key, nil }
		}
		for pattern, ttl := range map[string]time.Duration{"user:*": time.Minute, "user:*:cart": time.Hour, "user:1": 3 * time.Hour} {
			if err := mux.HandleFunc(pattern, said(pattern), herdgate.Policy{TTL: ttl}); err != nil {
				w.Fatal(err)
			}
		}
		c, err := herdgate.NewLoader[string](w.gate(), "things", mux, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		if err := mux.HandleFunc("*", said("too late"), herdgate.Policy{}); err != nil {
			w.Fatal(err)
		}
		for key, want := range map[string]struct {
			rule string
			ttl  time.Duration
		}{"user:2": {"user:*", time.Minute}, "user:2:cart": {"user:*:cart", time.Hour}, "user:1": {"user:1", 3 * time.Hour}} {
			for range 2 {
				if v, err := c.Refresh(w.Context(), key); err != nil || v != want.rule+" "+key {
					w.Errorf("%s: %q, %v", key, v, err)
				}
			}
			ttl := rdb.PTTL(w.Context(), "test:v:things:{"+key+"}").Val()
			if ttl > want.ttl*11/10 || ttl < want.ttl*88/100 {
				w.Errorf("%s lives for %v", key, ttl)
			}
		}
		if _, err := c.Get(w.Context(), "other"); !errors.Is(err, herdgate.ErrNoLoader) {
			w.Errorf("a key that no pattern matches: %v", err)
		}
		if v, err := c.Fetch(w.Context(), "other", said("fetched")); err != nil || v != "fetched other" {
			w.Errorf("fetched: %q, %v", v, err)
		}
	})
}

func TestAKeyWhosePolicyHasNoLocalTierIsReadFromRedis(t *testing.T) {
	everywhere(t, func(w *world) {
		mux := herdgate.NewMux[string]()
		o := newOrigin(0)
		if err := mux.HandleFunc("remote:*", o.load, herdgate.Policy{LocalTTL: herdgate.Off}); err != nil {
			w.Fatal(err)
		}
		if err := mux.HandleFunc("local:*", o.load, herdgate.Policy{}); err != nil {
			w.Fatal(err)
		}
		c, err := herdgate.NewLoader[string](w.gate(), "things", mux, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		for key, want := range map[string]herdgate.Outcome{"remote:1": herdgate.OutcomeRemote, "local:1": herdgate.OutcomeLocal} {
			get(w.T, c, key)
			for range 2 {
				if r, err := c.Lookup(w.Context(), key); err != nil || r.Outcome != want {
					w.Errorf("%s: %v, %v", key, r.Outcome, err)
				}
			}
		}
	})
}

func TestAMuxRefusesWhatItCannotUse(t *testing.T) {
	mux := herdgate.NewMux[string]()
	load := newOrigin(0).load
	if err := mux.HandleFunc("a*", load, herdgate.Policy{}); err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		`pattern is "a*", want a pattern that is not handled`: mux.HandleFunc("a*", load, herdgate.Policy{}),
		`load is nil, want a loader for the keys that match`:  mux.HandleFunc("b*", nil, herdgate.Policy{}),
		`pattern "c*": herdgate: Policy.TTL is -5ns`:          mux.HandleFunc("c*", load, herdgate.Policy{TTL: -5}),
		`Policy.Version is 3, want 0 for a pattern`:           mux.HandleFunc("d*", load, herdgate.Policy{Version: 3}),
		`Policy.Codec is counting, want none for a pattern`:   mux.HandleFunc("e*", load, herdgate.Policy{Codec: &countingCodec{}}),
	} {
		if _, ok := errors.AsType[*herdgate.ConfigError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := mux.HandleFunc("f*", load, herdgate.Policy{LocalTTL: herdgate.Off}); err != nil {
		t.Fatal(err)
	}
	if _, err := herdgate.NewLoader[string](openGate(t, herdgate.Options{}), "things", mux, herdgate.Policy{}); err == nil {
		t.Error("a gate without Redis took a policy without a local tier")
	}
}

func TestAFractionOfTheTTLIsTheEarlyPoint(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		policy := herdgate.Policy{TTL: 2 * time.Second, EarlyFraction: 0.5, Jitter: herdgate.Off}
		c := newCache(w.T, w.gate(), o.load, policy)
		get(w.T, c, "k")
		w.pass(700 * time.Millisecond)
		get(w.T, c, "k")
		if n := o.loads.Load(); n != 1 {
			w.Errorf("%d loads before half of the TTL", n)
		}
		w.pass(400 * time.Millisecond)
		get(w.T, c, "k")
		w.until("it is refreshed", func() bool { return get(w.T, c, "k") == "k#2" })
	})
}

func TestAnOlderVersionKeepsForItselfWhatItLoads(t *testing.T) { // I7
	everywhere(t, func(w *world) {
		rdb := w.connect()
		o := newOrigin(0)
		newer := newCache(w.T, w.gate(), o.load, herdgate.Policy{Version: 2})
		older := newCache(w.T, w.gate(), o.load, herdgate.Policy{Version: 1})
		get(w.T, newer, "k")
		stored := rdb.Get(w.Context(), "test:v:things:{k}").Val()
		for range 5 {
			if v := get(w.T, older, "k"); v != "k#2" {
				w.Errorf("got %q", v)
			}
		}
		if now := rdb.Get(w.Context(), "test:v:things:{k}").Val(); now != stored {
			w.Error("the older version has changed the entry")
		}
		if err := newer.Delete(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		w.until("a change by the newer reaches the older", func() bool { return get(w.T, older, "k") != "k#2" })
	})
}

// spans is a Tracer that writes down what begins and ends.
type spans struct {
	herdgate.ObserverFunc
	note func(string)
}

type spanKey struct{}

func (s spans) Begin(ctx context.Context, step herdgate.Step, cache, key string) (context.Context, func(error)) {
	name := step.String() + " " + cache + "/" + key
	return context.WithValue(ctx, spanKey{}, name), func(err error) { s.note(fmt.Sprintf("%s: %v", name, err)) }
}

func (s spans) Join(ctx, flight context.Context, _, key string) func(error) {
	return func(err error) {
		s.note(fmt.Sprintf("join of %v by %v for %s: %v", flight.Value(spanKey{}), ctx.Value(spanKey{}), key, err))
	}
}

func TestATracerSeesTheStepsOfAFlight(t *testing.T) {
	virtually(t, func(w *world) {
		notes := make(chan string, 100)
		tracer := spans{ObserverFunc: func(herdgate.Event) {}, note: func(s string) { notes <- s }}
		o := newOrigin(100 * time.Millisecond)
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Observer = tracer }), func(ctx context.Context, key string) (string, error) {
			if within := ctx.Value(spanKey{}); within != "load things/k" {
				w.Errorf("the loader runs within %v", within)
			}
			return o.load(ctx, key)
		}, herdgate.Policy{})
		first := make(chan error)
		go func() {
			_, err := c.Get(context.WithValue(w.Context(), spanKey{}, "request 1"), "k")
			first <- err
		}()
		synctest.Wait()
		if _, err := c.Get(context.WithValue(w.Context(), spanKey{}, "request 2"), "k"); err != nil {
			w.Error(err)
		}
		if err := <-first; err != nil {
			w.Error(err)
		}
		synctest.Wait()
		close(notes)
		var all []string
		for note := range notes {
			all = append(all, note)
		}
		want := "acquire things/k: <nil>\nload things/k: <nil>\ncommit things/k: <nil>\njoin of request 1 by request 2 for k: <nil>"
		if got := strings.Join(all, "\n"); got != want {
			w.Errorf("spans:\n%s", got)
		}
	})
}

func TestAPanicInATracerWedgesNothing(t *testing.T) { // I4
	virtually(t, func(w *world) {
		tracer := panicking{}
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Observer = tracer }), newOrigin(10*time.Millisecond).load, herdgate.Policy{})
		values, errs := herd(w.T, 3, func() (string, error) { return c.Get(w.Context(), "k") })
		for i, v := range values {
			if v != "k#1" || errs[i] != nil {
				w.Errorf("got %q, %v", v, errs[i])
			}
		}
	})
}

type panicking struct{}

func (panicking) Observe(herdgate.Event) { panic("observe") }

func (panicking) Begin(ctx context.Context, step herdgate.Step, _, _ string) (context.Context, func(error)) {
	if step == herdgate.StepAcquire {
		panic("begin")
	}
	return ctx, func(error) { panic("end") }
}

func (panicking) Join(context.Context, context.Context, string, string) func(error) { panic("join") }

// countingCodec stores strings as they are.
type countingCodec struct{ encoded atomic.Int64 }

func (*countingCodec) ID() byte     { return 77 }
func (*countingCodec) Name() string { return "counting" }

func (c *countingCodec) Marshal(v any) ([]byte, error) {
	c.encoded.Add(1)
	return []byte(v.(string)), nil
}

func (*countingCodec) Unmarshal(data []byte, v any) error {
	*v.(*string) = string(data)
	return nil
}
