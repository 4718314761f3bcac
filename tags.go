package herdgate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/wire"
)

// InvalidateTags removes every value, and every remembered not-found, that has at least
// one of the tags (Policy.Tags, [Load.SetTags], [EntryTags]), at the cost of one
// command, however many there are. It is as exact as [Cache.Delete] of each of the
// keys: see [Cache.Set] for what a nil error promises, and for the errors. A load that
// began before is not served to calls that begin after, whatever tags its loader sets
// in the end.
func (c *Cache[V]) InvalidateTags(ctx context.Context, tags ...string) error {
	names := strings.Join(tags, ", ")
	if err := c.entering(ctx, opTags, names); err != nil {
		return err
	}
	defer c.gate.calls.Done()
	var short error
	for some := range slices.Chunk(tags, wire.MaxTags) {
		if want := wire.CheckTags(some); want != "" {
			return c.changeFailed(opTags, names, &ConfigError{Field: "tags", Value: names, Want: want})
		}
		if err := c.raise(ctx, some); errors.Is(err, ErrNotReplicated) {
			short = err
		} else if err != nil {
			if !remote.Answered(err) {
				return c.journaledWhole(opTags, tags, err)
			}
			return c.changeFailed(opTags, names, err)
		}
	}
	return c.took(opTags, names, short)
}

const opTags remote.Op = "invalidate tags"

// raise returns nil, or an error that matches ErrNotReplicated, for what was made.
func (c *Cache[V]) raise(ctx context.Context, tags []string) error {
	if c.gate.store == nil {
		c.raised(tags, c.tags.next())
		return nil
	}
	id := randomHex(8)
	c.gate.own.add(id)
	remembered := c.remember(opTags, "", slices.Clone(tags)) // the caller's own
	n, err := c.gate.store.RaiseTags(ctx, c.name, id, tags, c.tagLife(), c.tags.highest())
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		c.gate.own.drop(id)
		c.gate.recent.drop(remembered)
		// It may have happened. Which copies have one of the tags is only known by
		// numbers that are not known now.
		c.tags.forget()
		c.wipe()
		return err
	}
	c.raised(tags, n)
	return err
}

// raised is what an invalidation of tags does in this process. Flights that read or
// load may have one of the tags, and are from before; their loaders run on, since what
// they load carries the number from before, and mostly other tags.
func (c *Cache[V]) raised(tags []string, n uint64) {
	c.tags.raise(tags, n)
	for _, group := range c.groups() {
		group.All(func(f *flight[V]) {
			if f.State.busy() {
				f.Detach()
			}
		})
	}
}

// tagLife is how long Redis keeps a tag that nobody asks for. It should outlast the
// entries: what has a tag that is gone counts as invalid.
func (c *Cache[V]) tagLife() time.Duration {
	return max(24*time.Hour, min(2*(c.policy.TTL+c.policy.Stale), maxLifetime))
}

// tagsAt is the number that what is loaded, or set, from now on is stored with: that of
// the sequence, or a lower one, which would only invalidate too much. After a fall of the
// sequence that is not noticed yet it is a higher one, with which an entry is invalid.
func (c *Cache[V]) tagsAt(ctx context.Context) (uint64, error) {
	if n := c.tags.sequence(); n != 0 || c.gate.store == nil {
		return n, nil
	}
	turn := c.tags.turn.Load()
	n, _, err := c.gate.store.Tags(ctx, c.name, nil, c.tagLife())
	if err != nil {
		return 0, err
	}
	c.tags.learn(turn, n, nil, nil)
	return n, nil
}

// holds reports whether no tag of a stored entry was invalidated since it was loaded.
// It asks Redis for the numbers that are not known.
func (c *Cache[V]) holds(ctx context.Context, x wire.Extended) (bool, error) {
	if outdated, known := c.tags.outdates(x); outdated || known {
		return !outdated, nil
	}
	turn := c.tags.turn.Load()
	sequence, numbers, err := c.gate.store.Tags(ctx, c.name, x.Tags, c.tagLife())
	if err != nil {
		return false, err
	}
	c.tags.learn(turn, sequence, x.Tags, numbers)
	if x.TagsAt > sequence { // which has fallen, in a failover: its tags may have been invalidated since, with lower numbers
		return false, nil
	}
	if slices.ContainsFunc(numbers, func(n uint64) bool { return n > x.TagsAt }) {
		return false, nil
	}
	outdated, _ := c.tags.outdates(x) // by what was told meanwhile
	return !outdated, nil
}

// holds reports whether no tag of a copy is known, or may be, to be invalid. It costs
// nothing while no number has changed since the last time.
func (t *tagBook) holds(x wire.Extended, seen *atomic.Uint64) bool {
	turn := t.turn.Load()
	if seen.Load() == turn {
		return true
	}
	outdated, known := t.outdates(x)
	if outdated || !known {
		return false
	}
	seen.Store(turn)
	return true
}

// maxBook is how many tags a process remembers the number of.
const maxBook = 1 << 16

// tagBook is what this process knows of the numbers of a cache's tags.
type tagBook struct {
	turn atomic.Uint64 // another one each time that a number may have changed; never 0

	mu       sync.Mutex // held while turn changes; protects the fields below
	seq      uint64     // of the sequence, or a lower one; 0: not known
	high     uint64     // the highest that was ever known
	numbers  map[string]tagNumber
	edition  uint64 // counts how often all were forgotten
	complete bool   // without Redis: a tag that is not in numbers has the number floor
	floor    uint64 // at least that of each tag that was dropped from numbers
}

// tagNumber is the number of a tag. It outlives that it is forgotten: the tag may have a
// higher one by then, but what this process knew to be invalid stays so.
type tagNumber struct {
	n       uint64
	edition uint64 // it is known while this is the book's
}

func newTagBook(complete bool) *tagBook {
	t := &tagBook{complete: complete, numbers: map[string]tagNumber{}}
	t.turn.Store(1)
	return t
}

// outdates reports whether a tag of x is known to have been invalidated since x was
// loaded, and otherwise whether all of them are known not to.
func (t *tagBook) outdates(x wire.Extended) (outdated, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known = t.complete || x.TagsAt <= t.seq // else there is more to be known, or the sequence has fallen
	for _, tag := range x.Tags {
		number, ok := t.numbers[tag]
		switch {
		case !t.complete && (!ok || number.edition != t.edition):
			known = false
			continue
		case !ok:
			number.n = t.floor
		}
		if number.n > x.TagsAt {
			return true, true
		}
	}
	return false, known
}

// outdated reports whether a tag of x was ever known to have been invalidated since x was
// loaded, or may have been and the book was too small.
func (t *tagBook) outdated(x wire.Extended) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(x.Tags, func(tag string) bool {
		if number, ok := t.numbers[tag]; ok {
			return number.n > x.TagsAt
		}
		return t.floor > x.TagsAt
	})
}

func (t *tagBook) sequence() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seq
}

func (t *tagBook) highest() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.high
}

// see must be called with mu held.
func (t *tagBook) see(n uint64) {
	t.seq = max(t.seq, n)
	t.high = max(t.high, n)
}

// next is the number of an invalidation without Redis.
func (t *tagBook) next() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	return t.seq
}

// raise takes an invalidation.
func (t *tagBook) raise(tags []string, n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn.Add(1)
	if n < t.high && !t.complete {
		t.seq = 0 // it has come late, or the sequence has fallen in a failover: who needs it asks
	} else {
		t.see(n)
	}
	t.put(tags, func(int) uint64 { return n })
}

// learn takes the reply to a read that was sent at a turn. What was told since then
// may be newer: the reply's numbers then hold for the one who asked, and are not kept.
func (t *tagBook) learn(turn, sequence uint64, tags []string, numbers []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if turn == t.turn.Load() {
		switch {
		case sequence > t.high: // so that a reply that is older, and comes later, is not kept
			t.turn.Add(1)
			t.see(sequence)
		case sequence < t.high && sequence != t.seq: // it has fallen: the numbers from before are above all that come
			t.seq = sequence
			t.edition++
		default:
			t.see(sequence)
		}
		t.put(tags, func(i int) uint64 { return numbers[i] })
	}
}

// put must be called with mu held.
func (t *tagBook) put(tags []string, number func(i int) uint64) {
	if len(t.numbers)+len(tags) > maxBook {
		clear(t.numbers)
		t.floor = max(t.seq, t.high)
		t.turn.Add(1) // what was checked against these numbers is to be checked again
	}
	for i, tag := range tags {
		number := tagNumber{number(i), t.edition}
		if old := t.numbers[tag]; old.edition == t.edition {
			number.n = max(number.n, old.n)
		}
		t.numbers[tag] = number
	}
}

// forget makes all numbers unknown, as messages may have been lost.
func (t *tagBook) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn.Add(1)
	t.seq = 0
	t.edition++
}
