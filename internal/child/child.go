// Package child starts processes that end with this one, for tests and benchmarks.
package child

import (
	"os"
	"os/exec"
)

// A Process is a started child. One goroutine waits for its end; Kill waits for that
// goroutine.
type Process struct {
	cmd *exec.Cmd

	// Done is closed when the child has ended.
	Done chan struct{}
	// Err is how it ended. It is read only after Done.
	Err error
}

// Start starts cmd as a child that dies with this process. If cmd has a SysProcAttr, it is one that DieWithParent made.
func Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = DieWithParent()
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, Done: make(chan struct{})}
	go func() {
		defer close(p.Done)
		p.Err = cmd.Wait()
	}()
	return p, nil
}

// PID is the id of the child's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends the child a signal.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Exited reports whether the child has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// Kill ends the child, frozen or not, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only for a child that has ended
	<-p.Done
}
