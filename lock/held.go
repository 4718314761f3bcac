package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// held is a lock at the store, as the leases that share it see it: one, and those that entered it by WithLease.
type held struct {
	backend Backend
	claim   Claim
	opts    HoldOptions
	engine  *Engine // that it was acquired by, nil by Hold; set before anybody else sees it, as is shared
	shared  bool
	since   time.Time     // before the request that got the grant was sent
	next    time.Time     // when the watchdog renews it; the watchdog's alone
	watched chan struct{} // closed when the watchdog has run for the last time

	mu       sync.Mutex  // protects the fields below; never held during a call of the backend or the monitor
	leases   []*Lease    // those that have not ended
	deadline time.Time   // only moves forward
	err      error       // why it ended, nil while it is held; set once
	lastErr  error       // of the last renewal, nil if it succeeded
	timer    *time.Timer // starts the watchdog, nil before there is one

	unlocking chan struct{} // of one place, protects the fields below; no mutex, because a release takes time in it
	settled   bool          // the store has answered a release
	unsure    bool          // a release got no answer, so it may have worked
	unlockErr error
}

// lease adds a lease. The caller has mu, or nobody else sees h yet.
func (h *held) lease() *Lease {
	l := &Lease{held: h, done: make(chan struct{})}
	h.leases = append(h.leases, l)
	return l
}

func (h *held) until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deadline
}

// unlock frees the lock. It has ended, and the watchdog with it.
func (h *held) unlock(ctx context.Context) error {
	h.unlocking <- struct{}{}
	defer func() { <-h.unlocking }()
	if h.settled {
		return h.unlockErr
	}
	err := h.release(ctx)
	switch {
	case err == nil:
		h.settled = true
		h.tell(Released, nil)
	case errors.Is(err, ErrNotHeld) && h.unsure:
		// As a rule that release has worked and only its answer was lost, but the store cannot tell it from a loss.
		h.settled = true
		h.unlockErr = fmt.Errorf("lock: unlock %q, outcome unknown: an earlier release got no answer, and now the lock is free or another's", h.claim.Name)
		h.tell(ReleaseUnknown, h.unlockErr)
	case errors.Is(err, ErrNotHeld):
		h.settled, h.unlockErr = true, fmt.Errorf("lock: unlock %q: %w", h.claim.Name, err)
		h.tell(NotHeld, h.unlockErr)
	default:
		err = fmt.Errorf("lock: unlock %q, outcome unknown: %w", h.claim.Name, err)
		h.tell(ReleaseUnknown, err)
		return err
	}
	return h.unlockErr
}

// release sends the release until the store answers, within CallTimeout. The caller has the place in unlocking.
func (h *held) release(ctx context.Context) error {
	limit := h.opts.CallTimeout / 2
	for began := time.Now(); ; {
		_, err := callDetached(ctx, h.backend, limit, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, h.backend.Release(ctx, h.claim)
		})
		if err == nil || errors.Is(err, ErrNotHeld) {
			return err
		}
		h.unsure = true
		rest := jitter(h.opts.CallTimeout / 20)
		if limit = min(limit, h.opts.CallTimeout-time.Since(began)-rest); limit <= 0 {
			return err
		}
		pause(ctx, rest, nil)
	}
}

// watch starts the watchdog. It is a timer that runs look in a goroutine: most leases end before it is due, and then never
// have that goroutine.
func (h *held) watch(ctx context.Context) {
	h.next = h.since.Add(h.opts.Watchdog)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(h.due(), func() { h.look(ctx) })
}

// due is the time until the watchdog has something to do. The caller has mu.
func (h *held) due() time.Duration {
	if h.opts.Watchdog != Off && h.next.Before(h.deadline) {
		return time.Until(h.next)
	}
	return time.Until(h.deadline)
}

// look renews the lock if it is time, or ends the hold, and sets the timer for the next time.
func (h *held) look(ctx context.Context) {
	h.mind(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		close(h.watched) // end has found the timer fired
		return
	}
	h.timer.Reset(h.due())
}

func (h *held) mind(ctx context.Context) {
	// The deadline comes first: after a freeze both are overdue, and then the lock may be somebody else's.
	if h.end(nil) != nil {
		return
	}
	if h.opts.Watchdog == Off || time.Now().Before(h.next) {
		return // Extend has moved the deadline
	}
	// With these fractions a store that was out of reach for half a TTL from the first renewal on, in the worst way,
	// not answering, is asked again before the deadline: 1/3 + 1/2 + 1/10 + 1/40 < 0.96.
	limit := min(h.opts.CallTimeout, h.opts.TTL/10, time.Until(h.until()))
	sentAt := time.Now()
	if err := h.renew(ctx, h.opts.TTL, limit); err == nil {
		h.next = sentAt.Add(h.opts.Watchdog)
	} else {
		h.next = time.Now().Add(jitter(h.opts.TTL / 40))
	}
}

// renew asks the store once, for at most limit, and moves the deadline or ends the hold.
func (h *held) renew(ctx context.Context, ttl, limit time.Duration) error {
	sentAt := time.Now()
	send := func(ctx context.Context) (struct{}, error) { return struct{}{}, h.backend.Renew(ctx, h.claim, ttl) }
	var err error
	if ctx.Done() == nil { // the watchdog's
		_, err = callDetached(ctx, h.backend, limit, send)
	} else {
		_, err = call(ctx, limit, send)
	}
	switch {
	case err == nil:
		if err := h.prolong(sentAt.Add(ttl - h.opts.drift(ttl))); err != nil {
			return err
		}
		h.tell(Renewed, nil)
		return nil
	case errors.Is(err, ErrNotHeld):
		return h.end(fmt.Errorf("%w: %q: %w", ErrLost, h.claim.Name, ErrNotHeld))
	}
	h.mu.Lock()
	h.lastErr = err
	h.mu.Unlock()
	h.tell(RenewRetried, err)
	return fmt.Errorf("lock: renew %q: %w", h.claim.Name, err)
}

// prolong moves the deadline, unless the hold has ended. A deadline that has passed is final, whatever the store
// says: somebody may have read Err in between.
func (h *held) prolong(deadline time.Time) error {
	if err := h.end(nil); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	h.lastErr = nil
	if deadline = h.bounded(deadline); deadline.After(h.deadline) {
		h.deadline = deadline
	}
	return nil
}

// bounded is deadline, or the end of MaxHold if that is earlier.
func (h *held) bounded(deadline time.Time) time.Time {
	if h.opts.MaxHold <= 0 {
		return deadline
	}
	if last := h.since.Add(h.opts.MaxHold); last.Before(deadline) {
		return last
	}
	return deadline
}

// end ends the hold and its leases if the deadline has passed, else with err unless that is nil. It returns why the hold
// has ended, nil if it has not.
func (h *held) end(err error) error {
	h.mu.Lock()
	if h.err != nil {
		defer h.mu.Unlock()
		return h.err
	}
	if !time.Now().Before(h.deadline) {
		err = h.overdue()
	}
	if err == nil {
		h.mu.Unlock()
		return nil
	}
	h.err = err
	if h.timer.Stop() {
		close(h.watched) // else look does it, which runs or is about to
	}
	var cancels []context.CancelCauseFunc
	for _, l := range h.leases {
		cancels = append(cancels, l.finish(err)...)
	}
	h.leases = nil
	h.mu.Unlock()

	for _, cancel := range cancels {
		cancel(err)
	}
	if errors.Is(err, ErrLost) {
		h.tell(Lost, err)
	}
	return err
}

// overdue is why a hold that has reached its deadline is lost. The caller holds mu.
func (h *held) overdue() error {
	switch {
	case h.opts.MaxHold > 0 && !h.deadline.Before(h.since.Add(h.opts.MaxHold)):
		return fmt.Errorf("%w: %q: %w, %v", ErrLost, h.claim.Name, ErrMaxHold, h.opts.MaxHold)
	case h.lastErr != nil:
		return fmt.Errorf("%w: %q: not renewed in time: %w", ErrLost, h.claim.Name, h.lastErr)
	}
	return fmt.Errorf("%w: %q: not renewed in time", ErrLost, h.claim.Name)
}

func (h *held) tell(kind EventKind, err error) {
	if h.opts.Monitor == nil {
		return
	}
	h.opts.Monitor(Event{Kind: kind, Name: h.claim.Name, Held: time.Since(h.since), Err: err})
}
