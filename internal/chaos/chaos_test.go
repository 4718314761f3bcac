// Package chaos runs processes that use the library under random faults, and checks the
// history of what they saw against the rules. It has tests only:
//
//	make chaos CHAOS=20s SEED=1
package chaos

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/testutil"
)

// limits are what a run of this package is held to. A busy machine gets some slack; what
// is found is found in hundreds of thousands of calls, not by a tight limit.
var limits = bounds{
	told: localTTL + 2*time.Second,
	kept: func(key int) time.Duration {
		ttl, stale := longTTL, longStale
		if key >= keys/2 {
			ttl, stale = shortTTL, shortStale
		}
		return ttl*11/10 + 2*stale + 2*time.Second
	},
	settle:  3 * time.Second,
	longest: 12 * time.Second,
}

// summary is the last line of a run.
var summary string

func TestMain(m *testing.M) {
	code := testutil.Main(m, map[string]testutil.Role{instanceRole: runInstance})
	if summary != "" {
		fmt.Println(summary)
	}
	os.Exit(code)
}

// chaosFor is how long to run, from the environment. The short form is part of all tests.
func chaosFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("CHAOS")
	if text == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("CHAOS is %q, want a duration like 20s", text)
	}
	return d
}

func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("SEED is %q, want a number", text)
	}
	return n
}

func TestNothingOldComesBackUnderFaults(t *testing.T) { // I1, I2, I3, I6, I9
	c := config{
		For: chaosFor(t), Seed: seed(t), Processes: 4, Callers: 8, Pause: 10 * time.Millisecond, Every: 400 * time.Millisecond,
	}
	t.Logf("SEED=%d", c.Seed)
	f := startFleet(t, c)
	f.run()
	found := f.history.check(limits)
	const most = 20
	for i, v := range found.violations {
		if i == most {
			t.Errorf("and %d more", len(found.violations)-most)
			break
		}
		t.Error(v)
	}
	t.Logf("faults: %v", f.kinds)
	t.Logf("%d processes; %d gets after a change of their own process, %d after one of another; %d loads under the lease, %d without it",
		len(f.history.processes), found.compared, found.told, found.loads, found.unlocked)
	if found.ops == 0 || found.compared == 0 || found.loads == 0 {
		t.Error("nothing was checked")
	}
	if os.Getenv("CHAOS") != "" {
		summary = fmt.Sprintf("ops %d faults %d violations %d", found.ops, f.faults, len(found.violations))
	}
}

func TestTheLibraryWorksWhereOnlyFIPSAlgorithmsDo(t *testing.T) {
	t.Setenv("GODEBUG", "fips140=only")
	f := startFleet(t, config{For: 2 * time.Second, Seed: 1, Processes: 2, Callers: 4, Pause: 10 * time.Millisecond, FIPS: true})
	f.run()
	found := f.history.check(limits)
	if len(found.violations) > 0 || found.loads == 0 {
		t.Errorf("%d loads under the lease; violations %q", found.loads, found.violations)
	}
}
