package herdgate

import (
	"sync"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
)

// maxRecent is how many changes a gate remembers. Past it the oldest is forgotten.
const maxRecent = 10_000

// recent are the changes that the masters of this moment may lose: replication is
// asynchronous, and a replica that becomes the master has none that it did not get.
// A master that is still the same after Options.ResendWindow has passed them on; until
// it is known to be, they stay, however long that takes.
//
// A change is remembered before it is sent: what a failover is noticed during may have
// gone to the old master.
type recent struct {
	window time.Duration // Off: nothing is remembered

	mu      sync.Mutex // protects the fields below
	changes []recentChange
	first   uint64 // the number of the first of them
}

// recentChange is a change of a key, a Clear, or the invalidation of tags. A Set is
// remembered without its value: others may have changed the key since.
type recentChange struct {
	op         remote.Op // "": it was not made
	cache, key string
	tags       []string
	sent       time.Duration
}

// add remembers a change. Its number is for drop. full says that another one had to be
// forgotten.
func (r *recent) add(ch recentChange) (number uint64, full bool) {
	if r.window == Off {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if full = len(r.changes) >= maxRecent; full {
		r.cut(1)
	}
	r.changes = append(r.changes, ch)
	return r.first + uint64(len(r.changes)) - 1, full
}

// drop forgets a change that was not made, or that the journal has.
func (r *recent) drop(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if number >= r.first && number-r.first < uint64(len(r.changes)) {
		r.changes[number-r.first].op = ""
	}
}

// cut forgets the n oldest. It is called with mu held.
func (r *recent) cut(n int) {
	clear(r.changes[:n]) // their keys are garbage from now on
	r.changes = r.changes[n:]
	r.first += uint64(n)
	if len(r.changes) == 0 {
		r.changes = nil
	}
}

func (r *recent) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.changes) == 0
}

// safe forgets what was sent before the window that ended then: the masters were still
// those that it was sent to.
func (r *recent) safe(then time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for n < len(r.changes) && then-r.changes[n].sent > r.window {
		n++
	}
	r.cut(n)
}

// take forgets all, and returns them.
func (r *recent) take() []recentChange {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.changes
	r.first += uint64(len(all))
	r.changes = nil
	return all
}

// remember is to be called before a change is sent.
func (c *Cache[V]) remember(op remote.Op, key string, tags []string) (number uint64) {
	number, full := c.gate.recent.add(recentChange{op: op, cache: c.name, key: key, tags: tags, sent: c.gate.now()})
	if full {
		c.events.emit(Event{Kind: EventForgotten})
	}
	return number
}

// Remembers implements remote.Listener.
func (l busListener) Remembers() bool { return !l.g.recent.empty() }

// SameMasters implements remote.Listener.
func (l busListener) SameMasters(asked time.Time) { l.g.recent.safe(l.g.now() - time.Since(asked)) }

// OtherMaster implements remote.Listener.
func (l busListener) OtherMaster() {
	changed := map[keyspace]struct{}{} // as a whole
	for _, ch := range l.g.recent.take() {
		if c := l.g.cache(ch.cache); c != nil && ch.op != "" && c.resend(ch) {
			changed[c] = struct{}{}
		}
	}
	for c := range changed { // once for all of them: it goes through the whole cache
		c.wipe()
	}
}

// resend makes a change once more that the new master may not have, through the journal:
// so that its key is not read from Redis before. At worst, if the master has it and the
// value from after it, this costs a load. whole says that the cache is to be wiped.
func (c *Cache[V]) resend(ch recentChange) (whole bool) {
	if whole = ch.op == opClear || ch.op == opTags; !whole {
		c.journal(remote.Change{Op: ch.op, Key: ch.key}, 0)
	} else if !c.gate.journal.addWhole(c.name, ch.tags) {
		c.events.emit(Event{Kind: EventJournalFull})
	}
	c.events.emit(Event{Kind: EventResent, Key: ch.key})
	return whole
}
