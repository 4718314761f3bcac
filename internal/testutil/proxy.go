package testutil

import (
	"bufio"
	"bytes"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Match chooses requests by their bytes on the wire, or published messages by
// theirs. It is called with the proxy's lock held: it must not call the proxy.
// A nil Match chooses everything.
type Match func(frame []byte) bool

// Command matches requests by the name of their command, in any case.
func Command(names ...string) Match {
	return func(request []byte) bool {
		words := Words(request)
		return len(words) > 0 && slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, words[0]) })
	}
}

// Containing matches frames that have s anywhere in them: a key, a channel, the
// SHA of a script.
func Containing(s string) Match {
	return func(frame []byte) bool { return bytes.Contains(frame, []byte(s)) }
}

// Proxy is a TCP proxy in front of one Redis server that makes the faults a
// network makes. It pairs every reply with its request, also in pipelines.
// Connections that subscribe are streams: what the server sends on them from then
// on are messages, and faults of replies do not apply.
//
// As TCP cannot lose the middle of a stream, a request or reply that is lost
// takes all that would follow it on that connection with it.
//
// All methods are safe for concurrent use. The faults set up are independent and
// add up; they apply to requests that arrive afterwards.
type Proxy struct {
	tb     testing.TB
	target string
	addr   string
	wg     sync.WaitGroup // the acceptor and the two pumps of each connection

	mu       sync.Mutex // protects what follows
	listener net.Listener
	conns    map[*proxyConn]struct{}
	rules    []*rule
	commands map[string]int64
	thawed   chan struct{} // closed while the proxy is not frozen
}

// rule is one fault: what it does to a request, its reply, or a message.
type rule struct {
	match Match
	left  int // how many more matches it applies to; negative: no limit

	lose, swallow, duplicate, message bool

	delay   time.Duration   // of the reply
	release <-chan struct{} // the request is held until this is closed
	count   *atomic.Int64
}

// NewProxy starts a proxy in front of target (host:port). Its connections are
// closed and its goroutines waited for when the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{
		tb: tb, target: target,
		conns: map[*proxyConn]struct{}{}, commands: map[string]int64{}, thawed: make(chan struct{}),
	}
	close(p.thawed)
	p.listen(loopback(0))
	tb.Cleanup(func() {
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr is the host:port clients connect to. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// SwallowReplies lets the next n matching requests reach the server and be
// applied, and loses their replies. A negative n means every one until Reset.
func (p *Proxy) SwallowReplies(match Match, n int) {
	p.add(&rule{match: match, left: n, swallow: true})
}

// DropRequests loses the next n matching requests before the server sees them. A
// negative n means every one until Reset.
func (p *Proxy) DropRequests(match Match, n int) { p.add(&rule{match: match, left: n, lose: true}) }

// DuplicateRequests sends the next n matching requests to the server twice; the
// client sees the first reply. A negative n means every one until Reset.
func (p *Proxy) DuplicateRequests(match Match, n int) {
	p.add(&rule{match: match, left: n, duplicate: true})
}

// DelayReplies holds back replies to matching requests, and what follows them on
// their connection, by d until Reset.
func (p *Proxy) DelayReplies(match Match, d time.Duration) {
	p.add(&rule{match: match, left: -1, delay: d})
}

// HoldRequests keeps the next n matching requests from the server until release
// is called, which may be called more than once. They arrive then even if their
// client has given up and gone, as a packet under way does. A negative n means
// every one until Reset.
func (p *Proxy) HoldRequests(match Match, n int) (release func()) {
	ch := make(chan struct{})
	p.add(&rule{match: match, left: n, release: ch})
	return sync.OnceFunc(func() { close(ch) })
}

// DropMessages loses the next n matching published messages, one subscriber's
// copy each, and nothing else of their streams. A negative n means every one
// until Reset.
func (p *Proxy) DropMessages(match Match, n int) {
	p.add(&rule{match: match, left: n, message: true})
}

// Count returns a counter of the matching requests that arrive until Reset.
func (p *Proxy) Count(match Match) *atomic.Int64 {
	n := new(atomic.Int64)
	p.add(&rule{match: match, left: -1, count: n})
	return n
}

// Reset removes every fault and counter set up before. Requests held stay held.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Commands returns how many requests clients have sent, by lower-case command.
func (p *Proxy) Commands() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.commands)
}

// Calls is the sum of Commands without what no path of the library is charged
// for; see [Redis.Calls]. Unlike that it does not count what scripts run inside.
func (p *Proxy) Calls() int64 { return countedCalls(p.Commands()) }

// Cut closes all connections, loses what is under way, and refuses new ones until
// Resume.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for c := range p.conns {
		c.close()
	}
}

// Resume accepts connections again after Cut.
func (p *Proxy) Resume() {
	p.tb.Helper()
	p.mu.Lock()
	cut := p.listener == nil
	p.mu.Unlock()
	if cut {
		p.listen(p.addr)
	}
}

// Freeze stops forwarding in both directions. Connections stay open, and new ones
// are accepted, until Thaw.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
		p.thawed = make(chan struct{})
	default: // frozen already
	}
}

// Thaw forwards again, beginning with what was sent while the proxy was frozen.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
	default:
		close(p.thawed)
	}
}

func (p *Proxy) add(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

// listen starts accepting on addr.
func (p *Proxy) listen(addr string) {
	p.tb.Helper()
	l := listen(p.tb, addr)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.addr = l, l.Addr().String()
	p.wg.Go(func() { p.accept(l) })
}

// accept serves the connections of l until it is closed.
func (p *Proxy) accept(l net.Listener) {
	dialer := net.Dialer{Timeout: serverStart}
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := dialer.DialContext(detached(p.tb), "tcp", p.target)
		if err != nil {
			_ = client.Close() // as a dead server would
			continue
		}
		p.serve(l, &proxyConn{p: p, client: client, server: server.(*net.TCPConn), done: make(chan struct{})})
	}
}

func (p *Proxy) serve(l net.Listener, c *proxyConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != l { // cut since it was accepted
		c.close()
		return
	}
	p.conns[c] = struct{}{}
	var pumps sync.WaitGroup
	pumps.Go(c.forwardRequests)
	pumps.Go(c.forwardReplies)
	p.wg.Go(func() {
		pumps.Wait()
		c.close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	})
}

// judge finds what the rules do to a request, using up their counts.
func (p *Proxy) judge(request []byte) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if words := Words(request); len(words) > 0 {
		p.commands[strings.ToLower(words[0])]++
	}
	var v verdict
	for _, r := range p.rules {
		if r.message || !r.applies(request) {
			continue
		}
		if r.count != nil {
			r.count.Add(1)
		}
		if r.release != nil {
			v.release = append(v.release, r.release)
		}
		v.lose = v.lose || r.lose
		v.swallow = v.swallow || r.swallow
		v.duplicate = v.duplicate || r.duplicate
		v.delay += r.delay
	}
	return v
}

// loses reports whether a published message is to be lost.
func (p *Proxy) loses(message []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.rules, func(r *rule) bool { return r.message && r.applies(message) })
}

// applies reports whether r matches frame and uses up one of its matches.
func (r *rule) applies(frame []byte) bool {
	if r.left == 0 || r.match != nil && !r.match(frame) {
		return false
	}
	if r.left > 0 {
		r.left--
	}
	return true
}

// verdict is what happens to one request and its reply.
type verdict struct {
	lose, swallow, duplicate, discard bool

	delay   time.Duration
	release []<-chan struct{}
}

// proxyConn is one client's connection and its twin to the server.
type proxyConn struct {
	p      *Proxy
	client net.Conn
	server *net.TCPConn
	done   chan struct{} // closed by close
	once   sync.Once

	mu      sync.Mutex // protects what follows
	stream  bool       // it has subscribed: replies are no longer paired
	pending []verdict  // of the requests sent and not yet answered, in order
}

func (c *proxyConn) close() {
	c.once.Do(func() {
		close(c.done)
		_ = c.client.Close()
		_ = c.server.Close()
	})
}

// forwardRequests takes requests to the server until the client has no more.
func (c *proxyConn) forwardRequests() {
	// Half a close, so that the server still reads all that was forwarded.
	defer func() { _ = c.server.CloseWrite() }()
	r := bufio.NewReader(c.client)
	lost := false
	for {
		request, err := readFrame(r)
		if err != nil {
			return
		}
		v := c.p.judge(request)
		if lost = lost || v.lose; lost {
			continue
		}
		for _, release := range v.release {
			if !c.wait(release) {
				return
			}
		}
		if !c.wait(c.p.gate()) {
			return
		}
		// Pending before it is sent, so that no reply comes before its verdict.
		c.expect(request, v)
		if v.duplicate {
			c.expect(request, verdict{discard: true})
			request = append(request, request...)
		}
		if _, err := c.server.Write(request); err != nil {
			return
		}
	}
}

// forwardReplies takes replies and messages to the client until the server has no
// more. The client is not told of the end while requests of its may be held.
func (c *proxyConn) forwardReplies() {
	defer c.close()
	r := bufio.NewReader(c.server)
	mute := false
	for {
		frame, err := readFrame(r)
		if err != nil {
			return
		}
		v, paired := c.verdictOn(frame)
		if !paired {
			v.discard = c.p.loses(frame)
		}
		if v.delay > 0 && !c.sleep(v.delay) || !c.wait(c.p.gate()) {
			return
		}
		if mute = mute || v.swallow; mute || v.discard {
			continue
		}
		if _, err := c.client.Write(frame); err != nil {
			mute = true // the client has gone; the server's replies still have to be read
		}
	}
}

// expect notes that the server will answer request, unless it streams.
func (c *proxyConn) expect(request []byte, v verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream = c.stream || subscribes(request); !c.stream {
		c.pending = append(c.pending, v)
	}
}

// verdictOn returns what was decided about the reply in frame. It is false for a
// message, which answers no request.
func (c *proxyConn) verdictOn(frame []byte) (verdict, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if frame[0] == '>' || len(c.pending) == 0 {
		return verdict{}, false
	}
	v := c.pending[0]
	c.pending = c.pending[1:]
	return v, true
}

// wait reports whether ch was closed before the connection was.
func (c *proxyConn) wait(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-c.done:
		return false
	}
}

// sleep reports whether d passed before the connection was closed.
func (c *proxyConn) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}

// gate returns a channel that is closed while the proxy is not frozen.
func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.thawed
}

// subscribes reports whether the server answers request with a stream.
func subscribes(request []byte) bool {
	return Command("subscribe", "psubscribe", "ssubscribe", "monitor", "sync", "psync")(request)
}
