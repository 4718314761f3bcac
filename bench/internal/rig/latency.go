package rig

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency is a histogram of durations from 1 ns to ten minutes, to three digits.
// Safe for concurrent use; its JSON is its content.
type Latency struct {
	mu   sync.Mutex
	hist *hdrhistogram.Histogram // protected by mu
}

// NewLatency returns an empty one.
func NewLatency() *Latency {
	return &Latency{hist: hdrhistogram.New(1, int64(10*time.Minute), 3)}
}

// Record adds a duration; one out of range counts as the nearest in it.
func (l *Latency) Record(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.hist.RecordValue(min(max(int64(d), 1), int64(10*time.Minute)))
}

// Add adds all of o.
func (l *Latency) Add(o *Latency) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hist.Merge(o.hist)
}

// Count is how many were recorded.
func (l *Latency) Count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hist.TotalCount()
}

// Quantile returns the duration that the share q of all do not exceed.
func (l *Latency) Quantile(q float64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.hist.ValueAtQuantile(100 * q))
}

// Max is the longest.
func (l *Latency) Max() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.hist.Max())
}

// MarshalJSON implements json.Marshaler.
func (l *Latency) MarshalJSON() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	encoded, err := l.hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, err
	}
	return json.Marshal(encoded)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Latency) UnmarshalJSON(data []byte) error {
	var encoded []byte
	if err := json.Unmarshal(data, &encoded); err != nil {
		return err
	}
	hist, err := hdrhistogram.Decode(encoded)
	l.hist = hist
	return err
}
