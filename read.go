package herdgate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/singleflight"
)

// hit serves a fresh value of the local tier: no command, no allocation.
func (c *Cache[V]) hit(key string) (V, bool, error) {
	var zero V
	if c.gate.closed.Load() || !c.tiered && !c.gate.out() {
		return zero, false, nil
	}
	cp := c.copies.Load(key)
	if cp == nil {
		return zero, false, nil
	}
	from, now := OutcomeLocal, c.gate.clock.ceiling() // after the load: a copy may be stale from the moment it is stored
	switch {
	case c.gate.gap.valid(cp.gap) && now < cp.ahead && (!cp.tagged || c.tags.holds(cp.extended, &cp.turn)):
	case now < cp.fresh && c.gate.out() && !c.invalid(cp):
		from = OutcomeStale
	default:
		return zero, false, nil
	}
	cp.kept.touch(now)
	if from != OutcomeLocal {
		c.events.got(key, from, 0, cp.err())
	} else if c.sample(c.events.hit(key, cp.err())) {
		c.copies.Touch(key)
		c.gate.clock.sampled()
	}
	if cp.missing {
		return zero, true, ErrNotFound
	}
	return c.cloned(cp.value), true, nil
}

// lookup is one call: the local tier, then the flight of its key.
func (c *Cache[V]) lookup(ctx context.Context, key string, p *plan[V]) (Result[V], error) {
	start := c.gate.now()
	c.kept.of(key).touch(start)
	r, served, err := c.local(ctx, key, p)
	if !served {
		r, err = c.join(ctx, newRequest(key, p, start))
	}
	return c.answer(key, r, err, start)
}

// answer is what a call returns, counted: the default value where there is an error that
// it stands for.
func (c *Cache[V]) answer(key string, r Result[V], err error, start time.Duration) (Result[V], error) {
	if err != nil && c.hooks.byDefault != nil {
		if v, ok := c.byDefault(key, err); ok {
			c.events.got(key, OutcomeDefault, c.since(start), err)
			return Result[V]{Value: v, Outcome: OutcomeDefault}, nil
		}
	}
	return c.concluded(key, r, err, start)
}

// byDefault is the value to be served for one that could not be loaded.
func (c *Cache[V]) byDefault(key string, err error) (v V, ok bool) {
	_, failed := errors.AsType[*LoadError](err)
	if errors.Is(err, ErrBackoff) || failed && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNoLoader) {
		return c.hooks.byDefault(key, err)
	}
	return v, false
}

// concluded is what a call returns, counted.
func (c *Cache[V]) concluded(key string, r Result[V], err error, start time.Duration) (Result[V], error) {
	switch {
	case err == nil:
		r.Value = c.cloned(r.Value)
	case !errors.Is(err, ErrNotFound):
		r = Result[V]{}
	}
	c.events.got(key, r.Outcome, c.since(start), err)
	return r, err
}

// since is the time since start, if somebody is told of it.
func (c *Cache[V]) since(start time.Duration) time.Duration {
	if c.events.observer == nil {
		return 0
	}
	return c.gate.now() - start
}

// local serves a copy that need not, or cannot, be checked with Redis, if there is
// one, and starts a refresh behind it if it is due.
func (c *Cache[V]) local(ctx context.Context, key string, p *plan[V]) (r Result[V], served bool, err error) {
	if c.gate.closed.Load() || !c.tiered && c.gate.store.Healthy() {
		return r, false, nil
	}
	cp, now := c.unchecked(key)
	if cp == nil {
		if cp, now = c.copies.Load(key), c.gate.now(); cp != nil && cp.servable(now) && c.out(ctx, key) && !c.invalid(cp) {
			r, err = c.withoutCheck(ctx, key, p, cp, now)
			return r, true, err
		}
		return r, false, nil
	}
	r, err = c.serve(ctx, key, p, found[V]{cp: cp, seen: cp.seen}, OutcomeLocal, now)
	return r, true, err
}

// serve is what a call gets of an entry that may be served, with a refresh behind it if
// that is due.
func (c *Cache[V]) serve(ctx context.Context, key string, p *plan[V], read found[V], from Outcome, now time.Duration) (Result[V], error) {
	if p.loads() {
		patient := p.waitsSoftly(read.cp, now)
		if patient || read.cp.due(now) {
			f := c.refresh(ctx, key, p, read, from)
			if patient && f != nil {
				return c.softly(ctx, f, p, read, from)
			}
		}
	}
	return read.cp.result(from, now)
}

// waitsSoftly reports whether who is served this copy waits for a new one first.
func (p *plan[V]) waitsSoftly(cp *copied[V], now time.Duration) bool {
	return p.policy.SoftTimeout > 0 && cp.stale(now)
}

// softly waits for a refresh for SoftTimeout, and then takes what there is.
func (c *Cache[V]) softly(ctx context.Context, refresh *flight[V], p *plan[V], read found[V], from Outcome) (Result[V], error) {
	wait, cancel := context.WithTimeout(ctx, p.policy.SoftTimeout)
	defer cancel()
	if r, err := refresh.Wait(wait); err == nil || errors.Is(err, ErrNotFound) {
		return r, err
	}
	return read.cp.result(from, c.gate.now())
}

// unchecked is the copy of key that need not be checked with Redis, nil for none.
func (c *Cache[V]) unchecked(key string) (*copied[V], time.Duration) {
	if c.gate.closed.Load() {
		return nil, 0
	}
	if c.sample(rand.Uint64()) {
		c.copies.Touch(key)
	}
	cp := c.copies.Load(key)
	now := c.gate.now() // after the load: a copy may be stale from the moment it is stored
	if cp == nil || !c.gate.gap.valid(cp.gap) || now >= cp.check || cp.tagged && !c.tags.holds(cp.extended, &cp.turn) {
		return nil, 0
	}
	return cp, now
}

// cloned is what a caller gets of a value that others get too.
func (c *Cache[V]) cloned(v V) V {
	if c.hooks.clone == nil {
		return v
	}
	return c.hooks.clone(v)
}

// steadfastAfter is how often the load of a call is cancelled by changes of its key.
// The next one is detached, but runs to its end: where a key is changed more often
// than it can be loaded, its readers would never get a value.
const steadfastAfter = 2

// request is a call that needs a flight.
type request[V any] struct {
	key      string
	p        *plan[V]
	anew     bool          // the entry is to be rebuilt, whatever is there
	flight   *flight[V]    // nil for one that is to be found
	joined   bool          // another call has started the flight
	since    time.Duration // when it began to wait for its present flight
	patience time.Duration // how long it may wait for that
	returns  int           // how many flights have sent it back
}

func newRequest[V any](key string, p *plan[V], since time.Duration) *request[V] {
	return &request[V]{key: key, p: p, since: since, patience: p.policy.WaitTimeout}
}

// join waits, on the caller's own context, for the flight of its key. A flight whose load
// was cancelled by a change sends its callers back here. It does all of that in one frame:
// a waiting goroutine whose stack has to grow pays half of its CPU time for that.
func (c *Cache[V]) join(ctx context.Context, q *request[V]) (r Result[V], err error) {
	for again := true; again; {
		if q.flight == nil {
			if err = c.find(ctx, q); err != nil {
				return r, err
			}
		}
		var end func(error)
		if q.joined {
			end = c.board(ctx, q.flight)
		}
		r, err = q.flight.Wait(ctx)
		if end != nil {
			end(err)
		}
		if err == nil {
			return r, nil
		}
		again, err = c.failure(q, err)
	}
	return r, err
}

// find gives a request the flight of its key. It lets one begin if there is none.
func (c *Cache[V]) find(ctx context.Context, q *request[V]) (err error) {
	in, fly := &c.flights, c.fly
	if q.anew {
		in, fly = &c.renewals, c.renew
	}
	q.flight, q.joined, err = c.open(ctx, q.key, in)
	if err != nil || q.joined {
		return err
	}
	if q.returns >= steadfastAfter {
		q.flight.State.stand()
	}
	q.flight.State.patience = q.patience
	fly(ctx, q.flight, q.p)
	return nil
}

// failure says whether a call whose flight has failed is to look for another one, else
// what its error is.
func (c *Cache[V]) failure(q *request[V], err error) (again bool, _ error) {
	expired := q.joined && saysOnly(err, ErrWaitTimeout) // it had begun to wait before this call
	switch {
	case expired:
	case errors.Is(err, errRestart):
	case q.joined && q.p.loads() && saysOnly(err, ErrNoLoader): // it was a flight without one
	default:
		return false, err
	}
	now, had := c.gate.now(), q.patience
	q.patience -= now - q.since
	if !q.joined {
		q.patience = q.flight.State.patience // the time of a call's own load is no wait; steadfastAfter bounds how often that counts
	}
	q.since = now
	q.returns++
	q.flight = nil
	if expired {
		had = q.patience
	}
	if had <= 0 {
		return false, c.failed(q.key, ErrWaitTimeout)
	}
	return true, nil // if no patience is left, the next flight does what AfterWait says
}

// board is told of a call that joins a flight, and returns who is to be told when it has
// waited, nil for nobody.
func (c *Cache[V]) board(ctx context.Context, f *flight[V]) (end func(error)) {
	if tracer := c.gate.tracer; tracer != nil {
		end = joined(ctx, f.Context(), tracer, c.name, f.Key())
	}
	c.events.emit(Event{Kind: EventCoalesced, Key: f.Key()})
	if c.gate.holdsSlot(ctx) {
		f.State.lend()
	}
	return end
}

// saysOnly reports whether a flight ended for this reason of its own, and not with a
// loader's error that wraps the like from another cache.
func saysOnly(err, reason error) bool {
	e, ok := errors.AsType[*LoadError](err)
	return ok && e.Err == reason //nolint:errorlint // wrapped is what it must not be
}

func (c *Cache[V]) open(ctx context.Context, key string, in *flights[V]) (f *flight[V], joined bool, err error) {
	c.gate.life.RLock()
	defer c.gate.life.RUnlock()
	if c.gate.closed.Load() {
		return nil, false, ErrClosed
	}
	f, joined = in.Open(ctx, key)
	return f, joined, nil
}

// fly is a flight: read Redis, serve what is there, else rebuild it. The call that has
// opened it takes the first step itself, which for a hit is all: a goroutine would have
// to be started for it, and wake the caller. What takes longer than a read, or is not
// over when ctx is, goes on in a goroutine that outlives the call.
//
//nolint:contextcheck // see above
func (c *Cache[V]) fly(ctx context.Context, f *flight[V], p *plan[V]) {
	keys := c.keys(f.Key())
	taken := false
	defer func() {
		if !taken { // ctx has ended, or a codec has called Goexit: the others do not depend on that
			f.Run(func(f *flight[V]) (Result[V], error) {
				read, err := c.read(f.Context(), f, keys, p)
				return c.proceed(f, keys, read, err, p)
			})
		}
	}()
	if ctx.Err() != nil {
		return
	}
	read, err := singleflight.Protect(func() (found[V], error) { return c.read(ctx, f, keys, p) })
	if err != nil && ctx.Err() != nil {
		return
	}
	taken = true
	if now := read.at; err == nil && read.servable(now) && (!p.loads() || !p.waitsSoftly(read.cp, now)) {
		f.Finish(c.serve(ctx, f.Key(), p, read, OutcomeRemote, now))
		return
	}
	f.Run(func(f *flight[V]) (Result[V], error) { return c.proceed(f, keys, read, err, p) })
}

// proceed is the rest of a flight, after the read.
func (c *Cache[V]) proceed(f *flight[V], keys remote.Keys, read found[V], err error, p *plan[V]) (Result[V], error) {
	switch {
	case err != nil:
		return c.degraded(f, p, err)
	case read.newer:
		return c.unlocked(f, p, keepUnshared)
	}
	if now := c.gate.now(); read.servable(now) {
		return c.serve(f.Context(), f.Key(), p, read, OutcomeRemote, now)
	}
	return c.rebuild(f, keys, read, p, nil)
}

func (r found[V]) servable(now time.Duration) bool { return r.cp != nil && r.cp.servable(now) }

// renew is a flight that rebuilds the entry, whatever is there.
func (c *Cache[V]) renew(_ context.Context, f *flight[V], p *plan[V]) {
	f.Run(func(f *flight[V]) (Result[V], error) { return c.renewed(f, p) })
}

func (c *Cache[V]) renewed(f *flight[V], p *plan[V]) (Result[V], error) {
	keys := c.keys(f.Key())
	read, err := c.read(f.Context(), f, keys, p)
	switch {
	case f.Context().Err() != nil: // no fault of Redis: the gate closes
		return Result[V]{}, context.Cause(f.Context())
	case err != nil:
		c.events.emit(Event{Kind: EventDegraded, Key: f.Key(), Err: err})
		return c.loadWithout(f, p)
	case read.newer:
		return c.unlocked(f, p, keepUnshared)
	}
	return c.rebuild(f, keys, read, p, nil)
}

// peek reads an entry from Redis, outside of any flight.
func (c *Cache[V]) peek(ctx context.Context, key string) (r Result[V], found bool, err error) {
	if !c.gate.enter() {
		return r, false, ErrClosed
	}
	defer c.gate.calls.Done()
	if c.gate.store == nil {
		return r, false, nil // the local tier had all there is
	}
	if c.gate.journal.holds(c.name, key) {
		return r, false, nil
	}
	read, err := c.look(ctx, key)
	if err != nil {
		return r, false, fmt.Errorf("herdgate: peek %s %q: %w", c.name, key, err)
	}
	if !read.servable(read.at) {
		return r, false, nil
	}
	r, err = read.cp.result(OutcomeRemote, read.at)
	return r, true, err
}

// look reads an entry and keeps nothing.
func (c *Cache[V]) look(ctx context.Context, key string) (found[V], error) {
	generation, err := c.current(ctx)
	if err != nil {
		return found[V]{}, err
	}
	keys := c.keys(key)
	entry, at, err := c.gate.store.Get(ctx, keys)
	if errors.Is(err, remote.ErrWrongType) {
		return found[V]{}, nil // a bad payload is a miss
	}
	if err != nil {
		return found[V]{}, err
	}
	return c.interpret(ctx, key, keys, entry, at, generation, c.plan(key))
}

// read gets the entry from Redis and keeps a copy of it. The ticket is taken before
// the request is sent.
func (c *Cache[V]) read(ctx context.Context, f *flight[V], keys remote.Keys, p *plan[V]) (found[V], error) {
	if c.gate.store == nil {
		cp := c.entry(f.Key())
		switch {
		case cp == nil:
			return found[V]{}, nil
		case cp.tagged && !c.tags.holds(cp.extended, &cp.turn):
			return found[V]{seen: cp.seen}, nil
		}
		return found[V]{cp: cp, seen: cp.seen, at: c.gate.now()}, nil
	}
	if _, err := c.current(ctx); err != nil {
		return found[V]{}, err
	}
	t := f.State.depart(func() ticket {
		if !c.tiered { // nothing that is read is kept
			return ticket{generation: c.generation.n.Load()}
		}
		return c.ticket(f.Key())
	})
	// After the ticket: a change that is not there yet moves the epoch past it.
	if c.gate.journal.holds(c.name, f.Key()) {
		return found[V]{}, ErrJournaled
	}
	entry, at, err := c.gate.store.Get(ctx, keys)
	return c.received(ctx, f, keys, entry, at, err, t, p)
}

// received takes the reply to a read, which was there at a time.
func (c *Cache[V]) received(ctx context.Context, f *flight[V], keys remote.Keys, entry []byte, at time.Duration, err error, t ticket, p *plan[V]) (found[V], error) {
	if errors.Is(err, remote.ErrWrongType) {
		c.events.emit(Event{Kind: EventBadPayload, Key: f.Key(), Err: err})
		return found[V]{}, nil
	}
	if err != nil {
		return found[V]{}, err
	}
	return c.take(ctx, f, keys, entry, at, t, p)
}

// take interprets an entry that was read under a ticket, and keeps a copy.
func (c *Cache[V]) take(ctx context.Context, f *flight[V], keys remote.Keys, entry []byte, at time.Duration, t ticket, p *plan[V]) (found[V], error) {
	read, err := c.interpret(ctx, f.Key(), keys, entry, at, t.generation, p)
	if err == nil && read.cp != nil {
		f.State.early = read.cp.early
		if c.gate.replicas {
			t.gap = inGap // a replica may have had it from before a change that this process knows of (I9)
		}
		c.keep(f.Key(), read.cp, t)
	}
	return read, err
}

// entry is the local copy of a gate without Redis, under the lock under which it is
// stored in one step with the end of its lease.
func (c *Cache[V]) entry(key string) *copied[V] {
	s := c.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.copies.Load(key)
}

// degraded serves a call whose Redis does not answer: a local copy inside its hard
// expiry, as stale, else an unlocked load.
func (c *Cache[V]) degraded(f *flight[V], p *plan[V], cause error) (Result[V], error) {
	if f.Context().Err() != nil { // no fault of Redis: the gate closes
		return Result[V]{}, context.Cause(f.Context())
	}
	c.events.emit(Event{Kind: EventDegraded, Key: f.Key(), Err: cause})
	cp := c.copies.Load(f.Key())
	if now := c.gate.now(); cp != nil && cp.servable(now) && !c.invalid(cp) {
		return c.withoutCheck(f.Context(), f.Key(), p, cp, now)
	}
	return c.loadWithout(f, p)
}

// invalid reports whether a copy is known to have an invalidated tag, also of one that
// cannot be checked now.
func (c *Cache[V]) invalid(cp *copied[V]) bool { return cp.tagged && c.tags.outdated(cp.extended) }

// failed adds cache and key to the reason why there is no value.
func (c *Cache[V]) failed(key string, reason error) error {
	return &LoadError{Cache: c.name, Key: key, Err: reason}
}
