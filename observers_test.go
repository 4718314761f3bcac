package herdgate_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// tracer writes down what it is told, each entry under its name.
type tracer struct {
	name string
	told *[]string
}

type tracerKey struct{}

func (r tracer) tell(s string) { *r.told = append(*r.told, r.name+" "+s) }

func (r tracer) Observe(e herdgate.Event) { r.tell(e.Kind.String()) }

func (r tracer) Begin(ctx context.Context, step herdgate.Step, _, _ string) (context.Context, func(error)) {
	outer, _ := ctx.Value(tracerKey{}).(string)
	r.tell("begins " + step.String() + " in " + outer)
	return context.WithValue(ctx, tracerKey{}, outer+r.name), func(err error) { r.tell("ends " + err.Error()) }
}

func (r tracer) Join(_, _ context.Context, _, _ string) func(error) {
	r.tell("joins")
	return func(err error) { r.tell("ends " + err.Error()) }
}

func TestEachOfSeveralObserversIsTold(t *testing.T) {
	var told []string
	observer := func(name string) herdgate.Observer {
		return herdgate.ObserverFunc(func(e herdgate.Event) { told = append(told, name+" "+e.Kind.String()) })
	}
	panics := herdgate.ObserverFunc(func(herdgate.Event) { panic("observer") })
	herdgate.Observers(observer("a"), nil, panics, observer("b")).Observe(herdgate.Event{Kind: herdgate.EventLoad})
	if want := []string{"a load", "b load"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func TestSeveralObserversAreATracerIfOneIs(t *testing.T) {
	var told []string
	plain := herdgate.ObserverFunc(func(herdgate.Event) {})
	one := tracer{"a", &told}
	for _, test := range []struct {
		observers []herdgate.Observer
		want      bool
	}{
		{nil, false},
		{[]herdgate.Observer{plain}, false},
		{[]herdgate.Observer{plain, plain}, false},
		{[]herdgate.Observer{one}, true},
		{[]herdgate.Observer{plain, one}, true},
	} {
		all := herdgate.Observers(test.observers...)
		if _, got := all.(herdgate.Tracer); got != test.want {
			t.Errorf("of %d observers %T is a tracer: %v", len(test.observers), all, got)
		}
	}
	if none := herdgate.Observers(nil, nil); none != nil {
		t.Errorf("nobody is %v", none)
	}
}

func TestOfSeveralTracersTheFirstIsOutermost(t *testing.T) {
	var told []string
	all, ok := herdgate.Observers(tracer{"a", &told}, faulty{}, tracer{"b", &told}).(herdgate.Tracer)
	if !ok {
		t.Fatal("they are no tracer")
	}
	all.Observe(herdgate.Event{Kind: herdgate.EventLoad})
	ctx, end := all.Begin(t.Context(), herdgate.StepLoad, "things", "k")
	if got := ctx.Value(tracerKey{}); got != "ab" {
		t.Errorf("the step runs in %q", got)
	}
	end(errors.New("badly"))
	all.Join(t.Context(), t.Context(), "things", "k")(errors.New("well"))
	want := []string{
		"a load", "b load", "a begins load in ", "b begins load in a", "b ends badly", "a ends badly",
		"a joins", "b joins", "b ends well", "a ends well",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
}

// faulty is a tracer that panics, in one way each.
type faulty struct{}

func (faulty) Observe(herdgate.Event) { panic("observe") }

func (faulty) Begin(ctx context.Context, _ herdgate.Step, _, _ string) (context.Context, func(error)) {
	return ctx, func(error) { panic("end") }
}

func (faulty) Join(_, _ context.Context, _, _ string) func(error) { panic("join") }

// joins is a tracer of how joins end.
type joins struct{ ends chan error }

func (joins) Observe(herdgate.Event) {}

func (joins) Begin(ctx context.Context, _ herdgate.Step, _, _ string) (context.Context, func(error)) {
	return ctx, func(error) {}
}

func (j joins) Join(_, _ context.Context, _, _ string) func(error) {
	return func(err error) { j.ends <- err }
}

func TestAChangeThatRestartsACallIsNoErrorOfItsJoin(t *testing.T) {
	virtually(t, func(w *world) {
		ends := make(chan error, 10)
		g := w.gate(func(o *herdgate.Options) { o.Observer = joins{ends: ends} })
		source := newOrigin(time.Second)
		c := newCache(w.T, g, source.load, herdgate.Policy{})
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := c.Get(w.Context(), "k")
				done <- err
			}()
		}
		<-source.begun
		synctest.Wait() // the other call has joined
		if err := c.Delete(w.Context(), "k"); err != nil {
			w.Fatal(err)
		}
		if err := <-ends; err != nil {
			w.Errorf("the join ended with %v", err)
		}
		for range 2 {
			if err := <-done; err != nil {
				w.Error(err)
			}
		}
	})
}

func TestAFailedRenewalIsToldAndTriedAgain(t *testing.T) { // I8
	synctest.Test(t, func(t *testing.T) {
		server, connect := testutil.NewBubbleRedis(t)
		w := &world{T: t, connect: connect, virtual: true}
		var failed []herdgate.Event
		g := w.gate(func(o *herdgate.Options) {
			o.Observer = herdgate.ObserverFunc(func(e herdgate.Event) {
				if e.Kind == herdgate.EventRenewalFailed {
					failed = append(failed, e)
					server.SetError("")
				}
			})
		})
		c := newCache(t, g, func(context.Context, string) (string, error) {
			server.SetError("ERR out of order") // at the renewal after a third of the TTL
			w.pass(2 * time.Second)
			return "v", nil
		}, herdgate.Policy{LockTTL: time.Second})
		get(t, c, "k")
		if len(failed) != 1 || failed[0].Cache != "things" || failed[0].Key != "k" || failed[0].Err == nil {
			t.Errorf("told %v", failed)
		}
		if s := c.Stats(); s.RenewalsFailed != 1 || s.LeasesLost != 0 || s.CommitsStored != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}
