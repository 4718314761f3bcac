package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// Host is the testing.TB that the starters of servers in internal/testutil want, for a
// program: what they fail with becomes an error of Try, and what they start lives until
// Close. It has the methods that they call, and no others.
type Host struct {
	testing.TB // nil: only for the method that keeps others from implementing it

	ctx context.Context //nolint:containedctx // what TB.Context returns

	mu       sync.Mutex
	cleanUps []func() // protected by mu
	failure  error    // protected by mu; of the Try that runs
}

// NewHost returns a Host of servers that do not end with ctx.
func NewHost(ctx context.Context) *Host { return &Host{ctx: ctx} }

// Try runs f and returns what it failed with. One Try runs at a time.
func (h *Host) Try(f func()) error {
	h.fail(nil)
	done := make(chan struct{})
	go func() { // Fatal ends it, and nothing else
		defer close(done)
		f()
	}()
	<-done
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

// Close runs the clean-ups, the last first. It may be called again.
func (h *Host) Close() error {
	h.mu.Lock()
	cleanUps := h.cleanUps
	h.cleanUps = nil
	h.mu.Unlock()
	var errs []error
	for _, cleanUp := range slices.Backward(cleanUps) {
		errs = append(errs, h.Try(cleanUp))
	}
	return errors.Join(errs...)
}

func (h *Host) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure = err
}

// Helper implements testing.TB.
func (*Host) Helper() {}

// Context implements testing.TB.
func (h *Host) Context() context.Context { return h.ctx }

// Cleanup implements testing.TB.
func (h *Host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanUps = append(h.cleanUps, f)
}

// TempDir implements testing.TB.
func (h *Host) TempDir() string {
	dir, err := os.MkdirTemp("", "herdgate-bench-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Fatal implements testing.TB.
func (h *Host) Fatal(args ...any) {
	h.fail(errors.New(fmt.Sprint(args...)))
	runtime.Goexit()
}

// Fatalf implements testing.TB.
func (h *Host) Fatalf(format string, args ...any) {
	h.fail(fmt.Errorf(format, args...))
	runtime.Goexit()
}
