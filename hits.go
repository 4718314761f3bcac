package herdgate

import (
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// sampling is how many calls, served by the local tier or not, stand behind one that
// the tier's policy is told of. Both must be sampled alike: the policy weighs a new
// key's misses against the hits of those it would evict for it.
const sampling = 16

// sampled reports whether a call that is counted nowhere yet is a sample.
func sampled() bool { return rand.Uint32()%sampling == 0 }

// hitCounter counts local hits, and draws the samples of them. Goroutines that run at
// the same time mostly count in different cells, so that no cache line goes from one
// processor to the other.
type hitCounter struct{ cells []hitCell }

type hitCell struct {
	n atomic.Uint64
	_ [56]byte // the rest of its cache line
}

const minHitCells = 64

func newHitCounter() hitCounter {
	n := max(minHitCells, 8*runtime.GOMAXPROCS(0))
	return hitCounter{make([]hitCell, 1<<bits.Len(uint(n-1)))}
}

// add counts one and reports whether it is a sample.
//
// The cell is chosen by the address of the caller's stack: no two goroutines have the
// same, and it costs nothing to tell. Any cell would be right.
//
// Counts are scrambled before one in sampling is taken (Fibonacci hashing; Knuth, The
// Art of Computer Programming, vol. 3, 6.4): of keys that are always asked for in the
// same order, every sixteenth count would be the same ones.
func (c hitCounter) add() (sample bool) {
	const golden = 0x9E3779B97F4A7C15 // 2^64 by the golden ratio
	var here byte
	stack := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // the least size of a stack
	cell := stack * golden >> 32 & uint64(len(c.cells)-1)
	return c.cells[cell].n.Add(1)*golden < (1<<64)/sampling
}

func (c hitCounter) sum() (n uint64) {
	for i := range c.cells {
		n += c.cells[i].n.Load()
	}
	return n
}
