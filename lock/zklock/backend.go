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
	join := b.again
	if isNew {
		join = b.join
	}
	l, own, err := join(c)
	if err != nil {
		return lock.Grant{}, err
	}
	path := b.dirOf(req.Name) + "/" + own.name
	b.settle(c, path, 0)
	if _, waits := l.rival(own); waits {
		if isNew {
			if err := b.remove(c); err != nil && !errors.Is(err, lock.ErrNotHeld) {
				return lock.Grant{}, err
			}
		}
		return lock.Grant{}, &lock.ContendedError{Name: req.Name}
	}
	_, stat, err := b.session.Get(path)
	switch {
	case errors.Is(err, zk.ErrNoNode): // the session has ended meanwhile
		b.forget(c)
		return lock.Grant{}, &lock.ContendedError{Name: req.Name}
	case err != nil:
		return lock.Grant{}, err
	}
	b.settle(c, path, uint64(stat.Czxid))
	if !b.prolong(c, time.Now().Add(req.TTL)) {
		return lock.Grant{}, errExpired
	}
	return lock.Grant{Token: uint64(stat.Czxid)}, nil
}

// join makes a node for a claim, and returns it and the line that it is in.
func (b *Backend) join(c *claim) (l line, own node, err error) {
	if err := b.create(c.req); err != nil {
		return nil, node{}, err
	}
	// Who is before the node was there when it was made, so the server knows of them.
	return c.stand(b.peek)
}

// again returns the line of a claim that was asked for before, with the node that it has or gets now.
func (b *Backend) again(c *claim) (l line, own node, err error) {
	if l, own, err = c.stand(b.list); errors.Is(err, lock.ErrNotAcquired) {
		return b.join(c)
	}
	return l, own, err
}

// stand returns the line as read tells it, and the claim's node in it.
func (c *claim) stand(read func(name string) (line, error)) (l line, own node, err error) {
	if l, err = read(c.req.Name); err != nil {
		return nil, node{}, err
	}
	nodes := l.of(c.req.Owner)
	if len(nodes) == 0 {
		return nil, node{}, lock.ErrNotAcquired
	}
	return l, nodes[0], nil
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
	join := b.again
	if isNew {
		join = b.join
	}
	_, own, err := join(c)
	if err != nil {
		return nil, err
	}
	b.settle(c, b.dirOf(req.Name)+"/"+own.name, 0)
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
