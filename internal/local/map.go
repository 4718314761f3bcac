package local

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A Map is one cache's part of a [Tier]. C is the content of an entry, shared by
// everybody who loads it and never changed after it was stored.
//
// Load and Len may be called concurrently with everything. Callers serialise
// Store and Delete of one key.
type Map[C any] struct {
	tier  *Tier
	index index[C]
	seed  maphash.Seed // its own for each map, so that equal keys of two caches differ for the policy
	count atomic.Int64 // of slots with a content
}

// NewMap returns an empty map in t.
func NewMap[C any](t *Tier) *Map[C] {
	return &Map[C]{tier: t, seed: maphash.MakeSeed()}
}

// Load returns the content last stored for key, or nil. It does not allocate or
// wait. Expiry is the content's: who finds an expired one deletes it.
func (m *Map[C]) Load(key string) *C {
	if s := m.index.find(m.hash(key), key); s != nil {
		return s.content.Load()
	}
	return nil
}

// Touch tells the policy that key was asked for, found or not. It takes longer than a
// Load: a sample of the Loads will do, if hits and misses are sampled alike. The policy
// weighs a new key's misses against the hits of those it would evict for it.
func (m *Map[C]) Touch(key string) { m.tier.touch(m.hash(key)) }

// Crowded reports whether entries have to go, or soon will, for others to come. Until then
// the policy has nothing to decide, and a smaller sample does no harm.
func (m *Map[C]) Crowded() bool { return m.tier.bytes.Load() > m.tier.budget/8*7 }

// Store makes c the content of key at once, unless there is no room for it. cost
// is the size of c in bytes; the key and the bookkeeping are added to it.
//
// There is no room for what costs more than the whole budget, while the policy is
// too far behind with what was stored before, and once the tier is closed; a new entry may also be rejected or evicted any
// time later. An older content of the key is gone in every case.
func (m *Map[C]) Store(key string, c *C, cost int64) {
	t := m.tier
	t.mu.RLock()
	defer t.mu.RUnlock()
	cost = m.fullCost(key, cost)
	hash := m.hash(key)
	if s := m.index.find(hash, key); s != nil && s.replace(c, cost) {
		return
	}
	// There is no slot, or the policy has just dropped it and its removal from
	// the index is under way: that removes the dropped one only.
	if !t.reserve(cost, 0) {
		t.dropped.Add(1)
		return
	}
	s := &slot[C]{owner: m, hash: hash, cost: cost}
	s.setKey(key)
	s.setContent(c)
	m.index.put(s)
	if !t.policy.Set(hash, s, 0) { // its buffer is full, or it is closed
		s.evict()
		t.dropped.Add(1)
	}
}

// Delete removes the content of key. The slot stays, empty and at little cost,
// for the content that mostly follows; else it is the first to be evicted.
func (m *Map[C]) Delete(key string) {
	t := m.tier
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s := m.index.find(m.hash(key), key); s != nil {
		s.replace(nil, m.fullCost(key, 0))
	}
}

// Each calls visit with every key that had a content when Each was called and has one
// still, and perhaps with others that got one since. visit may call any method.
func (m *Map[C]) Each(visit func(key string)) {
	m.index.all(func(s *slot[C]) {
		if s.content.Load() != nil {
			visit(s.key)
		}
	})
}

// Len returns the number of entries with a content.
func (m *Map[C]) Len() int { return int(m.count.Load()) }

func (m *Map[C]) hash(key string) uint64 { return max(1, maphash.String(m.seed, key)) }

func (m *Map[C]) fullCost(key string, cost int64) int64 {
	// What exceeds the budget exceeds it by however much.
	return min(max(cost, 0), m.tier.budget) + int64(len(key)) + perEntry
}

// A slot is the place of one key in an index. The policy decides over the slot;
// its content comes and goes without the policy's knowledge, only the cost is told.
type slot[C any] struct {
	content atomic.Pointer[C] // written under mu
	key     string
	short   [24]byte // the key, if it fits: where its first bytes are read together with the content
	hash    uint64
	owner   *Map[C]

	// mu is held around ristretto's Set, which never waits for the callbacks that
	// take mu, and never while the index is changed.
	mu      sync.Mutex
	cost    int64 // what is reserved for the slot
	told    int64 // the cost that the policy reckons with; 0 until it has asked
	evicted bool  // final: such a slot has no content and is never used again
}

// replace gives the slot another content, nil for none. It is false if the slot
// was evicted. The caller holds tier.mu for reading.
func (s *slot[C]) replace(c *C, cost int64) bool {
	t := s.owner.tier
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.evicted {
		return false
	}
	if !t.reserve(cost, s.cost) {
		t.dropped.Add(1)
		c, cost = nil, min(s.cost, s.owner.fullCost(s.key, 0))
		t.reserve(cost, s.cost)
	}
	s.cost = cost
	s.setContent(c)
	// If the buffer is full the cost stays untold until the next content comes.
	if s.told != s.cost {
		t.policy.Set(s.hash, s, 0)
	}
	return true
}

// setContent keeps the counts. The caller holds s.mu, or nobody else knows s yet.
func (s *slot[C]) setContent(c *C) {
	var n int64
	if c != nil {
		n++
	}
	if s.content.Swap(c) != nil {
		n--
	}
	s.owner.count.Add(n)
	s.owner.tier.entries.Add(n)
}

func (s *slot[C]) tellCost() (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = s.cost
	return s.cost, !s.evicted
}

func (s *slot[C]) evict() bool {
	s.mu.Lock()
	if s.evicted {
		s.mu.Unlock()
		return false
	}
	s.evicted = true
	s.setContent(nil)
	s.owner.tier.reserve(0, s.cost)
	s.cost = 0
	s.mu.Unlock()
	s.owner.index.remove(s)
	return true
}

// setKey copies key: the caller's may be a small part of something large.
func (s *slot[C]) setKey(key string) {
	if n := copy(s.short[:], key); n < len(key) {
		s.key = strings.Clone(key)
	} else {
		s.key = unsafe.String(&s.short[0], n)
	}
}
