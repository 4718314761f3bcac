package herdgate

import (
	"context"
	"errors"
	"sync"
	"time"
)

// While Redis is out, this process goes on alone: it serves its copies, past their
// TTL too and as stale, and loads what it has none of, or a stale one, once. What is
// loaded is kept, also where there is no local tier, until Redis is back. Such a copy
// is of no gap: nothing tells of changes that others make.

// out reports whether Redis is known to be out for all keys, at no cost.
func (g *Gate) out() bool { return g.store != nil && g.store.Out() }

// out reports whether Redis is known to be out for key.
func (c *Cache[V]) out(ctx context.Context, key string) bool {
	s := c.gate.store
	return s != nil && !s.Healthy() && (s.Out() || s.Down(ctx, c.keys(key)) != nil)
}

// withoutCheck serves a copy that cannot be checked, as stale whatever its age. One past
// its TTL is loaded anew behind the call.
func (c *Cache[V]) withoutCheck(ctx context.Context, key string, p *plan[V], cp *copied[V], now time.Duration) (Result[V], error) {
	if cp.stale(now) {
		return c.serve(ctx, key, p, found[V]{cp: cp, seen: cp.seen}, OutcomeLocal, now)
	}
	r, err := cp.result(OutcomeStale, now)
	r.Stale = true
	return r, err
}

// behindAlone is what becomes of a refresh that Redis does not answer: a value past its
// TTL is loaded all the same, one that is only due ahead of it is not. quiet keeps the
// next refresh off for a while.
func (c *Cache[V]) behindAlone(f *flight[V], p *plan[V], cp *copied[V], cause error, quiet func(time.Duration)) (Result[V], error) {
	quiet(c.gate.options.RedisTimeout)
	now := c.gate.now()
	if f.Context().Err() != nil || cp != nil && !cp.stale(now) || c.failures.of(f.Key(), now) != nil {
		return Result[V]{}, cause
	}
	slot, ok := c.gate.trySlot(f.Context())
	if !ok {
		return Result[V]{}, cause
	}
	c.events.emit(Event{Kind: EventRefresh, Key: f.Key()})
	r, err := c.alone(f, p, slot, keepCopy)
	c.failures.note(f.Key(), p.policy, err, c.gate.now())
	return r, err
}

// loadWithout loads a value while Redis is out, and keeps a copy.
func (c *Cache[V]) loadWithout(f *flight[V], p *plan[V]) (Result[V], error) {
	if failed := c.failures.of(f.Key(), c.gate.now()); failed != nil {
		c.events.emit(Event{Kind: EventBackoff, Key: f.Key()})
		return Result[V]{}, &BackoffError{
			Cache: c.name, Key: f.Key(), Failures: failed.count, RetryAfter: failed.until - c.gate.now(), Reason: failed.reason,
		}
	}
	r, err := c.unlocked(f, p, keepCopy)
	c.failures.note(f.Key(), p.policy, err, c.gate.now())
	return r, err
}

// dropSpares drops the copies that were kept only because Redis was out.
func (c *Cache[V]) dropSpares() {
	c.copies.Each(func(key string) {
		s := c.stripe(key)
		s.mu.Lock()
		defer s.mu.Unlock()
		if cp := c.copies.Load(key); cp != nil && cp.spare {
			c.copies.Delete(key)
		}
	})
}

// failures are the marks of failed loads while Redis, which has those of the fleet, is
// out: nobody in this process tries again before the back-off has passed (I12).
type failures struct {
	mu sync.Mutex
	m  map[string]failure // protected by mu
}

type failure struct {
	count  int
	reason string
	until  time.Duration // the back-off
	forget time.Duration // then it counts no more; as in Redis, as much later again
}

// of is the failure of a key whose back-off runs, nil if there is none.
func (q *failures) of(key string, now time.Duration) *failure {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f, ok := q.m[key]; ok && now < f.until {
		return &f
	}
	return nil
}

// note takes down how a load of key has ended.
func (q *failures) note(key string, p *Policy, err error, now time.Duration) {
	failed, isLoad := errors.AsType[*LoadError](err)
	missing := errors.Is(err, ErrNotFound)
	if err != nil && !missing && (!isLoad || saysOnly(err, ErrWaitTimeout) || saysOnly(err, ErrNoLoader)) {
		return // the loader has not failed
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil || missing {
		delete(q.m, key)
		return
	}
	if q.m == nil {
		q.m = map[string]failure{}
	}
	sweep(q.m, func(f failure) bool { return now >= f.forget })
	f := q.m[key]
	if now >= f.forget {
		f.count = 0
	}
	backoff := p.backoff(f.count)
	q.m[key] = failure{count: f.count + 1, reason: failureReason(failed.Err), until: now + backoff, forget: now + 2*backoff}
}
