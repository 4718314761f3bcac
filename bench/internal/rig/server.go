package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/child"
)

const (
	serverStart    = 10 * time.Second // how long a redis-server may take to answer
	serverAttempts = 5                // ports tried before giving up
	lookEvery      = 2 * time.Millisecond
)

// Server is one redis-server process on loopback, without persistence. Its methods
// belong to one goroutine.
type Server struct {
	bin, dir string
	port     int
	args     []string       // beside those that every server gets
	process  *child.Process // nil while killed
}

// StartServer starts a redis-server on a free loopback port and returns once it
// answers. extra are further options of its command line.
func StartServer(ctx context.Context, extra ...string) (*Server, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not installed: the suite starts its own, on free loopback ports")
	}
	dir, err := os.MkdirTemp("", "herdgate-bench-")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, args: extra}
	for range serverAttempts {
		if s.port, err = freePort(ctx); err == nil {
			if err = s.start(ctx); err == nil {
				return s, nil
			}
		}
	}
	log, _ := os.ReadFile(s.log())
	return nil, errors.Join(fmt.Errorf("redis-server did not start: %w; its log ends:\n%s", err, log[max(0, len(log)-2048):]), s.Close())
}

// Addr is the server's host:port. It stays the same over Kill and Restart.
func (s *Server) Addr() string { return loopback(s.port) }

// Kill kills the server with SIGKILL and waits until it is gone; its data is lost.
func (s *Server) Kill() {
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
}

// Restart starts an empty server on the same port after a Kill and returns once it
// answers.
func (s *Server) Restart(ctx context.Context) error {
	var err error
	// Another process may hold the port for a moment as its outgoing port.
	for range serverAttempts {
		if err = s.start(ctx); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Close kills the server and removes what it has written.
func (s *Server) Close() error {
	s.Kill()
	return os.RemoveAll(s.dir)
}

// Client opens a client of the server with go-redis's defaults.
func (s *Server) Client() *redis.Client { return redis.NewClient(&redis.Options{Addr: s.Addr()}) }

// Commands returns how many commands the server has run, with those inside scripts
// and without the set-up of connections and of scripts.
func (s *Server) Commands(ctx context.Context) (int64, error) {
	rdb := s.Client()
	defer func() { _ = rdb.Close() }()
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	return sumCommands(info)
}

func sumCommands(info string) (int64, error) {
	var sum int64
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		family, _, _ := strings.Cut(name, "|")
		if setUp(family) {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("commandstats has a line of unknown form: %q", line)
		}
		sum += n
	}
	return sum, nil
}

// setUp reports whether a command, by its lower-case name, is caused by no request.
func setUp(name string) bool {
	switch name {
	case "hello", "auth", "select", "client", "ping", "info", "config", "command", "cluster",
		"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "script":
		return true
	}
	return false
}

// start runs the server on s.port and waits until this very process answers.
func (s *Server) start(ctx context.Context) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	args := append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no",
	}, s.args...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := child.Start(cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, serverStart)
	defer cancel()
	for !s.answers(ctx, p.PID()) {
		if p.Exited() || ctx.Err() != nil {
			p.Kill()
			return fmt.Errorf("redis-server on port %d ended or never answered", s.port)
		}
		_ = Sleep(ctx, lookEvery) // the loop looks at ctx
	}
	s.process = p
	return nil
}

// answers reports whether a server of this pid does: a stranger may sit on the port.
func (s *Server) answers(ctx context.Context, pid int) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.Addr()) // a client would log each refused connection
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("INFO server\r\n")); err != nil {
		return false
	}
	want := fmt.Sprintf("process_id:%d\r\n", pid)
	var answer []byte
	for part := make([]byte, 4096); !strings.Contains(string(answer), want); {
		n, err := conn.Read(part)
		if answer = append(answer, part[:n]...); err != nil {
			return false
		}
	}
	return true
}

func (s *Server) log() string { return filepath.Join(s.dir, "redis.log") }

// freePort returns a loopback port that was free a moment ago.
func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", loopback(0))
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Sleep waits for d or until ctx ends, and returns ctx's error then.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SleepUntil is Sleep until a moment.
func SleepUntil(ctx context.Context, t time.Time) error { return Sleep(ctx, time.Until(t)) }
