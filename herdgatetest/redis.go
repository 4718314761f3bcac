package herdgatetest

import (
	"context"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// Redis is an embedded Redis in a bubble of testing/synctest, whose TTLs follow the
// clock of the bubble, and the network to it, with faults to switch on. Made by
// [NewRedis]. Safe for concurrent use in its bubble.
type Redis struct {
	t       testing.TB
	connect func(...func(*redis.Options)) *redis.Client

	mu    sync.Mutex // protects what follows and every link; nobody waits while holding it
	links map[*redis.Client]*link
	down  bool
	delay time.Duration
	lose  int // invalidations still to lose
}

// link is the way of one client to Redis.
type link struct {
	redis *Redis
	down  bool
	conns map[*conn]struct{}
}

// NewRedis starts a Redis that is empty and well. Call it inside synctest.Test with
// the bubble's t; it ends with t.
func NewRedis(t *testing.T) *Redis {
	t.Helper()
	m, connect := testutil.NewBubbleRedis(t)
	r := &Redis{t: t, connect: connect, links: map[*redis.Client]*link{}}
	first, err := m.Dial() // the server exists from the first connection on
	if err != nil {
		t.Fatal(err)
	}
	m.Server().SetPreHook(r.loses)
	_ = first.Close() // of a pipe: does not fail
	return r
}

// Client returns a new client, as each instance of a service has its own. change
// may change its options, but another Dialer gets around the faults. It is closed
// when the test ends, after the gates.
func (r *Redis) Client(change ...func(*redis.Options)) *redis.Client {
	r.t.Helper()
	l := &link{redis: r, conns: map[*conn]struct{}{}}
	rdb := r.connect(append([]func(*redis.Options){l.attach}, change...)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[rdb] = l
	return rdb
}

// Open opens a gate with a client of its own, as one more instance of the service:
// in the namespace "test" and with the defaults, unless change says otherwise. When
// the test ends the gate is closed, and the test fails if Close returns an error:
// if a loader still runs then, say.
func (r *Redis) Open(change ...func(*herdgate.Options)) *herdgate.Gate {
	r.t.Helper()
	options := herdgate.Options{Redis: r.Client(), Namespace: "test"}
	for _, c := range change {
		c(&options)
	}
	return open(r.t, options)
}

// Open opens a gate on a Redis of its own: NewRedis(t).Open(change...).
func Open(t *testing.T, change ...func(*herdgate.Options)) *herdgate.Gate {
	t.Helper()
	return NewRedis(t).Open(change...)
}

func open(tb testing.TB, options herdgate.Options) *herdgate.Gate {
	tb.Helper()
	gate, err := herdgate.Open(tb.Context(), options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := gate.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Errorf("closing the gate: %v", err)
		}
	})
	return gate
}

// Down takes Redis out: every connection is cut, and none can be made until Up. Its
// data stays.
func (r *Redis) Down() {
	r.mu.Lock()
	r.down = true
	cut := r.cut()
	r.mu.Unlock()
	closeAll(cut)
}

// Up brings Redis back. Gates find out in their own time; Gate.Connected tells.
func (r *Redis) Up() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// Isolate takes Redis out for one client, which [Redis.Client] must have returned,
// until Rejoin: its leases are not renewed any more, and no message reaches it. To
// the others its instance is dead or frozen. See also [Origin.Freeze].
func (r *Redis) Isolate(rdb *redis.Client) {
	r.t.Helper()
	r.mu.Lock()
	l := r.links[rdb]
	if l == nil {
		r.mu.Unlock()
		r.t.Fatal("herdgatetest: Isolate of a client that is not of this Redis: take one that its Client returned")
	}
	l.down = true
	cut := r.cut()
	r.mu.Unlock()
	closeAll(cut)
}

// Rejoin ends Isolate. For any other client it does nothing.
func (r *Redis) Rejoin(rdb *redis.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.links[rdb]; l != nil {
		l.down = false
	}
}

// Slow makes each answer come d later from now on, also the one to a new
// connection's greeting; a pipeline counts as one command. What is asked is done at
// once, also if nobody waits for the answer any more. Messages of the bus are not
// delayed. 0 ends it.
func (r *Redis) Slow(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = d
}

// LoseInvalidations makes the next n messages that tell of a Set, Delete or Expire
// reach nobody. 0 ends it. The change itself is made; what other instances keep
// locally is then wrong for up to Policy.LocalTTL.
func (r *Redis) LoseInvalidations(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose = n
}

// loses is asked before each command, also those of scripts, and says whether it
// has dealt with it. In a script the server is locked: it must not wait.
func (r *Redis) loses(client *server.Peer, command string, args ...string) bool {
	if command != "PUBLISH" || len(args) != 2 || !strings.HasPrefix(args[1], "I ") {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lose <= 0 {
		return false
	}
	r.lose--
	client.WriteInt(0) // receivers
	return true
}

// cut takes the connections of the links that are down. The caller holds r.mu.
func (r *Redis) cut() []*conn {
	var cut []*conn
	for _, l := range r.links {
		if !r.down && !l.down {
			continue
		}
		for c := range l.conns {
			cut = append(cut, c)
		}
	}
	return cut
}

// closeAll closes connections, which waits for their goroutines.
func closeAll(conns []*conn) {
	for _, c := range conns {
		c.cut.Store(true)
		_ = c.Close() // of a pipe: does not fail
	}
}

// attach makes the client with these options dial through l.
func (l *link) attach(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		inner, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: inner, link: l, closed: make(chan struct{})}
		if !l.add(c) {
			_ = inner.Close() // of a pipe: does not fail
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return c, nil
	}
}

// add makes c one that can be cut; false says that the link is down.
func (l *link) add(c *conn) bool {
	l.redis.mu.Lock()
	defer l.redis.mu.Unlock()
	if l.redis.down || l.down {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *link) remove(c *conn) {
	l.redis.mu.Lock()
	defer l.redis.mu.Unlock()
	delete(l.conns, c)
}

// delay is how much later answers come.
func (l *link) delay() time.Duration {
	l.redis.mu.Lock()
	defer l.redis.mu.Unlock()
	return l.redis.delay
}
