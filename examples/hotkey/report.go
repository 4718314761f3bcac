package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what this program finds; its JSON is the output of -json.
type report struct {
	Phases []phase `json:"phases"`
}

// phase is one way of reading, measured.
type phase struct {
	Name                 string  `json:"name"`
	Requests             int64   `json:"requests"`
	Errors               int64   `json:"errors"`
	DBQueries            int64   `json:"db_queries"`
	RedisCallsPerRequest float64 `json:"redis_calls_per_request"`
	Hot                  hot     `json:"hot"`

	result result // what the charts are made of
}

// hot is the part that concerns the hot key.
type hot struct {
	Requests           int64   `json:"requests"`
	DBQueries          int64   `json:"db_queries"`
	DBQueriesPerExpiry float64 `json:"db_queries_per_expiry"`
	Waited             int64   `json:"waited"`
	Stale              int64   `json:"stale"`
	MaxAge             millis  `json:"max_age_ms"`
	P50                millis  `json:"p50_ms"`
	P99                millis  `json:"p99_ms"`
	P999               millis  `json:"p999_ms"`
	Max                millis  `json:"max_ms"`
}

// millis is a duration in milliseconds.
type millis float64

func inMillis(d time.Duration) millis {
	return millis(math.Round(float64(d)/1e2) / 1e4)
}

// String has as many digits as say something.
func (m millis) String() string {
	switch {
	case m >= 10:
		return fmt.Sprintf("%.0f ms", float64(m))
	case m >= 0.1:
		return fmt.Sprintf("%.2g ms", float64(m))
	}
	return fmt.Sprintf("%.2g µs", float64(m)*1000)
}

func newPhase(j job, r result) phase {
	h := r.Tally.Hot
	queries := total(r.HotQueries)
	return phase{
		Name:                 j.Phase,
		Requests:             r.Tally.Requests,
		Errors:               r.Tally.Errors,
		DBQueries:            total(r.Queries),
		RedisCallsPerRequest: ratio(float64(r.RedisCalls), float64(r.Tally.Requests)),
		Hot: hot{
			Requests:           h.Requests,
			DBQueries:          queries,
			DBQueriesPerExpiry: ratio(float64(queries), float64(j.Duration)/float64(j.TTL)),
			Waited:             h.Waited,
			Stale:              h.Stale,
			MaxAge:             inMillis(h.MaxAge),
			P50:                inMillis(h.Latency.quantile(0.5)),
			P99:                inMillis(h.Latency.quantile(0.99)),
			P999:               inMillis(h.Latency.quantile(0.999)),
			Max:                inMillis(h.Latency.Max),
		},
		result: r,
	}
}

// ratio is a/b to three decimals, and 0 where there is nothing to divide by.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return math.Round(a/b*1000) / 1000
}

// row is a line of the table: what is measured, and its value in each phase.
type row struct {
	Name   string
	Values []string
}

func (r report) rows() []row {
	columns := []struct {
		name  string
		value func(phase) any
	}{
		{"reads", func(p phase) any { return p.Requests }},
		{"errors", func(p phase) any { return p.Errors }},
		{"database queries", func(p phase) any { return p.DBQueries }},
		{"Redis commands a read", func(p phase) any { return p.RedisCallsPerRequest }},
		{"hot key: reads", func(p phase) any { return p.Hot.Requests }},
		{"hot key: database queries", func(p phase) any { return p.Hot.DBQueries }},
		{"hot key: database queries an expiry", func(p phase) any { return fmt.Sprintf("%.2f", p.Hot.DBQueriesPerExpiry) }},
		{"hot key: reads that waited for a query", func(p phase) any { return p.Hot.Waited }},
		{"hot key: reads of a value past its TTL", func(p phase) any { return p.Hot.Stale }},
		{"hot key: oldest value read", func(p phase) any { return p.Hot.MaxAge }},
		{"hot key: half of the reads within", func(p phase) any { return p.Hot.P50 }},
		{"hot key: 99 % within", func(p phase) any { return p.Hot.P99 }},
		{"hot key: 99.9 % within", func(p phase) any { return p.Hot.P999 }},
		{"hot key: slowest read", func(p phase) any { return p.Hot.Max }},
	}
	rows := make([]row, 0, len(columns))
	for _, column := range columns {
		line := row{Name: column.name}
		for _, p := range r.Phases {
			line.Values = append(line.Values, fmt.Sprint(column.value(p)))
		}
		rows = append(rows, line)
	}
	return rows
}

// table is the report as text.
func (r report) table() string {
	var b strings.Builder
	for _, p := range r.Phases {
		b.WriteString("\t" + p.Name)
	}
	for _, row := range r.rows() {
		b.WriteString("\t\n" + row.Name + "\t" + strings.Join(row.Values, "\t"))
	}
	b.WriteString("\t\n")
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 3, ' ', tabwriter.AlignRight)
	_, _ = io.WriteString(w, b.String()) // a Builder takes all
	_ = w.Flush()
	return aligned.String()
}
