package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lease is a lock that is held, until Unlock, Stop, or its loss. Its methods may be called concurrently.
//
// One goroutine a lease, the watchdog, renews it and ends it at its deadline. Unlock and Stop wait for that goroutine;
// a lease that gets neither is renewed until MaxHold.
type Lease struct {
	backend Backend
	claim   Claim
	opts    HoldOptions
	since   time.Time     // before the request that got the grant was sent
	watched chan struct{} // closed when the watchdog has returned
	done    chan struct{} // closed when err is set

	mu       sync.Mutex // protects the fields below; never held during a call of the backend or the monitor
	deadline time.Time  // only moves forward
	err      error      // why the lease ended, nil while it is held; set once
	lastErr  error      // of the last renewal, nil if it succeeded
	cancels  []context.CancelCauseFunc

	unlocking chan struct{} // of one place, protects the fields below; no mutex, because a release takes time in it
	settled   bool          // the store has answered a release
	unsure    bool          // a release got no answer, so it may have worked
	unlockErr error
}

// Hold makes a lease of a grant that was acquired elsewhere, by a request sent not before sentAt, which is a time.Now
// of this process. The lease does not end with ctx, whose values the renewals carry. Options that Validate refuses
// make a lease that is lost from the start, with that error.
func Hold(ctx context.Context, backend Backend, claim Claim, sentAt time.Time, opts HoldOptions) *Lease {
	l := &Lease{
		backend:   backend,
		claim:     claim,
		opts:      opts.withDefaults(),
		since:     sentAt,
		watched:   make(chan struct{}),
		done:      make(chan struct{}),
		unlocking: make(chan struct{}, 1),
	}
	if err := opts.Validate(); err != nil {
		l.err = fmt.Errorf("%w: %q: %w", ErrLost, claim.Name, err)
		close(l.done)
		close(l.watched)
		return l
	}
	l.deadline = l.bounded(sentAt.Add(opts.TTL - opts.drift(opts.TTL)))
	go l.watch(context.WithoutCancel(ctx))
	return l
}

// Name is the name of the lock.
func (l *Lease) Name() string { return l.claim.Name }

// Token is the fence: higher than that of every earlier lease of this name. Zero if the backend promises none.
func (l *Lease) Token() uint64 {
	if !l.backend.Capabilities().Fence {
		return 0
	}
	return l.claim.Token
}

// Deadline is when the lease ends unless it is renewed, on this process's monotonic clock. It is never later than the
// end at the store.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Done is closed when the lease has ended; Err says why.
func (l *Lease) Done() <-chan struct{} {
	_ = l.end(nil)
	return l.done
}

// Err is nil while the lock is held. Then it matches ErrLost, with ErrNotHeld, ErrMaxHold or the error of the last
// renewal as the reason, or ErrReleased. It compares the clock with the deadline itself, so that it is right at
// once in a process that was frozen, where no timer has fired yet: look here right before what the lock protects.
func (l *Lease) Err() error { return l.end(nil) }

// Context returns a child of parent that is cancelled when the lease ends, with Err as its cause. It is kept until
// then, so take one for a piece of work, not one for each step of it.
func (l *Lease) Context(parent context.Context) context.Context {
	_ = l.end(nil)
	ctx, cancel := context.WithCancelCause(parent)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		cancel(l.err)
	} else {
		l.cancels = append(l.cancels, cancel)
	}
	return ctx
}

// Extend makes the lease last for at least ttl from now; it never shortens it. The watchdog goes on as before. The
// error matches ErrLost or ErrReleased if the lease has ended. Any other error leaves it as it was: a ttl below
// MinTTL or not above Drift, ctx's error, or that of a store that gave no answer within CallTimeout.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if err := ValidateTTL(ttl); err != nil {
		return err
	}
	if drift := l.opts.drift(ttl); ttl <= drift {
		return fmt.Errorf("lock: TTL is %v: must be above Drift, %v", ttl, drift)
	}
	if err := l.Err(); err != nil {
		return err
	}
	return l.renew(ctx, ttl, l.opts.CallTimeout)
}

// Stop ends the lease without releasing the lock, which stays until its TTL has passed, and waits for the watchdog: no
// renewal is sent after it. It is for those who drop the lock by other means. It returns nil if the lock was held
// until now, else what Err returns. It waits for a renewal at most CallTimeout.
func (l *Lease) Stop() error {
	err := l.end(ErrReleased)
	<-l.watched
	if errors.Is(err, ErrReleased) {
		return nil
	}
	return err
}

// Unlock ends the lease and frees the lock. It works when ctx is dead, because a lock that stays behind makes
// everybody wait: it takes the values of ctx, and at most twice CallTimeout. It may be called again.
//
// ErrNotHeld: the lock was not held any more, so somebody else may have had it meanwhile. Any other error: the store
// gave no answer, and the lock is free at the latest when its TTL has passed; calling again tries again.
func (l *Lease) Unlock(ctx context.Context) error {
	// A renewal that is under way comes first: it could not bring the lock back, but it would see the release as a loss.
	_ = l.Stop()

	l.unlocking <- struct{}{}
	defer func() { <-l.unlocking }()
	if l.settled {
		return l.unlockErr
	}
	err := l.release(context.WithoutCancel(ctx))
	switch {
	case err == nil:
		l.settled = true
		l.tell(Released, nil)
	case errors.Is(err, ErrNotHeld):
		if l.unsure {
			err = fmt.Errorf("%w, or an earlier release that got no answer has freed it", err)
		}
		l.settled, l.unlockErr = true, fmt.Errorf("lock: unlock %q: %w", l.claim.Name, err)
		l.tell(NotHeld, l.unlockErr)
	default:
		err = fmt.Errorf("lock: unlock %q, outcome unknown: %w", l.claim.Name, err)
		l.tell(ReleaseUnknown, err)
		return err
	}
	return l.unlockErr
}

// release sends the release until the store answers, within CallTimeout. The caller has the place in unlocking.
func (l *Lease) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.CallTimeout)
	defer cancel()
	for {
		_, err := call(ctx, l.opts.CallTimeout/2, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, l.backend.Release(ctx, l.claim)
		})
		if err == nil || errors.Is(err, ErrNotHeld) {
			return err
		}
		l.unsure = true
		if !pause(ctx, jitter(l.opts.CallTimeout/20), nil) {
			return err
		}
	}
}

// watch is the watchdog.
func (l *Lease) watch(ctx context.Context) {
	defer close(l.watched)
	renewing := l.opts.Watchdog != Off
	next := l.since.Add(l.opts.Watchdog)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wake := l.Deadline()
		if renewing && next.Before(wake) {
			wake = next
		}
		timer.Reset(time.Until(wake))
		select {
		case <-l.done:
			return
		case <-timer.C:
		}
		// The deadline comes first: after a freeze both are overdue, and then the lock may be somebody else's.
		if l.Err() != nil {
			return
		}
		if !renewing || time.Now().Before(next) {
			continue // Extend has moved the deadline
		}
		// With these fractions a store that was out of reach for half a TTL from the first renewal on, in the worst way,
		// not answering, is asked again before the deadline: 1/3 + 1/2 + 1/10 + 1/40 < 0.96.
		limit := min(l.opts.CallTimeout, l.opts.TTL/10, time.Until(l.Deadline()))
		sentAt := time.Now()
		if err := l.renew(ctx, l.opts.TTL, limit); err == nil {
			next = sentAt.Add(l.opts.Watchdog)
		} else {
			next = time.Now().Add(jitter(l.opts.TTL / 40))
		}
	}
}

// renew asks the store once, for at most limit, and moves the deadline or ends the lease.
func (l *Lease) renew(ctx context.Context, ttl, limit time.Duration) error {
	sentAt := time.Now()
	_, err := call(ctx, limit, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.backend.Renew(ctx, l.claim, ttl)
	})
	switch {
	case err == nil:
		if err := l.prolong(sentAt.Add(ttl - l.opts.drift(ttl))); err != nil {
			return err
		}
		l.tell(Renewed, nil)
		return nil
	case errors.Is(err, ErrNotHeld):
		return l.end(fmt.Errorf("%w: %q: %w", ErrLost, l.claim.Name, ErrNotHeld))
	}
	l.mu.Lock()
	l.lastErr = err
	l.mu.Unlock()
	l.tell(RenewRetried, err)
	return fmt.Errorf("lock: renew %q: %w", l.claim.Name, err)
}

// prolong moves the deadline, unless the lease has ended. A deadline that has passed is final, whatever the store
// says: somebody may have read Err in between.
func (l *Lease) prolong(deadline time.Time) error {
	if err := l.end(nil); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.lastErr = nil
	if deadline = l.bounded(deadline); deadline.After(l.deadline) {
		l.deadline = deadline
	}
	return nil
}

// bounded is deadline, or the end of MaxHold if that is earlier.
func (l *Lease) bounded(deadline time.Time) time.Time {
	if l.opts.MaxHold <= 0 {
		return deadline
	}
	if last := l.since.Add(l.opts.MaxHold); last.Before(deadline) {
		return last
	}
	return deadline
}

// end ends the lease if its deadline has passed, else with err unless that is nil. It returns why the lease has ended,
// nil if it has not.
func (l *Lease) end(err error) error {
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	if !time.Now().Before(l.deadline) {
		err = l.overdue()
	}
	if err == nil {
		l.mu.Unlock()
		return nil
	}
	l.err = err
	close(l.done)
	cancels := l.cancels
	l.cancels = nil
	l.mu.Unlock()

	for _, cancel := range cancels {
		cancel(err)
	}
	if errors.Is(err, ErrLost) {
		l.tell(Lost, err)
	}
	return err
}

// overdue is why a lease that has reached its deadline is lost. The caller holds mu.
func (l *Lease) overdue() error {
	switch {
	case l.opts.MaxHold > 0 && !l.deadline.Before(l.since.Add(l.opts.MaxHold)):
		return fmt.Errorf("%w: %q: %w, %v", ErrLost, l.claim.Name, ErrMaxHold, l.opts.MaxHold)
	case l.lastErr != nil:
		return fmt.Errorf("%w: %q: not renewed in time: %w", ErrLost, l.claim.Name, l.lastErr)
	}
	return fmt.Errorf("%w: %q: not renewed in time", ErrLost, l.claim.Name)
}

func (l *Lease) tell(kind EventKind, err error) {
	l.opts.Monitor.tell(Event{Kind: kind, Name: l.claim.Name, Held: time.Since(l.since), Err: err})
}
