package zklock

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// session is a connection to ZooKeeper that is made anew when it is lost, and its session, which may survive that.
type session struct {
	*zk.Conn
	millis atomic.Int64  // the timeout that the server gave
	ended  chan struct{} // closed when the client has ended, and nothing of it runs

	mu     sync.Mutex
	closed bool              // protected by mu
	conn   net.Conn          // protected by mu; the latest
	tried  map[string]string // protected by mu; what came of the last try of each address
}

// connect waits for a session. changed is called, and must not block, whenever there is one again.
func connect(ctx context.Context, servers []string, opts Options, changed func()) (*session, error) {
	s := &session{ended: make(chan struct{}), tried: make(map[string]string)}
	conn, events, err := zk.Connect(servers, opts.SessionTimeout,
		zk.WithDialer(s.dial), zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, fmt.Errorf("zklock: %w", err)
	}
	s.Conn = conn
	first := make(chan struct{})
	go func() { // until close
		defer close(s.ended)
		open := false
		for event := range events {
			if event.State != zk.StateHasSession || event.Type != zk.EventSession {
				continue
			}
			if !open {
				open = true
				close(first)
			}
			changed()
		}
	}()
	select {
	case <-first:
	case <-ctx.Done():
		s.close()
		return nil, s.noSession(ctx.Err())
	}
	if opts.Digest != "" {
		if err := s.AddAuth("digest", []byte(opts.Digest)); err != nil {
			s.close()
			return nil, fmt.Errorf("zklock: Digest: %w", err)
		}
	}
	return s, nil
}

// noSession is why there is no session after all that was tried.
func (s *session) noSession(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("zklock: no session: %w: servers must be the host:port of ZooKeeper servers of which a majority runs; tried %s",
		err, strings.Join(slices.Sorted(maps.Values(s.tried)), "; "))
}

// ready returns ErrSuspended if there is no connection: a request would wait for one without a bound.
func (s *session) ready() error {
	if s.State() != zk.StateHasSession {
		return ErrSuspended
	}
	return nil
}

func (s *session) timeout() time.Duration { return time.Duration(s.millis.Load()) * time.Millisecond }

// close ends the session and the client. The client would wait for an answer on a connection without one.
func (s *session) close() {
	s.Close()
	s.mu.Lock()
	s.closed = true
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.mu.Unlock()
	<-s.ended
}

// dial connects for the client, which does not tell what timeout it was given, so this reads along.
func (s *session) dial(network, addr string, limit time.Duration) (net.Conn, error) {
	s.note(addr, addr+": no connection yet")
	conn, err := (&net.Dialer{Timeout: limit}).Dial(network, addr)
	if err != nil {
		s.note(addr, err.Error()) // which has the address
		return nil, err
	}
	s.note(addr, addr+": connected, and got no session")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return nil, errClosed
	}
	s.conn = conn
	return &greeted{Conn: conn, millis: &s.millis}, nil
}

// note keeps what came of the last try of an address.
func (s *session) note(addr, outcome string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried[addr] = outcome
}

// greeted is a connection that takes the timeout out of the first answer: its length, the protocol's version, and then
// the timeout in milliseconds, of 4 bytes each.
type greeted struct {
	net.Conn
	millis *atomic.Int64
	head   []byte // only the client's reader uses it
}

func (g *greeted) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if missing := 12 - len(g.head); missing > 0 {
		g.head = append(g.head, p[:min(n, missing)]...)
		// An expired session is answered with a timeout of 0.
		if len(g.head) == 12 && binary.BigEndian.Uint32(g.head[8:]) > 0 {
			g.millis.Store(int64(binary.BigEndian.Uint32(g.head[8:])))
		}
	}
	return n, err
}

// silent is a logger of the client's: what goes wrong comes back as an error.
type silent struct{}

func (silent) Printf(string, ...any) {}
