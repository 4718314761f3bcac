package main

import (
	"maps"
	"math/bits"
	"slices"
	"time"
)

// tally is what callers measured. It is not safe for concurrent use: each caller
// has its own, and they are added up at the end.
type tally struct {
	Requests int64
	Errors   int64
	Hot      hotTally
}

// hotTally is the part of a tally that concerns the hot key.
type hotTally struct {
	Requests int64
	Waited   int64 // took at least half the time of a query
	Stale    int64 // got a value past its TTL
	MaxAge   time.Duration
	Latency  histogram
}

func (t *tally) add(o tally) {
	t.Requests += o.Requests
	t.Errors += o.Errors
	t.Hot.Requests += o.Hot.Requests
	t.Hot.Waited += o.Hot.Waited
	t.Hot.Stale += o.Hot.Stale
	t.Hot.MaxAge = max(t.Hot.MaxAge, o.Hot.MaxAge)
	t.Hot.Latency.add(o.Hot.Latency)
}

// histogram counts durations in buckets of about 3 % width. The zero value is empty.
type histogram struct {
	Counts map[int]int64 // by bucket
	Max    time.Duration
}

// Durations up to 2^subBits ns have a bucket each, and each doubling from there on
// has 2^subBits of equal width.
const subBits = 5

func bucketOf(d time.Duration) int {
	n := uint64(max(0, d))
	shift := max(0, bits.Len64(n)-subBits-1)
	return shift<<subBits + int(n>>shift)
}

// top is the longest duration of a bucket.
func top(bucket int) time.Duration {
	shift := max(0, bucket>>subBits-1)
	return time.Duration((bucket-shift<<subBits+1)<<shift - 1)
}

func (h *histogram) record(d time.Duration) {
	if h.Counts == nil {
		h.Counts = map[int]int64{}
	}
	h.Counts[bucketOf(d)]++
	h.Max = max(h.Max, d)
}

func (h *histogram) add(o histogram) {
	if h.Counts == nil {
		h.Counts = map[int]int64{}
	}
	for bucket, n := range o.Counts {
		h.Counts[bucket] += n
	}
	h.Max = max(h.Max, o.Max)
}

// quantile is a duration that a share q of all did not exceed; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	var total int64
	for _, n := range h.Counts {
		total += n
	}
	var seen int64
	for _, bucket := range slices.Sorted(maps.Keys(h.Counts)) {
		seen += h.Counts[bucket]
		if float64(seen) >= q*float64(total) {
			return min(top(bucket), h.Max)
		}
	}
	return h.Max
}
