package suite

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/rig"
	"github.com/herdgate/herdgate/bench/internal/scenario"
)

// TestMain plays the part of the program, too: the suite runs it again as worker and
// as simulation.
func TestMain(m *testing.M) {
	peer.Silence()
	switch {
	case scenario.IsSimulation():
		scenario.Simulate()
	case rig.IsWorker():
		if err := scenario.Work(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Libraries of peers start goroutines when they are linked, before any test.
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}
