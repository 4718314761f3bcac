package debug

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
)

// sketch counts the most frequent keys of a stream in bounded memory: Space-Saving
// (Metwally, Agrawal, El Abbadi, Efficient Computation of Frequent and Top-k Elements
// in Data Streams, ICDT 2005). A key that is not counted takes over the smallest
// counter and its count, which from then on may be that much too high. Every key that
// makes up more than one in cap of the stream is in it.
type sketch struct {
	cap    int
	index  map[id]int // position of a key in slots and counts
	slots  []slot
	counts []uint64 // apart from the slots, so that finding the smallest reads little memory
}

type id struct{ cache, key string }

type slot struct {
	id
	over uint64 // how much its count may be too high
}

func newSketch(capacity int) *sketch {
	return &sketch{
		cap:    capacity,
		index:  make(map[id]int, capacity),
		slots:  make([]slot, 0, capacity),
		counts: make([]uint64, 0, capacity),
	}
}

func (s *sketch) add(cache, key string) {
	if i, ok := s.index[id{cache, key}]; ok {
		s.counts[i]++
		return
	}
	// The caller's key may be a piece of something large that must not be kept alive.
	mine := id{cache, strings.Clone(key)}
	if len(s.slots) < s.cap {
		s.index[mine] = len(s.slots)
		s.slots = append(s.slots, slot{id: mine})
		s.counts = append(s.counts, 1)
		return
	}
	i := s.least()
	delete(s.index, s.slots[i].id)
	s.index[mine] = i
	s.slots[i] = slot{id: mine, over: s.counts[i]}
	s.counts[i]++
}

func (s *sketch) least() int {
	least := 0
	for i, n := range s.counts {
		if n < s.counts[least] {
			least = i
		}
	}
	return least
}

// clear forgets everything but the memory.
func (s *sketch) clear() {
	clear(s.index)
	s.slots, s.counts = s.slots[:0], s.counts[:0]
}

// top returns the most frequent keys, at most n, each count multiplied by scale.
func (s *sketch) top(n int, scale uint64) []HotKey {
	keys := make([]HotKey, len(s.slots))
	for i, slot := range s.slots {
		keys[i] = HotKey{Cache: slot.cache, Key: slot.key, Calls: scale * s.counts[i], Error: scale * slot.over}
	}
	slices.SortFunc(keys, func(a, b HotKey) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Cache, b.Cache), cmp.Compare(a.Key, b.Key))
	})
	return keys[:min(n, len(keys))]
}

const (
	longestKey = 256 // bytes of a key that are kept
	longPrefix = 128 // bytes that are kept of a longer one
)

// short is the name under which a key is counted.
func short(key string) string {
	if len(key) <= longestKey {
		return key
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(key)) // never fails
	return key[:longPrefix] + "…(" + strconv.Itoa(len(key)) + " bytes, " + strconv.FormatUint(hash.Sum64(), 16) + ")"
}
