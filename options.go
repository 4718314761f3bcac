package herdgate

import (
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/wire"
	"github.com/herdgate/herdgate/lock"
)

// Off switches a thing off that is on by default. It is the only negative value
// that [Options] and [Policy] accept.
const Off = -1

// Options are what a gate is opened with. The zero value of each field is its
// default.
type Options struct {
	// Redis is the shared tier: a go-redis v9 client of a single node, of Sentinel or of a
	// Cluster, Redis 6 or newer, without client-side caching. The gate does not close it.
	// Where the keys are on several nodes it must be a *redis.ClusterClient. nil: this
	// process caches for itself alone, in the local tier.
	//
	// Set ContextTimeoutEnabled in the client's options: a lone call then reads in its own
	// goroutine, in half the time. Its deadline counts as before, but a cancel may then be
	// noticed up to RedisTimeout late. While such calls follow one another they keep one
	// connection of the client's pool, if that may have more than 8 and is not a Cluster's.
	Redis redis.UniversalClient

	// Namespace is the first part of every Redis key and channel, and keeps apart
	// services that share a Redis: letters, digits, '.', '_' and '-'. Default
	// "herdgate".
	Namespace string

	// MaxLoads is the number of loaders that may run at once in this process, over
	// all caches. Default 64. Off: no limit.
	MaxLoads int

	// RedisTimeout bounds each command, whatever timeouts the client has. A command
	// that may be sent twice is, once, if no answer came. Default 250 ms.
	RedisTimeout time.Duration

	// LocalBytes is the memory the local tier may use for values, in bytes, over
	// all caches. A value counts with its encoded size, or what [WithSize] says.
	// Default 64 MiB. Off: no local tier; what is loaded while Redis is out is then kept
	// in up to 16 MiB until it is back.
	LocalBytes int64

	// AcceptJournaled makes Set, Delete, Expire, Clear and InvalidateTags return nil, and
	// not ErrJournaled, for a change that Redis has not got, and that is made once it answers. It is for callers
	// who would do nothing but go on. Default false.
	AcceptJournaled bool

	// ReplicaWait is how many replicas must confirm a Set, Delete, Expire, Clear or
	// InvalidateTags before it returns nil: a failover to one of these does not lose it. If
	// fewer do within half of RedisTimeout, and of the client's ReadTimeout, it returns an
	// error that matches [ErrNotReplicated]. Each change then costs a WAIT besides, sent in
	// the same step. Redis ends a WAIT with its next tick, 10 a second by default: with a
	// RedisTimeout of 200 ms or less a change that too few have may match ErrJournaled
	// instead, and is made again. What is made up for after an outage waits for no replicas.
	// Default 0: none, replication is asynchronous.
	ReplicaWait int

	// ResendWindow is how late the replicas may have a change. When Redis has another
	// master, or the master has started anew, the changes that this gate has made since so
	// long before it was last seen to be the same are made there once more: a Set as a
	// Delete, so that at worst they cost a load each. Up to 10 000 are remembered, the last
	// ones. While there are some, the masters are asked for their replication ids every
	// second, which needs the right to INFO; without it nothing is made again. Default
	// 10 s. Off: nothing is.
	ResendWindow time.Duration

	// Locker decides who loads, together with Redis: an engine of package lock over etcd,
	// ZooKeeper, a SQL database, or your own backend. nil: Redis alone decides. It must be
	// nil without Redis.
	//
	// Who is to load a key takes the lock of the key there, named like its build key
	// (<namespace>:b:<cache>:{<key>}), then the lease in Redis; what is loaded is stored under
	// that lease as ever, and then both are let go. So there is one load at a time as long as
	// one of the two keeps its promise, also where Redis forgets a lease, as in a failover;
	// and no locker, however bad, lets an old value come back after a change. It costs a load
	// two requests to the locker, and a process that waits one. A holder that dies keeps the
	// others from loading for LockTTL or the TTL of its lock, whichever is longer; a loader
	// whose lock is lost ends like one whose lease is.
	//
	// A locker that fails, or has not answered within a second, is left alone for a second:
	// loads then go on under the lease of Redis alone, counted as LockerFailures. So do the
	// instances that have no locker yet, in a roll-out.
	//
	// TryLock and the Unlock of its leases are used; TryLock should return soon after its ctx has
	// ended: while 16 calls have not, it is not asked. Redis's marks count as ever: MinRebuildInterval, back-offs. The gate does not close
	// the locker, which must outlive it.
	Locker lock.Locker

	// Observer sees what happens, event by event. nil: nobody.
	Observer Observer
}

// AfterWait says what becomes of a call that has waited for Policy.WaitTimeout.
type AfterWait uint8

const (
	// FailAfterWait returns ErrWaitTimeout. The default.
	FailAfterWait AfterWait = iota
	// LoadAfterWait loads the value once for the waiting callers of this process,
	// under the limit of MaxLoads, and stores it nowhere.
	LoadAfterWait
)

// Compression is a way to compress what is stored in Redis.
type Compression uint8

const (
	// NoCompression stores values as the codec has encoded them. The default.
	NoCompression Compression = iota
	// S2 is an extension of Snappy: the fastest, for values that are read often.
	S2
	// Zstd is Zstandard: a quarter smaller than S2 for lists of records, for three to
	// four times the work. Its encoders and decoders take memory, too: about 1.5 MB and
	// 70 KB for each that is at work at once.
	Zstd
)

// Policy is how a cache treats its entries. The zero value of each field is its
// default. Durations that Redis keeps are whole milliseconds; nothing is rounded.
type Policy struct {
	// TTL is how long an entry is fresh. Default 1 minute.
	TTL time.Duration

	// Stale is how long an entry is kept after its TTL. In that time it is served
	// at once, also while its loader runs or fails. Default 0: none, an entry is
	// gone when its TTL has passed, and its callers wait for the next.
	Stale time.Duration

	// Jitter spreads the TTL of each entry evenly over TTL ± this share of it, at
	// least ± 1 ms, so that entries stored together do not expire together. From 0
	// to 1. Default 0.1. Off: none.
	Jitter float64

	// EarlyBeta is how early a hot entry is refreshed before its TTL, in units of
	// what its load took: the one who stores an entry draws that moment for the
	// whole fleet ("XFetch": Vattani, Chierichetti, Lowenstein, Optimal
	// Probabilistic Cache Stampede Prevention, VLDB 2015). Larger is earlier.
	// Default 1. Off: not before the TTL.
	EarlyBeta float64

	// EarlyFraction refreshes a hot entry when this share of its TTL has passed, in
	// place of the point that EarlyBeta would draw: 0.8 for the last fifth. Between 0
	// and 1. Default 0: EarlyBeta counts.
	EarlyFraction float64

	// NegativeTTL is how long an ErrNotFound is remembered. Default: 5 s or TTL,
	// whichever is less. Off: it is not.
	NegativeTTL time.Duration

	// LocalTTL is how long a value of the local tier is served without asking
	// Redis, and so the longest that a lost invalidation can go unnoticed. Default:
	// 5 s or TTL, whichever is less. Off: this cache has no local tier. Without Redis
	// there is nothing to ask: the local tier then serves for TTL and Stale.
	LocalTTL time.Duration

	// LoadTimeout bounds one run of the loader. Default 10 s.
	LoadTimeout time.Duration

	// WaitTimeout bounds the time a call waits for another's load or for a load
	// slot. Default LoadTimeout.
	WaitTimeout time.Duration

	// SoftTimeout is how long a call that finds a stale value waits for a new one
	// before it takes the stale one. Default 0: not at all.
	SoftTimeout time.Duration

	// AfterWait says what happens when WaitTimeout has passed. Default FailAfterWait.
	AfterWait AfterWait

	// LockTTL is how long the rebuild lease outlives its holder: it is renewed each
	// third of it while the loader runs, so that it does not limit the load. At least
	// 50 ms. Default 2 s.
	LockTTL time.Duration

	// MinRebuildInterval is the least time between two loads of one key in the
	// fleet, also if it is deleted in between: a call that comes earlier waits for the
	// rest of it. At most LockTTL. Default: 100 ms, TTL or LockTTL, whichever is least.
	MinRebuildInterval time.Duration

	// FailureBackoff is the time after a failed load in which nobody in the fleet
	// tries again. It doubles with each failure in a row up to MaxFailureBackoff. A
	// call that comes when at most FailureBackoff, and no more than its WaitTimeout,
	// is left waits for its end; otherwise it gets a *BackoffError at once. Default
	// 250 ms.
	FailureBackoff time.Duration

	// MaxFailureBackoff is the longest back-off. At least FailureBackoff. Default:
	// 30 s or FailureBackoff, whichever is more.
	MaxFailureBackoff time.Duration

	// Tags are what all entries can be invalidated by, see [Cache.InvalidateTags]; a
	// [Loader] may set others for its entry. At most 64, of 1 to 256 bytes each.
	Tags []string

	// Version is the version of V's encoding. Raise it when V changes so that old
	// and new code cannot read each other's entries: the newer code rebuilds what
	// the older has stored; the older loads for itself what the newer has stored,
	// and leaves it alone. Default 0.
	Version uint16

	// Codec encodes values for Redis: codec.Msgpack, codec.JSON, codec.Raw for []byte
	// and string, or your own. A cache whose codec changes needs a new Version, too.
	// Default codec.Msgpack().
	Codec codec.Codec

	// Compression compresses values in Redis, where that saves an eighth or more. An
	// entry says how it is compressed: instances with other settings read it, and the
	// setting may change at any time. Default NoCompression.
	Compression Compression

	// CompressAbove is the size in bytes, as the codec has encoded it, up to which a
	// value is left as it is. Default 1024. Without a Compression it must be 0.
	CompressAbove int

	// MaxSize is the most bytes that a value may take in Redis, compressed if it is: a
	// large value holds up all who share the server. A larger one goes to the callers
	// that wait for its load, is not stored, and for a second the other callers load for
	// themselves; a Set of it fails, and what was stored before stays. Both errors, that
	// of EventCommitFailed and that of Set, wrap [ErrTooLarge]. It counts when a value is
	// stored, not when it is read. Default, and most, codec.MaxSize (64 MiB).
	MaxSize int
}

// minLockTTL leaves a renewal a few milliseconds, of which several must fit.
const minLockTTL = 50 * time.Millisecond

func (o Options) resolved() (Options, error) {
	if o.Namespace == "" {
		o.Namespace = "herdgate"
	}
	c := checker{scope: "Options."}
	c.name("Namespace", o.Namespace)
	c.count("MaxLoads", &o.MaxLoads, 64)
	c.duration("RedisTimeout", &o.RedisTimeout, 250*time.Millisecond)
	if o.ReplicaWait < 0 {
		c.fail("ReplicaWait", o.ReplicaWait, "a number of replicas, or 0 for none")
	}
	c.durationOrOff("ResendWindow", &o.ResendWindow, 10*time.Second)
	switch {
	case o.LocalBytes == 0:
		o.LocalBytes = 64 << 20
	case o.LocalBytes < 0 && o.LocalBytes != Off:
		c.fail("LocalBytes", o.LocalBytes, "a number of bytes, 0 for the default, or Off")
	}
	if o.Locker != nil && o.Redis == nil {
		c.fail("Locker", fmt.Sprintf("a %T", o.Locker), "nil without Redis: what is loaded is then kept by this process alone, and there is no fleet to lock it against")
	}
	return o, c.err
}

// maxLifetime is what 32 bits of milliseconds in an entry's header can say.
const maxLifetime = math.MaxUint32 * time.Millisecond

func (p Policy) resolved() (Policy, error) {
	c := checker{scope: "Policy."}
	beta := p.EarlyBeta
	c.duration("TTL", &p.TTL, time.Minute)
	c.durationOrOff("Stale", &p.Stale, 0)
	c.share("Jitter", &p.Jitter, 0.1, 1)
	c.share("EarlyBeta", &p.EarlyBeta, 1, math.Inf(1))
	c.durationOrOff("NegativeTTL", &p.NegativeTTL, min(p.TTL, 5*time.Second))
	c.durationOrOff("LocalTTL", &p.LocalTTL, min(p.TTL, 5*time.Second))
	c.duration("LoadTimeout", &p.LoadTimeout, 10*time.Second)
	c.duration("WaitTimeout", &p.WaitTimeout, p.LoadTimeout)
	c.durationOrOff("SoftTimeout", &p.SoftTimeout, 0)
	c.duration("LockTTL", &p.LockTTL, 2*time.Second)
	c.duration("MinRebuildInterval", &p.MinRebuildInterval, min(p.TTL, p.LockTTL, 100*time.Millisecond))
	c.duration("FailureBackoff", &p.FailureBackoff, 250*time.Millisecond)
	c.duration("MaxFailureBackoff", &p.MaxFailureBackoff, max(p.FailureBackoff, 30*time.Second))
	if p.AfterWait > LoadAfterWait {
		c.fail("AfterWait", p.AfterWait, "FailAfterWait or LoadAfterWait")
	}
	if p.MinRebuildInterval > p.LockTTL {
		c.fail("MinRebuildInterval", p.MinRebuildInterval, fmt.Sprintf("at most LockTTL, which is %v", p.LockTTL))
	}
	if p.MaxFailureBackoff < p.FailureBackoff {
		c.fail("MaxFailureBackoff", p.MaxFailureBackoff, fmt.Sprintf("at least FailureBackoff, which is %v", p.FailureBackoff))
	}
	if p.Stale == Off {
		p.Stale = 0
	}
	if float64(p.TTL)*(1+p.Jitter)+float64(p.Stale) > float64(maxLifetime) {
		c.fail("TTL", p.TTL, fmt.Sprintf("with Jitter and Stale at most %v", maxLifetime))
	}
	if float64(p.NegativeTTL)*(1+p.Jitter) > float64(maxLifetime) {
		c.fail("NegativeTTL", p.NegativeTTL, fmt.Sprintf("with Jitter at most %v", maxLifetime))
	}
	if p.EarlyFraction != 0 {
		if !(p.EarlyFraction > 0 && p.EarlyFraction < 1) {
			c.fail("EarlyFraction", p.EarlyFraction, "a share between 0 and 1, or 0 for EarlyBeta")
		}
		if beta != 0 {
			c.fail("EarlyBeta", beta, "0 beside an EarlyFraction: one of the two")
		}
	}
	if want := wire.CheckTags(p.Tags); want != "" {
		c.fail("Tags", fmt.Sprintf("%q", p.Tags), want)
	}
	if p.LockTTL < minLockTTL {
		c.fail("LockTTL", p.LockTTL, fmt.Sprintf("at least %v, for several renewals to fit", minLockTTL))
	}
	if p.Codec == nil {
		p.Codec = codec.Msgpack()
	} else if p.Codec.ID() == 0 {
		c.fail("Codec", p.Codec.Name(), "a codec whose ID is not 0")
	}
	if p.Compression > Zstd {
		c.fail("Compression", p.Compression, "NoCompression, S2 or Zstd")
	}
	if p.Compression != NoCompression {
		c.size("CompressAbove", &p.CompressAbove, 1024, math.MaxInt)
	} else if p.CompressAbove != 0 {
		c.fail("CompressAbove", p.CompressAbove, "0 without a Compression")
	}
	c.size("MaxSize", &p.MaxSize, codec.MaxSize, codec.MaxSize)
	return p, c.err
}

// checker validates fields and keeps the first fault.
type checker struct {
	scope string
	err   error
}

func (c *checker) fail(field string, value any, want string) {
	if c.err == nil {
		c.err = &ConfigError{Field: c.scope + field, Value: value, Want: want}
	}
}

// duration puts the default in place of zero.
func (c *checker) duration(field string, d *time.Duration, byDefault time.Duration) {
	if *d == 0 {
		*d = byDefault
	}
	if *d < 0 || *d%time.Millisecond != 0 {
		c.fail(field, *d, "a positive duration in whole milliseconds, or 0 for the default")
	}
}

// durationOrOff is duration for a field that may be Off, which it keeps.
func (c *checker) durationOrOff(field string, d *time.Duration, byDefault time.Duration) {
	switch {
	case *d == Off:
	case *d == 0:
		*d = byDefault
	case *d < 0 || *d%time.Millisecond != 0:
		c.fail(field, *d, "a positive duration in whole milliseconds, 0 for the default, or Off")
	}
}

func (c *checker) count(field string, n *int, byDefault int) {
	switch {
	case *n == 0:
		*n = byDefault
	case *n < 0 && *n != Off:
		c.fail(field, *n, "a positive number, 0 for the default, or Off")
	}
}

// size is for a number of bytes that cannot be switched off.
func (c *checker) size(field string, n *int, byDefault, most int) {
	if *n == 0 {
		*n = byDefault
	}
	switch {
	case *n < 0:
		c.fail(field, *n, "a positive number of bytes, or 0 for the default")
	case *n > most:
		c.fail(field, *n, fmt.Sprintf("at most %d bytes", most))
	}
}

// positive is count for a field that cannot be Off.
func (c *checker) positive(field string, n *int, byDefault int) {
	if *n == 0 {
		*n = byDefault
	}
	if *n < 0 {
		c.fail(field, *n, "a positive number, or 0 for the default")
	}
}

func (c *checker) share(field string, f *float64, byDefault, most float64) {
	switch {
	case *f == 0:
		*f = byDefault
	case *f == Off:
		*f = 0
	case !(*f > 0 && *f <= most) || math.IsInf(*f, 1):
		want := "a positive number, 0 for the default, or Off"
		if most == 1 {
			want = "a share between 0 and 1, 0 for the default, or Off"
		}
		c.fail(field, *f, want)
	}
}

// name refuses what could be confused with a separator of keys and messages.
func (c *checker) name(field, s string) {
	for i := range len(s) {
		b := s[i]
		letter := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
		if !letter && b != '.' && b != '_' && b != '-' {
			c.fail(field, fmt.Sprintf("%q", s), "letters, digits, '.', '_' and '-' only")
			return
		}
	}
	if s == "" {
		c.fail(field, `""`, "a name")
	}
}

// Option is a setting of a cache that depends on its V.
type Option[V any] func(*hooks[V])

type hooks[V any] struct {
	clone     func(V) V
	size      func(V) int64
	byDefault func(key string, err error) (V, bool)
}

// WithClone makes every call return a copy of the cached value, made by clone, for
// callers that want to change what they get. clone is called concurrently.
func WithClone[V any](clone func(V) V) Option[V] {
	return func(h *hooks[V]) { h.clone = clone }
}

// WithSize says how many bytes of memory a value of the local tier counts for.
// Default: the length of its encoding. size must not be negative; it may be called
// concurrently.
func WithSize[V any](size func(V) int64) Option[V] {
	return func(h *hooks[V]) { h.size = size }
}

// WithDefault says what Get, Fetch, Lookup and GetMany return where there is no value to serve,
// not even a stale one, and none could be loaded: value is given the key and the error
// that they would return, a *[LoadError] or *[BackoffError], and reports whether it has
// something in its place. That is not kept, and its outcome is OutcomeDefault. An
// ErrNotFound, an ErrNoLoader, and the end of the caller's context are no such error.
// value may be called concurrently.
func WithDefault[V any](value func(key string, err error) (V, bool)) Option[V] {
	return func(h *hooks[V]) { h.byDefault = value }
}

// EntryOption is a setting of one [Cache.Set], in place of what the policy says. One
// that makes no sense is a *[ConfigError] in the error of Set.
type EntryOption func(*settings)

// EntryTTL sets how long the value is fresh, see [Load.SetTTL].
func EntryTTL(ttl time.Duration) EntryOption {
	return func(s *settings) { s.setTTL("EntryTTL", ttl) }
}

// EntryStale sets how long it may be served after that, see [Load.SetStale].
func EntryStale(stale time.Duration) EntryOption {
	return func(s *settings) { s.setStale("EntryStale", stale) }
}

// EntryTags sets what it can be invalidated by, see [Load.SetTags].
func EntryTags(tags ...string) EntryOption {
	return func(s *settings) { s.setTags("EntryTags", tags) }
}
