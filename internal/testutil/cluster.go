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

const clusterMasters = 3

// Cluster is a Redis Cluster of three masters, each a process of its own.
type Cluster struct {
	tb    testing.TB
	Nodes []*Redis // at first the masters, then their replicas, if there are some
}

// StartCluster starts a Cluster and returns once every node says that it serves
// all slots. It is killed when the test ends.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	return startCluster(tb, 0)
}

// StartClusterWithReplicas is StartCluster with a replica of each master. It returns once
// they are in step.
func StartClusterWithReplicas(tb testing.TB) *Cluster {
	tb.Helper()
	c := startCluster(tb, 1)
	ctx, cancel := bounded(tb, clusterStart)
	defer cancel()
	for _, replica := range c.Nodes[clusterMasters:] {
		Eventually(tb, clusterStart, func() bool {
			info, err := replica.command(ctx, "INFO replication")
			return err == nil && strings.Contains(info, "master_link_status:up")
		}, "the replica "+replica.Addr()+" is in step")
	}
	return c
}

func startCluster(tb testing.TB, replicas int) *Cluster {
	tb.Helper()
	cli := findTool(tb, "redis-cli")
	c := &Cluster{tb: tb}
	for range clusterMasters * (1 + replicas) {
		c.Nodes = append(c.Nodes, startNode(tb))
	}
	ctx, cancel := bounded(tb, clusterStart)
	defer cancel()
	args := append([]string{"--cluster", "create", "--cluster-replicas", strconv.Itoa(replicas)}, c.Addrs()...)
	if out, err := exec.CommandContext(ctx, cli, append(args, "--cluster-yes")...).CombinedOutput(); err != nil {
		tb.Fatalf("redis-cli cannot make a cluster: %v\n%s", err, out)
	}
	for _, n := range c.Nodes {
		Eventually(tb, clusterStart, func() bool { return n.inCluster(ctx, clusterMasters) }, "node "+n.Addr()+" serves in the cluster")
	}
	return c
}

func startNode(tb testing.TB) *Redis {
	tb.Helper()
	// The bus is by default at port+10000, which may not exist or be taken.
	return startRedis(tb, func() []string {
		return []string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-port", strconv.Itoa(freePort(tb)),
		}
	})
}

// StartClusterOfOne starts a Cluster of one node, which has all slots.
func StartClusterOfOne(tb testing.TB) *Redis {
	tb.Helper()
	n := startNode(tb)
	ctx, cancel := bounded(tb, clusterStart)
	defer cancel()
	if err := n.Client(tb).ClusterAddSlotsRange(ctx, 0, 16383).Err(); err != nil {
		tb.Fatal(err)
	}
	Eventually(tb, clusterStart, func() bool { return n.inCluster(ctx, 1) }, "node "+n.Addr()+" serves in the cluster")
	return n
}

// Addrs are the host:port of the nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// Shard is the master at addr with its replica, nil if there is none.
func (c *Cluster) Shard(addr string) (master, replica *Redis) {
	c.tb.Helper()
	ctx, cancel := bounded(c.tb, serverStart)
	defer cancel()
	_, port, _ := strings.Cut(addr, ":")
	for _, n := range c.Nodes {
		info, err := n.command(ctx, "INFO replication")
		if n.Addr() == addr {
			master = n
		} else if err == nil && strings.Contains(info, "role:slave") && strings.Contains(info, "master_port:"+port+"\r\n") {
			replica = n
		}
	}
	if master == nil {
		c.tb.Fatalf("no node of the cluster has the address %s", addr)
	}
	return master, replica
}

// Client opens a client of the cluster as the guide says, changed by opts. It is closed
// when the test ends.
func (c *Cluster) Client(tb testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	tb.Helper()
	o := &redis.ClusterOptions{Addrs: c.Addrs(), ContextTimeoutEnabled: true}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewClusterClient(o)
	tb.Cleanup(func() { _ = client.Close() }) // a test may have closed it already
	return client
}

// inCluster reports whether r knows so many masters and that all slots are served.
func (r *Redis) inCluster(ctx context.Context, masters int) bool {
	info, err := r.command(ctx, "CLUSTER INFO")
	return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_size:"+strconv.Itoa(masters))
}
