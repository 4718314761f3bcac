// Package lock holds named locks as leases: a lock ends by itself when its holder dies, and a holder learns
// that it has lost the lock before anybody else can get it.
//
// A [Backend] is the small part that differs between stores: one conditional acquire, renew and release. The
// [Engine] is the part every store needs and nobody should write twice: a random owner for each acquisition, a
// deadline on the holder's own monotonic clock, a watchdog that renews, waiting with jitter, and a release that
// works when the caller's ctx is dead.
//
// A lock is not proof by itself. A holder may be frozen between its last look at the lease and the write it
// protects, so where that matters, send [Lease.Token] along and let the store refuse a token lower than one it has
// seen. A lock without a fence is good for efficiency: work that is wasteful, not wrong, when done twice.
package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MinTTL is the shortest TTL a lease can have. Stores count in milliseconds, and a TTL that rounds to zero deletes
// the lock instead of keeping it.
const MinTTL = time.Millisecond

var (
	// ErrNotAcquired says that somebody else holds the lock. It never stands for a store that could not be
	// asked. When waiting was ended by a ctx, the error matches ctx.Err() as well.
	ErrNotAcquired = errors.New("lock: not acquired")

	// ErrNotHeld is the store's word that the lock is not held by this claim: it expired, was taken over after
	// that, was revoked, or was released before.
	ErrNotHeld = errors.New("lock: not held")

	// ErrLost is why a lease ended against its holder's will: its deadline passed without a renewal, or the
	// store said [ErrNotHeld], which it then matches too.
	ErrLost = errors.New("lock: lease lost")

	// ErrReleased is why a lease ended by its holder's will, through Unlock or Stop.
	ErrReleased = errors.New("lock: lease released")

	// ErrMaxHold comes with ErrLost when the lease ended because it was held for MaxHold.
	ErrMaxHold = errors.New("lock: held for MaxHold")

	// ErrClosed is returned by an Engine that was closed.
	ErrClosed = errors.New("lock: engine closed")
)

// ContendedError is the ErrNotAcquired of a backend that knows more. It matches ErrNotAcquired.
type ContendedError struct {
	// Name is the lock that somebody else holds.
	Name string
	// RetryAfter is the time after which the present hold ends unless it is renewed; zero when not known.
	RetryAfter time.Duration
}

func (e *ContendedError) Error() string {
	if e.RetryAfter <= 0 {
		return fmt.Sprintf("%v: %q is held", ErrNotAcquired, e.Name)
	}
	return fmt.Sprintf("%v: %q is held, for %v unless renewed", ErrNotAcquired, e.Name, e.RetryAfter)
}

// Unwrap returns ErrNotAcquired.
func (*ContendedError) Unwrap() error { return ErrNotAcquired }

// Request asks for a lock.
type Request struct {
	// Name is the lock. It is never empty.
	Name string
	// Owner is unique to the acquisition: two requests with the same owner are the same acquisition, sent twice.
	Owner string
	// TTL is how long the lock outlives its last renewal, at least MinTTL.
	TTL time.Duration
	// Shared asks for the lock together with others that ask so. Only backends whose Capabilities say Shared see it.
	Shared bool
}

// Validate tells what is wrong with the request. Backends call it before they ask their store.
func (r Request) Validate() error {
	switch {
	case r.Name == "":
		return errors.New("lock: the name is empty: must be at least one byte")
	case r.Owner == "":
		return fmt.Errorf("lock: the owner for %q is empty: must be unique to the acquisition", r.Name)
	}
	return ValidateTTL(r.TTL)
}

// ValidateTTL refuses a TTL below [MinTTL]. Backends call it in Renew.
func ValidateTTL(ttl time.Duration) error {
	if ttl < MinTTL {
		return fmt.Errorf("lock: TTL is %v: must be at least %v", ttl, MinTTL)
	}
	return nil
}

// Grant is a lock that was given.
type Grant struct {
	// Token tells this grant from all others of the same name. It is ordered, a fence, only if the backend's
	// Capabilities say so, and zero from a backend without tokens.
	Token uint64
}

// Claim says which grant of a lock is meant. A zero Token is a token that is not known, because the reply that
// carried it was lost: then the owner alone decides.
type Claim struct {
	Name  string
	Owner string
	Token uint64
}

// Capabilities is what a backend promises beyond the contract.
type Capabilities struct {
	// Fence: the token of each new grant of a name is higher than that of every grant before it. Grants that share the
	// lock are ordered among themselves as they came into the store, not as their holders learned of them.
	Fence bool
	// Fair: those who wait get the lock in the order in which they asked, and nobody who asks later overtakes them,
	// whether it waits or not. The backend is a Queuer.
	Fair bool
	// Shared: any number of owners may hold the lock at a time, if all of them asked for it shared.
	Shared bool
	// MaxTTL is the longest TTL that the backend can keep. Zero: there is no bound.
	MaxTTL time.Duration
	// Prompt: Acquire, Renew and Release end when their ctx does or, if it is cancelled, at its deadline at the latest,
	// whatever becomes of the store. An Engine calls them in the goroutine of its caller then, who is spared two
	// switches; a cancel of TryLock and Lock may then be noticed up to a tenth of CallTimeout late.
	Prompt bool
}

// Backend is a store that gives locks. Package locktest holds its conformance suite.
//
// All methods are called concurrently. They must return soon after their ctx is done: the engine leaves a call
// that does not, and its goroutine lives until the call returns. An error that is neither ErrNotAcquired nor
// ErrNotHeld means that the outcome is unknown.
type Backend interface {
	// Acquire gives the lock to req.Owner for req.TTL if nobody holds it. An owner that holds it already, because
	// the reply to its first request was lost, gets the same grant again, for at least req.TTL from now. If
	// somebody else holds it the error matches ErrNotAcquired and may be a *ContendedError. A request that
	// fails Validate is refused before the store is asked.
	Acquire(ctx context.Context, req Request) (Grant, error)

	// Renew makes the lock last for at least ttl from now, never shorter than it would have lasted, or returns
	// ErrNotHeld if not exactly this claim holds it. It never brings a lock back.
	Renew(ctx context.Context, claim Claim, ttl time.Duration) error

	// Release frees the lock, or returns ErrNotHeld if not exactly this claim holds it. In the store of a Queuer it
	// gives up the claim's place in the queue as well.
	Release(ctx context.Context, claim Claim) error

	// Capabilities never changes during the life of the backend.
	Capabilities() Capabilities
}

// Notifier is what a Backend also implements if it can wake waiters when a lock is released.
type Notifier interface {
	// Notify registers a waiter for name and returns once it is registered. The channel receives after a release
	// seen since then; one receive may stand for many releases. Messages may be lost, so waiters keep polling
	// slowly. stop ends the registration, never blocks for long, and is called exactly once.
	Notify(ctx context.Context, name string) (released <-chan struct{}, stop func(), err error)
}

// Queuer is what a Backend also implements if its store makes those who wait stand in a queue. An Engine asks it
// instead of polling.
type Queuer interface {
	// Queue gives req.Owner a place behind all who hold the lock or wait for it, and returns once it has one; an owner
	// that has a place keeps it. A place is lost like a lock, when req.TTL has passed since it was last looked after.
	//
	// turn looks after the place, and returns nil when the lock is req.Owner's, for req.TTL from then on, to be taken by
	// Acquire with the same request. An error that matches ErrNotAcquired says that the place was lost. When ctx is done
	// turn returns soon, with ctx's error, and the place stays until Release. It is called at most once.
	Queue(ctx context.Context, req Request) (turn func(ctx context.Context) error, err error)
}

// Locker is how services see locks. [Engine] implements it.
type Locker interface {
	// TryLock asks once and does not wait: ErrNotAcquired if somebody else holds the lock.
	TryLock(ctx context.Context, name string) (*Lease, error)
	// Lock waits until it has the lock, as long as ctx allows.
	Lock(ctx context.Context, name string) (*Lease, error)
}

// RWLocker is a Locker of locks that can be shared, as by readers. [Engine] implements it over a backend whose
// Capabilities say Shared; over any other the methods below return an error that matches errors.ErrUnsupported.
type RWLocker interface {
	Locker
	// TryRLock is TryLock for a lock that others may hold too, if they share it.
	TryRLock(ctx context.Context, name string) (*Lease, error)
	// RLock is Lock for a lock that others may hold too, if they share it.
	RLock(ctx context.Context, name string) (*Lease, error)
}
