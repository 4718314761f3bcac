package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/herdgate/herdgate/lock"
)

// Acquire implements lock.Backend.
func (b *Backend) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := req.Validate(); err != nil {
		return lock.Grant{}, err
	}
	if err := b.check(ctx, req.TTL); err != nil {
		return lock.Grant{}, err
	}
	c, isNew, err := b.note(req)
	if err != nil {
		return lock.Grant{}, err
	}
	defer c.asking.Unlock()
	if isNew { // a node that comes and goes would be two writes, and in the way of others
		switch l, err := b.peek(req.Name); {
		case err != nil:
			b.forget(c)
			return lock.Grant{}, err
		case l.excludes(node{shared: req.Shared}):
			b.forget(c)
			return lock.Grant{}, &lock.ContendedError{Name: req.Name}
		}
	}
	waits := false
	if isNew {
		waits, err = b.join(c)
	} else {
		waits, err = b.again(c)
	}
	switch {
	case errors.Is(err, lock.ErrNotAcquired):
		return lock.Grant{}, &lock.ContendedError{Name: req.Name}
	case err != nil:
		return lock.Grant{}, err
	case waits:
		if isNew {
			if err := b.remove(c); err != nil && !errors.Is(err, lock.ErrNotHeld) {
				return lock.Grant{}, err
			}
		}
		return lock.Grant{}, &lock.ContendedError{Name: req.Name}
	}
	token, ok := b.grant(c, time.Now().Add(req.TTL))
	if !ok {
		return lock.Grant{}, errExpired
	}
	return lock.Grant{Token: token}, nil
}

// join makes a node for a claim, and tells whether it waits for others.
func (b *Backend) join(c *claim) (waits bool, err error) {
	own, alone, err := b.create(c)
	if err != nil || alone {
		return false, err
	}
	// Who is before the node was there when it was made, so the server knows of them.
	l, err := b.peek(c.req.Name)
	if err != nil {
		return false, err
	}
	if !l.has(own) { // the session has ended meanwhile
		b.forget(c)
		return true, nil
	}
	_, waits = l.rival(own)
	return waits, nil
}

// again is join for a claim that was asked for before. It has a node, or gets one now.
func (b *Backend) again(c *claim) (waits bool, err error) {
	l, err := b.list(c.req.Name)
	if err != nil {
		return false, err
	}
	own, ok, err := b.locate(c, l)
	switch {
	case err != nil:
		return false, err
	case !ok:
		return b.join(c)
	}
	_, waits = l.rival(own)
	return waits, nil
}

// locate finds the node of a claim in the line, and asks for the transaction that made it if that is not known; ok is
// false if the line has none.
func (b *Backend) locate(c *claim, l line) (own node, ok bool, err error) {
	nodes := l.of(c.req.Owner)
	if len(nodes) == 0 {
		return node{}, false, nil
	}
	path := b.dirOf(c.req.Name) + "/" + nodes[0].name
	if b.knows(c, path) {
		return nodes[0], true, nil
	}
	_, stat, err := b.session.Get(path)
	switch {
	case errors.Is(err, zk.ErrNoNode): // the session has ended meanwhile
		b.forget(c)
		return node{}, false, lock.ErrNotAcquired
	case err != nil:
		return node{}, false, err
	}
	b.settle(c, path, uint64(stat.Czxid))
	return nodes[0], true, nil
}

// Renew implements lock.Backend.
//
// A server that is cut off from the leader answers reads, while the leader ends the session. So the server asks the leader
// first, which also shows that it can still tell the leader of this session.
func (b *Backend) Renew(ctx context.Context, claimed lock.Claim, ttl time.Duration) error {
	if err := b.check(ctx, ttl); err != nil {
		return err
	}
	c, path, token := b.find(claimed)
	if c == nil || token == 0 {
		return lock.ErrNotHeld
	}
	if _, err := b.session.Sync(path); err != nil {
		return err
	}
	_, stat, err := b.session.Get(path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		b.forget(c)
		return lock.ErrNotHeld
	case err != nil:
		return err
	case uint64(stat.Czxid) != token, !b.prolong(c, time.Now().Add(ttl)):
		return lock.ErrNotHeld
	}
	return nil
}

// Release implements lock.Backend. A claim of another Backend is not held, here.
func (b *Backend) Release(ctx context.Context, claimed lock.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, _, _ := b.find(claimed)
	if c == nil {
		return lock.ErrNotHeld
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	return b.remove(c)
}

// Queue implements lock.Queuer.
func (b *Backend) Queue(ctx context.Context, req lock.Request) (turn func(context.Context) error, err error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if err := b.check(ctx, req.TTL); err != nil {
		return nil, err
	}
	c, isNew, err := b.note(req)
	if err != nil {
		return nil, err
	}
	defer c.asking.Unlock()
	var own node
	ok := false
	if !isNew {
		l, err := b.list(req.Name)
		if err != nil {
			return nil, err
		}
		if own, ok, err = b.locate(c, l); err != nil {
			return nil, err
		}
	}
	if !ok {
		if own, _, err = b.create(c); err != nil {
			return nil, err
		}
	}
	w := &waiter{backend: b, claim: c, own: own, seen: time.Now()}
	return w.turn, nil
}

// waiter is a claim that waits for those before it to go.
type waiter struct {
	backend *Backend
	claim   *claim
	own     node
	seen    time.Time       // when the node was last seen
	watched string          // the node before it
	changes <-chan zk.Event // of that; nil if it is not watched
}

// turn waits until no claim is left that excludes this one. An error of ZooKeeper ends the wait only when the session may
// have ended too.
func (w *waiter) turn(ctx context.Context) error {
	ttl := w.claim.req.TTL
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if !w.backend.prolong(w.claim, time.Now().Add(ttl)) {
			return lock.ErrNotAcquired
		}
		again := ttl / 3
		switch first, err := w.look(); {
		case first, errors.Is(err, lock.ErrNotAcquired):
			return err
		case err != nil && time.Since(w.seen) >= w.backend.session.timeout():
			return err
		case err != nil:
			again = max(ttl/30, 10*time.Millisecond)
		}
		timer.Reset(again)
		select {
		case <-w.changes:
			w.changes, w.watched = nil, ""
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-w.backend.closing:
			return errClosed
		}
	}
}

// look tells whether the claim is the first, and watches the one before it if not. A watch cannot be taken back, so a
// claim is watched once.
func (w *waiter) look() (first bool, err error) {
	b, name := w.backend, w.claim.req.Name
	if err := b.session.ready(); err != nil {
		return false, err
	}
	for {
		l, err := b.peek(name)
		if err != nil {
			return false, err
		}
		if !l.has(w.own) {
			b.forget(w.claim)
			return false, lock.ErrNotAcquired
		}
		w.seen = time.Now()
		rival, waits := l.rival(w.own)
		if !waits {
			return true, nil
		}
		if rival.name == w.watched {
			return false, nil
		}
		_, _, changes, err := b.session.GetW(b.dirOf(name) + "/" + rival.name)
		if err == nil {
			w.watched, w.changes = rival.name, changes
			return false, nil
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return false, err
		}
		// It has gone in between.
	}
}
