// Package testutil holds what the tests of this module share: Redis servers and
// clusters of their own, a proxy that loses replies, a Redis inside a
// testing/synctest bubble, and test roles that run as separate processes.
//
// It is test-only and unix-only. Every helper cleans up after itself through
// tb.Cleanup and fails the test rather than return an error.
package testutil

import (
	"testing"
	"time"
)

// pollInterval is how often the helpers look at a condition nothing announces.
const pollInterval = 2 * time.Millisecond

// Eventually waits until cond returns true, looking every few milliseconds, and
// fails the test with msg when that takes longer than timeout. cond is called in
// the test's goroutine, so it may use tb; the last look is at the timeout itself.
func Eventually(tb testing.TB, timeout time.Duration, cond func() bool, msg string) {
	tb.Helper()
	if !poll(timeout, cond) {
		tb.Fatalf("after %v still not so: %s", timeout, msg)
	}
}

// poll reports whether cond held within timeout.
func poll(timeout time.Duration, cond func() bool) bool {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			return cond()
		case <-tick.C:
		}
	}
	return true
}
