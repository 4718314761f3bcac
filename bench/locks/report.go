package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A row is what one measure of a lock gave.
type row struct {
	Lock       string `json:"lock"`
	Place      string `json:"place"`
	Contenders int    `json:"contenders"`
	Measure    string `json:"measure"`
	// PerSecond is how many times the lock was had and freed, the median over the rounds.
	PerSecond float64 `json:"per_second"`
	// P50 and P99 are of a lock and its unlock where one contender is alone, else of the
	// wait for the lock.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// Luckiest and Unluckiest are how often those contenders had the lock, of greedy ones.
	Luckiest   int64 `json:"luckiest,omitempty"`
	Unluckiest int64 `json:"unluckiest,omitempty"`
	// Ratios are PerSecond by that of each peer at the same place, the median over the rounds.
	Ratios map[string]float64 `json:"ratios,omitempty"`
}

// print writes the rows of a place.
func (c config) print(w io.Writer, rows []row) error {
	if c.json {
		encoder := json.NewEncoder(w)
		for _, r := range rows {
			if err := encoder.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	heading := ""
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		if h := r.heading(c.hold); h != heading {
			heading = h
			_ = table.Flush() // a Builder takes all
			_, _ = fmt.Fprintf(table, "%s\n\tlocks/s\tp50\tp99\t%s\tratio\t\n", h, map[bool]string{true: "luckiest : unluckiest"}[r.Measure == "greedy"])
		}
		_, _ = fmt.Fprintf(table, "%s\t%.0f\t%s\t%s\t%s\t%s\t\n", r.Lock, r.PerSecond, duration(r.P50), duration(r.P99), r.fairness(), r.ratios())
	}
	_ = table.Flush()
	if heading != "" {
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r row) heading(hold time.Duration) string {
	switch r.Measure {
	case "wave":
		return fmt.Sprintf("%s: %d come at once, each holds it for %v, once; p50 and p99 of the wait", r.Place, r.Contenders, hold)
	case "greedy":
		return fmt.Sprintf("%s: %d of whom each asks again at once, and holds it for %v; p50 and p99 of the wait", r.Place, r.Contenders, hold)
	}
	return r.Place + ": one, alone; p50 and p99 of lock and unlock together"
}

func (r row) fairness() string {
	switch {
	case r.Measure != "greedy":
		return ""
	case r.Unluckiest == 0:
		return fmt.Sprintf("%d : 0", r.Luckiest)
	}
	return fmt.Sprintf("%d : %d = %.1f", r.Luckiest, r.Unluckiest, float64(r.Luckiest)/float64(r.Unluckiest))
}

func (r row) ratios() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(r.Ratios)) {
		all = append(all, fmt.Sprintf("%.2f × %s", r.Ratios[name], name))
	}
	return strings.Join(all, ", ")
}

// duration is microseconds, for people.
func duration(us float64) string {
	if us < 1000 {
		return fmt.Sprintf("%.1f µs", us)
	}
	return fmt.Sprintf("%.1f ms", us/1000)
}

// A target is a ratio to a peer that a lock must reach.
type target struct {
	lock, measure, peer string
	atLeast             float64
}

func targets() []target {
	return []target{
		{"redislock", "alone", "bsm", 0.95},
		{"redislock", "wave", "redsync", 1},
	}
}

var errMissed = errors.New("a target is missed")

// check writes what became of each target. One that was not measured is missed.
func check(rows []row, w io.Writer) error {
	var missed error
	for _, t := range targets() {
		verdict := "FAIL: not measured"
		for _, r := range rows {
			x, ok := r.Ratios[t.peer]
			switch {
			case r.Lock != t.lock || r.Measure != t.measure || !ok:
				continue
			case x >= t.atLeast:
				verdict = fmt.Sprintf("pass: %.2f", x)
			default:
				verdict = fmt.Sprintf("FAIL: %.2f", x)
			}
		}
		if strings.HasPrefix(verdict, "FAIL") {
			missed = errMissed
		}
		_, _ = fmt.Fprintf(w, "%s %s / %s, at least %.2f: %s\n", t.lock, t.measure, t.peer, t.atLeast, verdict)
	}
	return missed
}
