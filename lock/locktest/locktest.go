// Package locktest is the conformance suite of lock.Backend: what the contract says, and what the engine needs of a
// backend to keep its own promises.
package locktest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// Run tests the backends that newBackend makes, one for each test, with leftovers of other tests in their store or
// without. It takes some seconds of real time, and runs its tests in parallel. A backend with a MaxTTL has to be set up
// for TTLs of an hour.
func Run(t *testing.T, newBackend func(t testing.TB) lock.Backend) {
	t.Helper()
	for name, test := range tests() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSuite(t, newBackend))
		})
	}
}

// RunInBubble is Run with each test, and the call of newBackend, in a bubble of testing/synctest, where it takes no
// time. It is for backends whose store lives in the bubble as well.
func RunInBubble(t *testing.T, newBackend func(t testing.TB) lock.Backend) {
	t.Helper()
	for name, test := range tests() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(newSuite(t, newBackend))
			})
		})
	}
}

func tests() map[string]func(*suite) {
	return map[string]func(*suite){
		// The contract of a backend.
		"what is held is not acquired by another owner":     (*suite).contendedIsNotAcquired,
		"only its claim renews or releases a lock":          (*suite).onlyTheClaimCounts,
		"a claim with an unknown token is its owner's":      (*suite).unknownToken,
		"an owner that asks again gets the same grant":      (*suite).acquireIsIdempotent,
		"a lock that expired is free and lost to its owner": (*suite).expiryFrees,
		"a renewal makes a lock last longer, never shorter": (*suite).renewNeverShortens,
		"a released lock is free and released only once":    (*suite).releaseFrees,
		"tokens of different grants differ and rise":        (*suite).tokensRise,
		"bad requests are refused and change nothing":       (*suite).badRequests,
		"names that look alike are different locks":         (*suite).namesAreExact,

		// The queue, and sharing, of backends that have them.
		"those who wait get the lock in their order":          (*suite).queueIsInOrder,
		"who leaves the queue is out of it":                   (*suite).queueIsLeft,
		"a place in the queue is kept beyond its TTL":         (*suite).placesAreKept,
		"a place that nobody looks after expires":             (*suite).placesExpire,
		"a lock that expired goes to the next in the queue":   (*suite).expiryMovesTheQueue,
		"a caller that gave up leaves no place in the queue":  (*suite).queueIsLeftByTheEngine,
		"readers share the lock, writers do not":              (*suite).readersShare,
		"a writer that waits is not overtaken by readers":     (*suite).readersDoNotStarveWriters,
		"an engine shares locks if the backend does, or says": (*suite).sharingNeedsABackend,

		// The engine over the backend.
		"one of many holds the lock at a time":                 (*suite).mutualExclusion,
		"no history with lost messages shows two holders":      (*suite).historyHolds,
		"a wait that ctx ends says so":                         (*suite).waitEndedByContext,
		"a release wakes a waiter":                             (*suite).releaseWakes,
		"an unlock works when ctx is dead":                     (*suite).unlockAfterCancel,
		"a grant whose reply was lost is known as ours":        (*suite).lostAcquireReply,
		"a caller that gave up leaves no lock behind":          (*suite).abandonedAcquire,
		"the watchdog keeps a lock beyond its TTL":             (*suite).watchdogRenews,
		"the watchdog survives a blip":                         (*suite).watchdogSurvivesBlip,
		"a holder that is cut off knows before others get it":  (*suite).lossIsToldInTime,
		"an unlock by a holder that lost changes nothing":      (*suite).lateUnlock,
		"an unlock that races a renewal leaves nothing behind": (*suite).unlockRacesRenewal,
	}
}

const (
	// brief is a TTL that tests wait out.
	brief = 250 * time.Millisecond
	// long is a TTL that no test waits out.
	long = time.Hour
	// patience bounds what a test waits for. It says nothing about how fast a backend is.
	patience = 30 * time.Second
)

// suite is one test with its backend. Its lock has a name that no other test uses.
type suite struct {
	*testing.T
	backend lock.Backend
	name    string
}

func newSuite(t *testing.T, newBackend func(t testing.TB) lock.Backend) *suite {
	t.Helper()
	return &suite{T: t, backend: newBackend(t), name: "locktest-" + rand.Text()}
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// wants fails the test unless err matches all of targets.
func (s *suite) wants(err error, targets ...error) {
	s.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			s.Fatalf("got error %v, want one that matches %v", err, target)
		}
	}
}

// acquire gets the lock for owner, and the claim to it.
func (s *suite) acquire(owner string, ttl time.Duration) lock.Claim {
	s.Helper()
	grant, err := s.backend.Acquire(s.Context(), lock.Request{Name: s.name, Owner: owner, TTL: ttl})
	if err != nil {
		s.Fatalf("acquire for %s: %v", owner, err)
	}
	return lock.Claim{Name: s.name, Owner: owner, Token: grant.Token}
}

// isHeld fails the test unless a new owner is refused.
func (s *suite) isHeld() {
	s.Helper()
	_, err := s.backend.Acquire(s.Context(), lock.Request{Name: s.name, Owner: rand.Text(), TTL: long})
	s.wants(err, lock.ErrNotAcquired)
}

// isFree fails the test unless a new owner gets the lock, which it then releases.
func (s *suite) isFree() {
	s.Helper()
	s.must(s.backend.Release(s.Context(), s.acquire(rand.Text(), long)))
}

// acquireFreed waits until owner gets the lock.
func (s *suite) acquireFreed(owner string) lock.Claim {
	s.Helper()
	var claim lock.Claim
	s.eventually("the lock is free", func() bool {
		grant, err := s.backend.Acquire(s.Context(), lock.Request{Name: s.name, Owner: owner, TTL: long})
		if err != nil {
			s.wants(err, lock.ErrNotAcquired)
		}
		claim = lock.Claim{Name: s.name, Owner: owner, Token: grant.Token}
		return err == nil
	})
	return claim
}

// outlast waits until a lock that was taken for ttl now has expired in the store: what was to expire before it has too.
func (s *suite) outlast(ttl time.Duration) {
	s.Helper()
	probe := &suite{T: s.T, backend: s.backend, name: s.name + "-probe-" + rand.Text()}
	probe.acquire("a", ttl)
	s.must(s.backend.Release(s.Context(), probe.acquireFreed("b")))
}

func (s *suite) eventually(what string, cond func() bool) {
	s.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-timeout.C:
			s.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// engine makes an engine over backend, and closes it with the test.
func (s *suite) engine(backend lock.Backend, opts lock.Options) *lock.Engine {
	s.Helper()
	if opts.CallTimeout == 0 {
		opts.CallTimeout = patience // a slow machine is no fault of the backend
	}
	engine, err := lock.New(backend, opts)
	s.must(err)
	s.Cleanup(func() {
		if err := engine.Close(s.detached()); err != nil {
			s.Error(err)
		}
	})
	return engine
}

// hold gets the lock, and gives it back with the test.
func (s *suite) hold(engine *lock.Engine) *lock.Lease {
	s.Helper()
	lease, err := engine.TryLock(s.Context(), s.name)
	s.must(err)
	s.Cleanup(func() { _ = lease.Unlock(s.detached()) }) // a test may have lost it
	return lease
}

// detached is a ctx for cleaning up, when that of the test is done.
func (s *suite) detached() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), patience)
	s.Cleanup(cancel)
	return ctx
}

// recorder is a lock.Monitor that counts, and announces, what happens.
type recorder struct {
	mu      sync.Mutex
	counts  map[lock.EventKind]int // protected by mu
	changed chan struct{}          // receives after a change
}

func newRecorder() *recorder {
	return &recorder{counts: make(map[lock.EventKind]int), changed: make(chan struct{}, 1)}
}

func (r *recorder) record(e lock.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[e.Kind]++
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *recorder) count(kind lock.EventKind) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[kind]
}

// await waits for the n-th event of a kind. Only one goroutine may wait.
func (s *suite) await(r *recorder, kind lock.EventKind, n int) {
	s.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for r.count(kind) < n {
		select {
		case <-r.changed:
		case <-timeout.C:
			s.Fatalf("waited %v in vain for event %q, number %d", patience, kind, n)
		}
	}
}
