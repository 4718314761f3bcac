package testutil

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/child"
)

// Server is one server process on loopback that keeps its data in a directory of its own. Its methods belong to the
// test's goroutine.
type Server struct {
	tb      testing.TB
	addr    string
	logPath string
	command func() *exec.Cmd
	answers func() bool
	family  bool           // its children are killed, frozen and thawed with it
	process *child.Process // nil while killed
}

// newServer is a server that command runs and that is up when answers returns true. It is killed when the test ends.
func newServer(tb testing.TB, dir, addr string, command func() *exec.Cmd, answers func() bool) *Server {
	tb.Helper()
	s := &Server{tb: tb, addr: addr, logPath: filepath.Join(dir, "log"), command: command, answers: answers}
	tb.Cleanup(s.Kill)
	return s
}

// Addr is the host:port for clients. It stays the same over Kill and Start.
func (s *Server) Addr() string { return s.addr }

// Kill kills the server with SIGKILL and waits until it is gone. A server that is not running is left alone.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	if s.family && !s.process.Exited() {
		killChildren(s.tb, s.process)
	}
	s.process.Kill()
	s.process = nil
}

// Start starts the server again, with the data it had, and waits until it answers.
func (s *Server) Start() {
	s.tb.Helper()
	s.run()
	s.await()
}

// Freeze stops the server's process with SIGSTOP: connections stay open and nothing answers. Thaw lets it go on.
func (s *Server) Freeze() { s.signal(sigStop) }

// Thaw undoes Freeze.
func (s *Server) Thaw() { s.signal(sigCont) }

func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	sendSignal(s.tb, s.process, sig)
	if s.family {
		for _, pid := range children(s.tb, s.process.PID()) {
			_ = syscall.Kill(pid, sig) // fails only for one that has ended
		}
	}
}

// stop asks the server to end, and waits for that a little. A server that is not running is left alone.
func (s *Server) stop(sig syscall.Signal) {
	if s.process == nil {
		return
	}
	if !s.process.Exited() {
		s.Thaw() // a frozen one would not hear
	}
	_ = s.process.Signal(sig) // fails only for one that has ended
	timer := time.NewTimer(serverStart)
	defer timer.Stop()
	select {
	case <-s.process.Done:
	case <-timer.C:
	}
}

func (s *Server) run() {
	s.tb.Helper()
	log, err := os.OpenFile(s.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = child.Start(cmd); err != nil {
		s.tb.Fatalf("%s does not start: %v", cmd.Path, err)
	}
}

func (s *Server) await() {
	s.tb.Helper()
	if err := s.up(); err != nil {
		s.tb.Fatal(err)
	}
}

// up waits until the server answers.
func (s *Server) up() error {
	if poll(time.Minute, func() bool { return s.process.Exited() || s.answers() }) && !s.process.Exited() {
		return nil
	}
	log, _ := os.ReadFile(s.logPath)
	return fmt.Errorf("the server at %s ended or never answered; its log ends:\n%s", s.addr, log[max(0, len(log)-4096):])
}

// startServers makes servers that depend on each other, starts them and waits until all answer. As ports that were
// free may be taken when a server comes to them, it tries some times.
func startServers(tb testing.TB, newServers func() []*Server) []*Server {
	tb.Helper()
	var err error
	for range serverAttempts {
		servers := newServers()
		for _, s := range servers {
			s.run()
		}
		err = nil
		for _, s := range servers {
			if err == nil {
				err = s.up()
			}
		}
		if err == nil {
			return servers
		}
		for _, s := range servers {
			s.Kill()
		}
	}
	tb.Fatal(err)
	return nil
}
