// Package debug shows what a gate and its caches do: as JSON over HTTP, for people,
// for `herdgate top`, and for expvar.
//
//	monitor, err := debug.New(debug.Options{})
//	…
//	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Observer: monitor})
//	…
//	internal.Handle("/debug/herdgate", monitor.Handler(gate))
//	expvar.Publish("herdgate", expvar.Func(func() any { return monitor.Snapshot(gate) }))
//
// # Keys are shown
//
// What is shown includes the hottest keys, and keys can be secret: session tokens,
// mail addresses. Nothing is served unless the service mounts it; mount it where only
// operators get, or set Options.Keys to herdgate.Off.
package debug

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/herdgate/herdgate"
)

// Options are what a monitor is made with. The zero value of each field is its
// default.
type Options struct {
	// Next sees each event, too, in the same goroutine. nil: nobody.
	Next herdgate.Observer

	// Keys is the number of keys that are counted at once. A key with more than one
	// in Keys of all calls is found for certain. Default 256: at most some 200 KiB
	// of memory. Off: no keys are counted or shown.
	Keys int

	// Sample is how many calls there are to one that is looked at, drawn at random:
	// what the others pay is the drawing. Default 16. 1: each call.
	Sample int

	// Window is the time over which keys are counted; then it starts again, and the
	// counts of the last whole window are shown. Default 10 s.
	Window time.Duration
}

// Monitor is both ends: the gate's Observer, which finds the hottest keys, and what
// shows them. Each gate needs one of its own. Safe for concurrent use.
type Monitor struct {
	options Options
	start   time.Time

	mu      sync.Mutex // protects the fields below
	begun   time.Time  // when the window of current began
	current *sketch    // nil if no keys are counted
	last    *sketch    // the window before; replaced by current when that is whole
	whole   bool       // there has been a window before
}

// New makes a monitor that has seen nothing. It returns a *herdgate.ConfigError for a
// negative number other than Keys: herdgate.Off.
func New(options Options) (*Monitor, error) {
	if options.Keys < 0 && options.Keys != herdgate.Off {
		return nil, &herdgate.ConfigError{Field: "Options.Keys", Value: options.Keys, Want: "a positive number, 0 for the default, or Off"}
	}
	if options.Sample < 0 {
		return nil, &herdgate.ConfigError{Field: "Options.Sample", Value: options.Sample, Want: "a positive number, or 0 for the default"}
	}
	if options.Window < 0 {
		return nil, &herdgate.ConfigError{Field: "Options.Window", Value: options.Window, Want: "a positive duration, or 0 for the default"}
	}
	if options.Keys == 0 {
		options.Keys = 256
	}
	if options.Sample == 0 {
		options.Sample = 16
	}
	if options.Window == 0 {
		options.Window = 10 * time.Second
	}
	now := time.Now()
	m := &Monitor{options: options, start: now, begun: now}
	if options.Keys != herdgate.Off {
		m.current, m.last = newSketch(options.Keys), newSketch(options.Keys)
	}
	return m, nil
}

// Observe implements [herdgate.Observer].
func (m *Monitor) Observe(e herdgate.Event) {
	if e.Kind == herdgate.EventGet && m.counting() && rand.IntN(m.options.Sample) == 0 {
		m.count(e.Cache, short(e.Key))
	}
	if m.options.Next != nil {
		m.options.Next.Observe(e)
	}
}

// counting reports whether keys are counted at all.
func (m *Monitor) counting() bool { return m.options.Keys != herdgate.Off }

func (m *Monitor) count(cache, key string) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	m.current.add(cache, key)
}

// turn begins a new window if that of current is over. m.mu must be held.
func (m *Monitor) turn(now time.Time) {
	age := now.Sub(m.begun)
	if age < m.options.Window {
		return
	}
	m.current, m.last = m.last, m.current
	m.current.clear()
	if age >= 2*m.options.Window { // and nobody called in the window after it
		m.last.clear()
	}
	m.begun = m.begun.Add(age.Truncate(m.options.Window))
	m.whole = true
}

// Snapshot is what a gate has done since it was opened, and its hottest keys.
type Snapshot struct {
	UptimeSeconds float64 // since the monitor was made
	Connected     bool    // whether invalidations arrive; see herdgate.Gate.Connected
	Total         herdgate.Stats
	Caches        map[string]herdgate.Stats // by name
	Hot           Hot
}

// Hot are the keys with the most calls of Get, Fetch, Lookup and Refresh in this
// process, whatever came of the calls.
type Hot struct {
	WindowSeconds float64 // the time in which they were counted
	Keys          []HotKey
}

// HotKey is a key and how often it was asked for.
type HotKey struct {
	Cache string
	// Key is the key. Of one with more than 256 bytes it is the first 128, its length
	// and a hash.
	Key string
	// Calls is the estimated number of calls in the window: of a sample, multiplied.
	Calls uint64
	// Error is how much of Calls may belong to other keys, beside the chance in the
	// sample.
	Error uint64
}

// shown is the number of keys that are shown; those behind are close to noise.
const shown = 32

// Snapshot returns what is known at this moment. Its fields are JSON, with the names
// that they have in Go. It needs no Redis.
func (m *Monitor) Snapshot(gate *herdgate.Gate) Snapshot {
	return Snapshot{
		UptimeSeconds: time.Since(m.start).Seconds(),
		Connected:     gate.Connected(),
		Total:         gate.Stats(),
		Caches:        gate.CacheStats(),
		Hot:           m.hot(),
	}
}

func (m *Monitor) hot() Hot {
	if !m.counting() {
		return Hot{Keys: []HotKey{}}
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	counted, window := m.last, m.options.Window
	if !m.whole { // so that there is something to see at once
		counted, window = m.current, now.Sub(m.begun)
	}
	return Hot{WindowSeconds: window.Seconds(), Keys: counted.top(shown, uint64(m.options.Sample))}
}

// Handler serves the [Snapshot] of a gate as JSON to GET and HEAD. It shows keys: see
// the package's documentation.
func (m *Monitor) Handler(gate *herdgate.Gate) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(m.Snapshot(gate)) // the client has gone
	})
}
