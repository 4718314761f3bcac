package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lease is an etcd lease that no claim is on.
type lease struct {
	id      clientv3.LeaseID
	seconds int64 // that it was asked for
}

// seconds is ttl in what etcd counts, rounded up: it must not end a lock before its holder does.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// lease makes a lease that lasts for ttl from now, of a spare one if there is any.
func (b *Backend) lease(ctx context.Context, ttl time.Duration) (lease, error) {
	if l, ok := b.spare.take(seconds(ttl)); ok {
		if _, err := b.keep(ctx, l.id); err == nil {
			return l, nil
		}
	}
	return b.grant(ctx, ttl)
}

// put commits a transaction whose success puts a claim on a lease, and without that puts nothing. When it has succeeded the
// lease lasts for ttl from the call on.
func (b *Backend) put(ctx context.Context, ttl time.Duration, txn func(on lease) clientv3.Txn) (*clientv3.TxnResponse, error) {
	if l, ok := b.spare.take(seconds(ttl)); ok {
		resp, err := b.putSpare(ctx, l, txn(l))
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return resp, err
		}
		// It had ended, and if a claim came to stand on it that has ended too.
	}
	l, err := b.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return b.commit(l, txn(l))
}

// putSpare renews a lease while the transaction is under way. Both begin after the call, so either may come first.
//
// A member that was the leader, and does not know yet that it is not, may answer the keep-alive; so both answers have to be
// of one term. Then a leader that came before the call would have told its term with the transaction, which takes a
// majority, and one that came later lets the lease begin anew.
func (b *Backend) putSpare(ctx context.Context, l lease, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
	keeping, cancel := context.WithCancel(ctx)
	var term uint64
	var lapsed error
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		term, lapsed = b.keep(keeping, l.id)
	}()
	resp, err := b.commit(l, txn)
	if err != nil || !resp.Succeeded {
		cancel() // the lease is not needed
	}
	<-kept
	cancel()
	switch {
	case err != nil || !resp.Succeeded:
		return resp, err
	case lapsed != nil:
		return nil, lapsed
	case term != resp.Header.RaftTerm:
		return nil, errLeader
	}
	return resp, nil
}

// commit keeps the lease for later if the transaction has not put anything on it. When the outcome is unknown the lease is
// not used again: a claim may come to stand on it.
func (b *Backend) commit(l lease, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
	resp, err := txn.Commit()
	if err == nil && !resp.Succeeded {
		b.spare.give(l)
	}
	return resp, err
}

// grant makes a new lease, which a majority agrees upon.
func (b *Backend) grant(ctx context.Context, ttl time.Duration) (lease, error) {
	resp, err := b.client.Grant(ctx, seconds(ttl))
	if err != nil {
		return lease{}, err
	}
	return lease{id: resp.ID, seconds: seconds(ttl)}, nil
}

// keep renews a lease by a keep-alive, and tells in which term. A leader answers it alone.
func (b *Backend) keep(ctx context.Context, id clientv3.LeaseID) (term uint64, err error) {
	resp, err := ask(ctx, func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
		return b.client.KeepAliveOnce(ctx, id)
	})
	if err != nil {
		return 0, err
	}
	return resp.GetRaftTerm(), nil
}

// ask asks once more if there is no answer in a quarter of the time that ctx leaves. A member that is frozen, or cut off
// from the others, keeps its connections; the client goes on to the next one with the next request.
func ask[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return request(ctx)
	}
	first, cancel := context.WithTimeout(ctx, time.Until(deadline)/4)
	defer cancel()
	answer, err := request(first)
	if err == nil || first.Err() == nil || ctx.Err() != nil {
		return answer, err
	}
	return request(ctx)
}

const maxSpare = 64

// spare keeps leases for the next acquisition, because a new one costs etcd as much as the lock itself. A lease comes
// here only when etcd has said that no claim is on it and no request is under way that could put one there. It ends by
// itself when nobody takes it.
type spare struct {
	mu     sync.Mutex
	leases []lease // protected by mu; the latest last
}

func (s *spare) give(l lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases) < maxSpare {
		s.leases = append(s.leases, l)
	}
}

// take takes the latest lease, which is the most likely one to be there still. A lease of other seconds is dropped.
func (s *spare) take(seconds int64) (l lease, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.leases) > 0 {
		last := len(s.leases) - 1
		l = s.leases[last]
		s.leases = s.leases[:last]
		if l.seconds == seconds {
			return l, true
		}
	}
	return lease{}, false
}
