package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Lease is a lock that is held, until Unlock, Stop, or its loss. Its methods may be called concurrently.
//
// The watchdog of each lock, which runs when it is due, renews it and ends it at its deadline. Unlock and Stop end that, and
// wait for it if it runs; a lease that gets neither is renewed until MaxHold.
type Lease struct {
	held *held
	done chan struct{} // closed when err is set

	// Protected by held.mu.
	err     error // why the lease ended, nil while it lasts; set once
	cancels []context.CancelCauseFunc
}

// Hold makes a lease of a grant that was acquired elsewhere, by a request sent not before sentAt, which is a time.Now
// of this process. The lease does not end with ctx, whose values the renewals carry. Options that Validate refuses
// make a lease that is lost from the start, with that error.
func Hold(ctx context.Context, backend Backend, claim Claim, sentAt time.Time, opts HoldOptions) *Lease {
	h := &held{
		backend:   backend,
		claim:     claim,
		opts:      opts.withDefaults(),
		since:     sentAt,
		watched:   make(chan struct{}),
		unlocking: make(chan struct{}, 1),
	}
	l := h.lease()
	if err := opts.Validate(); err != nil {
		l.err = fmt.Errorf("%w: %q: %w", ErrLost, claim.Name, err)
		h.err = l.err
		close(l.done)
		close(h.watched)
		return l
	}
	h.deadline = h.bounded(sentAt.Add(opts.TTL - opts.drift(opts.TTL)))
	h.watch(context.WithoutCancel(ctx))
	return l
}

// Name is the name of the lock.
func (l *Lease) Name() string { return l.held.claim.Name }

// Token is the fence: higher than that of every earlier lease of this name. Zero if the backend promises none.
func (l *Lease) Token() uint64 {
	if !l.held.backend.Capabilities().Fence {
		return 0
	}
	return l.held.claim.Token
}

// Deadline is when the lease ends unless it is renewed, on this process's monotonic clock. It is never later than the
// end at the store.
func (l *Lease) Deadline() time.Time { return l.held.until() }

// Done is closed when the lease has ended; Err says why.
func (l *Lease) Done() <-chan struct{} {
	_ = l.held.end(nil)
	return l.done
}

// Err is nil while the lock is held. Then it matches ErrLost, with ErrNotHeld, ErrMaxHold or the error of the last
// renewal as the reason, or ErrReleased. It compares the clock with the deadline itself, so that it is right at
// once in a process that was frozen, where no timer has fired yet: look here right before what the lock protects.
func (l *Lease) Err() error {
	_ = l.held.end(nil)
	l.held.mu.Lock()
	defer l.held.mu.Unlock()
	return l.err
}

// Context returns a child of parent that is cancelled when the lease ends, with Err as its cause. It is kept until
// then, so take one for a piece of work, not one for each step of it.
func (l *Lease) Context(parent context.Context) context.Context {
	_ = l.held.end(nil)
	ctx, cancel := context.WithCancelCause(parent)
	l.held.mu.Lock()
	defer l.held.mu.Unlock()
	if l.err != nil {
		cancel(l.err)
	} else {
		l.cancels = append(l.cancels, cancel)
	}
	return ctx
}

// Extend makes the lease last for at least ttl from now; it never shortens it. The watchdog goes on as before. The
// error matches ErrLost or ErrReleased if the lease has ended. Any other error leaves it as it was: a ttl below
// MinTTL, not above Drift, or more than the backend can keep, ctx's error, or that of a store that gave no answer
// within CallTimeout.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if err := ValidateTTL(ttl); err != nil {
		return err
	}
	opts := l.held.opts
	if drift := opts.drift(ttl); ttl <= drift {
		return fmt.Errorf("lock: TTL is %v: must be above Drift, %v", ttl, drift)
	}
	if err := l.Err(); err != nil {
		return err
	}
	return l.held.renew(ctx, ttl, opts.CallTimeout)
}

// Stop ends the lease without releasing the lock, which stays until its TTL has passed, and waits for the watchdog: no
// renewal is sent after it. It is for those who drop the lock by other means, and ends all leases that entered the lock
// by WithLease. It returns nil if the lease lasted until now, else what Err returns. It waits for a renewal at most
// CallTimeout.
func (l *Lease) Stop() error {
	h := l.held
	if l.Err() == nil || h.end(nil) != nil { // else it has left, and others hold on
		_ = h.end(ErrReleased)
		<-h.watched
	}
	if err := l.Err(); !errors.Is(err, ErrReleased) {
		return err
	}
	return nil
}

// Unlock ends the lease, and frees the lock unless leases that entered it by WithLease hold on to it. It works when ctx
// is dead, because a lock that stays behind makes everybody wait: it takes the values of ctx, and at most twice
// CallTimeout. It may be called again.
//
// ErrNotHeld: the lock was not held any more, so somebody else may have had it meanwhile. Any other error: the store gave
// no answer, at least not to the first release, so whether the lock was held until then is unknown; it is free at the
// latest when its TTL has passed, and calling again tries again unless it is free already.
func (l *Lease) Unlock(ctx context.Context) error {
	if !l.leave() {
		return nil
	}
	// A renewal that is under way comes first: it could not bring the lock back, but it would see the release as a loss.
	_ = l.Stop()
	return l.held.unlock(context.WithoutCancel(ctx))
}

// leave ends the lease by its holder's will, and tells whether that leaves nobody who holds on to the lock. The last
// one is ended by Stop.
func (l *Lease) leave() (last bool) {
	h := l.held
	_ = h.end(nil)
	h.mu.Lock()
	if h.err != nil || l.err == nil && len(h.leases) == 1 {
		h.mu.Unlock()
		return true
	}
	var cancels []context.CancelCauseFunc
	if l.err == nil {
		cancels = l.finish(ErrReleased)
		h.leases = slices.DeleteFunc(h.leases, func(other *Lease) bool { return other == l })
	}
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel(ErrReleased)
	}
	return false
}

// finish sets why the lease ended, and returns what is to be called with it once held.mu, which the caller has, is free.
func (l *Lease) finish(err error) []context.CancelCauseFunc {
	l.err = err
	close(l.done)
	cancels := l.cancels
	l.cancels = nil
	return cancels
}
