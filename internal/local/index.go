package local

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	indexShards = 16
	minPlaces   = 8 // in a shard; a power of two
)

// An index finds slots by the hash of their keys. It is for reading: a find takes no
// lock, writes nothing, and waits for two lines of memory that other finds have not just
// read, that of the place and that of the slot: waiting for such lines is what took time.
//
// Each shard is a hash table with linear probing (Knuth, The Art of Computer
// Programming, vol. 3, 6.4, algorithm L). What makes it safe to read while it changes:
// a place that once has a hash keeps it, whatever slots come and go, until its table
// has been copied into another one. Who reads the old one meanwhile is not wrong: a
// slot that has been removed since has no content either.
type index[C any] struct {
	shards [indexShards]shard[C]
}

type shard[C any] struct {
	places atomic.Pointer[[]place[C]] // a power of two of them, some free; nil for none
	mu     sync.Mutex                 // held to change what is below, or a place
	taken  int                        // places with a hash
	live   int                        // places with a slot
	_      [32]byte                   // the rest of its cache line
}

type place[C any] struct {
	hash atomic.Uint64 // 0: free, and so ends every search
	slot atomic.Pointer[slot[C]]
}

// find returns the slot of key, or nil. hash is that of key, and not 0.
func (x *index[C]) find(hash uint64, key string) *slot[C] {
	places := x.shards[hash%indexShards].places.Load()
	if places == nil {
		return nil
	}
	p := *places
	for i := hash / indexShards; ; i++ {
		at := &p[i&uint64(len(p)-1)]
		switch at.hash.Load() {
		case hash:
			if s := at.slot.Load(); s != nil && s.key == key {
				return s
			}
		case 0:
			return nil
		}
	}
}

// put makes s the slot of its key.
func (x *index[C]) put(s *slot[C]) {
	sh := &x.shards[s.hash%indexShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.places.Load() == nil || 4*(sh.taken+1) > 3*len(*sh.places.Load()) {
		sh.resize()
	}
	at := sh.place(s)
	if at.slot.Swap(s) == nil {
		sh.live++
	}
	if at.hash.Load() == 0 {
		at.hash.Store(s.hash) // after the slot: who finds the hash finds it
		sh.taken++
	}
}

// place is where s belongs: where its key has a slot, else where one of the same hash
// was removed, else a free one.
func (sh *shard[C]) place(s *slot[C]) *place[C] {
	p := *sh.places.Load()
	var left *place[C]
	for i := s.hash / indexShards; ; i++ {
		at := &p[i&uint64(len(p)-1)]
		switch at.hash.Load() {
		case s.hash:
			switch other := at.slot.Load(); {
			case other == nil && left == nil:
				left = at
			case other != nil && other.key == s.key:
				return at
			}
		case 0:
			if left != nil {
				return left
			}
			return at
		}
	}
}

// resize copies the slots into a table that is half full at most, and leaves out what was
// removed.
func (sh *shard[C]) resize() {
	resized := make([]place[C], max(minPlaces, 1<<bits.Len(uint(2*sh.live+1))))
	sh.taken = sh.live
	if places := sh.places.Load(); places != nil {
		for i := range *places {
			s := (*places)[i].slot.Load()
			if s == nil {
				continue
			}
			hash := (*places)[i].hash.Load() // not the slot's: that is another line of memory
			to := hash / indexShards
			for resized[to&uint64(len(resized)-1)].hash.Load() != 0 {
				to++
			}
			at := &resized[to&uint64(len(resized)-1)]
			at.slot.Store(s)
			at.hash.Store(hash)
		}
	}
	sh.places.Store(&resized)
}

// remove takes s out, but not a newer slot that its key may have by now.
func (x *index[C]) remove(s *slot[C]) {
	sh := &x.shards[s.hash%indexShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.places.Load() == nil {
		return
	}
	if at := sh.place(s); at.slot.CompareAndSwap(s, nil) {
		sh.live--
		if n := len(*sh.places.Load()); n > minPlaces && 8*sh.live < n {
			sh.resize()
		}
	}
}

// all calls visit with every slot that is there now, and perhaps with others.
func (x *index[C]) all(visit func(*slot[C])) {
	for i := range x.shards {
		if places := x.shards[i].places.Load(); places != nil {
			for j := range *places {
				if s := (*places)[j].slot.Load(); s != nil {
					visit(s)
				}
			}
		}
	}
}
