package locktest

import (
	"context"
	"sync"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// Fault stands around a call of a backend: pass makes the call, and what the Fault returns is what the caller gets.
// Not calling pass loses the request, dropping its result loses the reply, not returning hangs.
type Fault func(ctx context.Context, pass func() error) error

// Faults is a backend whose calls go wrong on demand. It is no lock.Notifier, so waiters poll. Its methods may be
// called concurrently.
type Faults struct {
	lock.Backend

	mu                      sync.Mutex // protects the fields below
	acquire, renew, release Fault
}

// NewFaults makes a backend that works like the one it wraps, until told otherwise.
func NewFaults(backend lock.Backend) *Faults { return &Faults{Backend: backend} }

// OnAcquire puts fault around the acquires to come; nil takes it away.
func (f *Faults) OnAcquire(fault Fault) { f.set(&f.acquire, fault) }

// OnRenew puts fault around the renewals to come; nil takes it away.
func (f *Faults) OnRenew(fault Fault) { f.set(&f.renew, fault) }

// OnRelease puts fault around the releases to come; nil takes it away.
func (f *Faults) OnRelease(fault Fault) { f.set(&f.release, fault) }

func (f *Faults) set(place *Fault, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*place = fault
}

func (f *Faults) call(ctx context.Context, place *Fault, pass func() error) error {
	f.mu.Lock()
	fault := *place
	f.mu.Unlock()
	if fault == nil {
		return pass()
	}
	return fault(ctx, pass)
}

// Capabilities implements lock.Backend. A fault may hang, so nothing is prompt.
func (f *Faults) Capabilities() lock.Capabilities {
	c := f.Backend.Capabilities()
	c.Prompt = false
	return c
}

// Acquire implements lock.Backend.
func (f *Faults) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	var grant lock.Grant
	err := f.call(ctx, &f.acquire, func() (err error) {
		grant, err = f.Backend.Acquire(ctx, req)
		return err
	})
	if err != nil {
		return lock.Grant{}, err
	}
	return grant, nil
}

// Renew implements lock.Backend.
func (f *Faults) Renew(ctx context.Context, claim lock.Claim, ttl time.Duration) error {
	return f.call(ctx, &f.renew, func() error { return f.Backend.Renew(ctx, claim, ttl) })
}

// Release implements lock.Backend.
func (f *Faults) Release(ctx context.Context, claim lock.Claim) error {
	return f.call(ctx, &f.release, func() error { return f.Backend.Release(ctx, claim) })
}
