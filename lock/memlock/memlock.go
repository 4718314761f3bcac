// Package memlock keeps locks in the memory of this process: for tests, for services of one instance, and as the
// reference of what a lock.Backend does.
package memlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// Backend is a lock.Backend with fence tokens, shared locks and a queue. Make it with New; its methods may be called
// concurrently, and none but the turn of a Queue blocks.
type Backend struct {
	waiters lock.Waiters

	mu      sync.Mutex // protects the fields below
	token   uint64     // of the last place in any line
	lines   map[string]line
	sweepAt int // the number of lines at which those without a living place are dropped
}

// line is who holds a lock and who waits for it, in the order in which they came.
type line []place

// place is one in a line. Those at the head hold the lock: the first, or all shared ones that come before any other.
type place struct {
	owner  string
	token  uint64
	shared bool
	until  time.Time
}

var (
	_ lock.Backend = (*Backend)(nil)
	_ lock.Queuer  = (*Backend)(nil)
)

const minSweep = 64

// New makes a backend without locks.
func New() *Backend {
	return &Backend{lines: make(map[string]line), sweepAt: minSweep}
}

// Acquire implements lock.Backend.
func (b *Backend) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := check(ctx, req); err != nil {
		return lock.Grant{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	l := b.line(req.Name, now)
	i := l.find(lock.Claim{Owner: req.Owner})
	if i < 0 && l.admits(len(l), req.Shared) {
		i, l = len(l), b.join(req, now)
	}
	if i < 0 || !l.admits(i, l[i].shared) {
		return lock.Grant{}, &lock.ContendedError{Name: req.Name, RetryAfter: l[0].until.Sub(now)}
	}
	l[i].extend(now.Add(req.TTL))
	return lock.Grant{Token: l[i].token}, nil
}

// Queue implements lock.Queuer.
func (b *Backend) Queue(ctx context.Context, req lock.Request) (turn func(context.Context) error, err error) {
	if err := check(ctx, req); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	l := b.line(req.Name, now)
	if i := l.find(lock.Claim{Owner: req.Owner}); i >= 0 {
		l[i].extend(now.Add(req.TTL))
	} else {
		b.join(req, now)
	}
	return func(ctx context.Context) error { return b.turn(ctx, req) }, nil
}

// turn keeps the place of req's owner until it is at the head of the line.
func (b *Backend) turn(ctx context.Context, req lock.Request) error {
	changed, stop := b.waiters.Add(req.Name)
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		again, err := b.stay(req)
		if again == 0 {
			return err
		}
		timer.Reset(again)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stay makes a place in a line last for another TTL, and says after which time to look at it again; zero: it holds the
// lock, or is lost.
func (b *Backend) stay(req lock.Request) (again time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	l := b.line(req.Name, now)
	i := l.find(lock.Claim{Owner: req.Owner})
	if i < 0 {
		return 0, lock.ErrNotAcquired
	}
	l[i].extend(now.Add(req.TTL))
	if l.admits(i, l[i].shared) {
		return 0, nil
	}
	// Nobody tells of an expiry.
	again = max(1, req.TTL/3)
	for _, before := range l[:i] {
		again = min(again, before.until.Sub(now))
	}
	return again, nil
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
	l := b.line(claim.Name, now)
	i := l.find(claim)
	if i < 0 || !l.admits(i, l[i].shared) {
		return lock.ErrNotHeld
	}
	l[i].extend(now.Add(ttl))
	return nil
}

// Release implements lock.Backend.
func (b *Backend) Release(ctx context.Context, claim lock.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.line(claim.Name, time.Now())
	i := l.find(claim)
	if i < 0 {
		return lock.ErrNotHeld
	}
	b.keep(claim.Name, slices.Delete(l, i, i+1))
	b.waiters.Wake(claim.Name)
	return nil
}

// Capabilities implements lock.Backend.
func (*Backend) Capabilities() lock.Capabilities {
	return lock.Capabilities{Fence: true, Fair: true, Shared: true, Prompt: true}
}

func check(ctx context.Context, req lock.Request) error {
	if err := req.Validate(); err != nil {
		return err
	}
	return ctx.Err()
}

// line is who has a place for name now. The caller holds mu, as for all that follows.
func (b *Backend) line(name string, now time.Time) line {
	expired := func(p place) bool { return !now.Before(p.until) }
	l := b.lines[name]
	if slices.ContainsFunc(l, expired) {
		l = slices.DeleteFunc(l, expired)
		b.keep(name, l)
	}
	return l
}

// join gives req's owner the last place, and returns the line.
func (b *Backend) join(req lock.Request, now time.Time) line {
	b.sweep(now)
	b.token++
	l := append(b.lines[req.Name], place{owner: req.Owner, token: b.token, shared: req.Shared, until: now.Add(req.TTL)})
	b.keep(req.Name, l)
	return l
}

func (b *Backend) keep(name string, l line) {
	if len(l) == 0 {
		delete(b.lines, name)
		return
	}
	b.lines[name] = l
}

// sweep drops the expired places of names that nobody asks for again, once their lines could be half of all.
func (b *Backend) sweep(now time.Time) {
	if len(b.lines) < b.sweepAt {
		return
	}
	for name := range b.lines {
		b.line(name, now)
	}
	b.sweepAt = max(minSweep, 2*len(b.lines))
}

// find is the index of a claim's place, -1 if it has none.
func (l line) find(claim lock.Claim) int {
	return slices.IndexFunc(l, func(p place) bool {
		return p.owner == claim.Owner && (claim.Token == 0 || p.token == claim.Token)
	})
}

// admits tells whether who stands at i, or would, holds the lock.
func (l line) admits(i int, shared bool) bool {
	exclusive := func(p place) bool { return !p.shared }
	return i == 0 || shared && !slices.ContainsFunc(l[:i], exclusive)
}

func (p *place) extend(until time.Time) {
	if until.After(p.until) {
		p.until = until
	}
}
