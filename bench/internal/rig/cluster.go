package rig

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Cluster is a Redis Cluster of three masters, each a process of its own.
type Cluster []*Server

// StartCluster starts a Cluster and returns once every node serves all slots.
func StartCluster(ctx context.Context) (c Cluster, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		return nil, errors.New("redis-cli is not installed: the suite makes a Cluster with it")
	}
	for range 3 {
		port, err := freePort(ctx) // the bus is by default at port+10000, which may not exist or be taken
		if err != nil {
			return c, err
		}
		s, err := StartServer(ctx, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", strconv.Itoa(port))
		if err != nil {
			return c, err
		}
		c = append(c, s)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the nodes do not form a cluster in 30 s"))
	defer cancel()
	args := append(append([]string{"--cluster", "create"}, c.Addrs()...), "--cluster-yes")
	if out, err := exec.CommandContext(ctx, cli, args...).CombinedOutput(); err != nil {
		return c, fmt.Errorf("redis-cli cannot make a cluster: %w\n%s", err, out)
	}
	for _, s := range c {
		for !s.inCluster(ctx) {
			if err := Sleep(ctx, 10*time.Millisecond); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// Addrs are the host:port of the nodes.
func (c Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Close kills the nodes.
func (c Cluster) Close() error {
	var errs []error
	for _, s := range c {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// inCluster reports whether a node knows three masters and that all slots are served.
func (s *Server) inCluster(ctx context.Context) bool {
	rdb := s.Client()
	defer func() { _ = rdb.Close() }()
	info, err := rdb.ClusterInfo(ctx).Result()
	return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_size:3")
}
