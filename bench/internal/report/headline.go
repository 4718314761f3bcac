package report

import (
	"math"

	"github.com/herdgate/herdgate/bench/internal/result"
)

// headline is a row of the short table.
type headline struct {
	Scenario, Variant, Figure, Text string
	More                            bool // is better
}

func headlines() []headline {
	return []headline{
		{"local", "hot-1p", "ns_op", "local hit of one hot key, ns", false},
		{"local", "zipf-1p", "ns_op", "local hit, Zipf 1.1 over 10 000 keys, ns", false},
		{"local", "hot-1p", "allocs_op", "allocations of a local hit", false},
		{"remote", "g1", "x_raw", "remote hit, 1 goroutine, × plain GET and decode", true},
		{"remote", "g64", "x_raw", "remote hit, 64 goroutines, × plain GET and decode", true},
		{"batch", "cluster", "x_raw", "GetMany of 100 on a Cluster, × a plain pipeline of GETs", true},
		{"stampede", "200ms", "loads", "1 600 callers of 8 processes, cold key, loader 200 ms: loads", false},
		{"stampede", "200ms", "wall_ms", "the same: until all have the value, ms", false},
		{"stampede", "2s", "calls", "the same, loader 2 s: commands sent", false},
		{"expiry", "l1", "loads_per_expiry", "hot key that expires each second, with a local tier: loads a TTL", false},
		{"expiry", "remote", "loads_per_expiry", "the same without: loads a TTL", false},
		{"expiry", "l1", "waited_pct", "hot key, with a local tier: callers that waited for a load, %", false},
		{"expiry", "remote", "waited_pct", "the same without: callers that waited, %", false},
		{"expiry", "l1", "p999_ms", "hot key, with a local tier: 99.9 % of the calls within, ms", false},
		{"wave", "shielded", "peak_loads", "10 000 keys that expire together: the most loads in 100 ms", false},
		{"redisdown", "l1", "throughput_ratio", "Redis killed, with a local tier: throughput, × before", true},
		{"redisdown", "remote", "throughput_ratio", "Redis killed, without: throughput, × before", true},
		{"redisdown", "remote", "error_pct", "Redis killed, without: failed calls, %", false},
		{"delrace", "l1", "stale_reads", "delete during a load: stale reads of 30", false},
		{"holderdeath", "sigkill", "takeover_ms", "loading process killed: until another one loads, ms (0: it loaded all the time)", false},
		{"holderdeath", "sigstop", "stale_reads", "loading process frozen and thawed: processes with its late value, of 9", false},
		{"fleet", "n1000", "loads_per_expiry", "1 000 instances, hot key: loads a TTL", false},
		{"fleet", "n1000", "calls_per_expiry", "the same: commands a TTL", false},
	}
}

// shortRow is a headline with its values.
type shortRow struct {
	Text, Ours, Best, Peer, Aside string
}

// short returns the headlines that were measured.
func (r *Run) short() []shortRow {
	var rows []shortRow
	for _, h := range headlines() {
		row := shortRow{Text: h.Text}
		best := math.Inf(1)
		for _, s := range r.Scenarios {
			for _, c := range s.Cells {
				v, ok := c.Median()[h.Figure]
				if s.Name != h.Scenario || c.Variant != h.Variant || !ok {
					continue
				}
				rank := v
				if h.More {
					rank = -v
				}
				switch {
				case c.Peer == result.Subject:
					row.Ours = result.Format(v)
				case rank < best:
					best, row.Best, row.Peer = rank, result.Format(v), c.Peer
				}
				if c.Peer == "aside" {
					row.Aside = result.Format(v)
				}
			}
		}
		if row.Ours != "" {
			rows = append(rows, row)
		}
	}
	return rows
}
