package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
)

type thing struct{ N int }

func cloneThing(p *thing) *thing {
	q := *p
	return &q
}

func TestANotFoundIsNotCloned(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache(w.T, w.gate(), func(context.Context, string) (*thing, error) { return &thing{}, herdgate.ErrNotFound },
			herdgate.Policy{}, herdgate.WithClone(cloneThing))
		for range 3 {
			r, err := c.Lookup(w.Context(), "k")
			if v, getErr := c.Get(w.Context(), "k"); v != nil || r.Value != nil || !errors.Is(err, herdgate.ErrNotFound) || !errors.Is(getErr, herdgate.ErrNotFound) {
				w.Errorf("got %v %v, %v %v", r.Value, v, err, getErr)
			}
		}
	})
}

func TestWhatWasSetIsNotChangedThroughItsPointer(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache[*thing](w.T, w.gate(), nil, herdgate.Policy{}, herdgate.WithClone(cloneThing))
		v := &thing{1}
		if err := c.Set(w.Context(), "k", v); err != nil {
			w.Fatal(err)
		}
		v.N = 2
		if got := get(w.T, c, "k"); got.N != 1 {
			w.Errorf("got %d", got.N)
		}
	})
}

func TestAPanicInAHookWedgesNothing(t *testing.T) { // I4
	everywhere(t, func(w *world) {
		var armed atomic.Bool
		size := func(*thing) int64 {
			if armed.Swap(false) {
				panic("size")
			}
			return 1
		}
		c := newCache(w.T, w.gate(), func(context.Context, string) (*thing, error) { return &thing{7}, nil },
			herdgate.Policy{FailureBackoff: 10 * time.Millisecond, WaitTimeout: time.Second}, herdgate.WithSize(size))
		armed.Store(true)
		if _, err := c.Get(w.Context(), "k"); err == nil {
			w.Error("the panic is no error")
		}
		if v := get(w.T, c, "k"); v.N != 7 {
			w.Errorf("got %v", v)
		}
		armed.Store(true)
		func() {
			defer func() { _ = recover() }()
			_ = c.Set(w.Context(), "k", &thing{8})
		}()
		if err := c.Delete(w.Context(), "k"); err != nil {
			w.Error(err)
		}
	})
}

func TestAPanicInAnObserverWedgesNothing(t *testing.T) { // I4
	everywhere(t, func(w *world) {
		g := w.gate(func(o *herdgate.Options) {
			o.Observer = herdgate.ObserverFunc(func(herdgate.Event) { panic("observer") })
			o.MaxLoads = 1
		})
		c := newCache(w.T, g, newOrigin(0).load, herdgate.Policy{WaitTimeout: time.Second})
		for i := range 3 {
			get(w.T, c, fmt.Sprint(i))
			if err := c.Delete(w.Context(), fmt.Sprint(i)); err != nil {
				w.Error(err)
			}
		}
	})
}

func TestAPanicWithANotFoundIsAFailedLoad(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			panic(fmt.Errorf("no row: %w", herdgate.ErrNotFound))
		}, herdgate.Policy{FailureBackoff: time.Minute})
		_, _ = c.Get(w.Context(), "k")
		if _, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrBackoff) {
			w.Errorf("got %v", err)
		}
	})
}
