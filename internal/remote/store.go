// Package remote is the shared tier: the entries and build keys of a namespace in
// Redis, the scripts that change them, and the bus that tells of it.
package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/herdgate/herdgate/lock"
)

// Store speaks the protocol of one namespace over one client. Every call is
// bounded by the store's timeout whatever the client does, and returns when its context
// ends; but one that is cancelled, of a client that heeds deadlines, by the timeout. Safe
// for concurrent use.
type Store struct {
	rdb            redis.UniversalClient
	namespace      string
	instance       string
	channel        string // the bus
	timeout        time.Duration
	replicas       int                // that a change waits for
	watchesMasters bool               // the bus asks who they are
	heedful        bool               // rdb heeds the deadlines of contexts
	lender         *redis.Client      // rdb, if reads may keep a connection of it
	start          time.Time          // a reading with a monotonic part; what the clocks count from
	wall           func() time.Time   // the wall clock, which nothing is timed by: see apart
	silent         error              // ErrNoAnswer, with the timeout
	asking         singleflight.Group // for the server's time
	acquire        *script
	renew          *script
	commit         *script
	finish         *script
	change         *script

	generation *script
	tags       *script
	rights     *script

	calls sync.WaitGroup // commands in flight, given up on or not, and probes
	quit  chan struct{}  // closed by Stop: ends the probes
	stop  func()         // closes quit, once

	server  breaker          // of the one server, or a Cluster of which nothing is known yet
	slotted atomic.Bool      // the one server is that of a Cluster, and takes no keys of several slots
	routed  atomic.Bool      // a command was answered: a Cluster's client knows its masters
	downs   atomic.Int64     // breakers that are open
	revived chan struct{}    // gets a token when a server may be back: the bus then waits no longer
	kick    chan struct{}    // gets a token when the next heartbeat is to come now
	health  func(down error) // told of each that opens and closes

	clock atomic.Pointer[clock] // of the one server, or a Cluster of which nothing is known yet

	mu      sync.Mutex          // protects the fields below
	clocks  map[string]*clock   // by the address of a Cluster's master
	masters map[string]*breaker // by address, of a Cluster
}

// NewStore returns the store of a namespace. instance names this gate on the bus;
// timeout bounds each command.
func NewStore(rdb redis.UniversalClient, namespace, instance string, timeout time.Duration) *Store {
	s := &Store{
		rdb:       rdb,
		namespace: namespace,
		instance:  instance,
		channel:   namespace + ":bus",
		timeout:   timeout,
		heedful:   heedful(rdb),
		lender:    lender(rdb),
		silent:    fmt.Errorf("%w (%v)", ErrNoAnswer, timeout),
		start:     time.Now(),
		wall:      time.Now,
		clocks:    map[string]*clock{},
		masters:   map[string]*breaker{},
		quit:      make(chan struct{}),
		revived:   make(chan struct{}, 1),
		kick:      make(chan struct{}, 1),
		health:    func(error) {},
		acquire:   newScript("acquire", acquireSource),
		renew:     newScript("renew", renewSource),
		commit:    newScript("commit", commitSource),
		finish:    newScript("finish", finishSource),
		change:    newScript("change", changeSource),

		generation: newScript("generation", generationSource),
		tags:       newScript("tags", tagsSource),
		rights:     newScript("rights", rightsSource),
	}
	s.stop = sync.OnceFunc(func() { close(s.quit) })
	s.clock.Store(&clock{start: s.start})
	s.server.store, s.server.wake = s, make(chan struct{}, 1)
	s.server.reads.server = &s.server
	return s
}

// Load puts the scripts into the servers' script caches. The store works without
// (each script then travels whole once), so a failure is the caller's to judge. It is a
// *[DeniedError] where the right to load scripts is missing.
func (s *Store) Load(ctx context.Context) error {
	_, err := guarded(ctx, route{breaker: &s.server}, ordinary, func(ctx context.Context) (struct{}, error) {
		for _, sc := range []*script{s.acquire, s.renew, s.commit, s.finish, s.change, s.generation, s.tags, s.rights} {
			if err := sc.load(ctx, s.rdb); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return s.denied(err, "script|load")
}

// Stop ends the probes: a server that is down by now stays so for this store. Further
// calls do nothing.
func (s *Store) Stop() { s.stop() }

// Wait returns when no command of the store is in flight any more, also none that
// was given up on, or when ctx ends. It stops the probes.
func (s *Store) Wait(ctx context.Context) error {
	s.Stop()
	done := make(chan struct{})
	go func() {
		s.calls.Wait()
		s.server.reads.retire()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ErrNoAnswer means that a command got no answer within the store's timeout.
var ErrNoAnswer = errors.New("herdgate: Redis did not answer in time")

// bounded runs one command for at most the store's timeout. go-redis looks at a
// cancel only between attempts and at a deadline only when told to, so the command
// runs in a goroutine of its own; one that was given up on ends by itself (a read
// timeout, the pool) and is waited for by Wait.
func bounded[T any](ctx context.Context, s *Store, command func(context.Context) (T, error)) (T, error) {
	return within(ctx, s, s.timeout, command)
}

// within is bounded for one that may take longer.
func within[T any](ctx context.Context, s *Store, most time.Duration, command func(context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, s.silent)
	defer cancel()
	answers := make(chan answer, 1)
	s.calls.Go(func() {
		v, err := command(ctx)
		answers <- answer{v, err}
	})
	select {
	case a := <-answers:
		return a.v, timely(ctx, a.err)
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

// timely is the end of a command, as a context whose deadline ended it tells it: of a
// client that heeds deadlines it comes as a timeout of the connection, whose timer may be
// a little ahead of that of the context.
func timely(ctx context.Context, err error) error {
	if err == nil || judge(err) != verdictSilence {
		return err
	}
	if end, ok := ctx.Deadline(); !ok || time.Now().Before(end) {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// ErrWrongType means that the entry's key holds something no script of ours wrote.
var ErrWrongType = errors.New("herdgate: entry of a wrong Redis type")

// Get reads an entry; nil without an error means that there is none. at is the time of
// the reply: see [Store.CountFrom].
func (s *Store) Get(ctx context.Context, keys Keys) (entry []byte, at time.Duration, err error) {
	to := s.route(ctx, keys.V)
	sent, err := to.allow(ordinary)
	if err != nil {
		return nil, sent, err
	}
	entry, at, err = to.reads.get(ctx, keys.V, sent)
	to.done(ctx, sent, at, err)
	entry, err = readEntry(entry, err)
	return entry, at, err
}

// State is what an acquire found.
type State uint8

// The states of a key that an acquire may find.
const (
	Granted State = iota + 1 // the lease is ours
	Newer                    // the entry is not the one the caller saw
	Held                     // somebody builds it
	Failed                   // the last load failed; its back-off runs
	Cooling                  // a grant was given less than MinRebuildInterval ago
	Pass                     // load it, but store nothing
	Void                     // the request came too late and did nothing
)

// Acquire asks for the rebuild lease of a key.
type Acquire struct {
	Owner string        // hex, random for each acquisition
	TTL   time.Duration // of the lease
	Seen  string        // version of the entry that was read, "" for none
	Wait  bool          // announce the end of the lease if somebody holds it
	Outer Outer         // what another locker has said
}

// Outer is what another locker has said of a key. Who builds it needs both: its lock, if
// it answers, and the lease.
type Outer string

// The answers of another locker.
const (
	NotAsked Outer = ""       // there is none, or it does not answer: the lease alone decides
	Mine     Outer = "mine"   // its lock is held for this request
	Theirs   Outer = "theirs" // somebody else has its lock: the request takes nothing, and finds at most Held
)

// Found is the reply to an Acquire.
type Found struct {
	State    State
	Nonce    uint64        // Granted
	Failures int           // Granted, Failed: failed loads in a row
	Entry    []byte        // Newer
	Rest     time.Duration // Held, Failed, Cooling, Pass: time until it may be otherwise; 0 for Held by another locker alone
	Code     string        // Failed: why
	Sent     time.Time     // when the request that was answered left
}

// Acquire asks for the lease of keys. A lost reply is asked for again with the same
// owner, so that a grant is recognised as ours.
func (s *Store) Acquire(ctx context.Context, keys Keys, a Acquire) (Found, error) {
	q := s.acquireCall(keys, a)
	to := s.route(ctx, keys.V).scripts()
	f, err := retried(ctx, to, ordinary, q.send)
	if err == nil && f.State == Void { // it did nothing, and has told the server's time
		f, err = retried(ctx, to, ordinary, q.send)
	}
	return f, err
}

func (s *Store) acquireCall(keys Keys, a Acquire) scriptCall[Found] {
	ttl := millis(a.TTL)
	return scriptCall[Found]{
		store: s, script: s.acquire, keys: keys, names: []string{keys.V, keys.B()},
		args: func(notAfter string) []any {
			return []any{a.Owner, ttl, a.Seen, notAfter, a.Wait, string(a.Outer)}
		},
		read: timed(func(r *reply, sent time.Time) Found {
			f := Found{Sent: sent}
			rest := func() time.Duration { return time.Duration(r.integer(2)) * time.Millisecond }
			switch r.text(0) {
			case "GRANTED":
				f.State, f.Nonce, f.Failures = Granted, uint64(r.integer(2)), int(r.integer(3))
			case "NEWER":
				f.State, f.Entry = Newer, []byte(r.text(2))
			case "HELD":
				f.State, f.Rest = Held, rest()
			case "FAILED":
				f.State, f.Rest, f.Failures, f.Code = Failed, rest(), int(r.integer(3)), r.text(4)
			case "COOLING":
				f.State, f.Rest = Cooling, rest()
			case "PASS":
				f.State, f.Rest = Pass, rest()
			case "VOID":
				f.State = Void
			default:
				r.fail(0, "a state")
			}
			return f
		}),
	}
}

// Commit is an entry to store under a lease.
type Commit struct {
	Claim    lock.Claim
	Cache    string
	Key      string
	Entry    []byte
	PX       time.Duration // lifetime in Redis
	Interval time.Duration // MinRebuildInterval
	Pass     time.Duration // lifetime of the mark if the server has no memory for the entry
}

// Stored is the outcome of a commit or a change.
type Stored uint8

// The outcomes of a commit or a change.
const (
	Done      Stored = iota + 1 // stored, or changed
	Refused                     // the lease was not held any more
	NotStored                   // the server could not store it (out of memory)
	TooLate                     // a change that arrived too late and did nothing
)

// Commit stores the entry if the lease is still exactly the one of the claim. It
// may be sent twice: the entry's version tells that the first copy did it.
func (s *Store) Commit(ctx context.Context, keys Keys, c Commit) (Stored, error) {
	return retried(ctx, s.route(ctx, keys.V).scripts(), urgent, s.commitCall(keys, c).send)
}

func (s *Store) commitCall(keys Keys, c Commit) scriptCall[Stored] {
	px, interval, pass := millis(c.PX), millis(c.Interval), millis(c.Pass)
	return scriptCall[Stored]{
		store: s, script: s.commit, keys: keys, names: []string{keys.V, keys.B()},
		args: func(string) []any {
			return []any{c.Claim.Owner, nonce(c.Claim), c.Entry, px, interval, pass, s.channel, wakeUp(c.Cache, c.Key)}
		},
		read: timed(readStored),
	}
}

// FinishState is what a lease leaves behind that ends without an entry.
type FinishState string

// What a finished lease leaves behind.
const (
	FinishFailed  FinishState = "F" // a back-off
	FinishPass    FinishState = "P" // a mark that nobody should store
	FinishNothing FinishState = "C" // what is left of the interval, else nothing
)

// Finish ends a lease without an entry.
type Finish struct {
	Claim    lock.Claim
	Cache    string
	Key      string
	State    FinishState
	For      time.Duration // FinishFailed: the back-off; FinishPass: life of the mark
	Code     string        // FinishFailed: why, letters only
	Drop     bool          // the source says there is nothing: delete the stored entry
	Interval time.Duration // MinRebuildInterval
}

// Finish lets the lease of the claim go; false means that it was not held any more,
// or that a first copy whose reply was lost did it.
func (s *Store) Finish(ctx context.Context, keys Keys, f Finish) (bool, error) {
	return retried(ctx, s.route(ctx, keys.V).scripts(), urgent, s.finishCall(keys, f).send)
}

func (s *Store) finishCall(keys Keys, f Finish) scriptCall[bool] {
	code := f.Code
	if code == "" {
		code = "none"
	}
	ms, interval := "0", millis(f.Interval)
	if f.State != FinishNothing {
		ms = millis(f.For)
	}
	message := wakeUp(f.Cache, f.Key)
	if f.Drop {
		message = invalidation(s.instance, Change{ID: f.Claim.Owner, Op: OpDelete, Cache: f.Cache, Key: f.Key})
	}
	return scriptCall[bool]{
		store: s, script: s.finish, keys: keys, names: []string{keys.V, keys.B()},
		args: func(string) []any {
			return []any{f.Claim.Owner, nonce(f.Claim), string(f.State), ms, code, f.Drop, interval, s.channel, message}
		},
		read: timed(func(r *reply, _ time.Time) bool { return r.integer(0) == 1 }),
	}
}

// Op is what a change does to an entry.
type Op string

// The changes.
const (
	OpDelete Op = "delete"
	OpExpire Op = "expire" // mark stale
	OpSet    Op = "set"
)

// Change is an explicit change of one key.
type Change struct {
	ID       string // 16 hex digits; the same for every copy of this call
	Op       Op
	Cache    string
	Key      string
	Interval time.Duration // MinRebuildInterval
	Entry    []byte        // OpSet
	PX       time.Duration // OpSet
}

// Change applies a change and announces it. Deletes and expiries may be sent twice;
// a set is sent exactly once, since a late second copy could undo a newer one. Done comes
// with an error that matches ErrNotReplicated if too few replicas have it.
func (s *Store) Change(ctx context.Context, keys Keys, c Change) (Stored, error) {
	px, interval := "0", millis(c.Interval)
	q := scriptCall[Stored]{store: s, script: s.change, change: true, keys: keys, names: []string{keys.V, keys.B()}, read: timed(readStored)}
	apply := retried[Stored]
	if c.Op == OpSet {
		px, q.how, apply = millis(c.PX), once, guarded[Stored]
	}
	q.args = func(notAfter string) []any {
		return []any{string(c.Op), notAfter, interval, s.channel, invalidation(s.instance, c), c.Entry, px}
	}
	to := s.route(ctx, keys.V).scripts()
	stored, err := apply(ctx, to, ordinary, q.send)
	if stored == TooLate { // it did nothing, so that this is no second copy
		stored, err = apply(ctx, to, ordinary, q.send)
	}
	if stored != Done && errors.Is(err, ErrNotReplicated) {
		err = nil // there is nothing to be replicated
	}
	return stored, err
}

func readStored(r *reply, _ time.Time) Stored {
	switch r.text(0) {
	case "STORED", "DONE":
		return Done
	case "REFUSED":
		return Refused
	case "NOT_STORED":
		return NotStored
	case "VOID":
		return TooLate
	}
	r.fail(0, "a state")
	return 0
}

// clockOf is the clock of the server that has the keys: each master of a Cluster has
// its own, and their times differ.
func (s *Store) clockOf(ctx context.Context, keys Keys) *clock {
	master := s.masterOf(ctx, keys)
	if master == nil {
		return s.clock.Load()
	}
	node := master.Options().Addr
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clocks[node]
	if c == nil {
		c = &clock{start: s.start}
		s.clocks[node] = c
	}
	return c
}

// masterOf is the node of a Cluster that has the keys; nil elsewhere.
func (s *Store) masterOf(ctx context.Context, keys Keys) *redis.Client {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	master, err := cluster.MasterForKey(ctx, keys.V)
	if err != nil {
		return nil
	}
	return master
}

// forgetClocks drops what is known of the servers' times: others may answer from now on.
func (s *Store) forgetClocks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.clocks)
	s.clock.Store(&clock{start: s.start})
}

// ServerNow is the time since the epoch of the server that has the keys. It asks the
// server when no reply of the last minute told it; those who ask at the same time
// share one question.
func (s *Store) ServerNow(ctx context.Context, keys Keys) (time.Duration, error) {
	clock := s.clockOf(ctx, keys)
	if now, ok := clock.now(); ok {
		return now, nil
	}
	var server redis.Cmdable = s.rdb
	node := ""
	if master := s.masterOf(ctx, keys); master != nil {
		server, node = master, master.Options().Addr
	}
	asked := s.asking.DoChan(node, func() (any, error) {
		// The others do not depend on the one whose question it is.
		return guarded(context.WithoutCancel(ctx), s.route(ctx, keys.V), ordinary, func(ctx context.Context) (time.Duration, error) {
			sent := clock.mono()
			t, err := server.Time(ctx).Result()
			if err != nil {
				return 0, err
			}
			return clock.observe(t.UnixMicro(), sent), nil
		})
	})
	select {
	case answer := <-asked:
		now, _ := answer.Val.(time.Duration)
		return now, answer.Err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// ServerTime is ServerNow for a moment that has passed: see [Store.CountFrom]. waited
// says that the server had to be asked.
func (s *Store) ServerTime(ctx context.Context, keys Keys, at time.Duration) (server time.Duration, waited bool, err error) {
	if server, ok := s.clockOf(ctx, keys).at(at); ok {
		return server, false, nil
	}
	now, err := s.ServerNow(ctx, keys)
	return now - (s.mono() - at), true, err
}

// Horizon is a server time, in µs, past which no change that begins now has an effect,
// whatever becomes of its copies on their way.
func (s *Store) Horizon(ctx context.Context, keys Keys) (int64, error) {
	now, err := s.ServerNow(ctx, keys)
	if err != nil {
		return 0, err
	}
	// It is sent twice if it comes too late, the second time within one timeout.
	return (now + 2*s.timeout + 2*s.clockOf(ctx, keys).slack()).Microseconds(), nil
}

// Past reports whether the time of the server that has the keys is past a [Store.Horizon].
func (s *Store) Past(ctx context.Context, keys Keys, horizon int64) (bool, error) {
	now, err := guarded(ctx, s.route(ctx, keys.V), ordinary, func(ctx context.Context) (time.Time, error) {
		if master := s.masterOf(ctx, keys); master != nil {
			return master.Time(ctx).Result()
		}
		return s.rdb.Time(ctx).Result()
	})
	return err == nil && now.UnixMicro() > horizon, err
}

// notAfter is the server time past which a script must do nothing, in µs: its
// caller has given up by then. "" while the server's time is not known.
func (s *Store) notAfter(c *clock) string {
	now, ok := c.now()
	if !ok {
		return ""
	}
	return strconv.FormatInt((now + s.timeout + c.slack()).Microseconds(), 10)
}

// Leases returns the build keys as a backend of the lock engine. The name of a
// claim is the build key. Acquire and Release stay with Store: they are one with
// reading and writing the entry.
func (s *Store) Leases() lock.Backend { return leases{s} }

type leases struct{ s *Store }

var errNotByEngine = errors.New("herdgate: a rebuild lease is acquired and released with its entry")

// Acquire implements lock.Backend.
func (leases) Acquire(context.Context, lock.Request) (lock.Grant, error) {
	return lock.Grant{}, errNotByEngine
}

// Release implements lock.Backend.
func (leases) Release(context.Context, lock.Claim) error { return errNotByEngine }

// Capabilities implements lock.Backend.
func (leases) Capabilities() lock.Capabilities { return lock.Capabilities{} }

// Renew implements lock.Backend.
func (l leases) Renew(ctx context.Context, c lock.Claim, ttl time.Duration) error {
	_, err := guarded(ctx, l.s.route(ctx, c.Name).scripts(), urgent, l.s.renewCall(c, ttl).send)
	return err
}

func (s *Store) renewCall(c lock.Claim, ttl time.Duration) scriptCall[struct{}] {
	ms := millis(ttl)
	return scriptCall[struct{}]{
		store: s, script: s.renew, keys: Keys{V: c.Name}, names: []string{c.Name},
		args: func(string) []any { return []any{c.Owner, nonce(c), ms} },
		read: func(v any, _ *clock, _ time.Duration) (struct{}, error) {
			if v != int64(1) {
				return struct{}{}, lock.ErrNotHeld
			}
			return struct{}{}, nil
		},
	}
}

func nonce(c lock.Claim) string { return strconv.FormatUint(c.Token, 10) }

// millis writes a lifetime for Redis: whole milliseconds, rounded up. A lifetime
// that is not positive would mean "for ever" or "at once" there; the constructors
// refuse it, so one that comes this far is a fault of this library. It is told to
// the caller: called before a command gets its goroutine, where no one can recover.
func millis(d time.Duration) string {
	if d <= 0 {
		panic(fmt.Sprintf("herdgate: lifetime of %v", d))
	}
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
