package main

import "time"

// job is the first line a worker reads on its standard input. The second is an
// order; the end of the input tells it to end, also when the parent has died.
type job struct {
	Phase     string
	Redis     string
	DB        string
	Namespace string
	Instances int
	Instance  int  // which of them this one is, from 0
	Metrics   bool // send them, in the phase that has some
	Callers   int
	TTL       time.Duration
	Load      time.Duration
	Duration  time.Duration
}

// order starts the measured time. Until then a worker reads and counts nothing.
type order struct {
	StartAt int64 // Unix time in nanoseconds; all processes share one clock
}

// message is a line that a worker writes on its standard output: that it is ready,
// how far it is, or its result, the last.
type message struct {
	Ready    bool      `json:",omitempty"`
	Progress *progress `json:",omitempty"`
	Result   *result   `json:",omitempty"`
}

type progress struct {
	Requests   int64
	Queries    int64
	HotQueries int64
	Metrics    string `json:",omitempty"` // as Prometheus reads them; "" for none
}

// result is all that one instance has measured.
type result struct {
	Tally      tally
	RedisCalls int64
	Queries    []int64          // by slot
	HotQueries []int64          // by slot
	Metrics    string           `json:",omitempty"` // at the very end, as Prometheus reads them
	Counts     map[string]int64 `json:",omitempty"` // the same, as OpenTelemetry has them
}

func (r *result) add(o result) {
	r.Tally.add(o.Tally)
	r.RedisCalls += o.RedisCalls
	r.Queries = addSlots(r.Queries, o.Queries)
	r.HotQueries = addSlots(r.HotQueries, o.HotQueries)
	for name, n := range o.Counts {
		if r.Counts == nil {
			r.Counts = map[string]int64{}
		}
		r.Counts[name] += n
	}
}

func addSlots(sum, more []int64) []int64 {
	if sum == nil {
		sum = make([]int64, len(more))
	}
	for i, n := range more {
		sum[i] += n
	}
	return sum
}

func total(slots []int64) int64 {
	var n int64
	for _, s := range slots {
		n += s
	}
	return n
}
