// Package result holds what the suite measures: figures by name, medians over runs,
// and the targets that herdgate has to reach.
package result

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Figures are measured values by name; the names are those of All.
type Figures map[string]float64

// Point is a point of a latency curve: the share Q of all calls took at most US µs.
type Point struct{ Q, US float64 }

// Measured is what one run of a variant by a peer gives.
type Measured struct {
	Figures Figures
	Curve   []Point // of the latencies; nil where they are not the point
}

// Cell is a variant of a scenario by a peer, with its runs.
type Cell struct {
	Scenario, Peer, Variant string

	Runs []Measured
	Err  error // why there are no runs, or fewer than asked for
}

// Figure describes a figure.
type Figure struct {
	Name string
	Unit string
	Text string
}

// All are the figures, in the order in which they are printed.
func All() []Figure {
	return []Figure{
		{"ns_op", "ns", "time of one operation: elapsed time by the operations of all goroutines"},
		{"b_op", "B", "heap bytes allocated by one operation"},
		{"allocs_op", "", "heap allocations of one operation"},
		{"x_floor", "×", "time, by that of the floor in the same rounds; less is better"},
		{"x_ristretto", "×", "time, by that of raw ristretto in the same rounds; less is better"},
		{"speedup", "×", "operations a second of two goroutines on two Ps, by those of one, round by round"},
		{"entry_b", "B", "heap of one cached entry, value and key included"},
		{"ristretto_entry_b", "B", "the same of raw ristretto"},
		{"ops_s", "/s", "operations a second"},
		{"raw_ops_s", "/s", "the same of plain GET and decode"},
		{"x_raw", "×", "operations a second, by those of plain GET and decode in the same rounds; more is better"},
		{"p50_us", "µs", "half of the calls took at most this"},
		{"p99_us", "µs", "99 % of the calls took at most this"},
		{"raw_p50_us", "µs", "p50_us of plain GET and decode"},
		{"raw_p99_us", "µs", "p99_us of plain GET and decode"},
		{"raw_allocs_op", "", "allocs_op of plain GET and decode"},
		{"round_trips", "", "how often one operation waits for Redis; requests that are under way together are one"},
		{"redis_entry_b", "B", "memory of one entry in Redis, as MEMORY USAGE tells it, beyond that of the raw one"},
		{"helper_keys", "", "keys in Redis beside the entries when nothing is being rebuilt; herdgate keeps one for each cache"},
		{"loads", "", "loads at the origin"},
		{"loads_s", "/s", "loads a second while Redis is down"},
		{"loads_per_expiry", "", "loads of the hot key for each TTL that passed"},
		{"peak_loads", "", "the most loads that began within 100 ms"},
		{"x_plain", "×", "peak_loads, by that of the plain variant; less is better"},
		{"wall_ms", "ms", "time until the last call returned"},
		{"p50_ms", "ms", "half of the calls took at most this"},
		{"p99_ms", "ms", "99 % of the calls took at most this"},
		{"p999_ms", "ms", "99.9 % of the calls took at most this"},
		{"max_ms", "ms", "the slowest call"},
		{"before_p50_ms", "ms", "p50 while Redis was up"},
		{"before_p99_ms", "ms", "p99 while Redis was up"},
		{"after_p50_ms", "ms", "p50 from two seconds after Redis was back"},
		{"after_p99_ms", "ms", "p99 from two seconds after Redis was back"},
		{"plain_p99_ms", "ms", "p99 of plain GET and decode, asked for in the same way"},
		{"plain_p999_ms", "ms", "p99.9 of plain GET and decode, asked for in the same way"},
		{"waited_pct", "%", "calls that took half of the loader's time or longer"},
		{"plain_waited_pct", "%", "the same of plain GET and decode, which has nobody to wait for: what the machine adds"},
		{"max_age_ms", "ms", "the oldest value served, from the end of its load"},
		{"calls", "", "commands that the clients sent, heartbeats aside"},
		{"commands", "", "commands that the server ran, those inside scripts included, heartbeats aside"},
		{"calls_per_request", "", "commands that the clients sent for each request"},
		{"calls_per_expiry", "", "commands that the clients sent for each TTL that passed"},
		{"x_n8", "×", "calls_per_expiry for each instance, by that of 8 instances; less is better"},
		{"burst_calls", "", "the most commands that the clients sent within 100 ms"},
		{"burst_per_instance", "", "burst_calls for each instance"},
		{"commands_s", "/s", "commands that the clients sent in a second, heartbeats included"},
		{"messages_s", "/s", "messages that the server delivered to subscribers in a second"},
		{"error_pct", "%", "calls that returned an error from the kill on"},
		{"throughput_ratio", "×", "requests a second while Redis is down, by those before"},
		{"recover_ms", "ms", "from the server's return until all processes used it again without a failure"},
		{"stale_reads", "", "reads that returned a value which a change, or a successor's load, had replaced"},
		{"value_a", "", "what process A read last: 1 before the change, 2 after it"},
		{"value_b", "", "what process B read last"},
		{"value_c", "", "what process C read last"},
		{"takeover_ms", "ms", "from the signal until another process's loader started; 0 if one already ran"},
		{"value_ms", "ms", "from the signal until another process had the value"},
		{"instances", "", "instances of the fleet"},
	}
}

// Format writes a value of a figure with as many digits as say something.
func Format(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case v == math.Trunc(v) && a < 1e15:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// Median returns the medians over the runs.
func (c Cell) Median() Figures {
	return c.over(func(sorted []float64) float64 {
		n := len(sorted)
		return (sorted[(n-1)/2] + sorted[n/2]) / 2
	})
}

// Spread returns the least and the greatest values over the runs.
func (c Cell) Spread() (least, most Figures) {
	return c.over(func(sorted []float64) float64 { return sorted[0] }),
		c.over(func(sorted []float64) float64 { return sorted[len(sorted)-1] })
}

func (c Cell) over(of func(sorted []float64) float64) Figures {
	values := map[string][]float64{}
	for _, run := range c.Runs {
		for name, v := range run.Figures {
			values[name] = append(values[name], v)
		}
	}
	figures := Figures{}
	for name, all := range values {
		slices.Sort(all)
		figures[name] = of(all)
	}
	return figures
}

// Names returns the names of the figures in cells, in the order of All.
func Names(cells []Cell) []string {
	var names []string
	for _, f := range All() {
		if slices.ContainsFunc(cells, func(c Cell) bool {
			return slices.ContainsFunc(c.Runs, func(m Measured) bool { _, ok := m.Figures[f.Name]; return ok })
		}) {
			names = append(names, f.Name)
		}
	}
	return names
}
