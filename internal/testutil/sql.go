package testutil

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/child"
)

// StartPostgres starts a PostgreSQL on a free loopback port and returns once it answers. Its user test may do everything
// in its database postgres, and needs no password. It is careless of its disk, and killed when the test ends.
func StartPostgres(tb testing.TB) *Server {
	tb.Helper()
	initdb, postgres := findPostgres(tb, "initdb"), findPostgres(tb, "postgres")
	dir, attr := postgresHome(tb)
	data := filepath.Join(dir, "data")
	setUp := exec.CommandContext(detached(tb), initdb, "--pgdata", data, "--username", "test", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions")
	setUp.Dir, setUp.SysProcAttr = dir, attr
	if out, err := setUp.CombinedOutput(); err != nil {
		tb.Fatalf("initdb: %v\n%s", err, out)
	}
	return startServers(tb, func() []*Server {
		port := freePort(tb)
		command := func() *exec.Cmd {
			cmd := exec.CommandContext(detached(tb), postgres, "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", dir,
				"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=16MB",
				"-c", "max_connections=200", "-c", "autovacuum=off")
			cmd.Dir, cmd.SysProcAttr = dir, attr
			return cmd
		}
		s := newServer(tb, tb.TempDir(), loopback(port), command, func() bool { return postgresAnswers(tb, loopback(port)) })
		s.family = true
		// One that is killed leaves a piece of shared memory behind, for which the system has few places.
		tb.Cleanup(func() { s.stop(syscall.SIGQUIT) })
		return []*Server{s}
	})[0]
}

// findPostgres returns the path of a program of PostgreSQL, which Debian keeps out of PATH.
func findPostgres(tb testing.TB, name string) string {
	tb.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is good
	if len(found) == 0 {
		tb.Fatalf("%s is not installed, and nothing is skipped: `make tools` installs it", name)
	}
	return found[len(found)-1]
}

// postgresHome makes a directory, and says how processes are started that may use it: PostgreSQL refuses to be root.
func postgresHome(tb testing.TB) (string, *syscall.SysProcAttr) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "herdgate-postgres-") //nolint:usetesting // the parent of a tb.TempDir is for this user alone
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := child.DieWithParent()
	if os.Getuid() != 0 {
		return dir, attr
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		tb.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		tb.Fatal(err)
	}
	if attr == nil {
		attr = &syscall.SysProcAttr{}
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return dir, attr
}

// postgresAnswers tells whether a session can begin.
func postgresAnswers(tb testing.TB, addr string) bool {
	tb.Helper()
	const hello = "\x00\x03\x00\x00user\x00test\x00database\x00postgres\x00\x00"
	message := append(binary.BigEndian.AppendUint32(nil, 4+uint32(len(hello))), hello...)
	reply := greet(tb, addr, message, 1)
	return string(reply) == "R" // an error is E, as while it starts
}

// StartMariaDB starts a MariaDB on a free loopback port and returns once it answers. Everybody may do everything in its
// database test. It is careless of its disk, and killed when the test ends.
func StartMariaDB(tb testing.TB) *Server {
	tb.Helper()
	bin := findTool(tb, "mariadbd")
	return startServers(tb, func() []*Server {
		dir, port := tb.TempDir(), freePort(tb)
		// Without tables of its own, for users and the like, it needs no installation.
		if err := os.MkdirAll(filepath.Join(dir, "data", "test"), 0o700); err != nil {
			tb.Fatal(err)
		}
		command := func() *exec.Cmd {
			return exec.CommandContext(detached(tb), bin, "--no-defaults", "--user=root", "--skip-grant-tables",
				"--datadir="+filepath.Join(dir, "data"), "--socket="+filepath.Join(dir, "socket"), "--pid-file="+filepath.Join(dir, "pid"),
				"--bind-address=127.0.0.1", fmt.Sprintf("--port=%d", port), "--skip-name-resolve", "--performance-schema=0",
				"--max-connections=200", "--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync",
				"--innodb-doublewrite=0", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M", "--skip-innodb-use-native-aio")
		}
		answers := func() bool {
			greeting := greet(tb, loopback(port), nil, 5)
			return len(greeting) == 5 && greeting[4] == 10 // the version of the protocol; of an error it is 255
		}
		return []*Server{newServer(tb, dir, loopback(port), command, answers)}
	})[0]
}

// greet sends a first message to the server at addr and returns the first n bytes of its answer, fewer if it has none.
func greet(tb testing.TB, addr string, message []byte, n int) []byte {
	tb.Helper()
	ctx, cancel := bounded(tb, serverStart)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(serverStart))
	if _, err := conn.Write(message); err != nil {
		return nil
	}
	reply := make([]byte, n)
	got, _ := io.ReadFull(conn, reply)
	return reply[:got]
}
