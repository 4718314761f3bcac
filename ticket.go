package herdgate

import (
	"sync"
	"sync/atomic"
)

const (
	stripeCount = 4096
	maxOwn      = 1 << 14
)

// stripe guards the local copies of the keys that fall on it. Its epoch counts the
// changes of those keys that this process knows of.
type stripe struct {
	mu    sync.Mutex // held to store or drop a copy together with looking at the epoch
	epoch atomic.Uint64
}

// ticket is what must still hold when a value that was read or loaded is kept
// locally. It is taken before the request is sent: whatever changes after that,
// the value may be from before it.
type ticket struct {
	epoch      uint64 // of the key's stripe
	gap        uint64
	generation uint64 // of the cache
}

// gapCounter counts the stretches of time without loss on the bus: even while the
// bus is confirmed, odd in the gaps between, in which messages may be lost and
// nothing local is fresh. Zero stands for the gap before the first confirmation.
type gapCounter struct{ n atomic.Uint64 }

// inGap is what a ticket taken in a gap says: a copy of it is never valid.
const inGap = 0

func (c *gapCounter) current() uint64 {
	if n := c.n.Load(); n%2 == 0 {
		return n
	}
	return inGap
}

// valid reports whether a copy whose ticket said gap may be served without asking Redis.
func (c *gapCounter) valid(gap uint64) bool { return gap != inGap && gap == c.n.Load() }

// open and confirm are called by one goroutine, that of the bus. open reports
// whether there was no gap before.
func (c *gapCounter) open() bool {
	n := c.n.Load()
	if n%2 == 1 {
		return false
	}
	c.n.Store(n + 1)
	return true
}

func (c *gapCounter) confirm() {
	n := c.n.Load()
	c.n.Store(n + 2 - n%2)
}

// ownChanges are the changes of this instance whose message is still to come. That
// message says nothing new to a call that is acknowledged: it drops the copies
// itself, when the reply is there. If the call gives up, its message is as good as
// a foreign one.
type ownChanges struct {
	mu  sync.Mutex
	ids map[string]struct{} // protected by mu
}

func (o *ownChanges) add(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ids == nil || len(o.ids) >= maxOwn { // forgetting costs a copy, not correctness
		o.ids = map[string]struct{}{}
	}
	o.ids[id] = struct{}{}
}

// takes reports whether the message of id is to be ignored, once.
func (o *ownChanges) takes(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.ids[id]
	delete(o.ids, id)
	return ok
}

func (o *ownChanges) drop(id string) { o.takes(id) }

// forget drops all: the messages may never come.
func (o *ownChanges) forget() {
	o.mu.Lock()
	o.ids = nil
	o.mu.Unlock()
}
