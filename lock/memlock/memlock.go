// Package memlock keeps locks in the memory of this process: for tests, for services of one instance, and as the
// reference of what a lock.Backend does.
package memlock

import (
	"context"
	"sync"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// Backend is a lock.Backend with fence tokens, and a lock.Notifier. Make it with New; its methods may be called
// concurrently and never block.
type Backend struct {
	waiters lock.Waiters

	mu      sync.Mutex // protects the fields below
	token   uint64     // of the last grant of any name
	holds   map[string]hold
	sweepAt int // the number of holds at which those that expired are dropped
}

type hold struct {
	owner string
	token uint64
	until time.Time
}

var (
	_ lock.Backend  = (*Backend)(nil)
	_ lock.Notifier = (*Backend)(nil)
)

const minSweep = 64

// New makes a backend without locks.
func New() *Backend {
	return &Backend{holds: make(map[string]hold), sweepAt: minSweep}
}

// Acquire implements lock.Backend.
func (b *Backend) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := req.Validate(); err != nil {
		return lock.Grant{}, err
	}
	if err := ctx.Err(); err != nil {
		return lock.Grant{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	h, held := b.holds[req.Name]
	held = held && now.Before(h.until)
	switch {
	case held && h.owner != req.Owner:
		return lock.Grant{}, &lock.ContendedError{Name: req.Name, RetryAfter: h.until.Sub(now)}
	case !held:
		b.sweep(now)
		b.token++
		h = hold{owner: req.Owner, token: b.token}
	}
	h.extend(now.Add(req.TTL))
	b.holds[req.Name] = h
	return lock.Grant{Token: h.token}, nil
}

// Renew implements lock.Backend.
func (b *Backend) Renew(ctx context.Context, claim lock.Claim, ttl time.Duration) error {
	if err := lock.ValidateTTL(ttl); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	h := b.holds[claim.Name]
	if !h.is(claim, now) {
		return lock.ErrNotHeld
	}
	h.extend(now.Add(ttl))
	b.holds[claim.Name] = h
	return nil
}

// Release implements lock.Backend.
func (b *Backend) Release(ctx context.Context, claim lock.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds[claim.Name]; !h.is(claim, time.Now()) {
		return lock.ErrNotHeld
	}
	delete(b.holds, claim.Name)
	b.waiters.Wake(claim.Name)
	return nil
}

// Capabilities implements lock.Backend.
func (*Backend) Capabilities() lock.Capabilities { return lock.Capabilities{Fence: true} }

// Notify implements lock.Notifier. The error is ctx's.
func (b *Backend) Notify(ctx context.Context, name string) (released <-chan struct{}, stop func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	released, stop = b.waiters.Add(name)
	return released, stop, nil
}

// sweep drops the expired holds of names that nobody asks for again, once they could be half of all. The caller holds mu.
func (b *Backend) sweep(now time.Time) {
	if len(b.holds) < b.sweepAt {
		return
	}
	for name, h := range b.holds {
		if !now.Before(h.until) {
			delete(b.holds, name)
		}
	}
	b.sweepAt = max(minSweep, 2*len(b.holds))
}

// is tells whether h is held now, by this claim.
func (h hold) is(claim lock.Claim, now time.Time) bool {
	return now.Before(h.until) && h.owner == claim.Owner && (claim.Token == 0 || h.token == claim.Token)
}

func (h *hold) extend(until time.Time) {
	if until.After(h.until) {
		h.until = until
	}
}
