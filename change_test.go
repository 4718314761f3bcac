package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
)

// slowOrigin has a value that changes, and loads that return when they are let.
type slowOrigin struct {
	version atomic.Int64
	begun   chan context.Context
	release chan struct{}
}

func newSlowOrigin() *slowOrigin {
	o := &slowOrigin{begun: make(chan context.Context, 100), release: make(chan struct{})}
	o.version.Store(1)
	return o
}

// load reads first, and returns later what it read.
func (o *slowOrigin) load(ctx context.Context, _ string) (string, error) {
	v := fmt.Sprint("v", o.version.Load())
	o.begun <- ctx
	<-o.release
	return v, nil
}

func TestADeletesOldLoadIsStoredNowhere(t *testing.T) { // C4, I2
	t.Parallel()
	for _, change := range []string{"delete", "set", "expire"} {
		for _, local := range []time.Duration{0, herdgate.Off} {
			t.Run(fmt.Sprintf("%s local %d", change, local), func(t *testing.T) {
				everywhere(t, func(w *world) {
					o := newSlowOrigin()
					policy := herdgate.Policy{Stale: time.Minute, LocalTTL: local}
					a := newCache(w.T, w.gate(), o.load, policy)
					b := newCache(w.T, w.gate(), o.load, policy)
					third := newCache(w.T, w.gate(), o.load, policy)
					old := make(chan string, 1)
					go func() { old <- get(w.T, a, "k") }()
					loader := <-o.begun

					o.version.Store(2)
					changeKey(w, b, change)
					close(o.release)
					// Who asked before the change may get either; nobody after it the old one.
					if v := <-old; v != "v1" && v != "v2" {
						w.Errorf("the racing call got %q", v)
					}
					w.until("the loader is told", func() bool { return loader.Err() != nil })
					for range 3 {
						for i, c := range []*herdgate.Cache[string]{b, a, third} {
							if v := get(w.T, c, "k"); v != "v2" {
								w.Errorf("instance %d reads %q after the change", i, v)
							}
						}
						w.pass(150 * time.Millisecond)
					}
				})
			})
		}
	}
}

func changeKey(w *world, c *herdgate.Cache[string], change string) {
	w.Helper()
	var err error
	switch change {
	case "delete":
		err = c.Delete(w.Context(), "k")
	case "expire":
		err = c.Expire(w.Context(), "k")
	case "set":
		err = c.Set(w.Context(), "k", "v2")
	}
	if err != nil {
		w.Fatal(err)
	}
}

func TestACallAfterADeleteInTheSameProcessDoesNotJoinTheOldLoad(t *testing.T) { // C4, C18
	everywhere(t, func(w *world) {
		o := newSlowOrigin()
		c := newCache(w.T, w.gate(), o.load, herdgate.Policy{})
		first := make(chan string, 1)
		go func() { first <- get(w.T, c, "k") }()
		<-o.begun
		o.version.Store(2)
		if err := c.Delete(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		second := make(chan string, 1)
		go func() { second <- get(w.T, c, "k") }()
		<-o.begun // the second load begins while the first still runs
		close(o.release)
		if v := <-second; v != "v2" {
			w.Errorf("the call after the delete got %q", v)
		}
		if v := <-first; v == "" {
			w.Error("the call before the delete got nothing")
		}
		if v := get(w.T, c, "k"); v != "v2" {
			w.Errorf("afterwards %q", v)
		}
		s := c.Stats()
		if s.LeasesRevoked != 1 || s.CommitsStored != 1 {
			w.Errorf("stats %+v", s)
		}
	})
}

func TestTheLastSetIsWhatIsReadAtOnce(t *testing.T) { // C14
	everywhere(t, func(w *world) {
		patient := func(o *herdgate.Options) { o.RedisTimeout = 5 * time.Second } // a busy machine is no outage
		c := newCache[int](w.T, w.gate(patient), nil, herdgate.Policy{})
		for i := range 2000 {
			key := fmt.Sprint(i)
			for v := range 2 {
				if err := c.Set(w.Context(), key, v); err != nil {
					w.Fatal(err)
				}
			}
			if v := get(w.T, c, key); v != 1 {
				w.Fatalf("key %s: %d", key, v)
			}
		}
	})
}

func TestAChangeReachesTheCopiesOfOtherInstances(t *testing.T) {
	everywhere(t, func(w *world) {
		a := newCache[string](w.T, w.gate(), nil, herdgate.Policy{})
		b := newCache[string](w.T, w.gate(), nil, herdgate.Policy{})
		for i := range 20 {
			v := fmt.Sprint(i)
			if err := a.Set(w.Context(), "k", v); err != nil {
				w.Fatal(err)
			}
			w.until("the other reads it", func() bool {
				r, err := b.Lookup(w.Context(), "k")
				return err == nil && r.Value == v && r.Outcome == herdgate.OutcomeLocal
			})
		}
	})
}

func TestExpiredIsServedStaleWithAWindowAndGoneWithout(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newOrigin(10 * time.Millisecond)
		g := w.gate()
		c := newCache(w.T, g, o.load, herdgate.Policy{Stale: time.Minute})
		get(w.T, c, "k")
		if err := c.Expire(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		r, err := c.Lookup(w.Context(), "k")
		if err != nil || !r.Stale || r.Value != "k#1" || r.Age < time.Minute {
			w.Errorf("got %+v, %v", r, err)
		}
		w.until("it is refreshed", func() bool { return get(w.T, c, "k") == "k#2" })

		strict, err := herdgate.New(g, "strict", o.load, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		before := get(w.T, strict, "k")
		if err := strict.Expire(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, strict, "k"); v == before {
			w.Errorf("still %q", v)
		}
	})
}

func TestDeleteTakesManyKeysAndNamesTheOnesThatFailed(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache[int](w.T, w.gate(), nil, herdgate.Policy{})
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprint(i))
			if err := c.Set(w.Context(), keys[i], i); err != nil {
				w.Fatal(err)
			}
		}
		if err := c.Delete(w.Context(), keys...); err != nil {
			w.Fatal(err)
		}
		if err := c.Delete(w.Context()); err != nil {
			w.Errorf("no keys: %v", err)
		}
		for _, k := range keys {
			if _, err := c.Get(w.Context(), k); !errors.Is(err, herdgate.ErrNoLoader) {
				w.Fatalf("key %s: %v", k, err)
			}
		}
		gone, cancel := context.WithCancel(w.Context())
		cancel()
		err := c.Delete(gone, "a", "b")
		if e, ok := errors.AsType[*herdgate.ChangeError](err); !ok || e.Op != "delete" || !errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) {
			w.Errorf("got %v", err)
		}
	})
}

func TestAFailureMarkSurvivesADeleteAndASetEndsIt(t *testing.T) { // I12
	everywhere(t, func(w *world) {
		boom := errors.New("boom")
		var loads atomic.Int64
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			loads.Add(1)
			return "", boom
		}, herdgate.Policy{FailureBackoff: time.Second, WaitTimeout: 10 * time.Millisecond})
		if _, err := c.Get(w.Context(), "k"); !errors.Is(err, boom) {
			w.Fatal(err)
		}
		if err := c.Delete(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if _, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrBackoff) {
			w.Errorf("after the delete: %v", err)
		}
		if err := c.Set(w.Context(), "k", "v"); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, c, "k"); v != "v" {
			w.Errorf("got %q", v)
		}
		if loads.Load() != 1 {
			w.Errorf("%d loads", loads.Load())
		}
	})
}

func TestAChangeThatIsNotMadeCountsOnceAsFailed(t *testing.T) {
	type cache = *herdgate.Cache[string]
	for name, change := range map[string]func(ctx context.Context, g *herdgate.Gate, c cache) error{
		"its context has ended": func(ctx context.Context, _ *herdgate.Gate, c cache) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return c.Delete(ctx, "k")
		},
		"the gate is closed": func(ctx context.Context, g *herdgate.Gate, c cache) error {
			return errors.Join(g.Close(ctx), c.Expire(ctx, "k"))
		},
		"the value is too large": func(ctx context.Context, _ *herdgate.Gate, c cache) error {
			return c.Set(ctx, "k", strings.Repeat("large", 100))
		},
		"an option is wrong": func(ctx context.Context, _ *herdgate.Gate, c cache) error {
			return c.Set(ctx, "k", "v", herdgate.EntryTTL(-time.Second))
		},
		"a tag is wrong": func(ctx context.Context, _ *herdgate.Gate, c cache) error { return c.InvalidateTags(ctx, "") },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				g := w.gate()
				c := newCache[string](w.T, g, nil, herdgate.Policy{MaxSize: 100})
				err := change(w.Context(), g, c)
				if _, ok := errors.AsType[*herdgate.ChangeError](err); !ok {
					w.Errorf("got %v", err)
				}
				if s := c.Stats(); s.ChangesFailed != 1 || s.Changes+s.Journaled != 0 {
					w.Errorf("%+v", s)
				}
			})
		})
	}
}
