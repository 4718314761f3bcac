package etcdlock

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/herdgate/herdgate/lock"
)

// waiter is a claim that waits for those before it to go.
type waiter struct {
	backend  *Backend
	req      lock.Request
	key      string
	revision int64 // of its creation
	lease    lease
	kept     time.Time // before the last request that renewed the lease
}

// Queue implements lock.Queuer.
func (b *Backend) Queue(ctx context.Context, req lock.Request) (turn func(context.Context) error, err error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	w := &waiter{backend: b, req: req, key: b.keys.claim(req.Name, kind(req), req.Owner), kept: time.Now()}
	if w.lease, err = b.lease(ctx, req.TTL); err != nil {
		return nil, err
	}
	resp, err := b.client.Txn(ctx).If(is(w.key, 0)).Then(clientv3.OpGet(w.key)).Else(put(w.key, w.lease)).Commit()
	if err != nil {
		return nil, err
	}
	w.revision = resp.Header.Revision
	if resp.Succeeded { // it has a place
		b.spare.give(w.lease)
		c := claim{kv: resp.Responses[0].GetResponseRange().Kvs[0]}
		w.revision, w.lease = c.kv.CreateRevision, c.lease()
	}
	return w.turn, nil
}

// turn waits until no claim is left that excludes this one. An error of etcd ends the wait only when the claim may have
// ended too.
func (w *waiter) turn(ctx context.Context) error {
	lifetime := time.Duration(w.lease.seconds) * time.Second
	for {
		first, err := w.step(ctx, lifetime/3)
		switch {
		case err == nil && first:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, lock.ErrNotAcquired), err != nil && time.Since(w.kept) >= lifetime:
			return err
		case err != nil:
			pause(ctx, lifetime/30)
		}
	}
}

// step renews the lease, and tells whether the claim is the first. If not, it waits for the one before it to go, at most
// until the lease has to be renewed.
func (w *waiter) step(ctx context.Context, limit time.Duration) (first bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sentAt := time.Now()
	if _, err := w.backend.keep(ctx, w.lease.id); err != nil {
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			err = lock.ErrNotAcquired
		}
		return false, err
	}
	w.kept = sentAt

	last := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(w.revision-1), clientv3.WithKeysOnly())
	resp, err := w.backend.client.Txn(ctx).Then(
		clientv3.OpGet(w.key, clientv3.WithKeysOnly()),
		clientv3.OpGet(w.backend.keys.rivals(w.req), last...),
	).Commit()
	if err != nil {
		return false, err
	}
	own, before := resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs
	switch {
	case len(own) == 0 || own[0].CreateRevision != w.revision:
		return false, lock.ErrNotAcquired
	case len(before) == 0:
		return true, nil
	}
	// Only the end of that one moves this claim: of all who wait, one is woken by a release.
	ends := w.backend.client.Watch(ctx, string(before[0].Key), clientv3.WithRev(resp.Header.Revision+1), clientv3.WithFilterPut())
	<-ends // or the watch has failed, or ctx is done: look again
	return false, nil
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
