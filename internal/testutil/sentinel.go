package testutil

import (
	"context"
	"fmt"
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
	sentinelMaster = "main"           // what the sentinels call the master
	failoverTime   = 30 * time.Second // how long they may take to agree, or to make another
)

// Sentinel is a master with a replica and three sentinels that watch them. Two of those
// must agree that the master is down: it has not answered for 300 ms.
type Sentinel struct {
	tb        testing.TB
	Nodes     [2]*Redis // one of them is the master, at first the first
	sentinels [3]*Redis
}

// StartSentinel starts all five processes and returns once the sentinels know the
// replica and each other, so that they can make it the master. They are killed when the
// test ends.
//
// args are further options of master and replica.
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	s := &Sentinel{tb: tb}
	s.Nodes[0] = StartRedis(tb, args...)
	_, port, _ := strings.Cut(s.Nodes[0].Addr(), ":")
	s.Nodes[1] = StartRedis(tb, append([]string{"--replicaof", "127.0.0.1 " + port}, args...)...)
	for i := range s.sentinels {
		s.sentinels[i] = startSentinel(tb, port)
	}
	ctx, cancel := bounded(tb, failoverTime)
	defer cancel()
	for _, sentinel := range s.sentinels {
		Eventually(tb, failoverTime, func() bool {
			info, err := sentinel.command(ctx, "INFO sentinel")
			return err == nil && strings.Contains(info, "status=ok") && strings.Contains(info, "slaves=1,sentinels=3")
		}, "sentinel "+sentinel.Addr()+" knows the replica and the others")
	}
	Eventually(tb, failoverTime, func() bool {
		info, err := s.Nodes[1].command(ctx, "INFO replication")
		return err == nil && strings.Contains(info, "master_link_status:up")
	}, "the replica is in step")
	return s
}

// startSentinel starts one of the sentinels.
func startSentinel(tb testing.TB, masterPort string) *Redis {
	tb.Helper()
	r := &Redis{tb: tb, bin: findTool(tb, "redis-server"), dir: tb.TempDir()}
	tb.Cleanup(r.Kill)
	for range serverAttempts {
		r.port = freePort(tb)
		// A sentinel keeps what it learns in its configuration.
		config := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nlogfile %s\nsentinel monitor %[4]s 127.0.0.1 %[5]s 2\n"+
			"sentinel down-after-milliseconds %[4]s 300\nsentinel failover-timeout %[4]s 2000\n",
			r.port, r.dir, r.logPath(), sentinelMaster, masterPort)
		path := filepath.Join(r.dir, "sentinel.conf")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			tb.Fatal(err)
		}
		p, err := child.Start(exec.CommandContext(detached(tb), r.bin, path, "--sentinel"))
		if err != nil {
			tb.Fatal(err)
		}
		ctx, cancel := bounded(tb, serverStart)
		want := "process_id:" + strconv.Itoa(p.PID()) + "\r\n"
		up := func() bool {
			info, err := r.command(ctx, "INFO server")
			return err == nil && strings.Contains(info, want)
		}
		ok := poll(serverStart, func() bool { return p.Exited() || up() }) && !p.Exited()
		cancel()
		if ok {
			r.process = p
			return r
		}
		p.Kill()
	}
	tb.Fatalf("no sentinel started on any of %d free ports; its log ends:\n%s", serverAttempts, r.logTail())
	return nil
}

// Client opens a client that asks the sentinels for the master, with go-redis's
// defaults, changed by opts. It is closed when the test ends.
func (s *Sentinel) Client(tb testing.TB, opts ...func(*redis.FailoverOptions)) *redis.Client {
	tb.Helper()
	o := &redis.FailoverOptions{MasterName: sentinelMaster}
	for _, sentinel := range s.sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, sentinel.Addr())
	}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewFailoverClient(o)
	tb.Cleanup(func() { _ = c.Close() }) // a test may have closed it already
	return c
}

// Master is the node that the sentinels say is the master.
func (s *Sentinel) Master() *Redis {
	s.tb.Helper()
	ctx, cancel := bounded(s.tb, serverStart)
	defer cancel()
	m := s.master(ctx)
	if m == nil {
		s.tb.Fatal("the sentinels name no node of theirs as the master")
	}
	return m
}

// master is nil unless most of the sentinels agree.
func (s *Sentinel) master(ctx context.Context) *Redis {
	votes := map[*Redis]int{}
	for _, sentinel := range s.sentinels {
		reply, err := sentinel.command(ctx, "SENTINEL get-master-addr-by-name "+sentinelMaster)
		for _, n := range s.Nodes {
			if err == nil && strings.Contains(reply, "\r\n"+strconv.Itoa(n.port)+"\r\n") {
				votes[n]++
			}
		}
	}
	for n, v := range votes {
		if v > len(s.sentinels)/2 {
			return n
		}
	}
	return nil
}

// Failover kills the master and returns once the sentinels have made the other node the
// master. The one that was can be restarted, and is then a replica.
func (s *Sentinel) Failover() {
	s.tb.Helper()
	was := s.Master()
	was.Kill()
	s.AwaitOther(was)
}

// AwaitOther returns once the sentinels have made another node the master than the one
// that was.
func (s *Sentinel) AwaitOther(was *Redis) {
	s.tb.Helper()
	ctx, cancel := bounded(s.tb, failoverTime)
	defer cancel()
	Eventually(s.tb, failoverTime, func() bool {
		is := s.master(ctx)
		if is == nil || is == was {
			return false
		}
		info, err := is.command(ctx, "INFO replication")
		return err == nil && strings.Contains(info, "role:master")
	}, "there is another master")
}
