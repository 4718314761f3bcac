package testutil

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/child"
)

const (
	serverStart    = 10 * time.Second // how long a redis-server may take to answer
	serverAttempts = 5                // ports tried before giving up
)

// Redis is one redis-server process on loopback, without persistence. Its
// methods belong to the test's goroutine; clients may be used from anywhere.
type Redis struct {
	tb      testing.TB
	bin     string
	dir     string
	port    int
	args    []string       // beside those every server gets
	process *child.Process // nil while killed
}

// StartRedis starts a redis-server on a free loopback port and returns once it
// answers. It is killed when the test ends. Not for use inside a synctest bubble:
// real sockets stop a bubble's clock, see [NewBubbleRedis].
//
// args are further options of the server, as on its command line.
func StartRedis(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	return startRedis(tb, func() []string { return args })
}

// startRedis asks for the arguments at each attempt: they may name a port that
// was free and is no longer.
func startRedis(tb testing.TB, args func() []string) *Redis {
	tb.Helper()
	r := &Redis{tb: tb, bin: findTool(tb, "redis-server"), dir: tb.TempDir()}
	tb.Cleanup(r.Kill)
	for range serverAttempts {
		r.port, r.args = freePort(tb), args()
		if r.start() == nil {
			return r
		}
	}
	tb.Fatalf("redis-server did not start on any of %d free ports; its log ends:\n%s", serverAttempts, r.logTail())
	return nil
}

// Addr is the server's host:port. It stays the same over Kill and Restart.
func (r *Redis) Addr() string { return loopback(r.port) }

// Client opens a client of the server as the guide says, changed by opts. It is closed
// when the test ends.
func (r *Redis) Client(tb testing.TB, opts ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	return NewClient(tb, r.Addr(), opts...)
}

// NewClient opens a client of addr, say that of a [Proxy], as the guide says, changed by
// opts. It is closed when the test ends.
func NewClient(tb testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	o := &redis.Options{Addr: addr, ContextTimeoutEnabled: true}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewClient(o)
	tb.Cleanup(func() { _ = c.Close() }) // a test may have closed it already
	return c
}

// Kill kills the server with SIGKILL and waits until it is gone; its data is
// lost. A server that is not running is left alone.
func (r *Redis) Kill() {
	if r.process != nil {
		r.process.Kill()
		r.process = nil
	}
}

// Restart kills the server if it runs and starts an empty one on the same port.
func (r *Redis) Restart() {
	r.tb.Helper()
	r.Kill()
	var err error
	// Another process may hold the port for a moment as its outgoing port.
	if !poll(serverStart, func() bool { err = r.start(); return err == nil }) {
		r.tb.Fatalf("redis-server does not come back at %s: %v; its log ends:\n%s", r.Addr(), err, r.logTail())
	}
}

// Freeze stops the server's process with SIGSTOP: connections stay open and
// nothing answers. Thaw lets it go on.
func (r *Redis) Freeze() { sendSignal(r.tb, r.process, sigStop) }

// Thaw undoes Freeze.
func (r *Redis) Thaw() { sendSignal(r.tb, r.process, sigCont) }

// CommandStats returns how often each command ran since the server started, by
// its lower-case name (subcommands as "script|load"). Commands run by scripts are
// included; what clients sent is counted by [Proxy.Commands].
func (r *Redis) CommandStats() map[string]int64 {
	r.tb.Helper()
	ctx, cancel := bounded(r.tb, serverStart)
	defer cancel()
	info, err := r.command(ctx, "INFO commandstats")
	if err != nil {
		r.tb.Fatalf("reading commandstats of %s: %v", r.Addr(), err)
	}
	stats := map[string]int64{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			r.tb.Fatalf("commandstats of %s has a line of unknown form: %q", r.Addr(), line)
		}
		stats[name] = n
	}
	return stats
}

// Calls is the sum of CommandStats without what no path of the library is charged
// for: connection set-up, subscriptions, loading of scripts, heartbeats (PUBLISH)
// and the asking itself.
func (r *Redis) Calls() int64 {
	r.tb.Helper()
	return countedCalls(r.CommandStats())
}

// countedCalls sums the commands the library's cost table counts.
func countedCalls(stats map[string]int64) int64 {
	var sum int64
	for name, n := range stats {
		family, _, _ := strings.Cut(name, "|")
		switch family {
		case "hello", "auth", "select", "client", "ping", "info", "config", "cluster", "command",
			"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "script", "publish":
		default:
			sum += n
		}
	}
	return sum
}

// start runs the server on r.port and waits until this very process answers.
func (r *Redis) start() error {
	log, err := os.OpenFile(r.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	args := append([]string{
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.dir,
		"--save", "", "--appendonly", "no",
	}, r.args...)
	cmd := exec.CommandContext(detached(r.tb), r.bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := child.Start(cmd)
	if err != nil {
		return err
	}
	// A stranger may sit on the port: only our own pid in INFO counts as an answer.
	want := fmt.Sprintf("process_id:%d\r\n", p.PID())
	ctx, cancel := bounded(r.tb, serverStart)
	defer cancel()
	up := func() bool {
		info, err := r.command(ctx, "INFO server")
		return err == nil && strings.Contains(info, want)
	}
	if !poll(serverStart, func() bool { return p.Exited() || up() }) || p.Exited() {
		p.Kill()
		return fmt.Errorf("redis-server on port %d ended or never answered", r.port)
	}
	r.process = p
	return nil
}

// command sends one inline command on a connection of its own and returns the
// reply's bytes. It does not use a client: those log every refused connection.
func (r *Redis) command(ctx context.Context, line string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write([]byte(line + "\r\n")); err != nil {
		return "", err
	}
	reply, err := readFrame(bufio.NewReader(conn))
	return string(reply), err
}

func (r *Redis) logPath() string { return filepath.Join(r.dir, "redis.log") }

// logTail returns the end of the server's log.
func (r *Redis) logTail() string {
	log, err := os.ReadFile(r.logPath())
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-4096):])
}

// findTool returns the path of a program the tests need.
func findTool(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("%s is not installed, and nothing is skipped: `make tools` installs it", name)
	}
	return path
}

// freePort returns a loopback port that was free a moment ago.
func freePort(tb testing.TB) int {
	tb.Helper()
	l := listen(tb, loopback(0))
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// listen listens on addr. Another process may hold the port for a moment as its
// outgoing port.
func listen(tb testing.TB, addr string) net.Listener {
	tb.Helper()
	var (
		lc  net.ListenConfig
		l   net.Listener
		err error
	)
	if !poll(serverStart, func() bool { l, err = lc.Listen(detached(tb), "tcp", addr); return err == nil }) {
		tb.Fatalf("no listener on %s: %v", addr, err)
	}
	return l
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// detached is the test's context without its end, which comes before the
// test's cleanups run.
func detached(tb testing.TB) context.Context {
	tb.Helper()
	return context.WithoutCancel(tb.Context())
}

func bounded(tb testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	tb.Helper()
	return context.WithTimeout(detached(tb), d)
}
