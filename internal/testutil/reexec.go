package testutil

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/internal/child"
)

const (
	roleEnv  = "HERDGATE_TEST_ROLE" // names the role a re-executed test binary plays
	argsEnv  = "HERDGATE_TEST_ARGS" // its Args as JSON
	lifetime = 2 * time.Minute      // of a child; its parent's test is long over by then
	maxLines = 1 << 16              // that a parent keeps for later
)

// Args are a role's arguments, by name.
type Args map[string]string

// Role is what a child process does. ctx ends when the parent asks the child to
// stop, or is gone, or the child is older than two minutes. Its error fails the
// parent's Wait. It tells the parent what happens with [Emit].
type Role func(ctx context.Context, args Args) error

// Main is the body of a TestMain: os.Exit(testutil.Main(m, roles)). In a process
// started by [Spawn] it plays the role asked for; else it runs the tests and then
// looks for leaked goroutines.
func Main(m interface{ Run() int }, roles map[string]Role, opts ...goleak.Option) (exitCode int) {
	if name := os.Getenv(roleEnv); name != "" {
		if err := play(name, roles); err != nil {
			fmt.Fprintf(os.Stderr, "role %s: %v\n", name, err)
			return 1
		}
		return 0
	}
	if code := m.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(opts...); err != nil {
		fmt.Fprintf(os.Stderr, "goroutines outlived the tests: %v\n", err)
		return 1
	}
	return 0
}

// play runs one role in this process.
func play(name string, roles map[string]Role) error {
	role, ok := roles[name]
	if !ok {
		return fmt.Errorf("no such role in this package's TestMain, which has %d", len(roles))
	}
	var args Args
	if err := json.Unmarshal([]byte(os.Getenv(argsEnv)), &args); err != nil {
		return fmt.Errorf("reading its arguments: %w", err)
	}
	// A role that ignores its context still ends.
	defer time.AfterFunc(lifetime+10*time.Second, func() { panic("role outlived its lifetime") }).Stop()
	ctx, cancel := context.WithTimeout(context.Background(), lifetime) //nolint:forbidigo // the root of a process
	defer cancel()
	// Standard input ends when the parent closes it, and when the parent dies. This
	// goroutine has the process as its owner: nothing can interrupt the read.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return role(ctx, args)
}

// Emit sends v, as one line of JSON, to the parent of a role's process. A child that
// is 65,536 lines ahead of its parent is ended: send many small things as one. Emit
// is safe for concurrent use.
func Emit(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	// One write a line: lines of several goroutines do not mix.
	_, err = os.Stdout.Write(append(line, '\n'))
	return err
}

// Child is a process that plays a role. Its methods belong to the test's goroutine.
type Child struct {
	tb      testing.TB
	role    string
	process *child.Process
	stdin   io.Closer

	lines  chan []byte // what it emitted and nobody took yet
	stderr tail
}

// Spawn starts this test binary again as a process of its own that plays role,
// one of those given to [Main]. It is killed when the test ends; its standard
// error is shown if the test fails.
func Spawn(tb testing.TB, role string, args Args) *Child {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatalf("the test binary cannot find itself: %v", err)
	}
	argsJSON, err := json.Marshal(args)
	if err != nil {
		tb.Fatalf("the arguments of role %s: %v", role, err)
	}
	c := &Child{tb: tb, role: role, lines: make(chan []byte, maxLines)}
	cmd := exec.CommandContext(detached(tb), exe)
	// The race runtime would pause a second before each exit.
	cmd.Env = append(os.Environ(), roleEnv+"="+role, argsEnv+"="+string(argsJSON), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = &c.stderr
	cmd.Stdout = &lineWriter{lines: c.lines}
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		tb.Fatalf("standard input of role %s: %v", role, err)
	}
	if c.process, err = child.Start(cmd); err != nil {
		tb.Fatalf("role %s does not start: %v", role, err)
	}
	tb.Cleanup(func() {
		c.process.Kill()
		if s := c.stderr.String(); tb.Failed() && s != "" {
			tb.Logf("standard error of role %s (process %d):\n%s", role, c.process.PID(), s)
		}
	})
	return c
}

// Next decodes the next line the child emitted into v. It fails the test if none
// comes within timeout or the child ends first.
func (c *Child) Next(timeout time.Duration, v any) {
	c.tb.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	line, ok := c.take(timer.C)
	if !ok {
		c.tb.Fatalf("role %s ended (%v) before it said what was waited for", c.role, c.process.Err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		c.tb.Fatalf("role %s said %q: %v", c.role, line, err)
	}
}

// Drain waits until the child has ended and returns the lines nobody took with
// Next, in order. It fails the test after timeout.
func (c *Child) Drain(timeout time.Duration) []json.RawMessage {
	c.tb.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var rest []json.RawMessage
	for {
		line, ok := c.take(timer.C)
		if !ok {
			return rest
		}
		rest = append(rest, line)
	}
}

// take waits for the next line; it is false when the child has ended and every
// line was taken.
func (c *Child) take(timeout <-chan time.Time) ([]byte, bool) {
	c.tb.Helper()
	select {
	case line := <-c.lines:
		return line, true
	case <-c.process.Done: // and so no line is on its way
		select {
		case line := <-c.lines:
			return line, true
		default:
			return nil, false
		}
	case <-timeout:
		c.tb.Fatalf("role %s neither said anything nor ended in time", c.role)
		return nil, false
	}
}

// Kill ends the child with SIGKILL and waits until it is gone.
func (c *Child) Kill() { c.process.Kill() }

// Freeze stops the child with SIGSTOP; it keeps its connections and its leases.
func (c *Child) Freeze() { sendSignal(c.tb, c.process, sigStop) }

// Thaw lets a frozen child go on.
func (c *Child) Thaw() { sendSignal(c.tb, c.process, sigCont) }

// Stop asks the child to end, by the end of its role's ctx, and waits for it like
// Wait.
func (c *Child) Stop(timeout time.Duration) error {
	c.tb.Helper()
	_ = c.stdin.Close()
	return c.Wait(timeout)
}

// Wait waits until the child has ended and returns nil if its role did, else an
// error with what it wrote to standard error. It fails the test after timeout.
func (c *Child) Wait(timeout time.Duration) error {
	c.tb.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-c.process.Done:
	case <-timer.C:
		c.tb.Fatalf("role %s still runs after %v", c.role, timeout)
	}
	if c.process.Err != nil {
		return fmt.Errorf("role %s: %w\n%s", c.role, c.process.Err, c.stderr.String())
	}
	return nil
}

// errTooMuch ends a child that says more than anybody will read.
var errTooMuch = errors.New("testutil: a role emitted more lines than its parent keeps")

// lineWriter cuts what is written to it into lines. The last one is dropped if it
// has no end: its writer was killed in the middle.
type lineWriter struct {
	partial []byte
	lines   chan<- []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	for {
		line, rest, ok := bytes.Cut(w.partial, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		select {
		case w.lines <- bytes.Clone(line):
		default:
			return 0, errTooMuch
		}
		w.partial = rest
	}
}

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	mu  sync.Mutex // protects buf
	buf []byte
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
