package herdgate

import (
	"context"
	"slices"
)

// Observers returns an observer that tells each of several, one after the other in
// their order. nil ones are left out. A panic in one keeps nothing from the next.
//
// It is a [Tracer] if one of them is. Of several, the first has the outermost span:
// each gets the context that the one before it has returned.
func Observers(observers ...Observer) Observer {
	var all several
	var tracers []Tracer
	for _, o := range observers {
		if o == nil {
			continue
		}
		all = append(all, o)
		if t, ok := o.(Tracer); ok {
			tracers = append(tracers, t)
		}
	}
	switch {
	case len(all) == 0:
		return nil
	case len(all) == 1:
		return all[0]
	case len(tracers) == 0:
		return all
	}
	return severalTraced{all, tracers}
}

type several []Observer

// Observe implements [Observer].
func (s several) Observe(e Event) {
	for _, o := range s {
		observe(o, e)
	}
}

// observe is o.Observe, which cannot panic.
func observe(o Observer, e Event) {
	defer func() { _ = recover() }()
	o.Observe(e)
}

// severalTraced are observers of which some are tracers.
type severalTraced struct {
	several
	tracers []Tracer
}

// Begin implements [Tracer].
func (s severalTraced) Begin(ctx context.Context, step Step, cache, key string) (context.Context, func(error)) {
	ends := make([]func(error), len(s.tracers))
	for i, t := range s.tracers {
		ctx, ends[i] = begin(ctx, t, step, cache, key) //nolint:fatcontext // one level for each tracer
	}
	return ctx, inReverse(ends)
}

// Join implements [Tracer].
func (s severalTraced) Join(ctx, flight context.Context, cache, key string) func(error) {
	ends := make([]func(error), len(s.tracers))
	for i, t := range s.tracers {
		ends[i] = joined(ctx, flight, t, cache, key)
	}
	return inReverse(ends)
}

// inReverse ends what began last first.
func inReverse(ends []func(error)) func(error) {
	return func(err error) {
		for _, end := range slices.Backward(ends) {
			end(err)
		}
	}
}
