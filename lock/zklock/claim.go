package zklock

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/herdgate/herdgate/lock"
)

// errExpired is for an owner that asks again for a lock that expired, while that is being removed.
var errExpired = errors.New("zklock: this owner's claim has expired, and is not removed yet")

// owned names a claim.
type owned struct{ name, owner string }

// claim is what this process has in ZooKeeper, or may have: it is noted before the request that makes a node. It is looked
// after until the node is known to be gone, because the session keeps the node as long as it lives itself.
type claim struct {
	req   lock.Request
	path  string    // of the node, empty while it is not known
	made  uint64    // the transaction that made the node; known if path is
	token uint64    // that, or 0 while the claim does not hold the lock
	until time.Time // when it expires
	gone  bool      // it has expired, and the reaper is at it

	// asking is held by who looks for the node, makes it or deletes it: an owner may ask again while its first request is
	// under way, and would get a second node, which nobody looks after. It is locked before the Backend's mu.
	asking sync.Mutex
}

// note returns the claim of req's owner, which lasts for another TTL, and whether it is new. The caller has its asking, to be
// unlocked.
func (b *Backend) note(req lock.Request) (c *claim, isNew bool, err error) {
	until := time.Now().Add(req.TTL)
	var early bool
	for noted := false; !noted; {
		b.mu.Lock()
		c = b.claims[owned{req.Name, req.Owner}]
		if isNew = c == nil; isNew {
			c = &claim{req: req, until: until} // the reaper may look before anybody else does
			c.asking.Lock()                    // at once, as nobody else knows it
			b.claims[owned{req.Name, req.Owner}] = c
			early = len(b.claims) == 1 || req.TTL < reapPause // before the reaper would look
		}
		b.mu.Unlock()
		if isNew {
			break
		}
		c.asking.Lock()
		if noted = b.isNoted(c); !noted { // an earlier request has forgotten it meanwhile
			c.asking.Unlock()
		}
	}
	if !b.prolong(c, until) {
		c.asking.Unlock()
		return nil, false, errExpired
	}
	if early {
		b.stir()
	}
	return c, isNew, nil
}

// isNoted tells whether a claim is looked after.
func (b *Backend) isNoted(c *claim) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.claims[owned{c.req.Name, c.req.Owner}] == c
}

// prolong makes a claim last until then, unless it has expired.
func (b *Backend) prolong(c *claim, until time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.hasExpired() {
		return false
	}
	if until.After(c.until) {
		c.until = until
	}
	return true
}

// hasExpired: the caller has mu. What has expired stays so, though the node may be there for a moment.
func (c *claim) hasExpired() bool {
	return c.gone || !c.until.IsZero() && !time.Now().Before(c.until)
}

// find returns what claimed is known to be; nil if it has expired or never was.
func (b *Backend) find(claimed lock.Claim) (c *claim, path string, token uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c = b.claims[owned{claimed.Name, claimed.Owner}]
	if c == nil || c.hasExpired() || claimed.Token != 0 && claimed.Token != c.token {
		return nil, "", 0
	}
	return c, c.path, c.token
}

// settle notes which node a claim has, with which it does not hold the lock yet. An empty path: that is not known.
func (b *Backend) settle(c *claim, path string, made uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.path, c.made, c.token = path, made, 0
}

// knows tells whether that is the node of a claim.
func (b *Backend) knows(c *claim, path string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.path == path
}

// grant makes a claim the holder of the lock until then, unless it has expired.
func (b *Backend) grant(c *claim, until time.Time) (token uint64, ok bool) {
	if !b.prolong(c, until) {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.token = c.made
	return c.token, true
}

// forget is for a claim whose node is known not to be there.
func (b *Backend) forget(c *claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name := (owned{c.req.Name, c.req.Owner}); b.claims[name] == c {
		delete(b.claims, name)
	}
}

// remove deletes the node of a claim, or all nodes of its owner if it is not known which that is. lock.ErrNotHeld: there
// was none. When it returns neither an error nor that, or that, the claim is forgotten. The caller has its asking.
func (b *Backend) remove(c *claim) error {
	if err := b.session.ready(); err != nil {
		return err
	}
	b.mu.Lock()
	paths := []string{c.path}
	b.mu.Unlock()
	if paths[0] == "" {
		l, err := b.list(c.req.Name)
		if err != nil {
			return err
		}
		paths = nil
		for _, n := range l.of(c.req.Owner) {
			paths = append(paths, b.dirOf(c.req.Name)+"/"+n.name)
		}
	}
	outcome := lock.ErrNotHeld
	for _, path := range paths {
		switch err := b.session.Delete(path, -1); {
		case err == nil:
			outcome = nil
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
	}
	b.forget(c)
	return outcome
}

// list reads the claims of a lock, no older than the call: the server first hears all that the leader knows.
func (b *Backend) list(name string) (line, error) {
	if _, err := b.session.Sync(b.dirOf(name)); err != nil {
		return nil, err
	}
	return b.peek(name)
}

// peek reads the claims of a lock as the server knows them. It is no older than what this session has seen.
func (b *Backend) peek(name string) (line, error) {
	names, _, err := b.session.Children(b.dirOf(name))
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return newLine(names), err
}

// create makes a node for a claim, and tells whether it is the only one in the line, so that nobody has to look. The node
// above it is a container, which ZooKeeper removes some time after the last claim; the sequence begins anew with it, when
// there is nothing left to compare with.
//
// In one transaction with the node the container is written, with nothing: the answer to that, and to no making of a node,
// tells which transaction it was, and how many nodes there are after it.
func (b *Backend) create(c *claim) (own node, alone bool, err error) {
	kind := "x"
	if c.req.Shared {
		kind = "s"
	}
	dir := b.dirOf(c.req.Name)
	b.settle(c, "", 0) // while the outcome is open
	made := &zk.CreateRequest{Path: dir + "/" + prefix(kind, c.req.Owner), Acl: b.acl, Flags: zk.FlagEphemeralSequential}
	for range 3 {
		answers, err := b.session.Multi(made, &zk.SetDataRequest{Path: dir, Version: -1})
		if err == nil {
			path, stat := answers[0].String, answers[1].Stat
			b.settle(c, path, uint64(stat.Mzxid))
			own, _ := parse(strings.TrimPrefix(path, dir+"/"))
			return own, stat.NumChildren == 1, nil
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return node{}, false, err
		}
		if _, err := b.session.Create(b.root, nil, zk.FlagPersistent, b.acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return node{}, false, err
		}
		if _, err := b.session.CreateContainer(dir, nil, zk.FlagContainer, b.acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return node{}, false, err
		}
	}
	return node{}, false, zk.ErrNoNode
}

// reap removes claims that have expired, until Close.
func (b *Backend) reap() {
	defer close(b.reaped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-b.closing:
			return
		case <-b.wake:
		case <-timer.C:
		}
		timer.Reset(b.reapExpired())
	}
}

// reapPause is the time between two tries to remove a claim, and the longest between two looks while there are claims.
const reapPause = time.Second

// reapExpired returns the time until it is to be called again.
func (b *Backend) reapExpired() time.Duration {
	var expired []*claim
	next := reapPause
	b.mu.Lock()
	if len(b.claims) == 0 {
		next = time.Hour // the next claim wakes it
	}
	for _, c := range b.claims {
		if c.hasExpired() {
			c.gone = true
			expired = append(expired, c)
		} else {
			next = min(next, time.Until(c.until))
		}
	}
	b.mu.Unlock()
	for _, c := range expired {
		if !c.asking.TryLock() { // a request may be about to make its node, and finds it expired then
			next = min(next, reapPause)
			continue
		}
		err := b.remove(c)
		c.asking.Unlock()
		if err != nil && !errors.Is(err, lock.ErrNotHeld) {
			return reapPause
		}
	}
	return max(next, time.Millisecond)
}

// stir makes the reaper look. It never blocks.
func (b *Backend) stir() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
