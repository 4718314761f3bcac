package herdgate

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/herdgate/herdgate/internal/remote"
)

// deletesAtOnce is how many keys of one Delete are under way at once.
const deletesAtOnce = 16

// Set stores a value, as if it had been loaded now. Prefer to write to the source
// and Delete: of two Sets at the same time either may come last.
//
// When Set has returned nil, no load that began before it stores its value, and
// this process uses none from before it; other processes from when they get the
// message. A *[ChangeError] means that it has not happened, or that it is not known;
// it wraps [ErrNotStored] if Redis had no memory for the value, [ErrTooLarge] if it is
// larger than Policy.MaxSize, [ErrRedisTimeout] if Redis did not answer, [ErrClosed],
// ctx's error, or Redis's. Without Redis a value for which the local tier has no room
// is not kept, like one that it drops later.
func (c *Cache[V]) Set(ctx context.Context, key string, value V, options ...EntryOption) error {
	if err := c.entering(ctx, remote.OpSet, key); err != nil {
		return err
	}
	defer c.gate.calls.Done()
	p := c.plan(key).policy
	as := loaded[V]{content: content[V]{value: value}, load: Load[V]{key: key}}
	for _, option := range options {
		option(&as.load.settings)
	}
	if err := as.load.check(p); err != nil {
		return c.changeFailed(remote.OpSet, key, err)
	}
	generation, err := c.current(ctx)
	if err != nil {
		return c.unsent(ctx, key, err)
	}
	what := as.content
	if what.extended = as.load.extended(p); len(what.extended.Tags) > 0 {
		if what.extended.TagsAt, err = c.tagsAt(ctx); err != nil {
			return c.unsent(ctx, key, err)
		}
	}
	life := as.life(p)
	keys := c.keys(key)
	made, err := c.encode(keys, what, life, generation, p, body{})
	if err != nil {
		return c.changeFailed(remote.OpSet, key, fmt.Errorf("encode: %w", err))
	}
	what.value = c.cloned(value)
	cp := c.made(what, made, life, c.gate.now(), p)
	return c.send(ctx, keys, key, remote.Change{Op: remote.OpSet, Entry: made.entry, PX: life.hard}, cp)
}

// Delete removes keys, as many as named, so that the next call of each loads it
// anew. Call it after the source was changed, with a context that does not end with
// the request that changed it. It does what it can: the error joins a *[ChangeError]
// of each key that failed. One that matches ErrJournaled is made when Redis is back;
// for any other the old value can be served for what is left of its lifetime, also by
// this process, until a Delete succeeds: call it again. Keys are deleted side by side,
// 16 at a time, each within twice RedisTimeout. See Set for what a nil error promises.
func (c *Cache[V]) Delete(ctx context.Context, keys ...string) error {
	if len(keys) == 1 {
		return c.change(ctx, keys[0], remote.OpDelete)
	}
	var (
		all    errgroup.Group
		mu     sync.Mutex
		failed []error
	)
	all.SetLimit(deletesAtOnce)
	for _, key := range keys {
		all.Go(func() error {
			if err := c.change(ctx, key, remote.OpDelete); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
			return nil
		})
	}
	_ = all.Wait() // the goroutines keep their errors themselves
	return errors.Join(failed...)
}

// Expire marks a value stale: it is still served, and refreshed behind its callers,
// if the policy has a Stale window, and otherwise gone. See Set for what a nil
// error promises: it holds for values as fresh ones.
func (c *Cache[V]) Expire(ctx context.Context, key string) error {
	return c.change(ctx, key, remote.OpExpire)
}

// unsent is a Set before which Redis did not answer.
func (c *Cache[V]) unsent(ctx context.Context, key string, cause error) error {
	if remote.Answered(cause) || ctx.Err() != nil {
		return c.changeFailed(remote.OpSet, key, cause)
	}
	return c.journaled(remote.Change{Op: remote.OpSet, Key: key}, 0, cause)
}

// entering counts a change in, unless the gate is closed or ctx has ended. The caller
// ends it with calls.Done.
func (c *Cache[V]) entering(ctx context.Context, op remote.Op, key string) error {
	if !c.gate.enter() {
		return c.changeFailed(op, key, ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		c.gate.calls.Done()
		return c.changeFailed(op, key, err)
	}
	return nil
}

// change is a change of one key that needs nothing of Redis before it is sent.
func (c *Cache[V]) change(ctx context.Context, key string, op remote.Op) error {
	if err := c.entering(ctx, op, key); err != nil {
		return err
	}
	defer c.gate.calls.Done()
	return c.send(ctx, c.keys(key), key, remote.Change{Op: op}, nil)
}

// send sends a change. The epoch of its key moves when the reply is there, so
// that nothing read before it is kept, and once more by the message if the call
// gave up: then the change may come later.
func (c *Cache[V]) send(ctx context.Context, keys remote.Keys, key string, ch remote.Change, kept *copied[V]) error {
	ch.ID, ch.Cache, ch.Key, ch.Interval = randomHex(8), c.name, key, c.plan(key).policy.MinRebuildInterval
	if c.gate.store == nil {
		c.changeAlone(ctx, keys, ch, kept)
		return nil
	}
	// What the journal makes of a Set must be the last to come, also after copies of the
	// Set that are still on their way. A late Delete or Expire costs a load at most.
	var horizon int64
	if ch.Op == remote.OpSet {
		var err error
		if horizon, err = c.gate.store.Horizon(ctx, keys); err != nil {
			return c.journaled(ch, 0, err)
		}
	}
	c.gate.own.add(ch.ID)
	t := c.ticket(key)
	remembered := c.remember(ch.Op, key, nil)
	stored, err := c.builds.Change(ctx, keys, ch)
	if stored == remote.Done && (err == nil || errors.Is(err, ErrNotReplicated)) {
		c.replace(key, kept, t) // a value that was Set, if nothing else has changed since it was sent
		c.outdate(key)
		return c.took(ch.Op, key, err)
	}
	c.gate.recent.drop(remembered)
	switch {
	case err == nil && stored == remote.TooLate:
		c.gate.own.drop(ch.ID)
		return c.journaled(ch, horizon, errTooLate)
	case err == nil:
		err = ErrNotStored
	case !remote.Answered(err):
		c.gate.own.drop(ch.ID)
		return c.journaled(ch, horizon, err)
	}
	c.gate.own.drop(ch.ID)
	c.invalidate(key)
	return c.changeFailed(ch.Op, key, err)
}

// changeFailed is the end of a change that was not made, or of which it is not known, and
// that is not made later.
func (c *Cache[V]) changeFailed(op remote.Op, key string, err error) error {
	c.events.emit(Event{Kind: EventChangeFailed, Key: key, Err: err})
	return c.changeError(op, key, err)
}

// took is the end of a change that took effect. err is nil, or says that too few replicas
// have it.
func (c *Cache[V]) took(op remote.Op, key string, err error) error {
	c.events.emit(Event{Kind: EventChange, Key: key})
	if err == nil {
		return nil
	}
	c.events.emit(Event{Kind: EventNotReplicated, Key: key, Err: err})
	return c.changeError(op, key, err)
}

var errTooLate = errors.New("herdgate: the change reached Redis too late and was not made")

// changeAlone is a change without Redis: of the copy, which is the entry, and the
// build key in one step.
func (c *Cache[V]) changeAlone(ctx context.Context, keys remote.Keys, ch remote.Change, kept *copied[V]) {
	s := c.stripe(ch.Key)
	s.mu.Lock()
	_, _ = c.builds.Change(ctx, keys, ch) // cannot fail
	t := ticket{epoch: s.epoch.Add(1), gap: c.gate.gap.current()}
	old := c.copies.Load(ch.Key)
	switch {
	case kept != nil:
		c.put(ch.Key, kept, t)
	case ch.Op == remote.OpExpire && old != nil && old.hard > old.fresh:
		c.put(ch.Key, old.expired(c.gate.now()), t)
	default:
		c.copies.Delete(ch.Key)
	}
	s.mu.Unlock()
	c.outdate(ch.Key)
	c.events.emit(Event{Kind: EventChange, Key: ch.Key})
}

func (c *Cache[V]) changeError(op remote.Op, key string, err error) error {
	return &ChangeError{Op: string(op), Cache: c.name, Key: key, Err: err}
}
