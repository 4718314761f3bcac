package herdgate

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/herdgate/herdgate/internal/remote"
)

// Clear removes everything in the cache, everywhere, at the cost of one command: a
// new generation begins, in which no older entry counts. Nothing else that is stored
// in the same Redis is touched. The memory of the old entries is free when their
// lifetime ends. See [Cache.Set] for what a nil error promises, and for the errors.
func (c *Cache[V]) Clear(ctx context.Context) error {
	if err := c.entering(ctx, opClear, ""); err != nil {
		return err
	}
	defer c.gate.calls.Done()
	if alone, ok := c.builds.(*solo); ok {
		alone.clear(c.policy.MinRebuildInterval)
		c.wipe()
		c.events.emit(Event{Kind: EventChange})
		return nil
	}
	err := c.clear(ctx)
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		c.generation.forget()
		if !remote.Answered(err) {
			return c.journaledWhole(opClear, nil, err)
		}
		c.wipe()
		return c.changeFailed(opClear, "", err)
	}
	return c.took(opClear, "", err)
}

// clear returns nil, or an error that matches ErrNotReplicated, for a Clear that was made.
func (c *Cache[V]) clear(ctx context.Context) error {
	id := randomHex(8)
	c.gate.own.add(id)
	remembered := c.remember(opClear, "", nil)
	n, err := c.gate.store.Clear(ctx, c.name, id, c.generation.highest())
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		c.gate.own.drop(id)
		c.gate.recent.drop(remembered)
		return err
	}
	c.generation.hear(n)
	c.wipe() // also if the message was first: its wipe may still be under way
	return err
}

const opClear remote.Op = "clear"

// cleared is told of a generation by the bus.
func (c *Cache[V]) cleared(n uint64) {
	if c.generation.hear(n) {
		c.wipe()
	}
}

// wipe is what a change of all keys does in this process.
func (c *Cache[V]) wipe() {
	for i := range c.gate.stripes {
		s := &c.gate.stripes[i]
		s.mu.Lock()
		s.epoch.Add(1)
		s.mu.Unlock()
	}
	c.copies.Each(func(key string) {
		s := c.stripe(key)
		s.mu.Lock()
		c.copies.Delete(key)
		s.mu.Unlock()
	})
	for _, group := range c.groups() {
		group.All(func(f *flight[V]) {
			if f.State.outdate() {
				f.Detach()
			}
		})
	}
}

// current is the generation that entries must be of; it asks Redis if it is not known.
func (c *Cache[V]) current(ctx context.Context) (uint64, error) {
	if c.gate.store == nil {
		return 0, nil
	}
	g := &c.generation
	for range maxTurns {
		if n := g.n.Load(); n != 0 {
			return n, nil
		}
		asked := g.asking.DoChan("", func() (any, error) {
			turn := g.turn()
			// The others do not depend on the one whose question it is.
			n, err := c.gate.store.Generation(context.WithoutCancel(ctx), c.name)
			if err == nil {
				c.learn(n, turn)
			}
			return nil, err
		})
		select {
		case answer := <-asked:
			if answer.Err != nil {
				return 0, answer.Err
			}
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	return 0, errTurns
}

// maxTurns is how often the generation may change while it is asked for.
const maxTurns = 10

var errTurns = errors.New("herdgate: the cache is cleared faster than it can be read")

// due reports whether the generation is to be read again, in case that the message of
// a Clear was lost and nothing shows it: as often as a local copy is checked, and with
// the first heartbeat. The numbers of tags are then asked for again, too, by who needs
// them. turn is for learn.
func (c *Cache[V]) due(now time.Duration) (turn uint64, due bool) {
	every := 5 * time.Second
	if c.policy.LocalTTL != Off {
		every = min(every, c.policy.LocalTTL)
	}
	turn, due = c.generation.read(now, every)
	if due && c.tagged {
		c.tags.forget()
	}
	return turn, due
}

// doubt is what a loss of messages means for what they would have told.
func (c *Cache[V]) doubt() {
	c.generation.forget()
	c.tags.forget()
}

// learn takes a generation that was asked for when turns were so many.
func (c *Cache[V]) learn(n, turn uint64) {
	if c.generation.learn(n, turn) {
		c.wipe()
	}
}

// generation is what this process knows of the generation of a cache.
type generation struct {
	n      atomic.Uint64 // 0: not known
	asking singleflight.Group

	mu    sync.Mutex    // held while n changes; protects the fields below
	last  uint64        // the last one known
	high  uint64        // the highest one that was ever known: above last if that was lost
	turns uint64        // how often something was learned that a reply sent for before does not know
	next  time.Duration // when it is to be read again
}

func (g *generation) read(now, every time.Duration) (turn uint64, due bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if due = now >= g.next || g.n.Load() == 0; due {
		g.next = now + every
	}
	return g.turns, due
}

func (g *generation) turn() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns
}

// hear takes a generation that is known to have begun. It reports whether what this process
// has may be from before it. One that is lower has come late, or a master has lost the last
// one: the next call asks.
func (g *generation) hear(n uint64) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n == g.last {
		return false
	}
	g.turns++
	if n < g.last {
		g.n.Store(0)
		return true
	}
	return g.set(n)
}

func (g *generation) highest() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.high
}

// learn takes what a read said that was sent when turns were so many: then it is the
// truth, even if the number has fallen since its key was lost.
func (g *generation) learn(n, turn uint64) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if turn != g.turns && n <= g.last {
		return false
	}
	return g.set(n)
}

// set must be called with mu held. It reports whether another one was known before.
func (g *generation) set(n uint64) (changed bool) {
	changed = g.last != 0 && g.last != n
	g.last, g.high = n, max(g.high, n)
	g.n.Store(n)
	return changed
}

// forget makes the next call ask again.
func (g *generation) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turns++
	g.n.Store(0)
}
