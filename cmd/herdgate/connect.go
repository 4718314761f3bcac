package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/remote"
)

// target is where a command finds its Redis.
type target struct {
	redis     string
	cluster   bool
	namespace string
	timeout   time.Duration
}

func (t *target) declare(flags *flag.FlagSet) {
	flags.StringVar(&t.redis, "redis", "", "Redis's `address`: host:port, or a URL like rediss://user:password@host:6379/0; of a Cluster one\nor more host:port with commas between. Default $HERDGATE_REDIS, which keeps a password out of\nthe list of processes, else 127.0.0.1:6379")
	flags.BoolVar(&t.cluster, "cluster", false, "the address is of a Redis Cluster")
	flags.StringVar(&t.namespace, "namespace", "herdgate", "Options.Namespace of the service's gate")
	flags.DurationVar(&t.timeout, "timeout", 2*time.Second, "for each request to Redis")
}

// connection is a Redis that has answered.
type connection struct {
	*remote.Store
	rdb     redis.UniversalClient
	address string // as it is told: without a password
	timeout time.Duration
}

// connect returns a connection, or an error that says what is wrong with the address
// or the server. The caller closes it.
func (t *target) connect(ctx context.Context) (*connection, error) {
	if err := validName("namespace", t.namespace); err != nil {
		return nil, err
	}
	if t.timeout <= 0 {
		return nil, misused("-timeout is %v: want a positive duration", t.timeout)
	}
	c := &connection{timeout: t.timeout}
	var err error
	if t.cluster {
		c.rdb, c.address, err = t.clusterClient()
	} else {
		c.rdb, c.address, err = t.client()
	}
	if err != nil {
		return nil, err
	}
	c.Store = remote.NewStore(c.rdb, t.namespace, instanceName(), t.timeout)
	if err := c.ping(ctx); err != nil {
		c.close(ctx)
		return nil, err
	}
	return c, nil
}

func (t *target) where() string {
	return cmp.Or(t.redis, os.Getenv("HERDGATE_REDIS"), "127.0.0.1:6379")
}

// client is a client of a single server that tries once, within the timeout.
func (t *target) client() (redis.UniversalClient, string, error) {
	options := &redis.Options{Addr: t.where()}
	if isURL(options.Addr) {
		var err error
		if options, err = redis.ParseURL(options.Addr); err != nil {
			return nil, "", badURL(err)
		}
	} else if strings.Contains(options.Addr, ",") {
		return nil, "", misused("several Redis addresses: want one, or -cluster")
	} else if err := validAddress(options.Addr); err != nil {
		return nil, "", err
	}
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = t.timeout, t.timeout, t.timeout
	options.MaxRetries, options.DialerRetries = -1, 1
	return redis.NewClient(options), options.Addr, nil
}

// clusterClient is client for a Cluster.
func (t *target) clusterClient() (redis.UniversalClient, string, error) {
	options := &redis.ClusterOptions{Addrs: strings.Split(t.where(), ",")}
	if isURL(t.where()) {
		var err error
		if options, err = redis.ParseClusterURL(t.where()); err != nil {
			return nil, "", badURL(err)
		}
	}
	for _, addr := range options.Addrs {
		if err := validAddress(addr); err != nil {
			return nil, "", err
		}
	}
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = t.timeout, t.timeout, t.timeout
	options.MaxRetries, options.DialerRetries = -1, 1
	return redis.NewClusterClient(options), strings.Join(options.Addrs, ","), nil
}

func isURL(address string) bool { return strings.Contains(address, "://") }

// badURL is the error of a Redis URL without the URL, which may have a password.
func badURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	return misused("the Redis URL cannot be used: %s: want one like redis://host:6379/0", strings.TrimPrefix(err.Error(), "redis: "))
}

func validAddress(addr string) error {
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return misused("the Redis address %q is not host:port, nor a URL like redis://host:6379/0", addr)
	}
	return nil
}

// ping asks whether this is a Redis that lets us in, so that what fails later is
// known to have reached it.
func (c *connection) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*c.timeout)
	defer cancel()
	answers := make(chan error, 1)
	go func() { answers <- c.rdb.Ping(ctx).Err() }() // the client does not heed ctx while it reads; close waits for it
	select {
	case err := <-answers:
		return c.explain(err)
	case <-ctx.Done():
		return c.explain(remote.ErrNoAnswer)
	}
}

// explain says what an error of Redis, or of the way to it, means.
func (c *connection) explain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	answered, _ := errors.AsType[redis.Error](err)
	network, _ := errors.AsType[*net.OpError](err)
	timeout, _ := errors.AsType[net.Error](err)
	switch {
	case strings.Contains(text, "cluster support disabled"):
		return fmt.Errorf("the Redis at %s is no Cluster: leave out -cluster", c.address)
	case answered != nil && (strings.HasPrefix(text, "MOVED ") || strings.HasPrefix(text, "CROSSSLOT")):
		return fmt.Errorf("the Redis at %s is a node of a Cluster: add -cluster", c.address)
	case answered != nil:
		return fmt.Errorf("the Redis at %s says: %w", c.address, err)
	case errors.Is(err, remote.ErrNoAnswer), timeout != nil && timeout.Timeout():
		return fmt.Errorf("the Redis at %s does not answer within %v", c.address, c.timeout)
	case network != nil:
		return fmt.Errorf("no Redis at %s: %w", c.address, network.Err)
	}
	return fmt.Errorf("what answers at %s is no Redis, or broke off: %w", c.address, err)
}

func (c *connection) close(ctx context.Context) {
	_ = c.rdb.Close()
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	_ = c.Wait(rest)
}

// instanceName is what running services take this process for: a gate of its own.
func instanceName() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// validName refuses what no gate and no cache can be called: a key built of it could
// be another's.
func validName(what, name string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9._-]+$`).MatchString(name) {
		return misused("-%s is %q: want letters, digits, '.', '_' and '-'", what, name)
	}
	return nil
}

// cacheTarget is a target and a cache of it.
type cacheTarget struct {
	target
	cache string
	json  bool
}

func (t *cacheTarget) declare(flags *flag.FlagSet) {
	t.target.declare(flags)
	flags.StringVar(&t.cache, "cache", "", "the name that the service gave the cache")
	flags.BoolVar(&t.json, "json", false, "answer in JSON")
}

// connect is target's, once the cache is known to have a name.
func (t *cacheTarget) connect(ctx context.Context) (*connection, error) {
	if t.cache == "" {
		return nil, misused("of which cache? Name it with -cache, as the service does in herdgate.New")
	}
	if err := validName("cache", t.cache); err != nil {
		return nil, err
	}
	return t.target.connect(ctx)
}
