package local

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// len counts the slots.
func (x *index[C]) len() (n int) {
	x.all(func(*slot[C]) { n++ })
	return n
}

func newSlot(hash uint64, key string) *slot[int] {
	s := &slot[int]{hash: hash}
	s.setKey(key)
	return s
}

// Few hashes, so that most keys share theirs, and their places, with others.
func TestAnIndexFindsWhatAMapFinds(t *testing.T) {
	for _, hashes := range []uint64{1, 3, 64, 1 << 40} {
		var x index[int]
		want := map[string]*slot[int]{}
		for range 20_000 {
			n := rand.Uint64N(500)
			key := strconv.FormatUint(n, 10)
			hash := 1 + n*0x9E3779B97F4A7C15%hashes
			switch rand.IntN(4) {
			case 0:
				if s := want[key]; s != nil {
					x.remove(s)
					delete(want, key)
				}
			case 1:
				x.remove(newSlot(hash, key)) // one that was replaced, or never put
			default:
				want[key] = newSlot(hash, key)
				x.put(want[key])
			}
			if s := x.find(hash, key); s != want[key] {
				t.Fatalf("%d hashes: find(%q) = %p, want %p", hashes, key, s, want[key])
			}
		}
		for key, s := range want {
			if got := x.find(s.hash, key); got != s {
				t.Errorf("%d hashes: in the end find(%q) = %p, want %p", hashes, key, got, s)
			}
		}
		if n := x.len(); n != len(want) {
			t.Errorf("%d hashes: the index has %d slots, want %d", hashes, n, len(want))
		}
	}
}

func TestAnIndexIsAsLargeAsWhatItHolds(t *testing.T) {
	const stay = 100
	for name, most := range map[string]uint64{"few come and go": stay, "most leave": 50_000} {
		var x index[int]
		var slots []*slot[int]
		for i := range uint64(100_000) {
			s := newSlot(1+i*0x9E3779B97F4A7C15, strconv.FormatUint(i, 10))
			x.put(s)
			if slots = append(slots, s); i >= most {
				x.remove(slots[i-most])
			}
		}
		for _, s := range slots[:len(slots)-stay] {
			x.remove(s)
		}
		places := 0
		for i := range x.shards {
			places += len(*x.shards[i].places.Load())
		}
		if places > stay*16 {
			t.Errorf("%s: %d places for %d slots", name, places, stay)
		}
	}
}

// A slot is found from the moment it was put until it is removed, whatever is put and
// removed beside it, and however often the table is copied meanwhile.
func TestASlotIsFoundWhileTheIndexGrowsAndChanges(t *testing.T) {
	const writers, each = 3, 30_000
	var x index[int]
	stays := newSlot(indexShards, "stays") // in the shard of all the others
	x.put(stays)
	var done atomic.Int32
	var wg sync.WaitGroup
	for w := range uint64(writers) {
		wg.Go(func() {
			defer done.Add(1)
			for i := range uint64(each) {
				key := strconv.FormatUint(w, 10) + "/" + strconv.FormatUint(i, 10)
				s := newSlot((w*each+i+1)*0x9E3779B97F4A7C15&^(indexShards-1), key)
				x.put(s)
				if x.find(s.hash, key) != s {
					t.Errorf("%s is not found after it was put", key)
				}
				if i%3 != 0 {
					x.remove(s)
					if x.find(s.hash, key) != nil {
						t.Errorf("%s is found after it was removed", key)
					}
				}
			}
		})
	}
	wg.Go(func() {
		for done.Load() < writers {
			if x.find(stays.hash, "stays") != stays {
				t.Error("a slot that was never removed is not found")
				return
			}
		}
	})
	wg.Wait()
	if n := x.len(); n != 1+writers*each/3 {
		t.Errorf("the index has %d slots, want %d", n, 1+writers*each/3)
	}
}
