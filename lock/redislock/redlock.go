package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/lock"
)

// DefaultNodeTimeout is how long a Redlock waits for a node, unless its options say otherwise.
const DefaultNodeTimeout = 200 * time.Millisecond

// splitRetry is the RetryAfter of a vote that nobody won: at once, and the engine adds its jitter.
const splitRetry = time.Millisecond

// RedlockOptions say how a Redlock keeps locks. Namespace is required.
type RedlockOptions struct {
	// Namespace begins the key of every lock. It matches [A-Za-z0-9._-]+. Services that lock the same things share it.
	Namespace string
	// NodeTimeout is how long a node is waited for; it must be much shorter than the TTL of the locks, which it uses up.
	// All nodes are asked at once, so this is what a node costs each call while it is down. A call whose ctx ends in less
	// than twice that waits for half of what is left. Zero is DefaultNodeTimeout.
	NodeTimeout time.Duration
	// RestartDelay keeps a node that has been up for less from voting for a new owner. A node that restarts without its
	// data has forgotten its votes, so it should be as long as the longest TTL that anybody uses, unless the nodes write
	// every change to disk (appendfsync always). It needs the right to INFO. Zero: a node votes at once.
	RestartDelay time.Duration
}

// Redlock is a lock.Backend over several independent Redis masters: a lock is held by whoever has it
// on most of them, so the loss of a minority frees nothing and stops nobody. Make it with NewRedlock; its methods may be
// called concurrently.
//
// It is for work that is wasteful, not wrong, when it is done twice, where a single Redis would be too often away. It is
// not proof, and has no fence: Token is 0, as servers that do not know each other cannot count together. That at most one
// holds the lock depends on clocks, those of the nodes and of the holders, that run about equally fast and are not
// stepped (lock.Options.Drift is the margin), and on holders that look at their lease after every pause. Martin
// Kleppmann's "How to do distributed locking" shows what goes wrong where that does not hold, and Salvatore Sanfilippo's
// "Is Redlock safe?" what the algorithm asks for. For locks that protect data take a backend with a fence, say package
// etcdlock, and let the store check it.
//
// What the nodes must be: an odd number of masters, 5 as a rule, on machines that do not fail together, none with a
// replica that takes its place, because a failover may forget a vote. A node that restarts empty has forgotten it as
// well: if the lock was granted by a bare majority, or a majority restarts within a TTL, two may hold it; see
// RedlockOptions.RestartDelay. Those who hold a lock put it back on such a node with their next renewal, so that nodes
// may be restarted one by one, a TTL apart.
//
// Who waits for a lock polls, as lock.Options.RetryMin and RetryMax say. Wake-ups would bring all of them to the nodes at
// once, where they divide the votes: with 8 waiters and more that was slower than polling.
//
// A node that did not answer in time may still give its vote afterwards. Release and the undoing of a failed request go to
// every node, the latter once more when the call has ended, and reach most of those; what comes even later blocks that one
// node for a TTL, never the lock.
type Redlock struct {
	opts    RedlockOptions
	keys    keys
	nodes   []node
	vote    script
	renew   script
	release script
	numbers atomic.Uint64 // of requests, see vote.lua

	mu     sync.Mutex // protects closed, and calls from an Add after it
	closed bool
	calls  sync.WaitGroup // what is under way, calls to nodes that were left behind included
}

var _ lock.Backend = (*Redlock)(nil)

// QuorumError is the error of a Redlock when the nodes that answered decide nothing: too few of them did. It is neither
// lock.ErrNotAcquired nor lock.ErrNotHeld, and matches the errors of the nodes that did not answer.
type QuorumError struct {
	// Nodes is how many were asked, Yes and No how many of them answered so.
	Nodes, Yes, No int
	// Errs are those of the others, which did not answer.
	Errs []error
}

func (e *QuorumError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "redislock: %d of %d nodes answered, %d of them with yes: must be %d", e.Yes+e.No, e.Nodes, e.Yes, e.Nodes/2+1)
	for _, err := range e.Errs {
		fmt.Fprintf(&text, "; %v", err)
	}
	return text.String()
}

// Unwrap returns Errs.
func (e *QuorumError) Unwrap() []error { return e.Errs }

// NewRedlock makes a backend over nodes, an odd number of at least 3, each a client of one master of its own. The clients
// stay the caller's to close, after the backend. Nothing is sent yet. The error names what is out of range: among others,
// a client of a Cluster, of a Ring or of a Sentinel's master, or two of one address, is no independent master.
//
// Clients should be set to give up soon (redis.Options: ContextTimeoutEnabled, or ReadTimeout and DialTimeout near
// NodeTimeout): a call to a node that does not answer is left behind after NodeTimeout, but goes on until its client ends
// it.
func NewRedlock(nodes []redis.UniversalClient, opts RedlockOptions) (*Redlock, error) {
	keys, err := newKeys(opts.Namespace)
	if err != nil {
		return nil, err
	}
	switch {
	case opts.NodeTimeout < 0:
		return nil, fmt.Errorf("redislock: NodeTimeout is %v: must be positive, or 0 for the default of %v", opts.NodeTimeout, DefaultNodeTimeout)
	case opts.RestartDelay < 0:
		return nil, fmt.Errorf("redislock: RestartDelay is %v: must be positive, or 0 for none", opts.RestartDelay)
	case opts.NodeTimeout == 0:
		opts.NodeTimeout = DefaultNodeTimeout
	}
	independent, err := newNodes(nodes)
	if err != nil {
		return nil, err
	}
	return &Redlock{
		opts:    opts,
		keys:    keys,
		nodes:   independent,
		vote:    script{source: voteSource},
		renew:   script{source: renewSource},
		release: script{source: releaseSource},
	}, nil
}

// Close waits for calls under way, and for those to nodes that were left behind, which end when their clients let them.
// Afterwards the methods return an error. It may be called again. Locks stay as they are, so unlock them before.
func (r *Redlock) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.calls.Wait()
}

// begin counts a call in, which calls.Done counts out.
func (r *Redlock) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	r.calls.Add(1)
	return nil
}

// Acquire implements lock.Backend: the lock is req.Owner's when most nodes say so before its TTL has passed. Votes that
// did not make a majority are given back before it returns. The error matches lock.ErrNotAcquired if others have the votes
// that are missing, be it one holder or several who divided them, and is a *QuorumError if too few nodes answered.
//
// The TTL is rounded up to whole milliseconds, and counts from before the nodes were asked, as in lock.Hold.
func (r *Redlock) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := req.Validate(); err != nil {
		return lock.Grant{}, err
	}
	if err := r.begin(); err != nil {
		return lock.Grant{}, err
	}
	defer r.calls.Done()

	began, number := time.Now(), r.numbers.Add(1)
	limit := r.limit(ctx)
	votes := r.send(ctx, limit, r.nodes, r.voter(req.Name, req.Owner, req.TTL, number, r.opts.RestartDelay))
	p := r.collect(ctx, limit, votes, r.nodes)
	var err error
	switch took := time.Since(began); {
	case len(p.yes) >= r.quorum() && took < req.TTL:
		return lock.Grant{}, nil
	case len(p.yes) >= r.quorum():
		err = fmt.Errorf("redislock: the votes took %v: must be less than the TTL of %v", took, req.TTL)
	case len(p.yes)+len(p.no) >= r.quorum():
		err = &lock.ContendedError{Name: req.Name, RetryAfter: r.retryAfter(p)}
	default:
		err = r.undecided(p)
	}
	r.undo(ctx, p, votes, req, number)
	return lock.Grant{}, err
}

// voter asks for the vote of a node, or for it again.
func (r *Redlock) voter(name, owner string, ttl time.Duration, number uint64, delay time.Duration) func(context.Context, node) answer {
	return func(ctx context.Context, n node) answer {
		names := []string{r.keys.lock(name)}
		reply, err := r.vote.run(ctx, once(n.client), names, owner, millis(ttl), number, millis(delay)).Slice()
		if err != nil {
			return answer{err: err}
		}
		return parseVote(reply)
	}
}

// parseVote takes a reply of vote.lua.
func parseVote(reply []any) answer {
	if len(reply) == 3 {
		left, isInt := reply[1].(int64)
		holder, isString := reply[2].(string)
		if isInt && isString {
			return answer{yes: reply[0] == int64(1), left: time.Duration(left) * time.Millisecond, holder: holder}
		}
	}
	return answer{err: fmt.Errorf("redislock: a vote was answered by %v: must be two numbers and an owner", reply)}
}

// retryAfter is when enough nodes are free, if one owner may hold the lock. If the votes are divided, their owners give
// them back at once.
func (r *Redlock) retryAfter(p poll) time.Duration {
	votes := make(map[string]int)
	most := 0
	var left []time.Duration
	for _, a := range p.no {
		votes[a.holder]++
		most = max(most, votes[a.holder])
		left = append(left, max(0, a.left)) // negative when the key has no TTL: nothing is known then
	}
	if most+len(p.silent) < r.quorum() {
		return splitRetry
	}
	slices.Sort(left)
	return left[r.quorum()-len(p.yes)-1]
}

// undo gives back what a request that failed was given. It waits for the nodes that are known to have given something:
// those that did not answer are told as well, but not waited for a second time. A caller that gives up leaves votes under
// way, which may overtake what takes them back: those nodes are told again when their calls, votes, have ended.
func (r *Redlock) undo(ctx context.Context, p poll, votes <-chan answer, req lock.Request, number uint64) {
	give := r.releaser(lock.Claim{Name: req.Name, Owner: req.Owner, Token: number})
	limit := r.limit(ctx)
	ctx = context.WithoutCancel(ctx)
	r.send(ctx, limit, nodesOf(p.silent), give)
	for range p.left {
		r.calls.Go(func() {
			late := <-votes
			r.send(ctx, limit, []node{late.node}, give)
		})
	}
	r.collect(ctx, limit, r.send(ctx, limit, nodesOf(p.yes), give), nodesOf(p.yes))
}

// Renew implements lock.Backend: most nodes must still have the lock, and keep it for ttl from then on.
//
// Only nodes that had it without a break count. One that had forgotten it, or never had it, is then given it again, if it
// is free, and counts from the next renewal on; if a majority has to be made of such nodes, somebody else may have had it
// meanwhile, and it is lost.
func (r *Redlock) Renew(ctx context.Context, claim lock.Claim, ttl time.Duration) error {
	if err := lock.ValidateTTL(ttl); err != nil {
		return err
	}
	if err := r.begin(); err != nil {
		return err
	}
	defer r.calls.Done()
	p := r.ask(ctx, r.nodes, func(ctx context.Context, n node) answer {
		names := []string{r.keys.lock(claim.Name)}
		return yesOrNo(r.renew.run(ctx, once(n.client), names, claim.Owner, claim.Token, millis(ttl)))
	})
	if err := r.decided(p); err != nil {
		return err
	}
	// Waited for, so that none comes after a release.
	r.ask(ctx, nodesOf(p.no), r.voter(claim.Name, claim.Owner, ttl, r.numbers.Add(1), 0))
	return nil
}

// Release implements lock.Backend. It is sent to every node, also to those that never gave their vote as far as is known.
func (r *Redlock) Release(ctx context.Context, claim lock.Claim) error {
	if err := r.begin(); err != nil {
		return err
	}
	defer r.calls.Done()
	return r.decided(r.ask(ctx, r.nodes, r.releaser(claim)))
}

func (r *Redlock) releaser(claim lock.Claim) func(context.Context, node) answer {
	return func(ctx context.Context, n node) answer {
		names := []string{r.keys.lock(claim.Name)}
		return yesOrNo(r.release.run(ctx, once(n.client), names, claim.Owner, claim.Token, "", claim.Name))
	}
}

// yesOrNo reads the answer of a script that compares the claim.
func yesOrNo(cmd *redis.Cmd) answer {
	err := held(cmd)
	if errors.Is(err, lock.ErrNotHeld) {
		return answer{}
	}
	return answer{yes: err == nil, err: err}
}

// decided is nil if most nodes said yes, lock.ErrNotHeld if most cannot, and else a *QuorumError.
func (r *Redlock) decided(p poll) error {
	switch {
	case len(p.yes) >= r.quorum():
		return nil
	case len(p.yes)+len(p.silent) < r.quorum():
		return lock.ErrNotHeld
	}
	return r.undecided(p)
}

func (r *Redlock) undecided(p poll) error {
	err := &QuorumError{Nodes: len(r.nodes), Yes: len(p.yes), No: len(p.no)}
	for _, a := range p.silent {
		err.Errs = append(err.Errs, a.err)
	}
	return err
}

func (r *Redlock) quorum() int { return len(r.nodes)/2 + 1 }

// Capabilities implements lock.Backend: there are none.
func (*Redlock) Capabilities() lock.Capabilities { return lock.Capabilities{} }
