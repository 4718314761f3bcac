package testutil

import (
	"fmt"
	"os"
	"strconv"
	"strings"
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

// children are the processes that a process has started.
func children(tb testing.TB, pid int) []int {
	tb.Helper()
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		tb.Fatal(err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(list)) {
		if n, err := strconv.Atoi(field); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// killChildren kills the children of p, which is frozen thereby, and waits until they are dead: what they shared with it is
// free then.
func killChildren(tb testing.TB, p *child.Process) {
	tb.Helper()
	sendSignal(tb, p, sigStop) // so that it starts no others
	for _, pid := range children(tb, p.PID()) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // fails only for one that has ended
		dead := func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			_, state, _ := strings.Cut(string(stat), ") ")
			return err != nil || strings.HasPrefix(state, "Z")
		}
		if !poll(serverStart, dead) {
			tb.Fatalf("process %d does not die", pid)
		}
	}
}
