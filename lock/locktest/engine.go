package locktest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// The tests of an engine over the backend.

// errFault is the error of a store that cannot be reached.
var errFault = errors.New("locktest: injected fault")

const (
	// watched is the TTL of leases that a watchdog keeps: long enough for a slow machine to renew in time.
	watched = 2 * time.Second
	// unhurried is a Watchdog interval that never comes.
	unhurried = lock.Off
)

func (s *suite) mutualExclusion() {
	const holders, rounds = 8, 5
	engine := s.engine(s.backend, lock.Options{TTL: time.Minute, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond})
	var inside, total atomic.Int32
	var wg sync.WaitGroup
	for range holders {
		wg.Go(func() {
			for range rounds {
				lease, err := engine.Lock(s.Context(), s.name)
				if err != nil {
					s.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					s.Errorf("%d hold the lock", n)
				}
				total.Add(1)
				inside.Add(-1)
				if err := lease.Unlock(s.Context()); err != nil {
					s.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := total.Load(); n != holders*rounds {
		s.Errorf("the lock was got %d times, want %d", n, holders*rounds)
	}
}

func (s *suite) waitEndedByContext() {
	seen := newRecorder()
	engine := s.engine(s.backend, lock.Options{TTL: time.Minute, Monitor: seen.record})
	s.acquire("somebody else", long)

	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := engine.Lock(ctx, s.name)
		ended <- err
	}()
	s.await(seen, lock.Contended, 1)
	cancel()
	s.wants(<-ended, lock.ErrNotAcquired, context.Canceled)

	for _, get := range []func(context.Context, string) (*lock.Lease, error){engine.Lock, engine.TryLock} {
		_, err := get(ctx, s.name)
		s.wants(err, lock.ErrNotAcquired, context.Canceled)
	}
}

func (s *suite) releaseWakes() {
	notifier, ok := s.backend.(lock.Notifier)
	if !ok {
		return // polling is covered by mutualExclusion
	}
	_, stop, err := notifier.Notify(s.Context(), s.name)
	if err != nil {
		return // switched off
	}
	stop()
	seen := newRecorder()
	// Without a wake-up the next try is an hour away.
	engine := s.engine(s.backend, lock.Options{TTL: long, RetryMin: long, RetryMax: long, Monitor: seen.record})
	first := s.hold(engine)
	got := make(chan *lock.Lease, 1)
	go func() {
		lease, err := engine.Lock(s.Context(), s.name)
		if err != nil {
			s.Error(err)
		}
		got <- lease
	}()
	s.await(seen, lock.Contended, 1)
	s.must(first.Unlock(s.Context()))
	select {
	case lease := <-got:
		s.must(lease.Unlock(s.Context()))
	case <-time.After(patience):
		s.Fatal("the waiter slept through the release")
	}
}

func (s *suite) unlockAfterCancel() {
	engine := s.engine(s.backend, lock.Options{TTL: time.Minute})
	ctx, cancel := context.WithCancel(s.Context())
	lease, err := engine.TryLock(ctx, s.name)
	s.must(err)
	cancel()
	s.must(lease.Err())
	s.must(lease.Unlock(ctx))
	s.wants(lease.Err(), lock.ErrReleased)
	s.must(lease.Unlock(ctx)) // again
	s.isFree()
}

func (s *suite) lostAcquireReply() {
	faults := NewFaults(s.backend)
	engine := s.engine(faults, lock.Options{TTL: time.Minute})
	faults.OnAcquire(func(_ context.Context, pass func() error) error {
		faults.OnAcquire(nil)
		s.must(pass())
		return errFault
	})
	lease := s.hold(engine)
	s.isHeld()
	s.must(lease.Unlock(s.Context()))
	s.isFree()
}

func (s *suite) abandonedAcquire() {
	faults := NewFaults(s.backend)
	engine := s.engine(faults, lock.Options{TTL: time.Minute})
	sent, answer := make(chan struct{}), make(chan struct{})
	faults.OnAcquire(func(_ context.Context, pass func() error) error {
		close(sent)
		<-answer
		return pass()
	})
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := engine.TryLock(ctx, s.name)
		ended <- err
	}()
	<-sent
	cancel()
	err := <-ended // though the backend has not answered
	s.wants(err, context.Canceled)
	if errors.Is(err, lock.ErrNotAcquired) {
		s.Errorf("%v: matches ErrNotAcquired, but nobody else holds the lock", err)
	}
	close(answer)
	s.must(engine.Close(s.Context()))
	s.isFree()
}

func (s *suite) watchdogRenews() {
	seen := newRecorder()
	lease := s.hold(s.engine(s.backend, lock.Options{TTL: watched, Monitor: seen.record}))
	s.outlast(watched)
	s.must(lease.Err())
	s.isHeld()
	s.must(lease.Unlock(s.Context()))
	s.isFree()
}

func (s *suite) watchdogSurvivesBlip() {
	faults := NewFaults(s.backend)
	seen := newRecorder()
	engine := s.engine(faults, lock.Options{TTL: watched, Monitor: seen.record})
	var failed atomic.Int32
	faults.OnRenew(func(ctx context.Context, pass func() error) error {
		switch failed.Add(1) {
		case 1: // the connection breaks
			return errFault
		case 2: // the reply is lost
			_ = pass()
			return errFault
		case 3: // no answer at all
			<-ctx.Done()
			return ctx.Err()
		}
		return pass()
	})
	lease := s.hold(engine)
	s.outlast(watched)
	s.must(lease.Err())
	s.isHeld()
	// A busy machine may add a blip of its own.
	if retried := seen.count(lock.RenewRetried); retried < 3 {
		s.Errorf("%d renewals were retried, want 3", retried)
	}
	s.must(lease.Unlock(s.Context()))
}

func (s *suite) lossIsToldInTime() {
	faults := NewFaults(s.backend)
	engine := s.engine(faults, lock.Options{TTL: watched})
	restored := make(chan struct{})
	s.Cleanup(func() { close(restored) })
	faults.OnRenew(func(context.Context, func() error) error {
		<-restored // it does not even look at its ctx
		return errFault
	})
	lease := s.hold(engine)
	ctx := lease.Context(s.Context())

	s.acquireFreed("the next")
	s.wants(lease.Err(), lock.ErrLost) // already, whatever the machine's speed
	s.closes(lease.Done())
	s.closes(ctx.Done())
	s.wants(context.Cause(ctx), lock.ErrLost)
	s.wants(lease.Extend(s.Context(), long), lock.ErrLost)
	s.wants(lease.Stop(), lock.ErrLost)
}

func (s *suite) lateUnlock() {
	engine := s.engine(s.backend, lock.Options{TTL: brief, Watchdog: unhurried})
	first := s.hold(engine)
	second := s.acquireFreed("the next")
	s.closes(first.Done())
	s.wants(first.Unlock(s.Context()), lock.ErrNotHeld)
	s.wants(first.Unlock(s.Context()), lock.ErrNotHeld) // again
	s.isHeld()
	s.must(s.backend.Release(s.Context(), second))
}

func (s *suite) unlockRacesRenewal() {
	const rounds = 200
	seen := newRecorder()
	engine := s.engine(s.backend, lock.Options{TTL: time.Minute, Watchdog: time.Millisecond, Monitor: seen.record})
	for round := range rounds {
		renewals := seen.count(lock.Renewed)
		lease, err := engine.TryLock(s.Context(), s.name)
		s.must(err)
		s.await(seen, lock.Renewed, renewals+round%3)
		s.must(lease.Unlock(s.Context()))
		after := seen.count(lock.Renewed)
		s.isFree()
		if n := seen.count(lock.Renewed); n != after {
			s.Fatalf("%d renewals after the unlock", n-after)
		}
	}
}

// closes waits for done.
func (s *suite) closes(done <-chan struct{}) {
	s.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		s.Fatalf("not closed within %v", patience)
	}
}
