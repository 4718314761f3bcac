package herdgate

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/wire"
	"github.com/herdgate/herdgate/singleflight"
)

// wanted is a key of a call for many. It needs a flight if it is not served from the local
// tier.
type wanted[V any] struct {
	request[V]

	result Result[V]
	err    error
}

// member is a key of a batch: one whose flight the batch has opened, and ends. Each
// key has a flight of its own, so that single calls and other batches can join it. A
// batch never waits for a flight: what it cannot do for a key at once it leaves to
// that key's flight, which goes on like one of a single call. So two batches with some
// keys in common cannot wait for each other.
type member[V any] struct {
	key  string
	f    *flight[V]
	p    *plan[V]
	keys remote.Keys

	old    found[V]  // the entry, as it was read last
	served wire.Seen // refreshes: version of the entry that the next hits are served
	ended  func()    // told before the flight ends; may be nil
	a      acquisition[V]
	err    error // of the last step
	slot   *loadSlot
	lease  *lease
	end    ending[V]

	dropped   atomic.Bool // a change, or the loss of the lease, came before its value
	concluded bool        // its lease has ended
	over      bool        // its flight has ended, or goes on by itself
}

// finish ends the member's flight.
func (m *member[V]) finish(r Result[V], err error) {
	m.over = true
	m.tellEnd()
	m.f.Finish(r, err)
}

// goOn leaves the member to its flight.
func (m *member[V]) goOn(with func(f *flight[V]) (Result[V], error)) {
	m.over = true
	m.f.Run(func(f *flight[V]) (Result[V], error) {
		r, err := with(f)
		m.tellEnd()
		return r, err
	})
}

func (m *member[V]) tellEnd() {
	if m.ended != nil {
		m.ended()
	}
}

// many gets keys, none of them twice. What due tells of what it serves is refreshed:
// behind are the flights that do.
func (c *Cache[V]) many(ctx context.Context, keys []string, due func(*copied[V], time.Duration) bool) (all []wanted[V], behind []*flight[V]) {
	start := c.gate.now()
	all = make([]wanted[V], len(keys))
	var missing []*wanted[V]
	var stale []*member[V]
	type softly[V any] struct {
		w *wanted[V]
		m *member[V]
	}
	var soft []softly[V]
	for i, key := range keys {
		w := &all[i]
		w.request = *newRequest(key, c.plan(key), start)
		c.kept.of(key).touch(start)
		cp, now := c.unchecked(key)
		if cp == nil {
			missing = append(missing, w)
			continue
		}
		w.result, w.err = cp.result(OutcomeLocal, now)
		if patient := w.p.waitsSoftly(cp, now); w.p.loads() && (patient || due(cp, now)) {
			m := &member[V]{key: key, p: w.p, keys: c.keys(key), old: found[V]{cp: cp, seen: cp.seen}}
			stale = append(stale, m)
			if patient {
				soft = append(soft, softly[V]{w, m})
			}
		}
	}
	behind = c.refreshMany(ctx, stale, OutcomeLocal)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	for _, s := range soft {
		if s.m.f != nil {
			waiting.Go(func() { s.w.result, s.w.err = c.softly(ctx, s.m.f, s.w.p, s.m.old, OutcomeLocal) })
		}
	}
	if len(missing) == 0 {
		return all, behind
	}
	b := &batch[V]{c: c, due: due, start: start, swept: make(chan struct{})}
	if err := b.open(ctx, missing); err != nil {
		for _, w := range missing {
			w.err = err
		}
		return all, behind
	}
	select {
	case <-b.swept:
		behind = append(behind, b.behind...)
	case <-ctx.Done():
	}
	for _, w := range missing {
		wait := func() { w.result, w.err = c.join(ctx, &w.request) }
		select {
		case <-w.flight.Done():
			wait()
		default:
			waiting.Go(wait)
		}
	}
	return all, behind
}

// batch is the work for the keys of one call that nobody in this process worked for.
type batch[V any] struct {
	c       *Cache[V]
	members []*member[V]
	due     func(*copied[V], time.Duration) bool
	start   time.Duration
	swept   chan struct{} // closed when every member was read
	behind  []*flight[V]  // refreshes of what was served; written before swept is closed
}

// open finds or opens a flight for each key, and lets the batch begin.
func (b *batch[V]) open(ctx context.Context, missing []*wanted[V]) error {
	g := b.c.gate
	g.life.RLock()
	defer g.life.RUnlock()
	if g.closed.Load() {
		return ErrClosed
	}
	for _, w := range missing {
		w.flight, w.joined = b.c.flights.Open(ctx, w.key)
		if !w.joined {
			b.members = append(b.members, &member[V]{key: w.key, f: w.flight, p: w.p, keys: b.c.keys(w.key)})
		}
	}
	if len(b.members) == 0 {
		close(b.swept)
		return nil
	}
	g.calls.Go(b.run)
	return nil
}

func (b *batch[V]) run() {
	defer b.c.abort(b.members)
	byPlan(b.sweep(), func(p *plan[V], ms []*member[V]) { b.c.rebuildMany(p, ms, 0) })
}

// sweep reads all members, ends the flights of those that can be served, and returns
// those that are to be rebuilt.
func (b *batch[V]) sweep() (cold []*member[V]) {
	defer close(b.swept)
	c := b.c
	for _, m := range b.members {
		m.f.State.patience = m.p.policy.WaitTimeout - (c.gate.now() - b.start)
	}
	c.readMany(b.members)
	var stale []*member[V]
	soft := map[*member[V]]*member[V]{} // to their refreshes
	for _, m := range b.members {
		now := c.gate.now()
		switch {
		case isPanic(m.err):
			m.finish(Result[V]{}, m.err)
		case m.err != nil:
			m.goOn(func(f *flight[V]) (Result[V], error) { return c.degraded(f, m.p, m.err) })
		case m.old.newer:
			m.goOn(func(f *flight[V]) (Result[V], error) { return c.unlocked(f, m.p, keepUnshared) })
		case m.old.cp != nil && m.old.cp.servable(now):
			patient := m.p.waitsSoftly(m.old.cp, now)
			if m.p.loads() && (patient || b.due(m.old.cp, now)) {
				stale = append(stale, &member[V]{key: m.key, p: m.p, keys: m.keys, old: m.old})
				if patient {
					soft[m] = stale[len(stale)-1]
					continue
				}
			}
			m.finish(m.old.cp.result(OutcomeRemote, now))
		case !m.p.loads():
			m.finish(Result[V]{}, c.failed(m.key, ErrNoLoader))
		default:
			cold = append(cold, m)
		}
	}
	b.behind = c.refreshMany(b.members[0].f.Context(), stale, OutcomeRemote)
	for m, refresh := range soft {
		if refresh.f == nil {
			m.finish(m.old.cp.result(OutcomeRemote, c.gate.now()))
			continue
		}
		m.goOn(func(f *flight[V]) (Result[V], error) {
			return c.softly(f.Context(), refresh.f, m.p, m.old, OutcomeRemote)
		})
	}
	return cold
}

// readMany reads the entries of members, in one step.
func (c *Cache[V]) readMany(ms []*member[V]) {
	ctx := ms[0].f.Context()
	if c.gate.store == nil {
		for _, m := range ms {
			m.old, m.err = c.read(ctx, m.f, m.keys, m.p)
		}
		return
	}
	if _, err := c.current(ctx); err != nil {
		for _, m := range ms {
			m.err = err
		}
		return
	}
	for _, m := range ms {
		m.a.ticket = m.f.State.depart(func() ticket { return c.ticket(m.key) })
	}
	// After the tickets, as in read.
	ms = slices.DeleteFunc(slices.Clone(ms), func(m *member[V]) bool {
		if c.gate.journal.holds(c.name, m.key) {
			m.err = ErrJournaled
		}
		return m.err != nil
	})
	if len(ms) == 0 {
		return
	}
	answers := c.gate.store.ReadMany(ctx, keysOf(ms))
	c.learnTags(ctx, ms, answers)
	for i, answer := range answers {
		m := ms[i]
		m.old, m.err = singleflight.Protect(func() (found[V], error) { // hooks of the user look at the value
			return c.received(m.f.Context(), m.f, m.keys, answer.Value, c.gate.now(), answer.Err, m.a.ticket, m.p)
		})
	}
}

// acquireMany asks for the leases of members, in one step. ms must not be empty.
func (c *Cache[V]) acquireMany(p *plan[V], ms []*member[V], wait bool) {
	ctx, end := c.gate.begin(ms[0].f.Context(), StepAcquire, c.name, ms[0].key)
	defer func() { end(ms[0].err) }()
	c.lockOuterMany(ms)
	defer c.unlockRefused(ms)
	asks := make([]remote.Acquire, len(ms))
	for i, m := range ms {
		m.a, asks[i] = c.asking(m.f, m.keys, m.old, p, wait, m.a.outer)
	}
	if c.tagged {
		n, err := c.tagsAt(ctx)
		for _, m := range ms {
			m.a.tagsAt, m.err = n, err
		}
		if err != nil {
			return
		}
	}
	// Not cancelled when the gate closes: what may have been granted must be let go.
	ctx = context.WithoutCancel(ctx)
	var answers []remote.Answer[remote.Found]
	if c.gate.store != nil {
		answers = c.gate.store.AcquireMany(ctx, keysOf(ms), asks)
	}
	for i, m := range ms {
		var found remote.Found
		if c.gate.store != nil {
			found, m.err = answers[i].Value, answers[i].Err
		} else {
			found, m.err = c.builds.Acquire(ctx, m.keys, asks[i])
		}
		c.asked(m.f, &m.a, found)
	}
}

// learnTags asks for the numbers of all tags of these entries that are not known, in
// one step: the check of each entry would ask for its own.
func (c *Cache[V]) learnTags(ctx context.Context, ms []*member[V], entries []remote.Answer[[]byte]) {
	unknown := map[string]struct{}{}
	for i, e := range entries {
		if !wire.HasExtended(e.Value) {
			continue
		}
		_, payload, err := wire.Parse(e.Value, c.want(ms[i].keys, ms[i].a.ticket.generation))
		if err != nil {
			continue
		}
		if x, _, err := wire.CutExtended(payload); err == nil {
			if _, known := c.tags.outdates(x); !known {
				for _, tag := range x.Tags {
					unknown[tag] = struct{}{}
				}
			}
		}
	}
	for tags := range slices.Chunk(slices.Collect(maps.Keys(unknown)), tagsAtOnce) {
		turn := c.tags.turn.Load()
		if sequence, numbers, err := c.gate.store.Tags(ctx, c.name, tags, c.tagLife()); err == nil {
			c.tags.learn(turn, sequence, tags, numbers)
		}
	}
}

// tagsAtOnce is how many tags one command asks for.
const tagsAtOnce = 1000

// rebuildMany is rebuild for members of one plan. It builds those whose leases it is
// granted, and leaves to their flights those that have to wait: for a load slot, or for
// another process. It begins when rest has passed.
func (c *Cache[V]) rebuildMany(p *plan[V], ms []*member[V], rest time.Duration) {
	defer c.abort(ms)
	patience, cancel := context.WithTimeoutCause(ms[0].f.Context(), ms[0].f.State.patience, ErrWaitTimeout)
	defer cancel()
	shared, err := c.sharedSlot(patience, p, ms, rest)
	if err != nil {
		for _, m := range ms {
			m.goOn(func(f *flight[V]) (Result[V], error) { return c.impatient(patience, f, p) })
		}
		return
	}
	for _, m := range ms {
		m.f.State.patience = until(patience)
	}
	slotted, slotless := c.slots(shared, ms)
	for _, m := range slotless {
		m.goOn(func(f *flight[V]) (Result[V], error) { return c.rebuild(f, m.keys, m.old, p, nil) })
	}
	won, resting, rest := c.bid(p, slotted, shared, until(patience))
	var building sync.WaitGroup
	building.Go(func() { c.buildMany(p, won, shared) })
	defer building.Wait()
	if len(resting) > 0 {
		for _, m := range resting {
			m.f.State.patience = until(patience)
			m.f.State.wait()
		}
		c.rebuildMany(p, resting, rest)
	}
}

// bid asks for the leases of members that have a slot. Those that are in nobody's hands
// but rest for a while are returned with the time after which they can be asked for
// again, if that is not long: they stay a batch. left is how long they may wait.
func (c *Cache[V]) bid(p *plan[V], ms []*member[V], shared *loadSlot, left time.Duration) (won, resting []*member[V], rest time.Duration) {
	if len(ms) == 0 {
		return nil, nil, 0
	}
	c.acquireMany(p, ms, true)
	for _, m := range ms {
		state := m.a.State
		switch {
		case m.err == nil && state == remote.Granted:
			won = append(won, m)
			continue
		case m.err == nil && state == remote.Pass && shared == nil:
			slot := m.slot
			m.goOn(func(f *flight[V]) (Result[V], error) { return c.alone(f, p, slot, keepNothing) })
			continue
		}
		m.release(shared)
		switch {
		case m.err != nil:
			m.goOn(func(f *flight[V]) (Result[V], error) { return c.degraded(f, p, m.err) })
		case state == remote.Pass:
			m.goOn(func(f *flight[V]) (Result[V], error) { return c.unlocked(f, p, keepNothing) })
		case state == remote.Cooling, state == remote.Failed && p.policy.waitsOut(m.a.Rest, left):
			resting, rest = append(resting, m), max(rest, m.a.Rest)
		default:
			m.goOn(func(f *flight[V]) (Result[V], error) { return c.rebuild(f, m.keys, m.old, p, &m.a) })
		}
	}
	return won, resting, rest
}

// sharedSlot waits until rest has passed, and then for the load slot of members that
// are loaded together. It is nil for members that are loaded one by one.
func (c *Cache[V]) sharedSlot(patience context.Context, p *plan[V], ms []*member[V], rest time.Duration) (*loadSlot, error) {
	if rest > 0 {
		timer := time.NewTimer(rest + rand.N(askSpread))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-patience.Done():
			return nil, context.Cause(patience)
		}
	}
	if _, together := p.loader.(BatchLoader[V]); !together {
		return nil, nil
	}
	flights := make([]*work, len(ms))
	for i, m := range ms {
		flights[i] = &m.f.State
	}
	return c.patientSlot(patience, flights...)
}

// slots gives members a load slot each, as far as there are any, unless they share one.
func (c *Cache[V]) slots(shared *loadSlot, ms []*member[V]) (slotted, slotless []*member[V]) {
	if shared != nil {
		return ms, nil
	}
	for _, m := range ms {
		if slot, ok := c.gate.trySlot(m.f.Context()); ok {
			m.slot = slot
			slotted = append(slotted, m)
		} else {
			slotless = append(slotless, m)
		}
	}
	return slotted, slotless
}

// release gives the slot of a member back, unless it is a shared one.
func (m *member[V]) release(shared *loadSlot) {
	if shared == nil {
		m.slot.release()
	}
}

// returned is what came of the load of a member.
type returned[V any] struct {
	m   *member[V]
	got loaded[V]
}

// buildMany is build for members of one plan whose leases were granted: all in one call
// of the loader, if they share a slot, else each in one of its own. What comes back at
// the same time is stored in one step.
func (c *Cache[V]) buildMany(p *plan[V], granted []*member[V], shared *loadSlot) {
	defer c.abort(granted)
	leases := c.gate.store.LeasesTogether()
	taken := make([]bool, len(granted))
	var asking sync.WaitGroup
	for i, m := range granted {
		if c.doubtful(m.f) {
			asking.Go(func() { taken[i] = c.taken(m.f, leases, m.a, p) })
		}
	}
	asking.Wait()
	ms := make([]*member[V], 0, len(granted))
	for i, m := range granted {
		r, needless, err := c.needless(m.f, m.a)
		if taken[i] {
			needless, err = true, errRestart
		}
		if needless {
			m.release(shared)
			c.finish(m.f, m.keys, c.finishing(m.key, m.a, p, remote.Finish{State: remote.FinishNothing}))
			c.unlockOuter(m.f, m.a.outer)
			m.concluded = true
			m.finish(r, err)
			continue
		}
		ms = append(ms, m)
	}
	if len(ms) == 0 {
		if shared != nil {
			shared.release()
		}
		return
	}
	for _, m := range ms {
		m.lease = c.hold(m.f, leases, m.a, p)
	}
	results := make(chan []returned[V], 2*len(ms)) // each comes back at most twice: dropped, and loaded
	var loaders sync.WaitGroup
	if shared != nil {
		loaders.Go(func() { c.runMany(p, ms, shared, results) })
	} else {
		for _, m := range ms {
			loaders.Go(func() { results <- []returned[V]{{m, c.run(m.f, p, m.a.old.cp, m.lease, m.slot)}} })
		}
	}
	defer loaders.Wait()
	own := map[*stripe]uint64{}
	for left := len(ms); left > 0; {
		together := <-results
		for more := true; more; {
			select {
			case others := <-results:
				together = append(together, others...)
			default:
				more = false
			}
		}
		left -= c.concludeMany(p, together, own)
	}
}

// runMany runs a batch loader for members. A member whose key changes, or whose lease
// is lost, comes back at once; the others go on.
func (c *Cache[V]) runMany(p *plan[V], ms []*member[V], slot *loadSlot, results chan<- []returned[V]) {
	first := ms[0]
	ctx, end := c.gate.begin(first.f.Context(), StepLoad, c.name, first.key)
	ctx, cancel := context.WithCancelCause(c.gate.withSlot(ctx))
	defer cancel(nil)
	var left atomic.Int64
	left.Store(int64(len(ms)))
	var unwatch []func()
	for _, m := range ms {
		drop := func(cause error) {
			if m.dropped.Swap(true) {
				return
			}
			results <- []returned[V]{{m, loaded[V]{err: cause, cause: cause}}}
			if left.Add(-1) == 0 {
				cancel(cause)
			}
		}
		unwatch = append(unwatch,
			m.lease.onLoss(func(err error) {
				c.events.emit(Event{Kind: EventLeaseLost, Key: m.key, Err: err})
				drop(err)
			}),
			m.f.State.load(func() {
				c.events.emit(Event{Kind: EventLeaseRevoked, Key: m.key})
				drop(ErrRevoked)
			}))
		// The gate cancels the flights that it still knows: the first one may have ended.
		closed := context.AfterFunc(m.f.Context(), func() { cancel(context.Cause(m.f.Context())) })
		unwatch = append(unwatch, func() { closed() })
	}
	ctx, stop := context.WithTimeoutCause(ctx, p.policy.LoadTimeout, ErrLoadTimeout)
	defer stop()

	start := c.gate.now()
	loads := make([]*Load[V], len(ms))
	for i, m := range ms {
		loads[i] = newLoad(m.key, m.a.old.cp, start)
	}
	type batchLoaded struct {
		values map[string]V
		err    error
	}
	got, abandoned := runLoader(ctx, c.gate, slot, batchLoaded{err: singleflight.ErrGoexit}, func(got *batchLoaded) {
		got.values, got.err = singleflight.Protect(func() (map[string]V, error) {
			return p.loader.(BatchLoader[V]).LoadMany(ctx, loads)
		})
	}, func(late batchLoaded) {
		for _, m := range ms {
			if _, ok := late.values[m.key]; ok {
				c.events.emit(Event{Kind: EventCommitRefused, Key: m.key})
			}
		}
	})
	crashed := isPanic(got.err) || errors.Is(got.err, singleflight.ErrGoexit)
	cause := context.Cause(ctx)
	for _, stop := range unwatch {
		stop()
	}
	all := make([]returned[V], len(ms))
	for i, m := range ms {
		var one loaded[V]
		switch {
		case abandoned:
			one.err = cause
			c.events.emit(Event{Kind: EventAbandoned, Key: m.key})
		case loads[i].unmodified && !crashed:
			one.load = *loads[i]
		default:
			one.load = *loads[i]
			one.value, one.err = answered(got.values, m.key, partial(got.err))
		}
		c.judge(&one, m.key, p, m.a.old.cp, start, cause)
		all[i] = returned[V]{m, one}
	}
	end(got.err)
	results <- all
}

// concludeMany ends the leases of members by what has come of their loads, and their
// flights. It returns how many those are.
func (c *Cache[V]) concludeMany(p *plan[V], together []returned[V], own map[*stripe]uint64) (n int) {
	var commits, finishes []*member[V]
	for _, r := range together {
		m := r.m
		if m.concluded {
			if r.got.err == nil { // loaded after all, for a lease that was not held any more
				c.events.emit(Event{Kind: EventCommitRefused, Key: m.key})
			}
			continue
		}
		m.concluded = true
		n++
		m.lease.stop()
		var err error
		m.end, err = singleflight.Protect(func() (ending[V], error) { // hooks of the user look at the value
			return c.ending(m.key, m.keys, m.a, p, r.got), nil
		})
		if err != nil {
			m.end = ending[V]{err: err, finish: c.panicked(m.key, m.a, p)}
		}
		switch {
		case c.gate.store == nil:
			m.finish(c.settle(m.f, m.keys, m.a, m.end))
		case m.end.commit != nil:
			commits = append(commits, m)
		default:
			finishes = append(finishes, m)
		}
	}
	c.commitMany(commits, own)
	c.finishMany(finishes)
	return n
}

// commitMany stores the entries of members, in one step. own counts how often this
// batch itself has moved the epochs of stripes since it took its tickets: keys on one
// stripe do not make each other's copies old.
func (c *Cache[V]) commitMany(ms []*member[V], own map[*stripe]uint64) {
	if len(ms) == 0 {
		return
	}
	ctx, end := c.gate.begin(ms[0].f.Context(), StepCommit, c.name, ms[0].key)
	commits := make([]remote.Commit, len(ms))
	for i, m := range ms {
		commits[i] = *m.end.commit
	}
	answers := c.gate.store.CommitMany(context.WithoutCancel(ctx), keysOf(ms), commits)
	end(answers[0].Err)
	c.unlockOuterMany(ms)
	for i, m := range ms {
		stored, err := answers[i].Value, answers[i].Err
		s, t := c.stripe(m.key), m.a.ticket
		t.epoch += own[s]
		if c.keepStored(m.key, m.end.cp, t, stored, err) {
			own[s]++
		}
		c.tellStored(m.key, stored, err)
		m.f.State.early = m.end.cp.early
		m.finish(m.end.result, m.end.err)
	}
}

// finishMany lets the leases of members go without an entry, in one step.
func (c *Cache[V]) finishMany(ms []*member[V]) {
	if len(ms) == 0 {
		return
	}
	how := make([]remote.Finish, len(ms))
	for i, m := range ms {
		how[i] = m.end.finish
		c.dropping(how[i])
	}
	c.gate.store.FinishMany(context.WithoutCancel(ms[0].f.Context()), keysOf(ms), how)
	c.unlockOuterMany(ms)
	for i, m := range ms {
		c.dropped(how[i])
		m.finish(m.end.result, m.end.err)
	}
}

// refreshMany is refresh for what a call for many was served: ms, which have no flights
// yet, and get those that refresh them. It returns them, too.
func (c *Cache[V]) refreshMany(ctx context.Context, ms []*member[V], from Outcome) (behind []*flight[V]) {
	if len(ms) == 0 {
		return nil
	}
	ctx = c.gate.withoutSlot(ctx)
	c.gate.life.RLock()
	defer c.gate.life.RUnlock()
	if c.gate.closed.Load() {
		return nil
	}
	var opened []*member[V]
	for _, m := range ms {
		if m.served = m.old.seen; c.isQuiet(m) {
			continue
		}
		f, joined := c.refreshes.Open(ctx, m.key)
		behind = append(behind, f)
		m.f = f
		if !joined {
			m.ended = func() { c.looked(f) }
			opened = append(opened, m)
		}
	}
	if len(opened) > 0 {
		c.gate.calls.Go(func() { c.behindMany(opened, from) })
	}
	return behind
}

func (c *Cache[V]) isQuiet(m *member[V]) bool { return c.quiet.holds(m.key, m.served, c.gate.now()) }

func (c *Cache[V]) quieten(m *member[V], d time.Duration) {
	c.quiet.put(m.key, m.served, c.gate.now()+d, c.gate.now())
}

// behindMany is behind for many.
func (c *Cache[V]) behindMany(ms []*member[V], from Outcome) {
	defer c.abort(ms)
	if from == OutcomeLocal {
		c.readMany(ms)
	}
	var due []*member[V]
	for _, m := range ms {
		if isPanic(m.err) {
			m.finish(Result[V]{}, m.err)
			continue
		}
		if from == OutcomeLocal {
			if r, due, err := c.stillDue(m.old, m.err, func(d time.Duration) { c.quieten(m, d) }); !due {
				m.finish(r, err)
				continue
			}
			if m.old.cp != nil {
				m.served = m.old.seen
			}
		}
		if c.isQuiet(m) { // the refresh before this one has ended since its caller looked
			m.finish(Result[V]{}, errNothingNew)
			continue
		}
		due = append(due, m)
	}
	byPlan(due, c.refreshPlan)
}

// refreshPlan refreshes members of one plan.
func (c *Cache[V]) refreshPlan(p *plan[V], ms []*member[V]) {
	defer c.abort(ms)
	var shared *loadSlot
	slotted, slotless := ms, ms[:0:0]
	if _, together := p.loader.(BatchLoader[V]); !together {
		slotted, slotless = c.slots(nil, ms)
	} else if slot, ok := c.gate.trySlot(ms[0].f.Context()); ok {
		shared = slot
	} else {
		slotted, slotless = nil, ms
	}
	for _, m := range slotless {
		c.quieten(m, 10*askPause)
		m.finish(Result[V]{}, errNothingNew)
	}
	if len(slotted) == 0 {
		return
	}
	c.acquireMany(p, slotted, c.refreshWaits(p))
	var won []*member[V]
	for _, m := range slotted {
		if m.err == nil && m.a.State == remote.Granted {
			c.events.emit(Event{Kind: EventRefresh, Key: m.key})
			won = append(won, m)
			continue
		}
		m.release(shared)
		m.goOn(func(f *flight[V]) (Result[V], error) {
			return c.notRefreshed(f, m.keys, m.a, m.err, p, func(d time.Duration) { c.quieten(m, d) })
		})
	}
	c.buildMany(p, won, shared)
}

// abort ends the flights and leases of members that are left over: those of a batch
// whose goroutine a hook of the user has ended.
func (c *Cache[V]) abort(ms []*member[V]) {
	for _, m := range ms {
		if m.over {
			continue
		}
		if m.a.State == remote.Granted {
			m.lease.stop()
			c.finish(m.f, m.keys, c.panicked(m.key, m.a, m.p))
			c.unlockOuter(m.f, m.a.outer)
		}
		m.finish(Result[V]{}, singleflight.ErrGoexit)
	}
}

// byPlan does the work for the members of each plan, side by side.
func byPlan[V any](ms []*member[V], work func(p *plan[V], ms []*member[V])) {
	plans := map[*plan[V]][]*member[V]{}
	for _, m := range ms {
		plans[m.p] = append(plans[m.p], m)
	}
	var all sync.WaitGroup
	for p, of := range plans {
		all.Go(func() { work(p, of) })
	}
	all.Wait()
}

func keysOf[V any](ms []*member[V]) []remote.Keys {
	keys := make([]remote.Keys, len(ms))
	for i, m := range ms {
		keys[i] = m.keys
	}
	return keys
}
