package herdgate

import (
	"time"

	"github.com/puzpuzpuz/xsync/v4"
)

// Stats are counts since the gate was opened or the cache was made. Each is the
// number of events of one kind; see [EventKind] for their exact meaning.
type Stats struct {
	// Calls of Get, Fetch, Lookup and Refresh that ended, and keys of GetMany: Gets is the sum of the others, their
	// outcomes. All callers that shared a flight count, so that one load of a herd of
	// 30 counts as Loaded: 30, Loads: 1.
	Gets     uint64
	Failed   uint64
	Local    uint64
	Remote   uint64
	Stale    uint64
	Loaded   uint64
	Waited   uint64
	Unlocked uint64
	Default  uint64

	Coalesced    uint64 // calls that joined another one's flight
	Loads        uint64 // runs of loaders; one of a BatchLoader counts for each key
	LoadFailures uint64 // those that failed; a not-found is no failure
	Abandoned    uint64 // those that ignored the end of their context
	Refreshes    uint64 // those behind a value that was served
	Waits        uint64 // flights that waited for another process
	WaitTimeouts uint64 // flights that waited longer than WaitTimeout
	Backoffs     uint64 // flights that met the mark of a failed load

	LeasesWon      uint64 // granted
	LeasesHeld     uint64 // refused: somebody else had it
	RenewalsFailed uint64 // tried again until the lease ends
	LeasesLost     uint64 // ended while the loader ran
	LeasesRevoked  uint64 // taken away by a change while the loader ran, or before it began
	LockerFailures uint64 // Options.Locker did not answer: Redis alone decided

	CommitsStored  uint64
	CommitsRefused uint64 // the lease was not held any more
	CommitsFailed  uint64 // not encoded, too large, not sent, or not kept by Redis

	BadPayloads   uint64 // entries that could not be used
	Outdated      uint64 // entries from before a Clear, or the invalidation of a tag
	NewerEntries  uint64 // entries of a newer version of the code
	Degraded      uint64 // flights that Redis did not answer
	Changes       uint64 // keys that were Set, Deleted or Expired, Clears, and invalidations of tags
	ChangesFailed uint64 // those that failed
	BusLost       uint64 // times that messages may have been lost; gate only
	BusConfirmed  uint64 // times that the subscription was confirmed; gate only
	RedisDown     uint64 // times that a server was found down; gate only
	RedisUp       uint64 // times that one was found to be back; gate only
	Journaled     uint64 // changes that wait until Redis is back
	Replayed      uint64 // what was made of them then: those of one key, or of one cache's tags, are made as one
	JournalFull   uint64 // times that there were too many of them

	NotReplicated uint64 // changes that took effect, but that fewer than Options.ReplicaWait replicas have confirmed
	Resent        uint64 // changes that are made once more since there is another master; Replayed counts them, too
	Forgotten     uint64 // changes that would not be, as there were too many after them
}

// counters count what a cache, or a gate without its caches, emits.
type counters struct {
	cache    string
	observer Observer
	kinds    [eventKinds]*xsync.Counter // EventGet is counted by its outcome
	outcomes [outcomes]*xsync.Counter
	hits     hitCounter // OutcomeLocal besides, of Get and Fetch
}

func newCounters(cache string, observer Observer) *counters {
	c := &counters{cache: cache, observer: observer, hits: newHitCounter()}
	for i := range c.kinds {
		c.kinds[i] = xsync.NewCounter()
	}
	for i := range c.outcomes {
		c.outcomes[i] = xsync.NewCounter()
	}
	return c
}

func (c *counters) emit(e Event) {
	c.kinds[e.Kind].Inc()
	if c.observer != nil {
		c.tell(e)
	}
}

// tell calls the observer. A panic of it would end a flight in the middle, or the
// process.
func (c *counters) tell(e Event) {
	defer func() { _ = recover() }()
	e.Cache = c.cache
	c.observer.Observe(e)
}

// hit is got for a local hit; it returns a number for [Cache.sample].
func (c *counters) hit(key string, err error) uint64 {
	if c.observer != nil {
		c.tell(Event{Kind: EventGet, Outcome: OutcomeLocal, Key: key, Err: err})
	}
	return c.hits.add()
}

// got counts a call that ended.
func (c *counters) got(key string, outcome Outcome, took time.Duration, err error) {
	c.outcomes[outcome].Inc()
	if c.observer != nil {
		c.tell(Event{Kind: EventGet, Outcome: outcome, Key: key, Duration: took, Err: err})
	}
}

// totals are the sums of several counters.
type totals struct {
	kinds    [eventKinds]uint64
	outcomes [outcomes]uint64
}

func (c *counters) addTo(t *totals) {
	for i, n := range c.kinds {
		t.kinds[i] += uint64(n.Value())
	}
	for i, n := range c.outcomes {
		t.outcomes[i] += uint64(n.Value())
	}
	t.outcomes[OutcomeLocal] += c.hits.sum()
}

func (t *totals) stats() Stats {
	s := Stats{
		Failed:   t.outcomes[OutcomeFailed],
		Local:    t.outcomes[OutcomeLocal],
		Remote:   t.outcomes[OutcomeRemote],
		Stale:    t.outcomes[OutcomeStale],
		Loaded:   t.outcomes[OutcomeLoaded],
		Waited:   t.outcomes[OutcomeWaited],
		Unlocked: t.outcomes[OutcomeUnlocked],
		Default:  t.outcomes[OutcomeDefault],

		Coalesced:    t.kinds[EventCoalesced],
		Loads:        t.kinds[EventLoad],
		LoadFailures: t.kinds[EventLoadFailed],
		Abandoned:    t.kinds[EventAbandoned],
		Refreshes:    t.kinds[EventRefresh],
		Waits:        t.kinds[EventWait],
		WaitTimeouts: t.kinds[EventWaitTimeout],
		Backoffs:     t.kinds[EventBackoff],

		LeasesWon:      t.kinds[EventLeaseWon],
		LeasesHeld:     t.kinds[EventLeaseHeld],
		RenewalsFailed: t.kinds[EventRenewalFailed],
		LeasesLost:     t.kinds[EventLeaseLost],
		LeasesRevoked:  t.kinds[EventLeaseRevoked],
		LockerFailures: t.kinds[EventLockerFailed],

		CommitsStored:  t.kinds[EventCommitStored],
		CommitsRefused: t.kinds[EventCommitRefused],
		CommitsFailed:  t.kinds[EventCommitFailed],

		BadPayloads:   t.kinds[EventBadPayload],
		Outdated:      t.kinds[EventOutdated],
		NewerEntries:  t.kinds[EventNewerEntry],
		Degraded:      t.kinds[EventDegraded],
		Changes:       t.kinds[EventChange],
		ChangesFailed: t.kinds[EventChangeFailed],
		BusLost:       t.kinds[EventBusLost],
		BusConfirmed:  t.kinds[EventBusConfirmed],
		RedisDown:     t.kinds[EventRedisDown],
		RedisUp:       t.kinds[EventRedisUp],
		Journaled:     t.kinds[EventJournaled],
		Replayed:      t.kinds[EventReplayed],
		JournalFull:   t.kinds[EventJournalFull],

		NotReplicated: t.kinds[EventNotReplicated],
		Resent:        t.kinds[EventResent],
		Forgotten:     t.kinds[EventForgotten],
	}
	s.Gets = s.Failed + s.Local + s.Remote + s.Stale + s.Loaded + s.Waited + s.Unlocked + s.Default
	return s
}
