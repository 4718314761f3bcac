// Package zklock keeps locks in ZooKeeper: an ephemeral sequential node a claim, with the claim's owner in its name. The
// oldest claim of a name holds the lock, the others wait in that order, each of them watching only the one before it.
//
// What may be relied on: one holder at a time, or readers only, as long as ZooKeeper keeps what a majority has
// acknowledged; the queue is fair; the token, the transaction that created the claim, rises with each grant, over restarts
// and changes of leader too, and starts again only when an ensemble is made anew.
//
// What may not: ZooKeeper knows sessions, not TTLs. A Backend is one session, and when its process dies, all its locks
// go when the session times out, at most a tick later; so a TTL is at most half of that, and it is the holder's
// side that keeps to it: a lock that is not renewed in time is removed by the process that took it. While the connection
// is lost the locks are suspended: renewals fail with [ErrSuspended], and a lease lasts until its own deadline. A holder
// that is frozen does not know that it lost the lock: send the token along to what the lock protects. A TryLock may be
// refused because of another one that is itself about to be refused, or by a server that is a little behind.
//
// The algorithm is ZooKeeper's lock recipe. Why a TTL is at most half of the session's timeout: a server that dies, or is
// cut off from the leader, takes with it what it has heard of a session since it last told the leader, so the leader may
// end the session before a timeout has passed since the holder's last request.
package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/herdgate/herdgate/lock"
)

// DefaultSessionTimeout allows for TTLs up to lock.DefaultTTL.
const DefaultSessionTimeout = 2 * lock.DefaultTTL

// ErrSuspended says that there is no connection to ZooKeeper at the moment. The session, and the locks with it, may
// survive that.
var ErrSuspended = errors.New("zklock: suspended: no connection to ZooKeeper")

var (
	errNoServers = errors.New("zklock: there are no servers: must be at least one host:port")
	errClosed    = errors.New("zklock: closed")
)

// Options say how locks are kept. Namespace is required.
type Options struct {
	// Namespace is the node under the root that has the locks. It matches [A-Za-z0-9._-]+ and is not a dot or two.
	// Services that lock the same things share it.
	Namespace string
	// SessionTimeout is what is asked for; the servers have bounds for it, of 2 and 20 ticks unless they are told
	// otherwise. It is how long others wait for a process that died. Zero is DefaultSessionTimeout.
	SessionTimeout time.Duration
	// Digest is user:password for ZooKeeper's digest scheme. Nodes that are made then belong to that user alone. Empty:
	// anybody may do anything with them. Where nodes are there already, it takes the rights to read, create, write and
	// delete.
	Digest string
}

// Backend is a lock.Backend and a lock.Queuer in ZooKeeper, with fence tokens and shared locks. Make it with Open; its
// methods may be called concurrently. They do not look at their ctx while they wait for ZooKeeper, which answers, or
// loses the connection, within two thirds of the session's timeout.
type Backend struct {
	root    string
	acl     []zk.ACL
	session *session
	maxTTL  time.Duration

	closing chan struct{} // closed by Close
	reaped  chan struct{} // closed when the reaper has ended
	wake    chan struct{} // tells the reaper that a claim is there to look after, or a connection

	mu     sync.Mutex
	closed bool             // protected by mu
	claims map[owned]*claim // protected by mu, as are the claims
}

var (
	_ lock.Backend = (*Backend)(nil)
	_ lock.Queuer  = (*Backend)(nil)
)

// Open connects to one of servers (host:port, or host for ZooKeeper's own port, 2181) and waits for a session as long as
// ctx allows. The error names what is out of range, or a host that is not known, or is ctx's, and then tells what came of
// each address that was tried.
func Open(ctx context.Context, servers []string, opts Options) (*Backend, error) {
	legal := func(r rune) bool {
		return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	illegal := func(r rune) bool { return !legal(r) }
	if opts.SessionTimeout == 0 {
		opts.SessionTimeout = DefaultSessionTimeout
	}
	switch ns := opts.Namespace; {
	case len(servers) == 0:
		return nil, errNoServers
	case ns == "" || ns == "." || ns == ".." || strings.ContainsFunc(ns, illegal):
		return nil, fmt.Errorf("zklock: Namespace is %q: must match [A-Za-z0-9._-]+ and not be a dot or two", ns)
	case opts.SessionTimeout < 2*lock.MinTTL:
		return nil, fmt.Errorf("zklock: SessionTimeout is %v: must be at least %v, or 0 for the default of %v", opts.SessionTimeout, 2*lock.MinTTL, DefaultSessionTimeout)
	case opts.Digest != "" && !strings.Contains(opts.Digest, ":"):
		return nil, errors.New("zklock: Digest has no colon: must be user:password")
	}
	b := &Backend{
		root:    "/" + opts.Namespace,
		acl:     zk.WorldACL(zk.PermAll),
		closing: make(chan struct{}),
		reaped:  make(chan struct{}),
		wake:    make(chan struct{}, 1),
		claims:  make(map[owned]*claim),
	}
	if opts.Digest != "" {
		b.acl = zk.AuthACL(zk.PermAll)
	}
	var err error
	if b.session, err = connect(ctx, servers, opts, b.stir); err != nil {
		return nil, err
	}
	b.maxTTL = b.session.timeout() / 2
	go b.reap()
	return b, nil
}

// Close ends the session, which frees all locks, and waits for what runs in the background: some seconds if ZooKeeper
// does not answer, and then the locks go when the session times out. It may be called again.
func (b *Backend) Close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.closing)
	}
	b.mu.Unlock()
	b.session.close()
	<-b.reaped
}

// Capabilities implements lock.Backend. MaxTTL is half of the timeout that the session was given when it was opened.
func (b *Backend) Capabilities() lock.Capabilities {
	return lock.Capabilities{Fence: true, Fair: true, Shared: true, MaxTTL: b.maxTTL}
}

// check tells whether a request with that TTL can be sent.
func (b *Backend) check(ctx context.Context, ttl time.Duration) error {
	if err := lock.ValidateTTL(ttl); err != nil {
		return err
	}
	// A later session may be given less than the first.
	if most := b.session.timeout() / 2; ttl > most {
		return fmt.Errorf("zklock: TTL is %v: must be at most %v, half of the session's timeout", ttl, most)
	}
	select {
	case <-b.closing:
		return errClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.session.ready()
}
