package herdgate

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/wire"
)

const (
	// askSlack is how long after the told end of a lease it is asked for: it was
	// renewed meanwhile, or its load ends just then, and the wake-up saves the question.
	askSlack = 30 * time.Millisecond
	// askSpread is over how long the waiting processes spread what they ask.
	askSpread = 20 * time.Millisecond
	// netPoll is how often a waiter looks although a wake-up should tell it.
	netPoll = time.Second
	// firstPoll is how soon it looks when wake-ups may be lost; the time doubles up to netPoll.
	firstPoll = 20 * time.Millisecond
)

// await waits until there may be another entry than the one of version seen (zero
// for none): a wake-up; or rest has passed, and the lease may be asked for again; or
// a poll finds one that can be served. It returns what it read last. An error is
// ctx's cause, or that of a read that Redis did not answer.
func (c *Cache[V]) await(ctx context.Context, f *flight[V], keys remote.Keys, seen wire.Seen, rest time.Duration, p *plan[V]) (read found[V], err error) {
	start := c.gate.now()
	ctx, end := c.gate.begin(ctx, StepWait, c.name, f.Key())
	defer func() {
		c.events.emit(Event{Kind: EventWait, Key: f.Key(), Duration: c.gate.now() - start})
		end(err)
	}()
	ask := time.NewTimer(rest + rand.N(askSpread))
	defer ask.Stop()
	poll := time.NewTimer(0)
	defer poll.Stop()
	for n := 0; ; n++ {
		f.State.wait()
		poll.Reset(c.pollAfter(n))
		woken := false
		select {
		case <-f.State.wakeUps():
			woken = true
		case <-poll.C:
		case <-ask.C:
			return read, nil
		case <-ctx.Done():
			return read, context.Cause(ctx)
		}
		read, err = c.read(ctx, f, keys, p)
		if err != nil || woken || read.newer || read.cp != nil && read.seen != seen && read.cp.servable(c.gate.now()) {
			return read, err
		}
	}
}

// pollAfter is the time until a waiter's poll number n, up to a tenth more.
func (c *Cache[V]) pollAfter(n int) time.Duration {
	d := netPoll
	if c.gate.gap.current() == inGap {
		d = min(firstPoll<<min(n, 10), netPoll)
	}
	return d + rand.N(d/10)
}

// impatient ends a call that has waited for WaitTimeout, or whose gate closes.
func (c *Cache[V]) impatient(patience context.Context, f *flight[V], p *plan[V]) (Result[V], error) {
	err := c.gaveUp(patience, f.Key())
	f.State.patience = 0
	if p.policy.AfterWait == LoadAfterWait && errors.Is(err, ErrWaitTimeout) {
		if slot, ok := c.gate.trySlot(patience); ok {
			return c.alone(f, p, slot, keepNothing)
		}
	}
	return Result[V]{}, err
}

// gaveUp says why patience is over.
func (c *Cache[V]) gaveUp(patience context.Context, key string) error {
	cause := context.Cause(patience)
	if !errors.Is(cause, ErrWaitTimeout) {
		return cause
	}
	c.events.emit(Event{Kind: EventWaitTimeout, Key: key})
	return c.failed(key, cause)
}

// quietKeys are the keys that are not to be refreshed for a while. The mark of a
// key counts for the version it was made for: a newer entry may be refreshed.
type quietKeys struct {
	mu sync.Mutex
	m  map[string]quietMark // protected by mu
}

type quietMark struct {
	seen  wire.Seen
	until time.Duration
}

func (q *quietKeys) holds(key string, seen wire.Seen, now time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	mark, ok := q.m[key]
	return ok && mark.seen == seen && now < mark.until
}

// put marks a key.
func (q *quietKeys) put(key string, seen wire.Seen, until, now time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.m == nil {
		q.m = map[string]quietMark{}
	}
	sweep(q.m, func(mark quietMark) bool { return now >= mark.until })
	q.m[key] = quietMark{seen: seen, until: until}
}

// sweep deletes a few entries that are over, for a map to which one is about to be
// added: more than are added, so that it does not grow past those that live.
func sweep[M any](m map[string]M, over func(M) bool) {
	looked := 0
	for key, mark := range m {
		if over(mark) {
			delete(m, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}
