package herdgate

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// A sample is a call that the tier's policy is told of: one in sampling calls, served by
// the local tier or not. Hits and misses are sampled alike: the policy weighs a new key's
// misses against the hits of those it would evict for it.
//
// To tell the policy takes longer than five hits. Where hits are so many that the gate's
// clock runs, one in sparseSampling calls has to do, as long as the tier has room and the
// policy nothing to decide. (Of a tier that is too small this would cost one hit in fifty.)
const (
	sampling       = 16
	sparseSampling = 128
)

// sample draws the samples from evenly distributed numbers.
func (c *Cache[V]) sample(number uint64) bool {
	if number >= (1<<64)/sampling {
		return false
	}
	return number < (1<<64)/sparseSampling || !c.gate.clock.runs() || c.copies.Crowded()
}

// hitCounter counts local hits. Goroutines that run at
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

// add counts one and returns a number for [Cache.sample].
//
// The cell is chosen by the address of the caller's stack: no two goroutines have the
// same, and it costs nothing to tell. Any cell would be right.
//
// It is the count, scrambled (Fibonacci hashing; Knuth, The Art of Computer Programming,
// vol. 3, 6.4): of keys that are always asked for in the same order, every sixteenth count
// would be the same ones.
func (c hitCounter) add() uint64 {
	const golden = 0x9E3779B97F4A7C15 // 2^64 by the golden ratio
	var here byte
	stack := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // the least size of a stack
	cell := stack * golden >> 32 & uint64(len(c.cells)-1)
	return c.cells[cell].n.Add(1) * golden
}

func (c hitCounter) sum() (n uint64) {
	for i := range c.cells {
		n += c.cells[i].n.Load()
	}
	return n
}
