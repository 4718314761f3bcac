package result

import (
	"fmt"
	"io"
	"path"
)

// Target is what herdgate has to reach in a figure of the variants that match.
type Target struct {
	Scenario string
	Variant  string // a pattern of path.Match
	Figure   string
	Op       string  // "<=", ">=" or "="
	Bound    float64 // added to Times × Than where there is one
	Than     string  // another figure of the same variant
	Times    float64
}

// Targets are all of them.
func Targets() []Target {
	return []Target{
		{"local", "hot-*", "x_ristretto", "<=", 0.5, "", 0},
		{"local", "zipf-*", "x_ristretto", "<=", 0.7, "", 0},
		{"local", "*", "b_op", "=", 0, "", 0},
		{"local", "*", "allocs_op", "=", 0, "", 0},
		{"local", "*-2p", "speedup", ">=", 1.7, "", 0},
		{"remote", "g64", "x_raw", ">=", 3, "", 0},
		{"remote", "g1", "x_raw", ">=", 0.95, "", 0},
		{"remote", "*", "allocs_op", "<=", 2, "raw_allocs_op", 1},
		{"remote", "*", "calls_per_request", "<=", 1.01, "", 0},
		{"remote", "*", "helper_keys", "<=", 1, "", 0},  // the generation of the cache
		{"batch", "*", "round_trips", "<=", 1.5, "", 0}, // the pipelines to several nodes may miss each other
		{"batch", "*", "calls_per_request", "<=", 100.5, "", 0},
		{"stampede", "*", "loads", "=", 1, "", 0},
		{"stampede", "200ms", "wall_ms", "<=", 215, "", 0},
		{"stampede", "2s", "wall_ms", "<=", 2015, "", 0},
		{"stampede", "5s", "wall_ms", "<=", 5015, "", 0},
		{"stampede", "200ms", "calls", "<=", 30, "", 0},
		{"stampede", "2s", "calls", "<=", 45, "", 0},
		{"stampede", "200ms", "commands", "<=", 72, "", 0},
		{"stampede", "2s", "commands", "<=", 120, "", 0},
		{"expiry", "*", "loads_per_expiry", ">=", 0.8, "", 0},
		{"expiry", "*", "loads_per_expiry", "<=", 1.1, "", 0},
		{"expiry", "*", "waited_pct", "=", 0, "", 0},
		{"expiry", "*", "max_age_ms", "<=", 1300, "", 0}, // 1.1 TTL, a load, 100 ms
		{"expiry", "remote", "p999_ms", "<=", 0, "plain_p999_ms", 2},
		{"expiry", "l1", "p999_ms", "<=", 0, "plain_p99_ms", 1},
		{"wave", "shielded", "x_plain", "<=", 0.2, "", 0},
		{"holderdeath", "*", "takeover_ms", "<=", 2100, "", 0}, // LockTTL, 100 ms
		{"holderdeath", "*", "loads", "=", 2, "", 0},
		{"holderdeath", "sigstop", "stale_reads", "=", 0, "", 0},
		{"redisdown", "*", "error_pct", "=", 0, "", 0},
		{"redisdown", "*", "throughput_ratio", ">=", 0.9, "", 0},
		{"redisdown", "*", "recover_ms", "<=", 2000, "", 0},
		{"delrace", "*", "stale_reads", "=", 0, "", 0},
		{"fleet", "*", "loads_per_expiry", "<=", 1.1, "", 0},
		{"fleet", "*", "x_n8", "<=", 1.15, "", 0}, // of 8 instances it varies by a tenth
		// GET, acquire, GET at the wake-up; and the renewals and questions for the time of a few.
		{"fleet", "*", "burst_calls", "<=", 10, "instances", 3},
	}
}

// Checked is a target held against a measurement.
type Checked struct {
	Target

	Scenario, Variant string
	Value, Want       float64
	Pass              bool
}

// Subject is whose figures are checked.
const Subject = "herdgate"

// Check holds the targets against the subject's medians.
func Check(cells []Cell) []Checked {
	var all []Checked
	for _, c := range cells {
		if c.Peer != Subject || len(c.Runs) == 0 {
			continue
		}
		figures := c.Median()
		for _, t := range Targets() {
			match, _ := path.Match(t.Variant, c.Variant) // the patterns are ours
			value, measured := figures[t.Figure]
			if t.Scenario != c.Scenario || !match || !measured {
				continue
			}
			want := t.Bound
			if t.Than != "" {
				want += t.Times * figures[t.Than]
			}
			all = append(all, Checked{Target: t, Scenario: c.Scenario, Variant: c.Variant, Value: value, Want: want, Pass: t.holds(value, want)})
		}
	}
	return all
}

func (t Target) holds(value, want float64) bool {
	switch t.Op {
	case "<=":
		return value <= want
	case ">=":
		return value >= want
	}
	return value == want
}

// String is the line that is printed.
func (c Checked) String() string {
	verdict := "pass"
	if !c.Pass {
		verdict = "FAIL"
	}
	where := c.Scenario + "/" + c.Variant
	text := fmt.Sprintf("%s  %-20s  %-18s  %8s %s %s", verdict, where, c.Figure, Format(c.Value), c.Op, Format(c.Want))
	if c.Than != "" {
		text += " (from " + c.Than + ")"
	}
	return text
}

// WriteChecks prints the lines and returns how many targets were missed.
func WriteChecks(w io.Writer, checks []Checked) (missed int, err error) {
	for _, c := range checks {
		if !c.Pass {
			missed++
		}
		if _, err := fmt.Fprintln(w, c); err != nil {
			return missed, err
		}
	}
	return missed, nil
}
