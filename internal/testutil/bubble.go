package testutil

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// bubblePoolSize is never reached. A full pool makes go-redis wait on a timer
// from a process-wide sync.Pool, and a timer born in one bubble panics in the
// next one.
const bubblePoolSize = 1 << 14

// NewBubbleRedis returns a miniredis without a socket and a func that opens
// clients of it, for use inside a testing/synctest bubble: server, clients, Lua
// and pub/sub all live in the bubble, TTLs and TIME follow its clock. Call it in
// the bubble, with the bubble's t. Clients and server are closed when t ends, the
// clients first; a library under test must have let go of its client by then.
//
// The returned func takes changes to the client's options, say RESP2 or another
// Dialer.
func NewBubbleRedis(t *testing.T) (*miniredis.Miniredis, func(opts ...func(*redis.Options)) *redis.Client) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	// go-redis may still dial when its client is closed: miniredis takes no Dial
	// beside a Close, and one after it would bring it back.
	var mu sync.Mutex
	ended := false
	// After the rest: a dial that a client has given up on ends by itself, in no time here.
	t.Cleanup(func() { <-time.NewTimer(time.Minute).C })
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		m.Close()
	})
	return m, func(opts ...func(*redis.Options)) *redis.Client {
		t.Helper()
		o := &redis.Options{
			Addr:     "bubble",
			PoolSize: bubblePoolSize,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				if ended {
					return nil, net.ErrClosed
				}
				c, err := m.Dial()
				if err != nil {
					return nil, err
				}
				return newBufferedConn(c), nil
			},
			// This feature resolves Addr, and the resolver's locks belong to no bubble.
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			DisableIdentity:          true, // fewer commands in CommandCount
		}
		for _, opt := range opts {
			opt(o)
		}
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() }) // a test may have closed it already
		return c
	}
}

// bufferedConn gives a net.Pipe the receive buffer a socket has. Without it a
// server that writes to a client that does not read, or a client that writes a
// long pipeline before it reads, blocks while it holds a mutex; a goroutine that
// waits for that mutex keeps the bubble's clock from moving, for ever.
type bufferedConn struct {
	net.Conn               // the pipe, for writing
	closed   atomic.Bool   // by our end
	done     chan struct{} // closed when receive has ended

	mu       sync.Mutex // protects what follows
	buf      []byte
	err      error // why no more bytes will come
	deadline time.Time
	changed  chan struct{} // closed and replaced at every change
}

func newBufferedConn(pipe net.Conn) *bufferedConn {
	c := &bufferedConn{Conn: pipe, done: make(chan struct{}), changed: make(chan struct{})}
	go c.receive()
	return c
}

// receive empties the pipe into the buffer until either end is closed.
func (c *bufferedConn) receive() {
	defer close(c.done)
	chunk := make([]byte, 4096)
	for {
		n, err := c.Conn.Read(chunk)
		c.change(func() {
			c.buf = append(c.buf, chunk[:n]...)
			c.err = err
		})
		if err != nil {
			return
		}
	}
}

func (c *bufferedConn) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Read reads buffered bytes, waiting for the first until the read deadline.
func (c *bufferedConn) Read(p []byte) (int, error) {
	for {
		n, changed, wait, err := c.take(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		if wait == 0 {
			<-changed
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// take moves buffered bytes to p. With none it returns how long to wait for a
// change, 0 meaning without end.
func (c *bufferedConn) take(p []byte) (n int, changed <-chan struct{}, wait time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadline.IsZero() {
		if wait = time.Until(c.deadline); wait <= 0 {
			return 0, nil, 0, os.ErrDeadlineExceeded
		}
	}
	n = copy(p, c.buf)
	c.buf = c.buf[n:]
	if n == 0 {
		err = c.err
	}
	return n, c.changed, wait, err
}

// Write sends p. As on a socket whose other end has closed, it is the next Read
// that tells: go-redis retries on an EOF, not on a closed pipe.
func (c *bufferedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, io.ErrClosedPipe) && !c.closed.Load() {
		return len(p), nil
	}
	return n, err
}

// SetReadDeadline bounds the Reads under way and to come; zero means no bound.
func (c *bufferedConn) SetReadDeadline(t time.Time) error {
	c.change(func() { c.deadline = t })
	return nil
}

// SetWriteDeadline bounds the Writes under way and to come; zero means no bound.
func (c *bufferedConn) SetWriteDeadline(t time.Time) error {
	_ = c.Conn.SetWriteDeadline(t) // fails only on a closed pipe; see Write
	return nil
}

// SetDeadline sets the deadlines of reads and writes.
func (c *bufferedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close closes the pipe and waits until nothing reads it any more.
func (c *bufferedConn) Close() error {
	c.closed.Store(true)
	err := c.Conn.Close()
	<-c.done
	return err
}
