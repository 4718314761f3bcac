package herdgate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/singleflight"
)

// loaderGrace is how long a loader may take to return when its context has ended.
const loaderGrace = 50 * time.Millisecond

// loaded is what came of a run of a loader.
type loaded[V any] struct {
	content[V]
	load  Load[V] // as the loader has left it
	err   error   // also ErrNotFound, which is the content as well
	took  time.Duration
	cause error // why its context ended, nil if it did not
}

// run runs the loader in a goroutine of its own: one that ignores the end of its
// context is left behind. The slot is given back when the loader returns, or is
// left behind. old is what is stored, nil for nothing.
func (c *Cache[V]) run(f *flight[V], p *plan[V], old *copied[V], lease *lease, slot *loadSlot) (got loaded[V]) {
	key := f.Key()
	ctx, end := c.gate.begin(f.Context(), StepLoad, c.name, key)
	defer func() { end(got.err) }()
	ctx, cancel := context.WithCancelCause(c.gate.withSlot(ctx))
	defer cancel(nil)
	unwatch := lease.onLoss(func(err error) {
		c.events.emit(Event{Kind: EventLeaseLost, Key: key, Err: err})
		if !f.State.standing() {
			cancel(err)
		}
	})
	defer unwatch()
	ended := f.State.load(func() {
		c.events.emit(Event{Kind: EventLeaseRevoked, Key: key})
		cancel(ErrRevoked)
	})
	defer ended()
	ctx, stop := context.WithTimeoutCause(ctx, p.policy.LoadTimeout, ErrLoadTimeout)
	defer stop()

	start := c.gate.now()
	load := newLoad(key, old, start)
	got, abandoned := runLoader(ctx, c.gate, slot, loaded[V]{err: singleflight.ErrGoexit}, func(got *loaded[V]) {
		got.value, got.err = singleflight.Protect(func() (V, error) { return p.loader.Load(ctx, load) })
	}, func(late loaded[V]) {
		if late.err == nil {
			c.events.emit(Event{Kind: EventCommitRefused, Key: key})
		}
	})
	if abandoned {
		got.err = context.Cause(ctx)
		c.events.emit(Event{Kind: EventAbandoned, Key: key})
	} else {
		got.load = *load
	}
	c.judge(&got, key, p, old, start, context.Cause(ctx))
	return got
}

// runLoader runs what calls a loader in a goroutine of its own. If the loader ignores
// the end of ctx it is left behind, and late is told when it returns. The slot is given
// back when it returns, or is left behind. got is the result of one that never returns.
func runLoader[T any](ctx context.Context, g *Gate, slot *loadSlot, got T, load func(*T), late func(T)) (_ T, abandoned bool) {
	results := make(chan T, 1)
	var over atomic.Bool // it has returned, or was abandoned: what comes first
	g.loaders.Go(func() {
		defer func() { // runs on Goexit, too
			slot.release()
			results <- got
			if !over.CompareAndSwap(false, true) {
				late(got)
			}
		}()
		load(&got)
	})
	select {
	case r := <-results:
		return r, false
	case <-ctx.Done():
	}
	grace := time.NewTimer(loaderGrace)
	defer grace.Stop()
	select {
	case r := <-results:
		return r, false
	case <-grace.C:
	}
	if !over.CompareAndSwap(false, true) {
		return <-results, false
	}
	slot.abandon()
	var none T
	return none, true
}

// judge makes of what a loader has returned what the key's callers get. cause is why
// the loader's context ended, nil if it did not.
func (c *Cache[V]) judge(got *loaded[V], key string, p *plan[V], old *copied[V], start time.Duration, cause error) {
	if got.missing = saysNotFound(got.err); got.missing {
		got.value = *new(V)
	}
	if err := got.load.check(p.policy); err != nil && (got.err == nil || got.missing) {
		got.err, got.missing = err, false
	}
	if got.load.unmodified && got.err == nil {
		got.value = old.value // whatever else was returned: it is what stays stored
	}
	if got.err == nil || got.missing {
		got.extended = got.load.extended(p.policy)
	}
	got.took = c.gate.now() - start
	got.cause = cause
	if got.err != nil && errors.Is(got.cause, ErrLoadTimeout) && !errors.Is(got.err, ErrLoadTimeout) {
		got.err = fmt.Errorf("%w (%v): %w", ErrLoadTimeout, p.policy.LoadTimeout, got.err)
	}
	c.events.emit(Event{Kind: EventLoad, Key: key, Duration: got.took, Err: got.err})
	if got.err != nil && !got.missing && !withdrawn(cause) {
		c.events.emit(Event{Kind: EventLoadFailed, Key: key, Duration: got.took, Err: got.err})
	}
}

// withdrawn reports whether a loader's context ended for no fault of its own: its key
// has changed, its lease was lost, or the gate closes.
func withdrawn(cause error) bool {
	return errors.Is(cause, ErrRevoked) || errors.Is(cause, lock.ErrLost) || errors.Is(cause, ErrClosed)
}

// unlocked loads without the lease, when a slot is free in time. What it returns is
// never stored in Redis.
func (c *Cache[V]) unlocked(f *flight[V], p *plan[V], keep keeping) (Result[V], error) {
	if !p.loads() {
		return Result[V]{}, c.failed(f.Key(), ErrNoLoader)
	}
	patience, cancel := context.WithTimeoutCause(f.Context(), f.State.patience, ErrWaitTimeout)
	defer cancel()
	slot, err := c.gate.slot(patience, &f.State)
	if err != nil {
		return Result[V]{}, c.gaveUp(patience, f.Key())
	}
	f.State.patience = until(patience)
	return c.alone(f, p, slot, keep)
}

// keeping says what becomes of a value that was loaded without the lease.
type keeping uint8

const (
	keepNothing  keeping = iota
	keepCopy             // a copy that may serve, as stale, while Redis is out
	keepUnshared         // a copy for LocalTTL: a newer version of the code owns the entry
)

// alone is unlocked with the slot in hand.
func (c *Cache[V]) alone(f *flight[V], p *plan[V], slot *loadSlot, keep keeping) (Result[V], error) {
	t := f.State.depart(func() ticket { return c.ticket(f.Key()) })
	at := c.tags.highest() // of a copy of this process alone: all it knows to be invalid is from before
	got := c.run(f, p, c.copies.Load(f.Key()), nil, slot)
	switch {
	case got.err == nil:
		if !got.load.uncacheable {
			got.extended.TagsAt = at
			c.keepAlone(f.Key(), got, keep, t, p)
		}
		return Result[V]{Value: got.value, Outcome: OutcomeUnlocked}, nil
	case got.missing:
		if !got.load.uncacheable && (p.policy.NegativeTTL != Off || got.load.ttl > 0) {
			got.extended.TagsAt = at
			c.keepAlone(f.Key(), got, keep, t, p)
		}
		return Result[V]{Outcome: OutcomeUnlocked}, c.failed(f.Key(), got.err)
	case errors.Is(got.cause, ErrClosed):
		return Result[V]{}, ErrClosed
	case errors.Is(got.cause, ErrRevoked):
		return Result[V]{}, errRestart
	}
	return Result[V]{}, c.failed(f.Key(), got.err)
}

// keepAlone keeps a copy of what was loaded without the lease.
func (c *Cache[V]) keepAlone(key string, got loaded[V], keep keeping, t ticket, p *plan[V]) {
	if keep == keepNothing {
		return
	}
	life := got.life(p.policy)
	var made encoded // as it is not stored, only its size is of use
	if !got.missing {
		b, err := c.pack(got.value, p.policy)
		if err != nil {
			return // its size cannot be told
		}
		made.size = b.size
	}
	switch keep {
	case keepNothing:
	case keepCopy:
		t.gap = inGap // nobody tells this process of changes now
		if early := p.policy.TTL - life.fresh; early > 0 && got.load.ttl == 0 && !got.missing {
			life.fresh, life.hard = life.fresh+2*early, life.hard+2*early // at most one load in a TTL
		}
	case keepUnshared:
		// When it must be checked it is gone: Redis has no entry that this version could
		// check it against. Until then the messages about the newer one's changes hold for it.
		life.fresh = min(life.fresh, p.policy.LocalTTL)
		life.hard, life.early = life.fresh, life.fresh
	}
	cp := c.made(got.content, made, life, c.gate.now(), p.policy)
	cp.spare = keep == keepCopy
	c.keep(key, cp, t)
}

// lease is a held rebuild lease, renewed by the lock engine. nil: there is nothing
// to renew.
type lease struct {
	*lock.Lease

	outer *lock.Lease // of Options.Locker; nil: none
}

func (c *Cache[V]) hold(f *flight[V], leases lock.Backend, a acquisition[V], p *plan[V]) *lease {
	if c.gate.store == nil {
		return nil
	}
	return &lease{outer: a.outer.lease, Lease: lock.Hold(f.Context(), leases, a.claim, a.Sent, lock.HoldOptions{
		TTL: p.policy.LockTTL, CallTimeout: c.gate.options.RedisTimeout,
		Monitor: func(e lock.Event) {
			if e.Kind == lock.RenewRetried {
				c.events.emit(Event{Kind: EventRenewalFailed, Key: f.Key(), Err: e.Err})
			}
		},
	})}
}

// onLoss calls told once if the lease, or the lock it was taken with, is lost, until the
// returned function is called.
func (l *lease) onLoss(told func(error)) (stop func()) {
	if l == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var outer <-chan struct{}
	if l.outer != nil {
		outer = l.outer.Done()
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-l.Done():
			told(l.Err())
		case <-outer:
			told(outerLoss(l.outer.Err()))
		case <-quit:
		}
	})
	return func() {
		close(quit)
		wg.Wait()
	}
}

// outerLoss makes a loss of whatever has ended the lock of Options.Locker while the loader
// ran: one that its locker has let go, as it was closed, is no failure of the load.
func outerLoss(err error) error {
	if errors.Is(err, lock.ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", lock.ErrLost, err)
}

// stop ends the renewals; the lease itself ends with its commit or finish.
func (l *lease) stop() {
	if l != nil {
		_ = l.Stop() // a loss was told, and the server decides on the commit
	}
}

// loadSlot is the right to run one loader, one of Options.MaxLoads.
type loadSlot struct {
	g     *Gate
	mu    sync.Mutex
	state slotState // protected by mu
}

type slotState uint8

const (
	slotFree  slotState = iota // given back, or never taken: borrowed, or there is no limit
	slotTaken                  // counts against MaxLoads
	slotStray                  // its loader was abandoned and counts against the strays
)

// slot waits for a load slot for flights until ctx ends. A flight of a loader that calls Get,
// or that such a caller has joined, needs none: its caller has one, and waits (I4).
func (g *Gate) slot(ctx context.Context, flights ...*work) (*loadSlot, error) {
	if slot, ok := g.trySlot(ctx); ok {
		return slot, nil
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	stops := make([]func() bool, len(flights))
	for i, w := range flights {
		stops[i] = w.borrow(cancel)
	}
	err := g.slots.Acquire(wait, 1)
	lent := false
	for _, stop := range stops {
		lent = stop() || lent
	}
	switch {
	case err == nil:
		return &loadSlot{g: g, state: slotTaken}, nil
	case lent && ctx.Err() == nil:
		return &loadSlot{g: g}, nil
	}
	return nil, err
}

// trySlot takes a load slot if there is one.
func (g *Gate) trySlot(ctx context.Context) (*loadSlot, bool) {
	if g.slots == nil || g.holdsSlot(ctx) {
		return &loadSlot{g: g}, true
	}
	if g.slots.TryAcquire(1) {
		return &loadSlot{g: g, state: slotTaken}, true
	}
	return nil, false
}

// release gives the slot back. Further calls do nothing.
func (s *loadSlot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case slotTaken:
		s.g.slots.Release(1)
	case slotStray:
		s.g.strays.Release(1)
	case slotFree:
	}
	s.state = slotFree
}

// abandon gives the slot back although its loader still runs, as long as not too
// many such loaders do; then the slot is given back when the loader returns.
func (s *loadSlot) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == slotTaken && s.g.strays.TryAcquire(1) {
		s.g.slots.Release(1)
		s.state = slotStray
	}
}

// slotKey marks the context of a loader that holds, or was lent, a slot of a gate.
type slotKey struct{ g *Gate }

func (g *Gate) withSlot(ctx context.Context) context.Context {
	return context.WithValue(ctx, slotKey{g}, true)
}

// withoutSlot is for work that outlives the loader it was started from.
func (g *Gate) withoutSlot(ctx context.Context) context.Context {
	if g.holdsSlot(ctx) {
		return context.WithValue(ctx, slotKey{g}, false)
	}
	return ctx
}

func (g *Gate) holdsSlot(ctx context.Context) bool {
	held, _ := ctx.Value(slotKey{g}).(bool)
	return held
}
