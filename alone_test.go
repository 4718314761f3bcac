package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
)

// Without Redis the local copy is the entry: what a call was told is stored must be.

func TestWithoutRedisEverySetThatReturnedNilIsReadAtOnce(t *testing.T) { // C14
	t.Parallel()
	c := newCache[int](t, openGate(t, herdgate.Options{LocalBytes: 1 << 30}), nil, herdgate.Policy{})
	var wg sync.WaitGroup
	for p := range 8 {
		wg.Go(func() {
			for i := range 2000 { // more at once than the local tier takes in would be dropped, and counted
				key := fmt.Sprint(p, "-", i)
				for v := range 2 {
					if err := c.Set(t.Context(), key, v); err != nil {
						t.Error(err)
					}
				}
				if v, err := c.Get(t.Context(), key); err != nil || v != 1 {
					t.Errorf("key %s: %d, %v", key, v, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestWithoutRedisOneOfSeveralSetsStands(t *testing.T) {
	t.Parallel()
	c := newCache[int](t, openGate(t, herdgate.Options{}), nil, herdgate.Policy{})
	for i := range 1000 {
		key := fmt.Sprint(i)
		_, errs := herd(t, 8, func() (int, error) { return 0, c.Set(t.Context(), key, i) })
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if v, err := c.Get(t.Context(), key); err != nil || v != i {
			t.Fatalf("key %s: %d, %v", key, v, err)
		}
	}
}

func TestWithoutRedisALoadIsKeptWhateverOtherKeysChange(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(time.Second)
		c := newCache(w.T, openGate(w.T, herdgate.Options{}), o.load, herdgate.Policy{})
		done := make(chan string, 1)
		go func() { done <- get(w.T, c, "k") }()
		<-o.begun
		for i := range 20_000 { // some fall on the stripe of "k"
			if err := c.Set(w.Context(), fmt.Sprint("other", i), "x"); err != nil {
				w.Fatal(err)
			}
		}
		if first := <-done; get(w.T, c, "k") != first || o.loads.Load() != 1 {
			w.Errorf("%d loads", o.loads.Load())
		}
	})
}

func TestWithoutRedisExpiredIsGoneIfThereIsNoStaleWindow(t *testing.T) {
	virtually(t, func(w *world) {
		var fail atomic.Bool
		c := newCache(w.T, openGate(w.T, herdgate.Options{}), func(context.Context, string) (string, error) {
			if fail.Load() {
				return "", errors.New("boom")
			}
			return "v", nil
		}, herdgate.Policy{TTL: time.Hour})
		get(w.T, c, "k")
		fail.Store(true)
		if err := c.Expire(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if v, err := c.Get(w.Context(), "k"); err == nil {
			w.Errorf("got %q", v)
		}
	})
}
