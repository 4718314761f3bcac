package rig

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Link is the way from all instances of a simulated fleet to their Redis: it takes
// time, and the one thread of the server takes requests in turn. miniredis itself
// takes no virtual time. Safe for concurrent use.
type Link struct {
	oneWay  time.Duration
	request time.Duration // of the server, to read a request and write its reply
	script  time.Duration // of the server, to run a script of a few commands
	message time.Duration // of the server, to write a message to one subscriber

	mu       sync.Mutex
	free     time.Time // when the server has done all it was asked for; protected by mu
	counts   Counts    // protected by mu
	messages int64     // protected by mu
	sent     []Sent    // protected by mu
	record   bool      // protected by mu
}

// Sent is a number of calls that were sent at one moment.
type Sent struct {
	At    time.Time
	Calls int64
}

// NewLink returns a Link. A local network and a redis-server on a core of its own are
// modelled: half a millisecond there and back; 8 µs for a request, as 120 000 a second
// are what one such server answers, 25 µs more for a script, as was measured, and 2 µs
// for each subscriber that a message goes to. Without busy the server takes no time.
//
//revive:disable-next-line:flag-parameter It is a property of the model.
func NewLink(busy bool) *Link {
	l := &Link{oneWay: 250 * time.Microsecond}
	if busy {
		l.request, l.script, l.message = 8*time.Microsecond, 25*time.Microsecond, 2*time.Microsecond
	}
	return l
}

// Record starts to keep, call by call, what Sent returns.
func (l *Link) Record() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record, l.sent = true, nil
}

// Traffic returns what has been sent and delivered so far.
func (l *Link) Traffic() (counts Counts, messages int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts, l.messages
}

// Burst returns the most calls within a time since Record.
func (l *Link) Burst(within time.Duration) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var most, sum int64
	first := 0
	for _, s := range l.sent {
		sum += s.Calls
		for s.At.Sub(l.sent[first].At) >= within {
			sum -= l.sent[first].Calls
			first++
		}
		most = max(most, sum)
	}
	return most
}

// Options lets a client use the link.
func (l *Link) Options(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &linkConn{Conn: conn, link: l}, nil
	}
	o.ReadBufferSize, o.WriteBufferSize = 4096, 4096 // there may be 10 000 clients
}

// linkConn delays and counts the messages to a subscriber. The delay of commands is
// the hook's.
type linkConn struct {
	net.Conn

	link *Link
}

func (c *linkConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if k := bytes.Count(p[:n], []byte("\r\nmessage\r\n")); k > 0 {
		c.link.deliver(k)
		time.Sleep(c.link.oneWay)
	}
	return n, err
}

func (l *Link) deliver(messages int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages += int64(messages)
	l.free = later(l.free, time.Now()).Add(time.Duration(messages) * l.message)
}

// enter counts a request and returns when the server will have run it.
func (l *Link) enter(cmds []redis.Cmder) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var calls int64
	var work time.Duration
	for _, cmd := range cmds {
		switch counted, heartbeat := kindOf(cmd); {
		case counted:
			calls++
		case heartbeat:
			l.counts.Heartbeats++
		}
		if work += l.request; cmd.Name() == "evalsha" {
			work += l.script
		}
	}
	l.counts.Calls += calls
	if l.record && calls > 0 {
		l.sent = append(l.sent, Sent{At: now, Calls: calls})
	}
	l.free = later(l.free, now.Add(l.oneWay)).Add(work)
	return l.free
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (l *Link) travel(cmds []redis.Cmder, next func() error) error {
	time.Sleep(time.Until(l.enter(cmds))) // not ended by ctx: nor does go-redis end a command by it
	err := next()
	time.Sleep(l.oneWay)
	return err
}

// DialHook implements redis.Hook.
func (*Link) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (l *Link) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return l.travel([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements redis.Hook.
func (l *Link) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return l.travel(cmds, func() error { return next(ctx, cmds) })
	}
}
