// Package etcdlock keeps locks in etcd: a key a claim, on an etcd lease, in the order of their creation. The oldest claim
// of a name holds the lock, the others wait in that order, each of them watching only the one before it.
//
// What may be relied on: one holder at a time, or readers only, as long as etcd keeps what a majority has acknowledged;
// the queue is fair; the token, etcd's revision at the creation of the claim, rises with each grant, over restarts and
// changes of leader too, and starts again only when a cluster is made anew or restored from a backup; a lock whose holder
// died goes to the next one when its TTL has passed.
//
// What may not: etcd counts whole seconds, and gives no less than one and a half election timeouts, 2 s by default; a
// lock left behind may stay for that much longer than its TTL, and for another TTL when etcd's leader changes. Without a
// majority nothing can be locked, renewed or released. A holder that is frozen does not know that it lost the lock: send
// the token along to what the lock protects.
//
// The algorithm is that of etcd's own mutex, by ordered creation revisions. Different are that each acquisition has a
// lease of its own, so that one process can hold many locks and lose one; that its end is told by the holder's clock, not
// by an answer of etcd; and that a claim is deleted only if it is still the same one.
package etcdlock

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/herdgate/herdgate/lock"
)

// Options say how locks are kept. Namespace is required.
type Options struct {
	// Namespace begins the key of every lock. It matches [A-Za-z0-9._-]+. Services that lock the same things share it.
	Namespace string
}

// Backend is a lock.Backend and a lock.Queuer in etcd, with fence tokens and shared locks. Make it with New; its methods
// may be called concurrently. It has no goroutines of its own and needs no closing.
type Backend struct {
	client *clientv3.Client
	keys   keys
	spare  spare
}

var (
	_ lock.Backend = (*Backend)(nil)
	_ lock.Queuer  = (*Backend)(nil)
)

var (
	errNoClient = errors.New("etcdlock: the client is nil: must be an etcd client")
	errLeader   = errors.New("etcdlock: etcd's leader changed during a renewal, which may be void")
)

// New makes a backend that uses client, which stays the caller's to close. Nothing is sent yet. The error names what is
// out of range.
func New(client *clientv3.Client, opts Options) (*Backend, error) {
	if client == nil {
		return nil, errNoClient
	}
	keys, err := newKeys(opts.Namespace)
	if err != nil {
		return nil, err
	}
	return &Backend{client: client, keys: keys}, nil
}

// Capabilities implements lock.Backend.
func (*Backend) Capabilities() lock.Capabilities {
	return lock.Capabilities{Fence: true, Fair: true, Shared: true, Prompt: true}
}

// Acquire implements lock.Backend. etcd rounds the TTL up to whole seconds, at least to its own minimum.
func (b *Backend) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := req.Validate(); err != nil {
		return lock.Grant{}, err
	}
	key := b.keys.claim(req.Name, kind(req), req.Owner)
	free := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
		clientv3.Compare(clientv3.CreateRevision(b.keys.rivals(req)), "=", 0).WithPrefix(), // of each of them, so there is none
	}
	resp, err := b.put(ctx, req.TTL, func(on lease) clientv3.Txn {
		return b.client.Txn(ctx).If(free...).Then(put(key, on)).Else(b.look(req.Name, req.Owner)...)
	})
	switch {
	case err != nil:
		return lock.Grant{}, err
	case resp.Succeeded:
		return lock.Grant{Token: uint64(resp.Header.Revision)}, nil
	}
	own := seen(resp.Responses)
	if !own.holds {
		return lock.Grant{}, &lock.ContendedError{Name: req.Name}
	}
	// The reply to an earlier request was lost, or it was our turn in the queue.
	err = b.Renew(ctx, lock.Claim{Name: req.Name, Owner: req.Owner, Token: own.token()}, req.TTL)
	if errors.Is(err, lock.ErrNotHeld) {
		err = &lock.ContendedError{Name: req.Name} // it is gone meanwhile
	}
	if err != nil {
		return lock.Grant{}, err
	}
	return lock.Grant{Token: own.token()}, nil
}

// Renew implements lock.Backend.
//
// A member that was the leader, and does not know yet that it is not, may answer a keep-alive, while the leader that
// followed it ends the lease. So the claim is read after the keep-alive, which takes a majority, and both answers have to
// be of one term: then no leader came in between, and one that comes later lets the lease begin anew.
func (b *Backend) Renew(ctx context.Context, claimed lock.Claim, ttl time.Duration) error {
	if err := lock.ValidateTTL(ttl); err != nil {
		return err
	}
	found, _, err := b.find(ctx, claimed)
	if err != nil {
		return err
	}
	if seconds(ttl) > found.lease().seconds {
		return b.replace(ctx, found, ttl)
	}
	kept, err := b.keep(ctx, found.lease().id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return err
	}
	_, term, gone := b.find(ctx, claimed)
	switch {
	case gone != nil:
		return gone
	case err != nil:
		return err // another Renew has moved the claim to another lease
	case term != kept:
		return errLeader
	}
	return nil
}

// replace moves a claim to a longer lease. Its revision stays. The lease that it leaves ends by itself.
func (b *Backend) replace(ctx context.Context, c claim, ttl time.Duration) error {
	lease, err := b.grant(ctx, ttl)
	if err != nil {
		return err
	}
	key := string(c.kv.Key)
	resp, err := b.client.Txn(ctx).If(is(key, c.token())).Then(put(key, lease)).Commit()
	if err != nil {
		return err
	}
	if !resp.Succeeded {
		b.spare.give(lease)
		return lock.ErrNotHeld
	}
	return nil
}

// Release implements lock.Backend.
func (b *Backend) Release(ctx context.Context, claimed lock.Claim) error {
	exclusive, shared := b.keys.claim(claimed.Name, "x", claimed.Owner), b.keys.claim(claimed.Name, "s", claimed.Owner)
	remove := func(key string) []clientv3.Op { return []clientv3.Op{clientv3.OpDelete(key, clientv3.WithPrevKV())} }
	resp, err := b.client.Txn(ctx).
		If(is(exclusive, claimed.Token)).Then(remove(exclusive)...).
		Else(clientv3.OpTxn([]clientv3.Cmp{is(shared, claimed.Token)}, remove(shared), nil)).Commit()
	if err != nil {
		return err
	}
	responses, removed := resp.Responses, resp.Succeeded
	if !removed {
		nested := responses[0].GetResponseTxn()
		responses, removed = nested.Responses, nested.Succeeded
	}
	if !removed {
		return lock.ErrNotHeld
	}
	b.spare.give(claim{kv: responses[0].GetResponseDeleteRange().PrevKvs[0]}.lease())
	return nil
}
