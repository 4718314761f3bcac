package testutil

import (
	"os"
	"syscall"
	"testing"

	"github.com/herdgate/herdgate/internal/child"
)

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// sendSignal fails the test if p, nil for one that was killed, cannot get the signal.
func sendSignal(tb testing.TB, p *child.Process, sig os.Signal) {
	tb.Helper()
	if p == nil {
		tb.Fatalf("cannot send %v: the process was killed", sig)
	}
	if err := p.Signal(sig); err != nil {
		tb.Fatalf("cannot send %v to process %d: %v", sig, p.PID(), err)
	}
}
