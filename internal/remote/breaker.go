package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/singleflight"
)

// ErrDown means that a command was not sent, since its server does not answer: it is
// probed, and commands go to it again once it does.
var ErrDown = errors.New("herdgate: Redis is down")

const (
	// failuresToOpen is how many commands in a row get no answer before a server counts as down.
	failuresToOpen = 3
	// maxHung is how many commands of one server may hang in the client after they were
	// given up on: a client that lets go after seconds, or never, would pile them up.
	// Urgent ones, probes, heartbeats and subscriptions have four times that.
	maxHung = 256
	// probeFloor and probeCap bound the time between two probes; it doubles.
	probeFloor = 100 * time.Millisecond
	probeCap   = 300 * time.Millisecond
	// heardEvery is how exactly it is kept when a server answered last: a cache line that
	// every reply writes would be fought for.
	heardEvery = time.Millisecond
)

// breaker keeps commands away from a server that is down: the one of the store, or
// one master of a Cluster.
//
// What counts is silence. A command without an answer is a failure only if the server
// has answered nothing at all from its sending to its end: not if one connection of
// many stalls. Nor if it ended much later than its timeout: then it was this process
// that stood still, and all its commands ran out of time at once. Several failures in
// a row, over a part of the timeout at least, open the breaker. From the first of them
// on a probe is under way, so that a server that is well is known to be before that.
//
// A server can answer reads and no writes: during CLIENT PAUSE WRITE, as failovers send it.
// So a script without an answer is a failure also if reads were answered meanwhile, and
// their answers do not end the row. Only then its connection alone may have stalled: the
// breaker waits until the probe has had the time of a command, too.
//
// What closes an open breaker is the answer to a probe alone, which is a write: a
// master that has become a replica still answers reads.
type breaker struct {
	store *Store
	name  string // address of the Cluster's master; "" elsewhere
	reads reads  // each master's own, so that a slow one keeps no other's waiting

	down      atomic.Pointer[error] // why, as callers get it; nil while commands go there
	heard     atomic.Int64          // when an answer came last, monotonic, to heardEvery
	obeyed    atomic.Int64          // likewise, the answer to a script
	suspected atomic.Bool           // failures > 0
	absent    atomic.Bool           // it is down, and has accepted no connection when it was last asked
	wake      chan struct{}         // a token makes the next probe come at once
	hung      atomic.Int64          // commands that were given up on and have not ended

	mu       sync.Mutex    // protects the fields below
	failures int           // in a row
	deaf     bool          // one of them is a script's: only a write that is answered ends the row
	since    time.Duration // when the first of them was sent
	sample   string        // a key of the one that failed last: its server is to be probed
	probing  bool
}

// route is a breaker together with a key of its server.
type route struct {
	*breaker
	key    string
	script bool // what goes there is one, which may write
}

// scripts is the route for scripts.
func (r route) scripts() route {
	r.script = true
	return r
}

// urgency says which commands are sent to a server that is down.
type urgency uint8

const (
	ordinary urgency = iota
	// urgent commands end or keep a lease: they cost no caller a wait that would not load
	// anyway, and without them a load that is done would be done again. Only a server that
	// accepts no connection gets none of them.
	urgent
	// probing is a probe.
	probing
)

// patience is how long such a command may take. A probe may have to open a connection,
// which is several round trips, and the process may be short of CPU: one that is given up
// on at the timeout would begin with that again and again.
func (s *Store) patience(u urgency) time.Duration {
	if u == probing {
		return max(s.timeout, min(4*s.timeout, time.Second))
	}
	return s.timeout
}

// allow is called before a command is sent. An error, which matches ErrDown, says not to.
func (b *breaker) allow(u urgency) (sent time.Duration, err error) {
	if u == ordinary {
		if down := b.down.Load(); down != nil {
			return 0, *down
		}
		if b.hung.Load() >= maxHung {
			return 0, ErrDown
		}
	} else {
		if down := b.down.Load(); u == urgent && down != nil && b.absent.Load() {
			return 0, *down
		}
		if b.overhung() {
			return 0, ErrDown
		}
	}
	return b.store.mono(), nil
}

// done is told how, and when, a command ended that allow has let pass. A failure because ctx
// ended, the caller's, says nothing of the server.
func (r route) done(ctx context.Context, sent, now time.Duration, err error) {
	switch judge(err) {
	case verdictAnswer:
		if !r.store.routed.Load() {
			r.store.routed.Store(true)
		}
		note(&r.heard, now)
		if r.script {
			note(&r.obeyed, now)
		}
		if r.suspected.Load() {
			r.clear()
		}
	case verdictRefusal:
		r.failed(ctx, now, now, 0, err)
	case verdictSilence:
		if ctx.Err() != nil || now-sent > r.store.timeout*3/2 {
			return
		}
		switch {
		case sent >= time.Duration(r.heard.Load()):
			r.failed(ctx, sent, now, r.store.timeout/5, err)
		case r.script && sent >= time.Duration(r.obeyed.Load()):
			r.failed(ctx, sent, now, 2*r.store.timeout, err)
		}
	case verdictMoving:
	}
}

// note takes down that an answer came.
func note(last *atomic.Int64, now time.Duration) {
	if now-time.Duration(last.Load()) >= heardEvery {
		last.Store(int64(now))
	}
}

// verdict is what the end of a command says of its server.
type verdict uint8

const (
	verdictAnswer  verdict = iota // also an error that is an answer: the server is there
	verdictSilence                // no answer came
	verdictRefusal                // it says itself that it serves nobody, is no master, or takes no writes
	verdictMoving                 // the keys are on their way to another server: neither
)

// judge reads the end of a command.
func judge(err error) verdict {
	if err == nil {
		return verdictAnswer
	}
	answer, ok := errors.AsType[redis.Error](err)
	switch {
	case errors.Is(err, lock.ErrNotHeld), errors.Is(err, ErrWrongType), errors.Is(err, ErrNotReplicated), errors.Is(err, errNoMaster): // read from replies
		return verdictAnswer
	case !ok:
		return verdictSilence
	}
	text := answer.Error()
	is := func(code string) bool {
		// Redis 6 puts the code of an error inside a script into the text.
		return strings.HasPrefix(text, code+" ") || strings.Contains(text, "-"+code+" ")
	}
	switch {
	case slices.ContainsFunc([]string{"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "MISCONF", "NOAUTH", "WRONGPASS"}, is),
		strings.HasPrefix(text, "ERR max number of clients"):
		return verdictRefusal
	case slices.ContainsFunc([]string{"MOVED", "ASK", "TRYAGAIN"}, is):
		return verdictMoving
	}
	return verdictAnswer
}

// clear forgets failures that were followed by an answer.
func (r route) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down.Load() == nil && (r.script || !r.deaf) {
		r.forget()
	}
}

// forget is called with mu held.
func (b *breaker) forget() {
	b.failures, b.deaf = 0, false
	b.suspected.Store(false)
}

// failed counts a failure, opens the breaker if it is one too many in a row that has
// lasted for so long, and has the server probed.
func (r route) failed(ctx context.Context, sent, now, lasted time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures == 0 {
		r.since = sent
	}
	r.failures++
	r.deaf = r.deaf || r.script
	r.suspected.Store(true)
	r.sample = r.key
	if judge(err) == verdictRefusal || r.failures >= failuresToOpen && now-r.since >= lasted {
		r.open(err)
	}
	if !r.probing && !r.store.ended() {
		r.probing = true
		ctx := context.WithoutCancel(ctx)
		r.store.calls.Go(func() { r.watch(ctx) })
	}
}

// open is called with mu held.
func (b *breaker) open(err error) {
	if b.down.Load() != nil {
		return
	}
	at := ""
	if b.name != "" {
		at = " (" + b.name + ")"
	}
	down := fmt.Errorf("%w%s: %w", ErrDown, at, err)
	b.down.Store(&down)
	b.store.downs.Add(1)
	b.store.health(down)
}

// watch probes the server until it answers: at once, and then at growing intervals.
// One at a time for each breaker.
func (b *breaker) watch(ctx context.Context) {
	for wait := probeFloor; !b.probed(ctx); wait = min(2*wait, probeCap) {
		pause := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-pause.C:
		case <-b.wake:
			pause.Stop()
		case <-b.store.quit:
			pause.Stop()
			return
		}
	}
}

// knock reports whether the server of a breaker that is open accepts a connection. It
// goes past the pool of the client: go-redis counts the dials that have failed there,
// and once they are as many as the pool is large, it dials once a second and fails all
// commands in between. So while knocks fail, nothing that could dial is sent. Dials that
// failed before the breaker opened, or in outages before, still count: now and then it
// takes that second.
func (b *breaker) knock(ctx context.Context) bool {
	if b.down.Load() == nil {
		return true
	}
	// Of a Cluster it is left out: the probes that fail are what makes its client ask who
	// has the slots now.
	server, ok := b.store.rdb.(*redis.Client)
	if !ok || server.Options().Dialer == nil {
		return true // the probe tells
	}
	_, err := counted(ctx, b, b.store.patience(probing), func(ctx context.Context) (struct{}, error) {
		conn, err := server.Options().Dialer(ctx, server.Options().Network, server.Options().Addr)
		if err == nil {
			err = conn.Close()
		}
		return struct{}{}, err
	})
	if b.absent.Store(err != nil); err == nil {
		poke(b.store.revived) // the bus need not wait for the probe
	}
	return err == nil
}

// poke puts a token into a channel that has room for one.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// probed sends a probe. It reports whether it was the last: the server has answered it,
// or another command.
func (b *breaker) probed(ctx context.Context) bool {
	b.mu.Lock()
	r := route{breaker: b, key: b.sample}
	b.mu.Unlock()
	if !b.knock(ctx) {
		return false
	}
	probe := func(u urgency) error {
		_, err := guarded(ctx, r, u, func(ctx context.Context) (int64, error) {
			return b.store.rdb.Del(ctx, b.store.probeKey(r.key)).Result()
		})
		return err
	}
	sent := b.store.mono()
	err := probe(probing)
	if judge(err) == verdictAnswer && b.store.mono()-sent > b.store.timeout {
		err = probe(urgent) // is it slow, or has it taken that long to connect?
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(err, redis.ErrClosed): // the client is no more, and will not be
		b.probing = false
		return true
	case judge(err) != verdictAnswer:
		if b.failures > 0 || b.down.Load() != nil {
			if cluster, ok := b.store.rdb.(*redis.ClusterClient); ok {
				// The keys may have another master by now. Of commands that only time out
				// the client would not ask.
				cluster.ReloadState(ctx)
			}
			return false
		}
	case b.down.Load() != nil:
		b.down.Store(nil)
		b.store.downs.Add(-1)
		b.store.health(nil)
		poke(b.store.revived)
		poke(b.store.kick)
	}
	b.probing = false
	b.forget()
	note(&b.obeyed, b.store.mono()) // a probe writes
	return true
}

// probeKey is a key that is never written, in the slot of a key of ours.
func (s *Store) probeKey(key string) string {
	if !hasTag(key) {
		return s.namespace + ":p:{" + key + "}"
	}
	const kind = len(":v")
	return s.namespace + ":p" + key[len(s.namespace)+kind:]
}

// guarded is bounded, for a server that may be down: then it sends nothing and returns
// an error that matches ErrDown.
func guarded[T any](ctx context.Context, r route, u urgency, command func(context.Context) (T, error)) (T, error) {
	sent, err := r.allow(u)
	if err != nil {
		var zero T
		return zero, err
	}
	if r.script {
		// A server that is a replica now answers reads, of what was; go-redis drops the
		// connection whose command it refuses as one that writes. Let it be that of the reads.
		r.reads.retire()
	}
	v, err := counted(ctx, r.breaker, r.store.patience(u), command)
	r.done(ctx, sent, r.store.mono(), err)
	return v, err
}

// counted is within for what counts as hung while it hangs. A client that panics, in a
// Dialer or a hook of its user, has not answered: nobody else could recover it here.
func counted[T any](ctx context.Context, b *breaker, most time.Duration, command func(context.Context) (T, error)) (v T, err error) {
	if b.overhung() {
		return v, ErrDown
	}
	s := stray{breaker: b}
	v, err = within(ctx, b.store, most, func(ctx context.Context) (T, error) {
		defer s.ended()
		return singleflight.Protect(func() (T, error) { return command(ctx) })
	})
	s.givenUp()
	return v, err
}

// stray is what may go on after it was given up on: it counts as hung until it ends.
type stray struct {
	*breaker

	over atomic.Bool // it has ended, or was given up on: what comes first
}

func (s *stray) ended() {
	if s.over.Swap(true) {
		s.hung.Add(-1)
	}
}

func (s *stray) givenUp() {
	if !s.over.Swap(true) {
		s.hung.Add(1)
	}
}

// overhung reports whether so much hangs that nothing at all is begun.
func (b *breaker) overhung() bool { return b.hung.Load() >= 4*maxHung }

// retried is guarded with a second try where no reply came, or where the keys are just
// moving to another server: for what may be sent twice.
func retried[T any](ctx context.Context, r route, u urgency, command func(context.Context) (T, error)) (T, error) {
	v, err := guarded(ctx, r, u, command)
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrDown) {
		return v, err
	}
	switch judge(err) {
	case verdictSilence, verdictMoving:
		return guarded(ctx, r, u, command)
	default:
		return v, err
	}
}

// route is the way to the server that has key, an entry or build key.
func (s *Store) route(ctx context.Context, key string) route {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return route{breaker: &s.server, key: key}
	}
	// Before the first answer of the Cluster its client does not know the masters, and
	// would ask for them here, unbounded. Later it asks behind its callers.
	if !s.routed.Load() {
		return route{breaker: &s.server, key: key}
	}
	master, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return route{breaker: &s.server, key: key}
	}
	name := master.Options().Addr
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.masters[name]
	if b == nil {
		b = &breaker{store: s, name: name, wake: make(chan struct{}, 1)}
		b.reads.server = b
		s.masters[name] = b
	}
	return route{breaker: b, key: key}
}

// OnHealth sets who is told that a server is down, and why, and that it is back (nil).
// Call it before the first command; told must be quick and must not call the store.
func (s *Store) OnHealth(told func(down error)) { s.health = told }

// Out reports whether commands to the one server of this store would fail with
// ErrDown. With a Cluster it is false: ask Down for a key.
func (s *Store) Out() bool { return s.server.down.Load() != nil }

// Down reports whether the server of a key is down, and why.
func (s *Store) Down(ctx context.Context, keys Keys) error {
	return s.route(ctx, keys.V).whyDown()
}

func (b *breaker) whyDown() error {
	if down := b.down.Load(); down != nil {
		return *down
	}
	return nil
}

// GenerationDown is Down for the generation of a cache, and TagsDown for the numbers of its tags.
func (s *Store) GenerationDown(ctx context.Context, cache string) error {
	return s.route(ctx, s.generationKey(cache)).whyDown()
}

// TagsDown see GenerationDown.
func (s *Store) TagsDown(ctx context.Context, cache string) error {
	return s.route(ctx, s.tagKeys(cache, nil)[0]).whyDown()
}

// Healthy reports whether no server is known to be down.
func (s *Store) Healthy() bool { return s.downs.Load() == 0 }

// Answered reports whether err is the answer of a server that serves: an error that
// sending the command again would not change.
func Answered(err error) bool { return judge(err) == verdictAnswer }

// Moved reports whether err says that the keys are, or go, elsewhere.
func Moved(err error) bool { return judge(err) == verdictMoving }

func (s *Store) mono() time.Duration { return time.Since(s.start) }

// ended reports whether Stop has been called.
func (s *Store) ended() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}
