package testutil_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate/internal/testutil"
)

// fatalTB records what a helper would have failed the test with.
type fatalTB struct {
	testing.TB
	format string
}

func (*fatalTB) Helper() {}

func (f *fatalTB) Fatalf(format string, _ ...any) { f.format = format }

func TestEventuallyWaitsForItsConditionAndNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		testutil.Eventually(t, time.Hour, func() bool { return time.Since(start) >= time.Minute }, "a minute passes")
		if d := time.Since(start); d > time.Minute+time.Second {
			t.Errorf("it waited %v for what came after a minute", d)
		}
		rec := &fatalTB{TB: t}
		start = time.Now()
		testutil.Eventually(rec, time.Hour, func() bool { return false }, "never")
		if !strings.Contains(rec.format, "still not so") || time.Since(start) != time.Hour {
			t.Errorf("after %v it failed with %q, want a failure after 1h", time.Since(start), rec.format)
		}
	})
}
