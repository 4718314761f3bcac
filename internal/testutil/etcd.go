package testutil

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// StartEtcd starts an etcd of so many members on free loopback ports and returns once all of them answer. They are fast
// to elect a leader, and careless of their disks. They are killed when the test ends.
func StartEtcd(tb testing.TB, members int) []*Server {
	tb.Helper()
	bin := findTool(tb, "etcd")
	heartbeat, election := "10", "100" // ms; a member that is alone elects itself after that
	if members > 1 {
		heartbeat, election = "50", "500" // members on a busy machine must not miss each other
	}
	return startServers(tb, func() []*Server {
		var servers []*Server
		clients, peers := make([]string, members), make([]string, members)
		token := tb.TempDir() // of this cluster alone
		var cluster []string
		for i := range members {
			clients[i], peers[i] = "http://"+loopback(freePort(tb)), "http://"+loopback(freePort(tb))
			cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peers[i]))
		}
		for i := range members {
			dir := tb.TempDir()
			command := func() *exec.Cmd {
				return exec.CommandContext(detached(tb), bin, "--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(dir, "data"),
					"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i],
					"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
					"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", token,
					"--unsafe-no-fsync", "--heartbeat-interval", heartbeat, "--election-timeout", election, "--logger", "zap")
			}
			answers := func() bool { return strings.Contains(httpGet(tb, clients[i]+"/health"), `"true"`) }
			servers = append(servers, newServer(tb, dir, strings.TrimPrefix(clients[i], "http://"), command, answers))
		}
		return servers
	})
}

// httpGet returns the body of a page, "" if there is none.
func httpGet(tb testing.TB, url string) string {
	tb.Helper()
	ctx, cancel := bounded(tb, serverStart)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	req.Close = true // no connection outlives the test
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}
