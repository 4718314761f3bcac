package testutil

import (
	"net"
	"sync"
	"testing"
)

// Link is a TCP proxy in front of any server, which knows nothing of what it carries. Its methods are safe for concurrent
// use.
type Link struct {
	tb     testing.TB
	target string
	addr   string
	wg     sync.WaitGroup // the acceptor and the two pumps of each connection

	mu       sync.Mutex // protects what follows
	changed  *sync.Cond // of frozen and mute
	listener net.Listener
	conns    map[net.Conn]struct{}
	frozen   bool
	mute     bool
}

// NewLink starts a link to target (host:port). Its connections are closed and its goroutines waited for when the test
// ends.
func NewLink(tb testing.TB, target string) *Link {
	tb.Helper()
	l := &Link{tb: tb, target: target, conns: map[net.Conn]struct{}{}}
	l.changed = sync.NewCond(&l.mu)
	l.listen(loopback(0))
	tb.Cleanup(func() {
		l.Thaw()
		l.Cut()
		l.wg.Wait()
	})
	return l
}

// Addr is the host:port clients connect to. It never changes.
func (l *Link) Addr() string { return l.addr }

// Cut closes all connections and refuses new ones until Resume.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// Resume undoes Cut.
func (l *Link) Resume() {
	l.tb.Helper()
	l.mu.Lock()
	running := l.listener != nil
	l.mu.Unlock()
	if !running {
		l.listen(l.addr)
	}
}

// Freeze holds back whatever is sent, either way, until Thaw: connections stay open and nothing answers.
func (l *Link) Freeze() { l.set(&l.frozen, true) }

// Thaw undoes Freeze.
func (l *Link) Thaw() { l.set(&l.frozen, false) }

// SwallowReplies lets what clients send reach the server, and loses what it answers, until Speak.
func (l *Link) SwallowReplies() { l.set(&l.mute, true) }

// Speak undoes SwallowReplies. It closes all connections, which are of no use with a hole in their streams.
func (l *Link) Speak() {
	l.Cut()
	l.set(&l.mute, false)
	l.Resume()
}

func (l *Link) set(state *bool, to bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*state = to
	l.changed.Broadcast()
}

func (l *Link) listen(addr string) {
	l.tb.Helper()
	listener := listen(l.tb, addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listener, l.addr = listener, listener.Addr().String()
	l.wg.Go(func() { l.accept(listener) })
}

func (l *Link) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		var d net.Dialer
		server, err := d.DialContext(detached(l.tb), "tcp", l.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !l.admit(listener, client, server) {
			_ = client.Close()
			_ = server.Close()
			continue
		}
		l.wg.Go(func() { l.pump(client, server, func() bool { return false }) })
		l.wg.Go(func() { l.pump(server, client, func() bool { return l.mute }) })
	}
}

// admit keeps the ends of a connection for Cut, unless that was called already.
func (l *Link) admit(listener net.Listener, ends ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != listener {
		return false
	}
	for _, end := range ends {
		l.conns[end] = struct{}{}
	}
	return true
}

// pump carries bytes one way until either end is closed, and then closes both. What lost says is lost; it is called with
// mu held.
func (l *Link) pump(from, to net.Conn, lost func() bool) {
	defer l.drop(from, to)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && l.passes(lost) {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passes waits while the link is frozen, and tells whether what was read goes on.
func (l *Link) passes(lost func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.frozen {
		l.changed.Wait()
	}
	return !lost()
}

func (l *Link) drop(ends ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range ends {
		_ = end.Close()
		delete(l.conns, end)
	}
}
