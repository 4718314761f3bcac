package herdgatetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
)

// patience is how long WaitRunning waits.
const patience = 10 * time.Second

// Origin is a fake source of values: its Load is a [herdgate.LoaderFunc]. What it
// answers and when can be changed at any time, and it counts. The zero value is a
// source without any key, which answers at once. Safe for concurrent use, in a
// bubble by that bubble only. It must not be copied after its first use.
//
// A load sees the source as it was when the load began, like a transaction: one
// that is held while Set changes its key returns what was there before.
type Origin[V any] struct {
	mu      sync.Mutex // protects what follows
	answers map[string]func() (V, error)
	outage  error // answers every key; nil: none
	delay   time.Duration
	held    chan struct{} // closed by Release; nil: loads are not held
	frozen  bool          // those that are held do not look at their context

	loads   map[string]int
	total   int
	running int
	begun   chan struct{} // closed by the next load; nil: nobody waits for it
}

// Load loads the value of key; without one it returns [herdgate.ErrNotFound]. If
// ctx ends while it is delayed or held, it returns the cause of that.
func (o *Origin[V]) Load(ctx context.Context, key string) (V, error) {
	run := o.begin(key)
	defer o.end()
	if err := run.wait(ctx); err != nil {
		var zero V
		return zero, err
	}
	return run.answer()
}

// Set makes value the answer for key.
func (o *Origin[V]) Set(key string, value V) {
	o.answer(key, func() (V, error) { return value, nil })
}

// Delete takes key away: it is not found.
func (o *Origin[V]) Delete(key string) {
	o.answer(key, notFound[V])
}

// Fail makes loads of key fail with err, which must not be nil, until the next Set
// or Delete of key.
func (o *Origin[V]) Fail(key string, err error) {
	if err == nil {
		panic(fmt.Sprintf("herdgatetest: Fail(%q, nil): want an error; Set and Delete end a failure", key))
	}
	o.answer(key, func() (v V, _ error) { return v, err })
}

// Panic makes loads of key panic with value, until the next Set or Delete of key.
func (o *Origin[V]) Panic(key string, value any) {
	o.answer(key, func() (V, error) { panic(value) })
}

// FailAll makes all loads fail with err, whatever their key: the source is out. nil
// brings it back as it was.
func (o *Origin[V]) FailAll(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outage = err
}

// SetDelay makes each load that begins from now on take d.
func (o *Origin[V]) SetDelay(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delay = d
}

// Hold holds each load that begins from now on until Release, or until its context
// ends. Their delay comes after that.
func (o *Origin[V]) Hold() { o.hold(false) }

// Freeze is Hold of loads that do not look at their context either, as in a process
// that is stopped, or by a loader that ignores it. Release them before the gate
// closes, which is an error of Close otherwise.
//
// A whole instance freezes when also its client is cut off: its lease is then not
// renewed any more. See [Redis.Isolate].
func (o *Origin[V]) Freeze() { o.hold(true) }

func (o *Origin[V]) hold(frozen bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		o.held = make(chan struct{})
	}
	o.frozen = frozen
}

// Release lets go of all loads that Hold or Freeze holds, and holds no more.
func (o *Origin[V]) Release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held != nil {
		close(o.held)
		o.held = nil
	}
}

// Loads is the number of loads that have begun.
func (o *Origin[V]) Loads() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total
}

// LoadsOf is the number of loads of key that have begun.
func (o *Origin[V]) LoadsOf(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loads[key]
}

// Running is the number of loads that have begun and not ended.
func (o *Origin[V]) Running() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.running
}

// WaitRunning waits until n loads run at once, or more, and ends the test if they
// do not within 10 s. It makes sense for loads that are held, or delayed.
func (o *Origin[V]) WaitRunning(tb testing.TB, n int) {
	tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		running, begun := o.look()
		if running >= n {
			return
		}
		select {
		case <-begun:
		case <-timer.C:
			tb.Fatalf("%d loads run after %v, want %d", running, patience, n)
		}
	}
}

// AssertLoads fails the test unless o has begun exactly want loads of key.
func AssertLoads[V any](tb testing.TB, o *Origin[V], key string, want int) {
	tb.Helper()
	if got := o.LoadsOf(key); got != want {
		tb.Errorf("key %q was loaded %d times, want %d", key, got, want)
	}
}

// AssertOneLoad fails the test unless o has begun exactly one load of key.
func AssertOneLoad[V any](tb testing.TB, o *Origin[V], key string) {
	tb.Helper()
	AssertLoads(tb, o, key, 1)
}

// run is what one load found when it began.
type run[V any] struct {
	answer func() (V, error)
	delay  time.Duration
	held   <-chan struct{}
	frozen bool
}

func (o *Origin[V]) begin(key string) run[V] {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total++
	o.running++
	if o.loads == nil {
		o.loads = map[string]int{}
	}
	o.loads[key]++
	if o.begun != nil {
		close(o.begun)
		o.begun = nil
	}
	answer := o.answers[key]
	if answer == nil {
		answer = notFound[V]
	}
	if err := o.outage; err != nil {
		answer = func() (v V, _ error) { return v, err }
	}
	return run[V]{answer: answer, delay: o.delay, held: o.held, frozen: o.frozen}
}

func (o *Origin[V]) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running--
}

// wait returns when the load may answer, or why it may not.
func (r run[V]) wait(ctx context.Context) error {
	if r.held != nil {
		done := ctx.Done()
		if r.frozen {
			done = nil
		}
		select {
		case <-r.held:
		case <-done:
			return context.Cause(ctx)
		}
	}
	if r.delay <= 0 {
		return nil
	}
	timer := time.NewTimer(r.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o *Origin[V]) answer(key string, answer func() (V, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answers == nil {
		o.answers = map[string]func() (V, error){}
	}
	o.answers[key] = answer
}

// look returns the number of running loads and a channel that the next one closes.
func (o *Origin[V]) look() (int, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.begun == nil {
		o.begun = make(chan struct{})
	}
	return o.running, o.begun
}

func notFound[V any]() (v V, err error) { return v, herdgate.ErrNotFound }
