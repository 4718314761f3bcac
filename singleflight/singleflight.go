// Package singleflight lets concurrent callers of one key share one execution
// of a function, each waiting on its own context.
//
// The work is detached from whoever asked for it first: it runs in a goroutine
// of its own under a context that keeps the values of the starter's context but
// neither its deadline nor its cancellation, so one impatient caller cannot fail
// the others. A panic or a [runtime.Goexit] in the work reaches every waiter as
// an error and never ends the process.
package singleflight

import (
	"context"
	"sync"
)

// A Group joins callers of one key to one [Flight]. K names the work, V is its
// result, and S is whatever the owner of the group keeps beside each running
// flight (struct{} if nothing).
//
// The zero Group is ready for use. It must not be copied after first use. All
// its methods may be called concurrently, also from inside a running flight.
type Group[K comparable, S, V any] struct {
	mu sync.Mutex // protects what follows, and what every flight says it does

	// flights holds the newest running flight of each key; the older ones hang
	// behind it by older. A flight is only ever started when the newest one is
	// detached, so all but the newest are: at most the newest can be joined.
	flights map[K]*Flight[K, S, V]

	running int           // flights in the chains of flights
	idle    chan struct{} // closed when running falls to 0; nil while nobody waits for that
}

// Do returns the result of the key's current flight, starting it with fn where
// there is none. It is [Group.Join] followed by [Flight.Wait]: joined tells
// whether the flight was started by an earlier caller, and the error is that of
// Wait.
func (g *Group[K, S, V]) Do(ctx context.Context, key K, fn func(*Flight[K, S, V]) (V, error)) (v V, joined bool, err error) {
	f, joined := g.Join(ctx, key, fn)
	v, err = f.Wait(ctx)
	return v, joined, err
}

// Join returns the key's current flight and true, or starts fn in a goroutine of
// its own and returns the new flight and false. It never waits for fn.
//
// A flight is known to [Group.Each] and [Group.All] before its fn starts. ctx
// gives the new flight the values of its [Flight.Context] and nothing else:
// Join does the same with a ctx that has already ended.
func (g *Group[K, S, V]) Join(ctx context.Context, key K, fn func(*Flight[K, S, V]) (V, error)) (f *Flight[K, S, V], joined bool) {
	f, joined = g.Open(ctx, key)
	if !joined {
		f.Run(fn)
	}
	return f, joined
}

// Open is [Group.Join] for work that is not, or not wholly, done in a goroutine of the
// flight: a new flight waits for whoever has opened it, who must end it by
// [Flight.Finish] or [Flight.Run], one of them and once.
func (g *Group[K, S, V]) Open(ctx context.Context, key K) (f *Flight[K, S, V], joined bool) {
	g.mu.Lock()
	newest := g.flights[key]
	if newest != nil && !newest.detached {
		g.mu.Unlock()
		return newest, true
	}
	f = newFlight(ctx, g, key)
	if newest != nil {
		f.older, newest.newer = newest, f
	}
	if g.flights == nil {
		g.flights = make(map[K]*Flight[K, S, V])
	}
	g.flights[key] = f
	g.running++
	g.mu.Unlock()
	return f, false
}

// Each calls visit with every running flight of the key, the newest first: the
// one that can be joined, if any, and those that were detached.
//
// It visits every flight whose Join had returned when Each was called and which
// has not finished since. visit runs outside the group's lock and may call any
// method; the flight it is given may finish at any moment.
func (g *Group[K, S, V]) Each(key K, visit func(*Flight[K, S, V])) {
	var few [4]*Flight[K, S, V] // on the stack: a key rarely has more than two
	g.mu.Lock()
	flights := appendChain(few[:0], g.flights[key])
	g.mu.Unlock()

	for _, f := range flights {
		visit(f)
	}
}

// All calls visit with every running flight of every key, in no particular
// order. What is said of visit at [Group.Each] holds here.
func (g *Group[K, S, V]) All(visit func(*Flight[K, S, V])) {
	g.mu.Lock()
	flights := make([]*Flight[K, S, V], 0, g.running)
	for _, newest := range g.flights {
		flights = appendChain(flights, newest)
	}
	g.mu.Unlock()

	for _, f := range flights {
		visit(f)
	}
}

// Wait returns nil once no flight runs, detached ones included, or ctx.Err() when
// ctx ends first. The functions have returned by then; their waiters may still be
// about to wake. A flight started while Wait waits is waited for too, so the owner
// who shuts down stops starting flights first. Wait must not be called from inside
// a flight, which would wait for itself.
func (g *Group[K, S, V]) Wait(ctx context.Context) error {
	g.mu.Lock()
	if g.running == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()

	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is the goroutine of one flight.
func (g *Group[K, S, V]) run(f *Flight[K, S, V], fn func(*Flight[K, S, V]) (V, error)) {
	defer g.finish(f)
	f.err = ErrGoexit // what the waiters get when the next line never completes
	f.value, f.err = Protect(func() (V, error) { return fn(f) })
}

// finish publishes the result that run left in f.
//
// The flight leaves the group before its waiters wake: whoever has seen a result
// and asks again gets a new flight, never that result a second time. The lock is
// not held across the close, which takes time in proportion to the waiters.
func (g *Group[K, S, V]) finish(f *Flight[K, S, V]) {
	g.mu.Lock()
	g.unlink(f)
	g.running--
	if g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
	f.finished = true
	done := f.done
	g.mu.Unlock()

	if done != nil {
		close(done)
	}
}

// unlink takes f, and only f, out of its key's chain. The caller holds g.mu.
func (g *Group[K, S, V]) unlink(f *Flight[K, S, V]) {
	switch {
	case f.newer != nil:
		f.newer.older = f.older
	case f.older != nil:
		g.flights[f.key] = f.older
	default:
		delete(g.flights, f.key)
	}
	if f.older != nil {
		f.older.newer = f.newer
	}
	f.older, f.newer = nil, nil // a caller may keep f for long: it must not keep the others alive
}

// appendChain appends newest and everything behind it. The caller holds g.mu.
func appendChain[K comparable, S, V any](to []*Flight[K, S, V], newest *Flight[K, S, V]) []*Flight[K, S, V] {
	for f := newest; f != nil; f = f.older {
		to = append(to, f)
	}
	return to
}
