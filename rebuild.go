package herdgate

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/wire"
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
	outer  outerLock
}

// acquire asks for the lease of a key, and before for the lock of Options.Locker: that of
// a lease that was granted is held with it.
func (c *Cache[V]) acquire(f *flight[V], keys remote.Keys, old found[V], p *plan[V], wait bool) (a acquisition[V], err error) {
	ctx, end := c.gate.begin(f.Context(), StepAcquire, c.name, f.Key())
	defer func() { end(err) }()
	outer := c.lockOuter(ctx, f.Key(), keys)
	defer func() {
		if a.State != remote.Granted {
			c.unlockOuter(f, outer)
		}
	}()
	a, ask := c.asking(f, keys, old, p, wait, outer)
	if c.tagged {
		if a.tagsAt, err = c.tagsAt(ctx); err != nil {
			return a, err
		}
	}
	// Not cancelled when the gate closes: what may have been granted must be let go.
	answer, err := c.builds.Acquire(context.WithoutCancel(ctx), keys, ask)
	c.asked(f, &a, answer)
	return a, err
}

// asking prepares the request for a lease. The ticket is taken before it is sent.
func (c *Cache[V]) asking(f *flight[V], keys remote.Keys, old found[V], p *plan[V], wait bool, outer outerLock) (acquisition[V], remote.Acquire) {
	a := acquisition[V]{old: old, outer: outer, claim: lock.Claim{Name: keys.B(), Owner: randomHex(16)}}
	a.ticket = f.State.depart(func() ticket { return c.ticket(f.Key()) })
	return a, remote.Acquire{Owner: a.claim.Owner, TTL: p.policy.LockTTL, Seen: old.seen.String(), Wait: wait, Outer: outer.says}
}

// asked takes the answer to that request.
func (c *Cache[V]) asked(f *flight[V], a *acquisition[V], answer remote.Found) {
	a.Found = answer
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
}

// rebuild makes the value of a key for which there is nothing to serve but, at most,
// an old entry: it asks for the lease, builds if it is granted, and otherwise waits
// for who has it. lost is the answer of one who has asked already, else nil.
func (c *Cache[V]) rebuild(f *flight[V], keys remote.Keys, old found[V], p *plan[V], lost *acquisition[V]) (Result[V], error) {
	if !p.loads() {
		return Result[V]{}, c.failed(f.Key(), ErrNoLoader)
	}
	patience, cancel := context.WithTimeoutCause(f.Context(), f.State.patience, ErrWaitTimeout)
	defer cancel()
	outcome := OutcomeRemote
	fresh := true // it has not waited for anybody's load
	held := 0     // how often in a row it was told Held
	for ; ; lost = nil {
		if lost == nil {
			slot, err := c.patientSlot(patience, &f.State)
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
				f.State.patience = until(patience)
				return c.build(f, keys, a, p, slot)
			case remote.Pass:
				return c.alone(f, p, slot, keepNothing)
			default:
				slot.release()
			}
			lost = &a
		}
		a := *lost
		var read found[V]
		var err error
		switch a.State {
		case remote.Newer:
			read, err = c.take(f.Context(), f, keys, a.Entry, c.gate.now(), a.ticket, p)
		case remote.Failed:
			// Who waited for the load that failed gets its failure; who comes later
			// waits out what is left of a short back-off.
			if !fresh || !p.policy.waitsOut(a.Rest, until(patience)) {
				return Result[V]{}, &BackoffError{Cache: c.name, Key: f.Key(), Failures: a.Failures, RetryAfter: a.Rest, Reason: a.Code}
			}
			read, err = c.await(patience, f, keys, old.seen, a.Rest, p)
		case remote.Held:
			fresh, outcome = false, OutcomeWaited
			read, err = c.await(patience, f, keys, old.seen, heldFor(a.Rest, held), p)
			held++
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
		case read.seen != wire.Seen{} || a.State == remote.Newer:
			old = read
		}
	}
}

// waitsOut reports whether a caller who has left to wait waits for the end of a back-off.
func (p *Policy) waitsOut(rest, left time.Duration) bool {
	return rest <= min(max(p.FailureBackoff, p.MinRebuildInterval), left)
}

// patientSlot is a load slot that is there before patience ends.
func (c *Cache[V]) patientSlot(patience context.Context, flights ...*work) (*loadSlot, error) {
	slot, err := c.gate.slot(patience, flights...)
	if err == nil && patience.Err() != nil { // a free slot is given at any time
		slot.release()
		err = patience.Err()
	}
	return slot, err
}

// build runs the loader under a lease and commits what it returns.
func (c *Cache[V]) build(f *flight[V], keys remote.Keys, a acquisition[V], p *plan[V], slot *loadSlot) (Result[V], error) {
	// Whatever goes wrong from here, a hook of the user that panics included, the
	// lease ends, and then the lock of another locker.
	defer c.unlockOuter(f, a.outer)
	settled := false
	defer func() {
		if !settled {
			c.finish(f, keys, c.panicked(f.Key(), a, p))
		}
	}()
	r, needless, err := c.needless(f, a)
	if !needless && c.doubtful(f) && c.taken(f, c.gate.store.Leases(), a, p) {
		needless, err = true, errRestart
	}
	if needless {
		slot.release()
		c.finish(f, keys, c.finishing(f.Key(), a, p, remote.Finish{State: remote.FinishNothing}))
		settled = true
		return r, err
	}
	lease := c.hold(f, c.gate.store.Leases(), a, p)
	got := c.run(f, p, a.old.cp, lease, slot)
	lease.stop()
	r, err = c.conclude(f, keys, a, p, got)
	settled = true
	return r, err
}

// needless is the result of a flight that has the lease and does not need it any more.
func (c *Cache[V]) needless(f *flight[V], a acquisition[V]) (r Result[V], needless bool, err error) {
	if f.Context().Err() != nil {
		return r, true, context.Cause(f.Context())
	}
	if c.gate.store == nil {
		// Without Redis the copy is the entry: one that the flight before stored
		// between this flight's look at it and its grant is not built again.
		if cp := c.entry(f.Key()); cp != nil && cp.seen != a.old.seen && c.gate.now() < cp.early {
			r, err = cp.result(OutcomeLocal, c.gate.now())
			return r, true, err
		}
	}
	return r, false, nil
}

// doubtful reports whether a change has come since the lease was asked for. Its message may
// be of before the grant; if it is of after it, the lease is gone.
func (c *Cache[V]) doubtful(f *flight[V]) bool { return c.gate.store != nil && f.State.doubt() }

// taken asks Redis whether a doubtful lease was taken away. A loader that began with one
// would overlap its successor and not be told (I1).
func (c *Cache[V]) taken(f *flight[V], leases lock.Backend, a acquisition[V], p *plan[V]) bool {
	err := leases.Renew(context.WithoutCancel(f.Context()), a.claim, p.policy.LockTTL)
	if !errors.Is(err, lock.ErrNotHeld) {
		return false
	}
	c.events.emit(Event{Kind: EventLeaseRevoked, Key: f.Key()})
	return true
}

// conclude ends a lease by what its loader has returned.
func (c *Cache[V]) conclude(f *flight[V], keys remote.Keys, a acquisition[V], p *plan[V], got loaded[V]) (Result[V], error) {
	return c.settle(f, keys, a, c.ending(f.Key(), keys, a, p, got))
}

// settle ends a lease.
func (c *Cache[V]) settle(f *flight[V], keys remote.Keys, a acquisition[V], e ending[V]) (Result[V], error) {
	if e.commit == nil {
		c.finish(f, keys, e.finish)
		return e.result, e.err
	}
	f.State.early = e.cp.early
	ctx, end := c.gate.begin(f.Context(), StepCommit, c.name, f.Key())
	stored, err := c.store(context.WithoutCancel(ctx), keys, *e.commit, e.cp, a.ticket)
	end(err)
	c.tellStored(f.Key(), stored, err)
	return e.result, e.err
}

// ending is how a lease is to end, and what its flight returns then.
type ending[V any] struct {
	result Result[V]
	err    error
	commit *remote.Commit // nil: without an entry, by finish
	cp     *copied[V]     // of the entry to commit
	finish remote.Finish
}

// ending decides how the lease ends of a loader that has returned.
func (c *Cache[V]) ending(key string, keys remote.Keys, a acquisition[V], p *plan[V], got loaded[V]) ending[V] {
	without := func(r Result[V], err error, how remote.Finish) ending[V] {
		return ending[V]{result: r, err: err, finish: c.finishing(key, a, p, how)}
	}
	if got.err != nil && !got.missing {
		switch {
		case errors.Is(got.cause, ErrClosed):
			return without(Result[V]{}, ErrClosed, remote.Finish{State: remote.FinishNothing})
		case errors.Is(got.cause, ErrRevoked), errors.Is(got.cause, lock.ErrLost):
			return without(Result[V]{}, errRestart, remote.Finish{State: remote.FinishNothing})
		}
		return without(Result[V]{}, c.failed(key, got.err),
			remote.Finish{State: remote.FinishFailed, For: p.policy.backoff(a.Failures), Code: failureReason(got.err)})
	}
	r := Result[V]{Value: got.value, Outcome: OutcomeLoaded}
	var err error
	if got.missing {
		err = c.failed(key, got.err)
	}
	if got.load.uncacheable || got.missing && p.policy.NegativeTTL == Off && got.load.ttl == 0 {
		return without(r, err, remote.Finish{State: remote.FinishPass, For: passFor, Drop: true})
	}
	life := got.life(p.policy)
	got.extended.TagsAt = a.tagsAt
	made, encodeErr := c.encode(keys, got.content, life, a.ticket.generation, p.policy, got.load.body(a.old))
	if encodeErr != nil {
		c.events.emit(Event{Kind: EventCommitFailed, Key: key, Err: encodeErr})
		return without(r, err, remote.Finish{State: remote.FinishPass, For: passFor})
	}
	return ending[V]{
		result: r, err: err, cp: c.made(got.content, made, life, c.gate.now(), p.policy),
		commit: &remote.Commit{
			Claim: a.claim, Cache: c.name, Key: key, Entry: made.entry, PX: life.hard, Interval: p.policy.MinRebuildInterval, Pass: passFor,
		},
	}
}

func (c *Cache[V]) tellStored(key string, stored remote.Stored, err error) {
	switch {
	case err != nil:
		c.events.emit(Event{Kind: EventCommitFailed, Key: key, Err: err})
	case stored == remote.Done:
		c.events.emit(Event{Kind: EventCommitStored, Key: key})
	case stored == remote.NotStored:
		c.events.emit(Event{Kind: EventCommitFailed, Key: key, Err: ErrNotStored})
	default:
		c.events.emit(Event{Kind: EventCommitRefused, Key: key})
	}
}

// store commits an entry and keeps its copy. Without Redis the copy is the entry, so
// that the lease alone decides, and both happen in one step for whoever looks under
// the stripe's lock.
func (c *Cache[V]) store(ctx context.Context, keys remote.Keys, commit remote.Commit, cp *copied[V], t ticket) (remote.Stored, error) {
	if c.gate.store != nil {
		stored, err := c.builds.Commit(ctx, keys, commit)
		c.keepStored(commit.Key, cp, t, stored, err)
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

// keepStored keeps the copy of an entry that was committed to Redis. It reports whether
// its ticket held.
func (c *Cache[V]) keepStored(key string, cp *copied[V], t ticket, stored remote.Stored, err error) bool {
	if err != nil {
		t.gap, cp.spare = inGap, true // it may be stored, and may not
	} else if stored != remote.Done {
		return false
	}
	return c.replace(key, cp, t)
}

// finishing says of which lease the end is.
func (c *Cache[V]) finishing(key string, a acquisition[V], p *plan[V], how remote.Finish) remote.Finish {
	how.Claim, how.Cache, how.Key, how.Interval = a.claim, c.name, key, p.policy.MinRebuildInterval
	return how
}

// panicked is the end of a lease whose flight panicked outside of its loader.
func (c *Cache[V]) panicked(key string, a acquisition[V], p *plan[V]) remote.Finish {
	return c.finishing(key, a, p, remote.Finish{State: remote.FinishFailed, For: p.policy.backoff(a.Failures), Code: "panic"})
}

// finish lets a lease go without an entry, also when the gate has cancelled the
// flight. If that fails, its TTL ends it.
func (c *Cache[V]) finish(f *flight[V], keys remote.Keys, how remote.Finish) {
	c.dropping(how)
	_, _ = c.builds.Finish(context.WithoutCancel(f.Context()), keys, how)
	c.dropped(how)
}

// dropping and dropped stand around a finish that deletes what is stored.
func (c *Cache[V]) dropping(how remote.Finish) {
	if how.Drop && c.gate.store != nil {
		c.gate.own.add(how.Claim.Owner) // the id of the message that tells of it
	}
}

func (c *Cache[V]) dropped(how remote.Finish) {
	if how.Drop {
		c.invalidate(how.Key)
	}
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
	f, joined, err := c.open(c.gate.withoutSlot(ctx), key, &c.refreshes)
	if err != nil {
		return nil // the gate is closed
	}
	if !joined {
		f.Run(func(f *flight[V]) (Result[V], error) {
			r, err := c.behind(f, p, served, from)
			c.looked(f)
			return r, err
		})
	}
	return f
}

// looked is told of the end of a refresh.
func (c *Cache[V]) looked(f *flight[V]) { c.kept.schedule(f.Key(), c.nextLook(f)) }

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
		if err != nil {
			return c.behindAlone(f, p, old.cp, err, quiet)
		}
		if r, due, err := c.stillDue(read, nil, quiet); !due {
			return r, err
		}
		if read.cp != nil {
			served = read.seen
		}
		old = read
	}
	slot, ok := c.gate.trySlot(f.Context())
	if !ok {
		quiet(10 * askPause)
		return Result[V]{}, errNothingNew
	}
	a, err := c.acquire(f, keys, old, p, c.refreshWaits(p))
	if err == nil && a.State == remote.Granted {
		c.events.emit(Event{Kind: EventRefresh, Key: key})
		return c.build(f, keys, a, p, slot)
	}
	slot.release()
	return c.notRefreshed(f, keys, a, err, p, quiet)
}

// stillDue reports whether the copy that was served is to be refreshed after a look at
// Redis, and what the refresh ends with if not. quiet marks its key as not to be
// refreshed for a while.
func (c *Cache[V]) stillDue(read found[V], err error, quiet func(time.Duration)) (r Result[V], due bool, _ error) {
	now := c.gate.now()
	switch {
	case err != nil || read.newer:
		quiet(c.gate.options.RedisTimeout)
		return r, false, errNothingNew
	case read.cp != nil && now < read.cp.early: // rebuilt elsewhere
		r, err = read.cp.result(OutcomeRemote, now)
		return r, false, err
	}
	return r, true, nil
}

// refreshWaits reports whether a refresh waits for the one of another process: with a
// local tier the copies of this process would not learn of the new entry before their
// next check.
func (c *Cache[V]) refreshWaits(p *plan[V]) bool {
	return c.gate.store != nil && (c.tiered && p.policy.LocalTTL != Off || p.policy.SoftTimeout > 0)
}

// notRefreshed is the end of a refresh that was not granted the lease.
func (c *Cache[V]) notRefreshed(f *flight[V], keys remote.Keys, a acquisition[V], err error, p *plan[V], quiet func(time.Duration)) (Result[V], error) {
	var read found[V]
	switch {
	case err != nil:
		return c.behindAlone(f, p, a.old.cp, err, quiet)
	case a.State == remote.Newer:
		read, err = c.take(f.Context(), f, keys, a.Entry, c.gate.now(), a.ticket, p)
	case a.State == remote.Held && c.refreshWaits(p):
		patience, cancel := context.WithTimeoutCause(f.Context(), p.policy.WaitTimeout, ErrWaitTimeout)
		defer cancel()
		if a.Rest == 0 { // not known; nobody waits for a refresh that is late
			a.Rest = netPoll
		}
		read, err = c.await(patience, f, keys, a.old.seen, heldFor(a.Rest, 0), p)
	case a.State == remote.Void:
	default:
		quiet(a.Rest)
	}
	if now := c.gate.now(); err == nil && read.cp != nil && read.seen != a.old.seen && read.cp.servable(now) {
		return read.cp.result(OutcomeWaited, now)
	}
	return Result[V]{}, errNothingNew
}

// until is the time left of a ctx that has a deadline.
func until(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline)
}
