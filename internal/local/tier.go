// Package local is the local tier: decoded values in this process's memory,
// within one budget for all caches of a gate.
//
// Each cache keeps an index of its own (a [Map]) from keys to slots, and what is
// in an index can be read: at once after it was stored, without an allocation,
// and in its newest content. ristretto decides which slots stay. It holds slots,
// never contents, so it hears of a key once, and then only of changed costs: a
// content that is set again before ristretto has digested the first would be lost.
package local

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"
)

const (
	// perEntry is what an entry costs besides its key and its content, in bytes:
	// the slot, its place in the index, in ristretto's store and in its policy,
	// with the slack of their hash tables. A test measures it.
	perEntry = 384

	// bytesPerCounter sizes the policy's frequency sketch. Its hit ratio wants some
	// ten counters an entry: this gives them to contents of 1 KiB, and takes 3 to
	// 6 percent of the budget, in addition to it.
	bytesPerCounter          = 128
	minCounters, maxCounters = 1 << 10, 1 << 24

	maxBytes = 1 << 60 // so that no sum of costs overflows

	// minAhead keeps a small tier from refusing what the policy would digest in
	// a moment.
	minAhead = 1 << 20

	// never is the period of the sweep for ristretto's own expiry, in seconds.
	// Expiry lives in the contents, so there is nothing to sweep.
	never = 100 * 365 * 24 * 60 * 60
)

// Limits bound a [Tier].
type Limits struct {
	// Bytes is the memory budget, in bytes, of all entries together, keys and
	// bookkeeping included; from 1 to 1<<60.
	//
	// Entries that the policy has not judged yet come on top: at most an eighth
	// of Bytes (at least 1 MiB). What would exceed that is not stored.
	Bytes int64
}

// Stats are a snapshot of a [Tier].
type Stats struct {
	Bytes    int64  // what the entries in the indexes cost
	Entries  int64  // entries with a content
	Dropped  uint64 // stores that found no room: the policy was behind, the tier closed, or the budget smaller
	Rejected uint64 // new entries that the policy did not find worth keeping
	Evicted  uint64 // entries that made room for others, or were left at Close
}

// A Tier is the memory that the maps of one gate share. All methods may be called
// concurrently.
type Tier struct {
	policy *ristretto.Cache[uint64, evictable]
	budget int64 // Limits.Bytes
	limit  int64 // of bytes: the budget and what may wait for the policy

	// mu is held for reading around every use of policy and for writing while it
	// closes: used meanwhile it panics. Used afterwards it refuses everything.
	mu sync.RWMutex

	bytes, entries             atomic.Int64
	dropped, rejected, evicted atomic.Uint64
}

// evictable is what the policy knows of a slot of any cache.
type evictable interface {
	// evict takes the slot out of its index. It is false if somebody else was first.
	evict() bool
	// tellCost returns what the slot costs now, in bytes. It is false if the slot
	// is out of its index.
	tellCost() (int64, bool)
}

// New returns a tier whose goroutines run until [Tier.Close]. The error says what
// is wrong with limits.
func New(limits Limits) (*Tier, error) {
	if limits.Bytes < 1 || limits.Bytes > maxBytes {
		return nil, fmt.Errorf("local: Limits.Bytes is %d; it must be from 1 to %d", limits.Bytes, int64(maxBytes))
	}
	t := &Tier{budget: limits.Bytes, limit: limits.Bytes + max(limits.Bytes/8, minAhead)}
	policy, err := ristretto.NewCache(&ristretto.Config[uint64, evictable]{
		NumCounters: min(max(limits.Bytes/bytesPerCounter, minCounters), maxCounters),
		MaxCost:     limits.Bytes,
		BufferItems: 64,
		KeyToHash:   func(hash uint64) (uint64, uint64) { return hash, 0 },
		// Every Set leaves the cost open and has it asked for here, by the one
		// goroutine that also evicts: what counts is the content of that moment.
		// A slot that is no more in its index must not be admitted: nothing would
		// ever look it up, and it would stand in the way of its key's next slot.
		Cost: func(s evictable) int64 {
			if cost, ok := s.tellCost(); ok {
				return cost
			}
			return limits.Bytes + 1
		},
		IgnoreInternalCost: true, // perEntry counts it
		// A store while these run waits in a bounded buffer: they must be quick.
		OnEvict:                t.onEvict,
		OnReject:               t.onReject,
		TtlTickerDurationInSec: never,
	})
	if err != nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	t.policy = policy
	return t, nil
}

func (t *Tier) onEvict(i *ristretto.Item[evictable]) {
	if i.Value != nil && i.Value.evict() {
		t.evicted.Add(1)
	}
}

// onReject also hears of slots that stay: a Set that tells a cost, sent before the
// slot was seen to be admitted, updates the cost and ends here nevertheless.
func (t *Tier) onReject(i *ristretto.Item[evictable]) {
	if admitted, ok := t.policy.Get(i.Key); ok && admitted == i.Value {
		return
	}
	if i.Value.evict() {
		t.rejected.Add(1)
	}
}

// Close empties the tier and ends its goroutines. Its maps stay usable, as empty
// ones that store nothing. Closing again does nothing.
func (t *Tier) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.policy.Close() // the first time it evicts every slot, those in its buffer too
}

// Stats returns the counts of this moment. They are not read together: a store
// that runs meanwhile may be in one and not yet in another.
func (t *Tier) Stats() Stats {
	return Stats{
		Bytes:    t.bytes.Load(),
		Entries:  t.entries.Load(),
		Dropped:  t.dropped.Load(),
		Rejected: t.rejected.Load(),
		Evicted:  t.evicted.Load(),
	}
}

// reserve accounts for an entry that costs now instead of before, in bytes. It is
// false, and accounts for nothing, if that is more and there is no room for it.
func (t *Tier) reserve(now, before int64) bool {
	switch n := now - before; {
	case n <= 0:
		t.bytes.Add(n)
		return true
	case now <= t.budget && t.bytes.Add(n) <= t.limit:
		return true
	case now <= t.budget:
		t.bytes.Add(-n)
	}
	return false
}

// touch tells the policy that the key of this hash was asked for. It does not
// wait for a Close.
func (t *Tier) touch(hash uint64) {
	if t.mu.TryRLock() {
		t.policy.Get(hash)
		t.mu.RUnlock()
	}
}
