package herdgate

import (
	"context"
	"errors"
	"time"
)

// Outcome says where a value came from.
type Outcome uint8

// The outcomes of a call. A remembered ErrNotFound has the outcome of a value.
const (
	OutcomeFailed   Outcome = iota // no value: the call returned an error other than ErrNotFound
	OutcomeLocal                   // fresh, from the local tier
	OutcomeRemote                  // fresh, from Redis
	OutcomeStale                   // past its TTL and inside its Stale window, marked stale, or local and not to be checked as Redis does not answer
	OutcomeLoaded                  // loaded under the lease, in this process
	OutcomeWaited                  // loaded by another process while this call waited
	OutcomeUnlocked                // loaded without the lease, and not stored in Redis
	OutcomeDefault                 // what WithDefault gave in place of an error
	outcomes
)

// String returns the outcome in one lower-case word.
func (o Outcome) String() string {
	return [...]string{"failed", "local", "remote", "stale", "loaded", "waited", "unlocked", "default", "unknown"}[min(o, outcomes)]
}

// EventKind says what happened.
type EventKind uint8

// The kinds of events. Which fields an event has besides Kind and Cache is said in
// brackets.
const (
	// EventGet: a call of Get, Fetch, Lookup or Refresh, or one for a key of GetMany, ended
	// [Key, Outcome, Duration, Err].
	EventGet EventKind = iota
	// EventCoalesced: a call joined a flight that another one had started [Key].
	EventCoalesced
	// EventLoad: a loader ended, or was abandoned; for a BatchLoader once for each of its
	// keys [Key, Duration, Err].
	EventLoad
	// EventLoadFailed: that loader failed; a not-found is no failure, nor one that ended
	// because its key has changed, its lease was lost, or the gate closes [Key, Duration, Err].
	EventLoadFailed
	// EventAbandoned: a loader did not return when its context ended [Key].
	EventAbandoned
	// EventRefresh: a refresh behind a stale value, or ahead of its TTL, began [Key].
	EventRefresh
	// EventWait: a flight has waited for another process's load [Key, Duration].
	EventWait
	// EventWaitTimeout: it waited for longer than Policy.WaitTimeout [Key].
	EventWaitTimeout
	// EventBackoff: a call or refresh met the mark of a failed load [Key].
	EventBackoff
	// EventLeaseWon: the rebuild lease was granted [Key].
	EventLeaseWon
	// EventLeaseHeld: somebody else had it, or the lock of Options.Locker [Key].
	EventLeaseHeld
	// EventRenewalFailed: a renewal of it failed, which does not say that it is gone; it
	// is tried again until the lease ends [Key, Err].
	EventRenewalFailed
	// EventLeaseLost: it, or the lock of Options.Locker, ended while the loader ran, through
	// no change [Key, Err].
	EventLeaseLost
	// EventLeaseRevoked: a change of the key took it away while the loader ran, or before it began [Key].
	EventLeaseRevoked
	// EventLockerFailed: Options.Locker did not answer, or was left alone as it had not, and
	// the flight went on under the lease of Redis alone; or it did not answer an unlock, and
	// the lock ends with its TTL [Key, Err].
	EventLockerFailed
	// EventCommitStored: a loaded value was stored [Key].
	EventCommitStored
	// EventCommitRefused: it was not, since the lease was not held any more: Redis
	// refused it, or its loader was abandoned and returned it later [Key].
	EventCommitRefused
	// EventCommitFailed: it could not be encoded, was larger than Policy.MaxSize, or
	// could not be sent or kept by Redis [Key, Err].
	EventCommitFailed
	// EventBadPayload: an entry could not be used and counts as missing [Key, Err].
	EventBadPayload
	// EventOutdated: an entry is from before a Clear or the invalidation of one of its
	// tags, or was stored for another key, and counts as missing [Key].
	EventOutdated
	// EventNewerEntry: an entry was written by a newer version; it is left alone [Key].
	EventNewerEntry
	// EventDegraded: Redis did not answer a read or an acquire, and the call went on
	// without it [Key, Err].
	EventDegraded
	// EventChange: a Set, Delete, Expire, Clear or InvalidateTags took effect [Key; for
	// tags these, none for a Clear].
	EventChange
	// EventChangeFailed: one did not, or it is not known [Key, Err].
	EventChangeFailed
	// EventBusLost: invalidations may be missed, from now until EventBusConfirmed; no
	// cache [Err].
	EventBusLost
	// EventBusConfirmed: invalidations arrive again; no cache.
	EventBusConfirmed
	// EventRedisDown: a server has not answered a few commands in a row, and is left alone
	// until it answers a probe; no cache [Err].
	EventRedisDown
	// EventRedisUp: it has; no cache.
	EventRedisUp
	// EventJournaled: a change did not, or perhaps not, reach Redis, and is made later [Key, Err].
	EventJournaled
	// EventReplayed: such a change, or that of an EventResent, was made [Key].
	EventReplayed
	// EventJournalFull: there are too many of them; the cache is cleared when Redis is back.
	EventJournalFull
	// EventNotReplicated: a change took effect, but fewer replicas than Options.ReplicaWait
	// have confirmed it in time [Key, Err].
	EventNotReplicated
	// EventResent: a change is made once more, since another master may not have it; it is
	// an EventReplayed then [Key].
	EventResent
	// EventForgotten: there are too many changes to be made once more after a failover, and
	// the oldest would not be.
	EventForgotten
	eventKinds
)

// String returns the kind in lower-case words.
func (k EventKind) String() string {
	return [...]string{
		"get", "coalesced", "load", "load failed", "abandoned", "refresh", "wait", "wait timeout", "backoff",
		"lease won", "lease held", "renewal failed", "lease lost", "lease revoked", "locker failed", "commit stored", "commit refused", "commit failed",
		"bad payload", "outdated", "newer entry", "degraded", "change", "change failed", "bus lost", "bus confirmed",
		"redis down", "redis up", "journaled", "replayed", "journal full", "not replicated", "resent", "forgotten", "unknown",
	}[min(k, eventKinds)]
}

// Event is one thing that happened. Each kind has a counter in [Stats].
type Event struct {
	Kind     EventKind
	Outcome  Outcome
	Cache    string
	Key      string
	Duration time.Duration
	Err      error
}

// Observer sees events as they happen. Observe runs in the goroutine it tells of,
// also on the path of a local hit and in the one that reads the bus: it must be
// quick, safe for concurrent use, and must not call the cache. A panic in it is
// recovered, and lost.
type Observer interface {
	Observe(Event)
}

// ObserverFunc makes an [Observer] of a function.
type ObserverFunc func(Event)

// Observe implements [Observer].
func (f ObserverFunc) Observe(e Event) { f(e) }

// Step is a part of a flight that takes time.
type Step uint8

// The steps that a [Tracer] sees.
const (
	StepLoad    Step = iota // a loader runs
	StepWait                // a flight waits for the load of another process
	StepAcquire             // it asks for the lease
	StepCommit              // it stores what was loaded
	steps
)

// String returns the step in one lower-case word.
func (s Step) String() string {
	return [...]string{"load", "wait", "acquire", "commit", "unknown"}[min(s, steps)]
}

// Tracer is an [Observer] that also sees steps begin, to put spans around them. What
// is said of Observe holds for its methods. If Options.Observer is one, it is used as such.
// What a batch does in one step for many keys is one step here, with the first of them.
type Tracer interface {
	Observer
	// Begin is called before a step. The step runs with the context that it returns,
	// which must come from ctx: that of StepLoad is the loader's. end is called once,
	// when the step has ended, with its error.
	Begin(ctx context.Context, step Step, cache, key string) (within context.Context, end func(error))
	// Join is called when a call begins to wait for the flight that another call of its
	// process has started. flight is the context of that flight, with the values of the
	// call that started it. end is called once, when the wait has ended.
	Join(ctx, flight context.Context, cache, key string) (end func(error))
}

// begin tells the tracer, if there is one, of a step.
func (g *Gate) begin(ctx context.Context, step Step, cache, key string) (within context.Context, end func(error)) {
	if g.tracer == nil {
		return ctx, func(error) {}
	}
	return begin(ctx, g.tracer, step, cache, key)
}

// begin is t.Begin, which cannot panic, as Observe: the flight goes on without a span.
func begin(ctx context.Context, t Tracer, step Step, cache, key string) (within context.Context, end func(error)) {
	within, end = ctx, func(error) {}
	defer func() { _ = recover() }()
	traced, told := t.Begin(ctx, step, cache, key)
	return traced, ended(told)
}

// joined is t.Join, of a call that waits for another's flight. It cannot panic.
func joined(ctx, flight context.Context, t Tracer, cache, key string) (end func(error)) {
	end = func(error) {}
	defer func() { _ = recover() }()
	return ended(t.Join(ctx, flight, cache, key))
}

// ended is a tracer's function that cannot panic. To start again is no error of what
// has ended.
func ended(told func(error)) func(error) {
	return func(err error) {
		defer func() { _ = recover() }()
		if errors.Is(err, errRestart) {
			err = nil
		}
		told(err)
	}
}
