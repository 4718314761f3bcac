package lock

import "time"

// Monitor is told of every Event. It is called concurrently, by callers and by watchdogs, so it must return soon, and
// it must not call the lease's Stop or Unlock, which wait for the watchdog.
type Monitor func(Event)

// Event is something that happened to a lock.
type Event struct {
	Kind EventKind
	// Name is the lock.
	Name string
	// Waited is the time since TryLock or Lock was called; in the events of an acquisition.
	Waited time.Duration
	// Held is the time since the request that got the lock was sent; in the events of a lease.
	Held time.Duration
	// Err is why; nil when nothing failed.
	Err error
}

// EventKind is what happened.
type EventKind uint8

// The events of an acquisition, then those of a lease.
const (
	// Acquired ends a TryLock or Lock that got the lock.
	Acquired EventKind = iota + 1
	// Contended: somebody else holds the lock. It ends a TryLock, and comes once from a Lock, which then waits.
	Contended
	// TimedOut ends a Lock that waited until its ctx or MaxWait ended.
	TimedOut
	// AcquireFailed ends a TryLock or Lock whose store could not be asked.
	AcquireFailed

	// Renewed: the watchdog or Extend renewed the lease.
	Renewed
	// RenewRetried: a renewal failed without an answer from the store, and is tried again before the deadline.
	RenewRetried
	// Lost: the lease ended against its holder's will.
	Lost
	// Released: Unlock freed the lock.
	Released
	// NotHeld: Unlock found the lock not held any more.
	NotHeld
	// ReleaseUnknown: Unlock got no answer, or only to a later release, which found the lock not held; it is free at the
	// latest when its TTL ends.
	ReleaseUnknown
)

// String returns the name of the kind in words, such as "renew retried".
func (k EventKind) String() string {
	switch k {
	case Acquired:
		return "acquired"
	case Contended:
		return "contended"
	case TimedOut:
		return "timed out"
	case AcquireFailed:
		return "acquire failed"
	case Renewed:
		return "renewed"
	case RenewRetried:
		return "renew retried"
	case Lost:
		return "lost"
	case Released:
		return "released"
	case NotHeld:
		return "not held"
	case ReleaseUnknown:
		return "release unknown"
	}
	return "unknown event"
}
