package herdgate

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/lock"
)

// passFor is how long after a "do not store" nobody asks for the lease again: the
// callers that waited would otherwise become winners one after another.
const passFor = time.Second

// acquisition is one request for the lease, and what came of it.
type acquisition[V any] struct {
	remote.Found
	old    found[V] // the entry that is to be replaced
	claim  lock.Claim
	ticket ticket
	tagsAt uint64 // the number to store tags with
}

// acquire asks for the lease of a key. The ticket is taken before the request is sent.
func (c *Cache[V]) acquire(f *flight[V], keys remote.Keys, old found[V], p *plan[V], wait bool) (a acquisition[V], err error) {
	ctx, end := c.gate.begin(f.Context(), StepAcquire, c.name, f.Key())
	defer func() { end(err) }()
	a = acquisition[V]{old: old, claim: lock.Claim{Name: keys.B, Owner: randomHex(16)}}
	a.ticket = f.State.depart(func() ticket { return c.ticket(f.Key()) })
	if c.tagged {
		if a.tagsAt, err = c.tagsAt(ctx); err != nil {
			return a, err
		}
	}
	// Not cancelled when the gate closes: what may have been granted must be let go.
	a.Found, err = c.builds.Acquire(context.WithoutCancel(ctx), keys, remote.Acquire{
		Owner: a.claim.Owner, TTL: p.policy.LockTTL, Seen: old.seen, Wait: wait,
	})
	a.claim.Token = a.Nonce
	switch a.State {
	case remote.Granted:
		c.events.emit(Event{Kind: EventLeaseWon, Key: f.Key()})
	case remote.Held:
		c.events.emit(Event{Kind: EventLeaseHeld, Key: f.Key()})
	case remote.Failed:
		c.events.emit(Event{Kind: EventBackoff, Key: f.Key()})
	default:
	}
	return a, err
}

// rebuild makes the value of a key for which there is nothing to serve but, at most,
// an old entry: it asks for the lease, builds if it is granted, and otherwise waits
// for who has it.
func (c *Cache[V]) rebuild(f *flight[V], keys remote.Keys, old found[V], p *plan[V]) (Result[V], error) {
	if !p.loads() {
		return Result[V]{}, c.failed(f.Key(), ErrNoLoader)
	}
	patience, cancel := context.WithTimeoutCause(f.Context(), f.State.patience, ErrWaitTimeout)
	defer cancel()
	outcome := OutcomeRemote
	fresh := true // it has not waited for anybody's load
	for {
		slot, err := c.gate.slot(patience, &f.State)
		if err == nil && patience.Err() != nil { // a free slot is given at any time
			slot.release()
			err = patience.Err()
		}
		if err != nil {
			return c.impatient(patience, f, p)
		}
		a, err := c.acquire(f, keys, old, p, true)
		if err != nil {
			slot.release()
			return c.degraded(f, p, err)
		}
		switch a.State {
		case remote.Granted:
			return c.build(f, keys, a, p, slot)
		case remote.Pass:
			return c.alone(f, p, slot, keepNothing)
		default:
			slot.release()
		}
		var read found[V]
		switch a.State {
		case remote.Newer:
			read, err = c.take(f.Context(), f, keys, a.Entry, a.ticket, p)
		case remote.Failed:
			// Who waited for the load that failed gets its failure; who comes later
			// waits out what is left of a short back-off.
			if !fresh || a.Rest > min(max(p.policy.FailureBackoff, p.policy.MinRebuildInterval), until(patience)) {
				return Result[V]{}, &BackoffError{Cache: c.name, Key: f.Key(), Failures: a.Failures, RetryAfter: a.Rest, Reason: a.Code}
			}
			read, err = c.await(patience, f, keys, old.seen, a.Rest, p)
		case remote.Held:
			fresh, outcome = false, OutcomeWaited
			read, err = c.await(patience, f, keys, old.seen, a.Rest+askSlack, p)
		case remote.Cooling:
			fresh, outcome = false, OutcomeWaited
			read, err = c.await(patience, f, keys, old.seen, a.Rest, p)
		default:
			err = errTooLate
		}
		now := c.gate.now()
		switch {
		case err != nil && patience.Err() != nil:
			return c.impatient(patience, f, p)
		case err != nil:
			return c.degraded(f, p, err)
		case read.newer:
			return c.unlocked(f, p, keepUnshared)
		case read.cp != nil && read.seen != old.seen && read.cp.servable(now):
			return read.cp.result(outcome, now)
		case read.seen != "" || a.State == remote.Newer:
			old = read
		}
	}
}

// build runs the loader under a lease and commits what it returns.
func (c *Cache[V]) build(f *flight[V], keys remote.Keys, a acquisition[V], p *plan[V], slot *loadSlot) (Result[V], error) {
	key := f.Key()
	// Whatever goes wrong from here, a hook of the user that panics included, the
	// lease ends.
	settled := false
	defer func() {
		if !settled {
			c.finish(f, keys, a, p, remote.Finish{State: remote.FinishFailed, For: p.policy.backoff(a.Failures), Code: "panic"})
		}
	}()
	give := func(r Result[V], err error) (Result[V], error) {
		slot.release()
		c.finish(f, keys, a, p, remote.Finish{State: remote.FinishNothing})
		settled = true
		return r, err
	}
	if f.Context().Err() != nil {
		return give(Result[V]{}, context.Cause(f.Context()))
	}
	if c.gate.store == nil {
		// Without Redis the copy is the entry: one that the flight before stored
		// between this flight's look at it and its grant is not built again.
		if cp := c.entry(key); cp != nil && cp.seen != a.old.seen && c.gate.now() < cp.early {
			return give(cp.result(OutcomeLocal, c.gate.now()))
		}
	}
	lease := c.hold(f, a, p)
	got := c.run(f, p, a.old.cp, lease, slot)
	lease.stop()
	r, err := c.conclude(f, keys, a, p, got)
	settled = true
	return r, err
}

// conclude ends a lease by what its loader has returned.
func (c *Cache[V]) conclude(f *flight[V], keys remote.Keys, a acquisition[V], p *plan[V], got loaded[V]) (Result[V], error) {
	switch {
	case got.err == nil || got.missing:
		return c.commit(f, keys, a, p, got)
	case errors.Is(got.cause, ErrClosed):
		c.finish(f, keys, a, p, remote.Finish{State: remote.FinishNothing})
		return Result[V]{}, ErrClosed
	case errors.Is(got.cause, ErrRevoked), errors.Is(got.cause, lock.ErrLost):
		c.finish(f, keys, a, p, remote.Finish{State: remote.FinishNothing})
		return Result[V]{}, errRestart
	}
	c.finish(f, keys, a, p, remote.Finish{State: remote.FinishFailed, For: p.policy.backoff(a.Failures), Code: failureReason(got.err)})
	return Result[V]{}, c.failed(f.Key(), got.err)
}

// commit stores a loaded value, or a not-found, and keeps a copy.
func (c *Cache[V]) commit(f *flight[V], keys remote.Keys, a acquisition[V], p *plan[V], got loaded[V]) (Result[V], error) {
	key := f.Key()
	r := Result[V]{Value: got.value, Outcome: OutcomeLoaded}
	var err error
	if got.missing {
		err = c.failed(key, got.err)
	}
	if got.load.uncacheable || got.missing && p.policy.NegativeTTL == Off && got.load.ttl == 0 {
		if c.gate.store != nil {
			c.gate.own.add(a.claim.Owner) // the id of the message that tells of the drop
		}
		c.finish(f, keys, a, p, remote.Finish{State: remote.FinishPass, For: passFor, Drop: true})
		c.invalidate(key)
		return r, err
	}
	life := got.life(p.policy)
	got.extended.TagsAt = a.tagsAt
	made, encodeErr := c.encode(keys, got.content, life, a.ticket.generation, p.policy, got.load.body(a.old))
	if encodeErr != nil {
		c.events.emit(Event{Kind: EventCommitFailed, Key: key, Err: encodeErr})
		c.finish(f, keys, a, p, remote.Finish{State: remote.FinishPass, For: passFor})
		return r, err
	}
	cp := c.made(got.content, made, life, c.gate.now(), p.policy)
	f.State.early = cp.early
	ctx, end := c.gate.begin(f.Context(), StepCommit, c.name, key)
	stored, storeErr := c.store(context.WithoutCancel(ctx), keys, remote.Commit{
		Claim: a.claim, Cache: c.name, Key: key, Entry: made.entry, PX: life.hard, Interval: p.policy.MinRebuildInterval, Pass: passFor,
	}, cp, a.ticket)
	end(storeErr)
	switch {
	case storeErr != nil:
		c.events.emit(Event{Kind: EventCommitFailed, Key: key, Err: storeErr})
	case stored == remote.Done:
		c.events.emit(Event{Kind: EventCommitStored, Key: key})
	case stored == remote.NotStored:
		c.events.emit(Event{Kind: EventCommitFailed, Key: key, Err: ErrNotStored})
	default:
		c.events.emit(Event{Kind: EventCommitRefused, Key: key})
	}
	return r, err
}

// store commits an entry and keeps its copy. Without Redis the copy is the entry, so
// that the lease alone decides, and both happen in one step for whoever looks under
// the stripe's lock.
func (c *Cache[V]) store(ctx context.Context, keys remote.Keys, commit remote.Commit, cp *copied[V], t ticket) (remote.Stored, error) {
	if c.gate.store != nil {
		stored, err := c.builds.Commit(ctx, keys, commit)
		switch {
		case err != nil: // it may be stored, and may not
			t.gap = inGap
			c.replace(commit.Key, cp, t)
		case stored == remote.Done:
			c.replace(commit.Key, cp, t)
		}
		return stored, err
	}
	s := c.stripe(commit.Key)
	s.mu.Lock()
	stored, err := c.builds.Commit(ctx, keys, commit)
	if stored == remote.Done {
		c.put(commit.Key, cp, t)
	}
	s.mu.Unlock()
	c.wake(commit.Key)
	return stored, err
}

// finish lets a lease go without an entry, also when the gate has cancelled the
// flight. If that fails, its TTL ends it.
func (c *Cache[V]) finish(f *flight[V], keys remote.Keys, a acquisition[V], p *plan[V], how remote.Finish) {
	how.Claim, how.Cache, how.Key, how.Interval = a.claim, c.name, f.Key(), p.policy.MinRebuildInterval
	_, _ = c.builds.Finish(context.WithoutCancel(f.Context()), keys, how)
}

// backoff is the time until the next try after one more failure than before.
func (p *Policy) backoff(before int) time.Duration {
	d := p.FailureBackoff
	for range before {
		if d >= p.MaxFailureBackoff/2 {
			return p.MaxFailureBackoff
		}
		d *= 2
	}
	return d
}

// refresh rebuilds an entry that was just served, behind its callers: one refresh a
// key and process, and none while one elsewhere, or the mark of a failure, is known to
// stand. One from the local tier is checked with Redis first. It returns the flight
// that does it, nil if there is none.
func (c *Cache[V]) refresh(ctx context.Context, key string, p *plan[V], served found[V], from Outcome) *flight[V] {
	if c.quiet.holds(key, served.seen, c.gate.now()) {
		return nil
	}
	f, _, err := c.start(c.gate.withoutSlot(ctx), key, &c.refreshes, func(f *flight[V]) (Result[V], error) {
		r, err := c.behind(f, p, served, from)
		c.kept.schedule(key, c.nextLook(f))
		return r, err
	})
	if err != nil {
		return nil // the gate is closed
	}
	return f
}

// nextLook is when a kept key is to be looked at after a refresh: at the early point of
// its entry, up to some milliseconds later, so that not all instances ask at once.
func (c *Cache[V]) nextLook(f *flight[V]) time.Duration {
	now := c.gate.now()
	if f.State.early > now {
		return f.State.early + rand.N(askSpread)
	}
	return now + keepPause
}

// errNothingNew ends a refresh that has no new value.
var errNothingNew = errors.New("herdgate: nothing new")

// behind is the work of a refresh. Its failures are the business of Redis's marks and
// of the observer: whoever waits for it, for SoftTimeout, has a value already.
func (c *Cache[V]) behind(f *flight[V], p *plan[V], old found[V], from Outcome) (Result[V], error) {
	key := f.Key()
	keys := c.keys(key)
	if c.quiet.holds(key, old.seen, c.gate.now()) {
		return Result[V]{}, errNothingNew // the refresh before this one has ended since its caller looked
	}
	served := old.seen // the version that the next hits are served, and come here with
	quiet := func(d time.Duration) { c.quiet.put(key, served, c.gate.now()+d, c.gate.now()) }
	if from == OutcomeLocal {
		read, err := c.read(f.Context(), f, keys, p)
		if err != nil || read.newer {
			quiet(c.gate.options.RedisTimeout)
			return Result[V]{}, errNothingNew
		}
		if read.cp != nil {
			if now := c.gate.now(); now < read.cp.early {
				return read.cp.result(OutcomeRemote, now) // rebuilt elsewhere
			}
			served = read.seen
		}
		old = read
	}
	slot, ok := c.gate.trySlot(f.Context())
	if !ok {
		quiet(10 * askPause)
		return Result[V]{}, errNothingNew
	}
	// With a local tier the copies of this process would not learn of the new entry
	// before their next check, so the refresh waits for it in their place.
	wait := c.gate.store != nil && (c.copies != nil || p.policy.SoftTimeout > 0)
	a, err := c.acquire(f, keys, old, p, wait)
	if err == nil && a.State == remote.Granted {
		c.events.emit(Event{Kind: EventRefresh, Key: key})
		return c.build(f, keys, a, p, slot)
	}
	slot.release()
	var read found[V]
	switch {
	case err != nil:
		quiet(c.gate.options.RedisTimeout)
	case a.State == remote.Newer:
		read, err = c.take(f.Context(), f, keys, a.Entry, a.ticket, p)
	case a.State == remote.Held && wait:
		patience, cancel := context.WithTimeoutCause(f.Context(), p.policy.WaitTimeout, ErrWaitTimeout)
		defer cancel()
		read, err = c.await(patience, f, keys, old.seen, a.Rest+askSlack, p)
	case a.State == remote.Void:
	default:
		quiet(a.Rest)
	}
	if now := c.gate.now(); err == nil && read.cp != nil && read.seen != old.seen && read.cp.servable(now) {
		return read.cp.result(OutcomeWaited, now)
	}
	return Result[V]{}, errNothingNew
}

// until is the time left of a ctx that has a deadline.
func until(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline)
}
