package testutil

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const clusterStart = 30 * time.Second // how long three masters may take to agree

// Cluster is a Redis Cluster of three masters without replicas, each a process of
// its own.
type Cluster struct {
	Nodes []*Redis
}

// StartCluster starts a Cluster and returns once every node says that it serves
// all slots. It is killed when the test ends.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	cli := findTool(tb, "redis-cli")
	c := &Cluster{}
	for range 3 {
		// The bus is by default at port+10000, which may not exist or be taken.
		c.Nodes = append(c.Nodes, startRedis(tb, func() []string {
			return []string{
				"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
				"--cluster-port", strconv.Itoa(freePort(tb)),
			}
		}))
	}
	ctx, cancel := bounded(tb, clusterStart)
	defer cancel()
	args := append([]string{"--cluster", "create"}, c.Addrs()...)
	if out, err := exec.CommandContext(ctx, cli, append(args, "--cluster-yes")...).CombinedOutput(); err != nil {
		tb.Fatalf("redis-cli cannot make a cluster: %v\n%s", err, out)
	}
	for _, n := range c.Nodes {
		Eventually(tb, clusterStart, func() bool { return n.inCluster(ctx) }, "node "+n.Addr()+" serves in the cluster")
	}
	return c
}

// Addrs are the host:port of the nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// Client opens a client of the cluster with go-redis's defaults, changed by opts.
// It is closed when the test ends.
func (c *Cluster) Client(tb testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	tb.Helper()
	o := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewClusterClient(o)
	tb.Cleanup(func() { _ = client.Close() }) // a test may have closed it already
	return client
}

// inCluster reports whether r knows three masters and that all slots are served.
func (r *Redis) inCluster(ctx context.Context) bool {
	info, err := r.command(ctx, "CLUSTER INFO")
	return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_size:3")
}
