package remote

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/lock"
)

// maxStep is how many keys one step asks a server for, so that it fits the store's
// timeout: a script takes it some 25 µs.
const maxStep = 1000

// Answer is what came of one key of many.
type Answer[T any] struct {
	Value T
	Err   error
}

// ReadMany reads the entries of keys in one step a node: an MGET, or a pipeline in a
// Cluster. A nil Value without an error means that there is none.
//
// An MGET says of an entry of a wrong type that there is none; what is stored replaces it.
func (s *Store) ReadMany(ctx context.Context, keys []Keys) []Answer[[]byte] {
	read := s.getMany
	if s.mgets() {
		read = s.mget
	}
	return perNode(ctx, s, keys, func(part []int) ([]Answer[[]byte], error) {
		names := make([]string, len(part))
		for n, i := range part {
			names[n] = keys[i].V
		}
		return guarded(ctx, s.route(ctx, names[0]), ordinary, func(ctx context.Context) ([]Answer[[]byte], error) { return read(ctx, names) })
	})
}

// mgets reports whether an MGET may ask for several keys.
func (s *Store) mgets() bool {
	_, single := s.rdb.(*redis.Client)
	return single && !s.slotted.Load()
}

// mget also says of an empty string that there is none. Values are not copied.
func (s *Store) mget(ctx context.Context, names []string) ([]Answer[[]byte], error) {
	args := make([]any, 1, 1+len(names))
	args[0] = "mget"
	for _, name := range names {
		args = append(args, name)
	}
	cmd := redis.NewStringSliceCmd(ctx, args...)
	switch err := s.rdb.Process(ctx, cmd); {
	case crossesSlots(err):
		s.slotted.Store(true)
		return s.getMany(ctx, names)
	case err != nil:
		return nil, err
	}
	answers := make([]Answer[[]byte], len(names))
	var value redis.StringCmd
	for i, text := range cmd.Val() {
		if text != "" {
			value.SetVal(text)
			answers[i].Value, _ = value.Bytes() // no error was set
		}
	}
	return answers, nil
}

func crossesSlots(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "CROSSSLOT ") }

func (s *Store) getMany(ctx context.Context, names []string) ([]Answer[[]byte], error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(names))
	for i, name := range names {
		cmds[i] = pipe.Get(ctx, name)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	answers := make([]Answer[[]byte], len(names))
	for i, cmd := range cmds {
		answers[i].Value, answers[i].Err = readEntry(cmd.Bytes())
	}
	return answers, unanswered(answers)
}

// AcquireMany is Acquire for many keys, as[i] for keys[i], in one step a node.
func (s *Store) AcquireMany(ctx context.Context, keys []Keys, as []Acquire) []Answer[Found] {
	calls := make([]scriptCall[Found], len(keys))
	for i := range keys {
		calls[i] = s.acquireCall(keys[i], as[i])
	}
	found := sendMany(ctx, s, ordinary, calls)
	// Those that came too late did nothing, and have told the server's time.
	var late []int
	for i, a := range found {
		if a.Err == nil && a.Value.State == Void {
			late = append(late, i)
		}
	}
	if late != nil {
		for n, a := range sendMany(ctx, s, ordinary, at(calls, late)) {
			found[late[n]] = a
		}
	}
	return found
}

// CommitMany is Commit for many keys, in one step a node.
func (s *Store) CommitMany(ctx context.Context, keys []Keys, cs []Commit) []Answer[Stored] {
	calls := make([]scriptCall[Stored], len(keys))
	for i := range keys {
		calls[i] = s.commitCall(keys[i], cs[i])
	}
	return sendMany(ctx, s, urgent, calls)
}

// FinishMany is Finish for many keys, in one step a node.
func (s *Store) FinishMany(ctx context.Context, keys []Keys, fs []Finish) []Answer[bool] {
	calls := make([]scriptCall[bool], len(keys))
	for i := range keys {
		calls[i] = s.finishCall(keys[i], fs[i])
	}
	return sendMany(ctx, s, urgent, calls)
}

// sendMany sends calls of one script, and once more those that got no reply: all of
// them may be sent twice.
func sendMany[T any](ctx context.Context, s *Store, u urgency, calls []scriptCall[T]) []Answer[T] {
	keys := make([]Keys, len(calls))
	for i := range calls {
		keys[i] = calls[i].keys
	}
	return perNode(ctx, s, keys, func(part []int) (answers []Answer[T], err error) {
		here := at(calls, part)
		answers = make([]Answer[T], len(here))
		silent := places(len(here))
		for range 2 {
			var got []Answer[T]
			got, err = tryMany(ctx, s, u, at(here, silent))
			for n, i := range silent {
				if answers[i].Err = err; err == nil {
					answers[i] = got[n]
				}
			}
			silent = slices.DeleteFunc(silent, func(i int) bool {
				return judge(answers[i].Err) == verdictAnswer || judge(answers[i].Err) == verdictRefusal
			})
			if len(silent) == 0 || ctx.Err() != nil || errors.Is(err, ErrDown) {
				break
			}
		}
		return answers, err
	})
}

// tryMany is one try of calls that go to one node.
func tryMany[T any](ctx context.Context, s *Store, u urgency, calls []scriptCall[T]) ([]Answer[T], error) {
	return guarded(ctx, s.route(ctx, calls[0].keys.V).scripts(), u, func(ctx context.Context) ([]Answer[T], error) {
		clock := s.clockOf(ctx, calls[0].keys)
		sent, notAfter := clock.mono(), s.notAfter(clock)
		cmds := make([]*redis.Cmd, len(calls))
		script := calls[0].script
		run := func(which []int, verb, what string) {
			pipe := s.rdb.Pipeline()
			for _, i := range which {
				cmds[i] = evalCmd(ctx, verb, what, calls[i].names, calls[i].args(notAfter))
				_ = pipe.Process(ctx, cmds[i]) // only puts it into the pipeline
			}
			_, _ = pipe.Exec(ctx) // each command has its own error
		}
		unknown := places(len(calls))
		if hash := script.hash.Load(); hash != nil {
			run(unknown, "evalsha", *hash)
			unknown = slices.DeleteFunc(unknown, func(i int) bool { return cmds[i].Err() == nil || !unknownScript(cmds[i].Err()) })
		}
		if len(unknown) > 0 {
			run(unknown, "eval", script.source)
		}
		answers := make([]Answer[T], len(calls))
		for i, cmd := range cmds {
			v, err := cmd.Result()
			if err == nil {
				answers[i].Value, err = calls[i].read(v, clock, sent)
			}
			answers[i].Err = err
		}
		return answers, unanswered(answers)
	})
}

// unanswered is the error of a step that got no answer to anything, as of a server that
// is down: nil if there is one answer, whatever it says.
func unanswered[T any](answers []Answer[T]) error {
	for _, a := range answers {
		if judge(a.Err) == verdictAnswer {
			return nil
		}
	}
	return answers[0].Err
}

// perNode calls step with the places in keys of those that one node has, at most
// maxStep at once, and puts what it returns into their places. The nodes are asked
// side by side, so that one that is down costs the keys of the others nothing; a node
// that did not answer a step is not asked the next.
func perNode[T any](ctx context.Context, s *Store, keys []Keys, step func(part []int) ([]Answer[T], error)) []Answer[T] {
	answers := make([]Answer[T], len(keys))
	nodes, err := s.nodes(ctx, keys)
	if err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	var all sync.WaitGroup
	for _, node := range nodes {
		all.Go(func() {
			var down error
			for part := range slices.Chunk(node, maxStep) {
				var got []Answer[T]
				if down == nil {
					got, down = step(part)
				}
				for n, i := range part {
					if n < len(got) {
						answers[i] = got[n]
					} else {
						answers[i].Err = down
					}
				}
			}
		})
	}
	all.Wait()
	return answers
}

// nodes are the places in keys of those that each node has.
func (s *Store) nodes(ctx context.Context, keys []Keys) ([][]int, error) {
	if _, cluster := s.rdb.(*redis.ClusterClient); !cluster {
		return [][]int{places(len(keys))}, nil
	}
	// The client may have to ask for the layout of the Cluster first.
	return bounded(ctx, s, func(ctx context.Context) ([][]int, error) {
		place := map[*clock]int{}
		var nodes [][]int
		for i, k := range keys {
			c := s.clockOf(ctx, k)
			n, known := place[c]
			if !known {
				n = len(nodes)
				place[c] = n
				nodes = append(nodes, nil)
			}
			nodes[n] = append(nodes[n], i)
		}
		return nodes, nil
	})
}

// places are 0 to n-1.
func places(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// at are the elements of all in these places.
func at[E any](all []E, places []int) []E {
	some := make([]E, len(places))
	for n, i := range places {
		some[n] = all[i]
	}
	return some
}

// LeasesTogether is Leases for leases that were granted together: renewals that fall
// due at the same time travel in one step.
func (s *Store) LeasesTogether() lock.Backend { return &together{leases: leases{s}} }

type together struct {
	leases

	mu  sync.Mutex
	due []*renewal // protected by mu; the first of them sends them all
}

type renewal struct {
	claim lock.Claim
	ttl   time.Duration
	done  chan error // of one place
}

// gather is how long the first renewal waits for the others. They fall due at one
// moment; how far they are apart is up to the scheduler.
func gather(ttl time.Duration) time.Duration { return min(2*time.Millisecond, ttl/100) }

// Renew implements lock.Backend.
func (t *together) Renew(ctx context.Context, c lock.Claim, ttl time.Duration) error {
	r := &renewal{claim: c, ttl: ttl, done: make(chan error, 1)}
	t.mu.Lock()
	t.due = append(t.due, r)
	first := len(t.due) == 1
	t.mu.Unlock()
	if first {
		timer := time.NewTimer(gather(ttl))
		defer timer.Stop()
		<-timer.C
		t.mu.Lock()
		due := t.due
		t.due = nil
		t.mu.Unlock()
		t.send(ctx, due)
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send renews leases, once: the lock engine decides whether to try again.
func (t *together) send(ctx context.Context, due []*renewal) {
	calls := make([]scriptCall[struct{}], len(due))
	keys := make([]Keys, len(due))
	for i, r := range due {
		calls[i] = t.s.renewCall(r.claim, r.ttl)
		keys[i] = calls[i].keys
	}
	answers := perNode(ctx, t.s, keys, func(part []int) ([]Answer[struct{}], error) { return tryMany(ctx, t.s, urgent, at(calls, part)) })
	for i, a := range answers {
		due[i].done <- a.Err
	}
}

// readEntry is the outcome of a GET: nil without an error for an absent entry.
func readEntry(entry []byte, err error) ([]byte, error) {
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE"):
		return nil, ErrWrongType
	}
	return entry, err
}
