package rig

import "os/exec"

// process is a started child. One goroutine waits for its end; kill waits for that
// goroutine.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
	err  error         // how it ended; read only after done
}

// startProcess starts cmd as a child that dies with this process.
func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the child, frozen or not, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only for a child that has ended
	<-p.done
}
