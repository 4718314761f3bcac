package main

import (
	"context"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// product is the value of all benchmarks: payloadSize bytes as MessagePack.
type product struct {
	ID          int64
	Name        string
	Description string
	Price       float64
	Stock       int32
	Tags        []string
	Updated     time.Time
}

const payloadSize = 300

func newProduct() product {
	return product{
		ID:          1<<40 + 42,
		Name:        "Kettle, stainless steel, 1.7 l",
		Description: strings.Repeat("It boils a litre in two minutes. ", 5) + "Quiet",
		Price:       39.9,
		Stock:       1200,
		Tags:        []string{"kitchen", "steel", "kettle"},
		Updated:     time.Unix(1_800_000_000, 0),
	}
}

// encoded is a product as the raw sides store it.
func encoded(tb testing.TB, p product) []byte {
	tb.Helper()
	data, err := msgpack.Marshal(p)
	if err != nil {
		tb.Fatal(err)
	}
	if len(data) != payloadSize {
		tb.Fatalf("a product takes %d bytes, and README.md says %d", len(data), payloadSize)
	}
	return data
}

// instance is what Redis sees of one process of a service: a gate over a client of
// its own, whose commands are counted.
type instance struct {
	gate *herdgate.Gate
	rdb  *redis.Client
	sent *commands
}

// newInstance opens a gate whose bus is confirmed. Nothing is counted yet.
func newInstance(tb testing.TB, server *testutil.Redis) *instance {
	tb.Helper()
	in := &instance{rdb: server.Client(tb, func(o *redis.Options) { o.ContextTimeoutEnabled = true }), sent: &commands{}}
	in.rdb.AddHook(in.sent)
	// As patient as go-redis itself: a busy machine makes both sides slow, not one of
	// them degraded.
	gate, err := herdgate.Open(tb.Context(), herdgate.Options{Redis: in.rdb, Namespace: "bench", RedisTimeout: 3 * time.Second})
	if err != nil {
		tb.Fatal(err)
	}
	in.gate = gate
	tb.Cleanup(func() {
		if err := gate.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	testutil.Eventually(tb, 10*time.Second, func() bool { return gate.Stats().BusConfirmed > 0 }, "the bus is confirmed")
	in.sent.take()
	return in
}

// newCache makes the one cache of an instance.
func newCache(tb testing.TB, in *instance, load herdgate.LoaderFunc[product], policy herdgate.Policy) *herdgate.Cache[product] {
	tb.Helper()
	c, err := herdgate.New(in.gate, "product", load, policy)
	if err != nil {
		tb.Fatal(err)
	}
	in.sent.take() // New has looked at its rights
	return c
}

// commands counts what a client sends, by lower-case name. It is a [redis.Hook].
type commands struct {
	mu sync.Mutex
	n  map[string]int // protected by mu
}

// take returns the counts since the last take, without the set-up of connections.
func (c *commands) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = nil
	maps.DeleteFunc(n, func(name string, _ int) bool { return name == "hello" || name == "client" })
	return n
}

// paid is take without what a gate sends by the clock: what the cost table counts.
func (c *commands) paid() map[string]int {
	n := c.take()
	delete(n, heartbeat)
	delete(n, generation)
	delete(n, masters)
	return n
}

const (
	// heartbeat is the name under which a gate's heartbeats are counted: any other
	// PUBLISH of a client would be a message that no script has sent.
	heartbeat = "heartbeat"
	// generation is the name for reading the generation of a cache.
	generation = "generation"
	// masters is the question who the masters are, with each heartbeat for ten seconds
	// after a change.
	masters = "info"
)

func nameOf(cmd redis.Cmder) string {
	args := cmd.Args()
	switch name := cmd.Name(); {
	case name == "publish" && args[len(args)-1] == "H":
		return heartbeat
	case name == "get" && ofGeneration(args[1]),
		name == "evalsha" && ofGeneration(args[3]) && args[4] == "read":
		return generation
	default:
		return name
	}
}

func ofGeneration(key any) bool { return strings.HasPrefix(key.(string), "bench:g:") }

func total(counts map[string]int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

func (c *commands) add(cmd redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[nameOf(cmd)]++
}

// DialHook implements redis.Hook.
func (*commands) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.add(cmd)
		}
		return next(ctx, cmds)
	}
}
