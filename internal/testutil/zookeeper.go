package testutil

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ZooKeeperTick is the tick of a StartZooKeeper: sessions end a tick late at most, and last for two ticks at least.
const ZooKeeperTick = 200 * time.Millisecond

// StartZooKeeper starts a ZooKeeper of so many servers on free loopback ports, of Debian's packages, and returns once all
// of them serve. They allow sessions of up to a day. They are killed when the test ends.
func StartZooKeeper(tb testing.TB, servers int) []*Server {
	tb.Helper()
	const jar, conf = "/usr/share/java/zookeeper.jar", "/etc/zookeeper/conf_example"
	for _, path := range []string{jar, conf} {
		if _, err := os.Stat(path); err != nil {
			tb.Fatalf("%v: zookeeper is not installed, and nothing is skipped: `make tools` installs it", err)
		}
	}
	java := findTool(tb, "java")
	return startServers(tb, func() []*Server {
		var all []*Server
		var ensemble strings.Builder // empty for one server, which is alone
		for i := range servers {
			if servers > 1 {
				fmt.Fprintf(&ensemble, "server.%d=127.0.0.1:%d:%d\n", i+1, freePort(tb), freePort(tb))
			}
		}
		for i := range servers {
			dir, port := tb.TempDir(), freePort(tb)
			cfg := fmt.Sprintf("tickTime=%d\ninitLimit=50\nsyncLimit=5\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%d\n"+
				"maxSessionTimeout=86400000\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr,wchs\n%s",
				ZooKeeperTick.Milliseconds(), dir, port, ensemble.String())
			write(tb, filepath.Join(dir, "zoo.cfg"), cfg)
			write(tb, filepath.Join(dir, "myid"), strconv.Itoa(i+1))
			command := func() *exec.Cmd {
				return exec.CommandContext(detached(tb), java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no",
					"-cp", conf+":"+jar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg"))
			}
			answers := func() bool { return strings.Contains(AskZooKeeper(tb, loopback(port), "srvr"), "Mode:") }
			all = append(all, newServer(tb, dir, loopback(port), command, answers))
		}
		return all
	})
}

func write(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// AskZooKeeper sends a four letter word, srvr or wchs, to the server at addr and returns what it says, "" if it says
// nothing.
func AskZooKeeper(tb testing.TB, addr, word string) string {
	tb.Helper()
	ctx, cancel := bounded(tb, serverStart)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	_, _ = io.WriteString(conn, word)
	reply, _ := io.ReadAll(conn)
	return string(reply)
}
