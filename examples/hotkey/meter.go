package main

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// slotWidth is the resolution of the report's time axis.
const slotWidth = 100 * time.Millisecond

// meter counts what an instance does in the measured time. Its zero value counts
// nothing, until start. Safe for concurrent use.
type meter struct {
	window     atomic.Pointer[window]
	requests   atomic.Int64 // that have ended
	redisCalls atomic.Int64
}

// window is the measured time. Queries are counted when they begin, in slots.
type window struct {
	start, end time.Time
	all, hot   []atomic.Int64
}

func (m *meter) start(at time.Time, d time.Duration) {
	slots := int((d + slotWidth - 1) / slotWidth)
	m.window.Store(&window{start: at, end: at.Add(d), all: make([]atomic.Int64, slots), hot: make([]atomic.Int64, slots)})
}

// open returns the window if t is in it.
func (m *meter) open(t time.Time) *window {
	if w := m.window.Load(); w != nil && !t.Before(w.start) && t.Before(w.end) {
		return w
	}
	return nil
}

// over reports whether the measured time is past.
func (m *meter) over() bool {
	w := m.window.Load()
	return w != nil && !time.Now().Before(w.end)
}

// query counts a query for a key.
func (m *meter) query(key string) {
	now := time.Now()
	w := m.open(now)
	if w == nil {
		return
	}
	slot := now.Sub(w.start) / slotWidth
	w.all[slot].Add(1)
	if key == hotKey {
		w.hot[slot].Add(1)
	}
}

// queries are the counts of all queries, and of those for the hot key, by slot.
func (m *meter) queries() (all, hot []int64) {
	w := m.window.Load()
	if w == nil {
		return nil, nil
	}
	return loadAll(w.all), loadAll(w.hot)
}

func loadAll(counters []atomic.Int64) []int64 {
	counts := make([]int64, len(counters))
	for i := range counters {
		counts[i] = counters[i].Load()
	}
	return counts
}

// redisHook counts the commands that a client sends, except those that a request
// does not cause: the connection's set-up, the loading of scripts, and the heartbeat
// that a gate publishes to itself.
type redisHook struct {
	meter     *meter
	namespace string
}

// DialHook implements redis.Hook.
func (redisHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h redisHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.count(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h redisHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.count(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h redisHook) count(cmd redis.Cmder) {
	if h.caused(cmd) && h.meter.open(time.Now()) != nil {
		h.meter.redisCalls.Add(1)
	}
}

func (h redisHook) caused(cmd redis.Cmder) bool {
	switch cmd.Name() {
	case "hello", "auth", "select", "client", "subscribe", "unsubscribe", "script":
		return false
	case "publish":
		channel, _ := cmd.Args()[1].(string)
		return !strings.HasPrefix(channel, h.namespace+":") || channel == h.namespace+":bus"
	}
	return true
}
