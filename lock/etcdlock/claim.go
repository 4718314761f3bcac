package etcdlock

import (
	"context"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/herdgate/herdgate/lock"
)

// claim is what is in etcd for an owner: a key on a lease, whose seconds are its value.
type claim struct {
	kv    *mvccpb.KeyValue // nil: there is none
	holds bool             // no older claim excludes it
}

// find reads a claim that holds the lock, and tells in which term, or returns lock.ErrNotHeld.
func (b *Backend) find(ctx context.Context, wanted lock.Claim) (found claim, term uint64, err error) {
	// Without a write in it, a transaction is a read that a majority confirms. One within another would be a write.
	resp, err := ask(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return b.client.Txn(ctx).Then(b.look(wanted.Name, wanted.Owner)...).Commit()
	})
	if err != nil {
		return claim{}, 0, err
	}
	found = seen(resp.Responses)
	if !found.holds || wanted.Token != 0 && found.token() != wanted.Token {
		return claim{}, 0, lock.ErrNotHeld
	}
	return found, resp.Header.RaftTerm, nil
}

// look reads what seen makes a claim of.
func (b *Backend) look(name, owner string) []clientv3.Op {
	first := append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())
	return []clientv3.Op{
		clientv3.OpGet(b.keys.claim(name, "x", owner)),
		clientv3.OpGet(b.keys.claim(name, "s", owner)),
		clientv3.OpGet(b.keys.all(name), first...),
		clientv3.OpGet(b.keys.exclusive(name), first...),
	}
}

func seen(responses []*pb.ResponseOp) claim {
	one := func(i int) *mvccpb.KeyValue {
		if kvs := responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			return kvs[0]
		}
		return nil
	}
	exclusive, shared, oldest, oldestExclusive := one(0), one(1), one(2), one(3)
	switch {
	case exclusive != nil:
		return claim{exclusive, exclusive.CreateRevision == oldest.CreateRevision}
	case shared != nil:
		return claim{shared, oldestExclusive == nil || shared.CreateRevision < oldestExclusive.CreateRevision}
	}
	return claim{}
}

// token is the fence: claims hold the lock in the order of their creation, which no other in the cluster shares.
func (c claim) token() uint64 { return uint64(c.kv.CreateRevision) }

func (c claim) lease() lease {
	seconds, _ := strconv.ParseInt(string(c.kv.Value), 10, 64) // of a foreign value: 0, so that a renewal replaces the lease
	return lease{id: clientv3.LeaseID(c.kv.Lease), seconds: seconds}
}

// put makes a claim, or moves it to another lease.
func put(key string, on lease) clientv3.Op {
	return clientv3.OpPut(key, strconv.FormatInt(on.seconds, 10), clientv3.WithLease(on.id))
}

// is compares a claim's token, or whether it is there at all if the token is not known.
func is(key string, token uint64) clientv3.Cmp {
	if token == 0 {
		return clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
	}
	return clientv3.Compare(clientv3.CreateRevision(key), "=", int64(token))
}
