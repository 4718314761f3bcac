package herdgate

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/wire"
	"github.com/herdgate/herdgate/singleflight"
)

// copyOverhead is what a copy costs beside its value, in bytes; the local tier adds
// its key and slot.
const copyOverhead = 128

// copied is a decoded entry. It does not change once it is in the local tier,
// except for ask. Times are the gate's monotonic time.
type copied[V any] struct {
	// What a hit reads comes first, so that it mostly lies in one line of memory.

	ahead  time.Duration // from when on the copy is looked after behind a hit: early, or shortly before check
	gap    uint64
	kept   *keptKey // nil: it is not kept fresh without being read
	tagged bool
	apart  bool // not to be kept in the local tier
	spare  bool // kept all the same, while Redis is out
	content[V]

	size int       // bytes that the value counts for
	seen wire.Seen // version of the entry

	built time.Duration // when the entry was stored
	early time.Duration // from when on it is refreshed ahead
	fresh time.Duration // until when
	hard  time.Duration // until when it may be served stale
	check time.Duration // until when it may be served without asking Redis
	turn  atomic.Uint64 // of the cache's tagBook when the tags were found to hold
	ask   atomic.Int64  // a hit before this time starts no refresh
}

// content is what an entry says: a value, or that there is none.
type content[V any] struct {
	missing  bool // a remembered ErrNotFound
	value    V
	extended wire.Extended
}

// askPause is the time between two attempts of local hits to start a refresh.
const askPause = 10 * time.Millisecond

// due reports whether the caller is to start a refresh: one caller in each askPause.
func (cp *copied[V]) due(now time.Duration) bool {
	if now < cp.ahead {
		return false
	}
	at := cp.ask.Load()
	return int64(now) >= at && cp.ask.CompareAndSwap(at, int64(now+askPause))
}

func (cp *copied[V]) stale(now time.Duration) bool { return now >= cp.fresh }

// servable reports whether the copy is fresh, or stale within its window.
func (cp *copied[V]) servable(now time.Duration) bool { return now < cp.hard }

func (cp *copied[V]) age(now time.Duration) time.Duration { return max(0, now-cp.built) }

// expired is the copy marked stale: served for its stale window at most.
func (cp *copied[V]) expired(now time.Duration) *copied[V] {
	hard := min(cp.hard, now+cp.hard-cp.fresh)
	return &copied[V]{
		content: cp.content, size: cp.size, seen: cp.seen, apart: cp.apart, spare: cp.spare, tagged: cp.tagged,
		built: cp.built, early: now, ahead: now, fresh: now, hard: hard, check: hard,
	}
}

func (c content[V]) err() error {
	if c.missing {
		return ErrNotFound
	}
	return nil
}

// result is a copy as it is served.
func (cp *copied[V]) result(from Outcome, now time.Duration) (Result[V], error) {
	r := Result[V]{Value: cp.value, Outcome: from, Age: cp.age(now), Stale: cp.stale(now)}
	if r.Stale {
		r.Outcome = OutcomeStale
	}
	return r, cp.err()
}

// lifetime is how long an entry lives from when it is stored.
type lifetime struct{ fresh, hard, early time.Duration }

// draw gives an entry its lifetime. took is how long its load took.
func (p *Policy) draw(took time.Duration) lifetime {
	fresh := p.jittered(p.TTL)
	return lifetime{fresh: fresh, hard: fresh + p.Stale, early: p.earlyPoint(fresh, took)}
}

// drawMissing is draw for a not-found.
func (p *Policy) drawMissing() lifetime {
	fresh := p.jittered(max(p.NegativeTTL, 0))
	return lifetime{fresh: fresh, hard: fresh, early: fresh}
}

// jittered is a duration of whole milliseconds, at least one, around ttl.
func (p *Policy) jittered(ttl time.Duration) time.Duration {
	fresh := ttl
	if spread := p.Jitter * float64(ttl); spread > 0 {
		spread = max(spread, float64(time.Millisecond))
		fresh += time.Duration(spread * (2*mathrand.Float64() - 1))
	}
	return max(fresh.Round(time.Millisecond), time.Millisecond)
}

// earlyPoint is when an entry is to be refreshed that is fresh for so long.
func (p *Policy) earlyPoint(fresh, took time.Duration) time.Duration {
	if p.EarlyFraction > 0 {
		return time.Duration(p.EarlyFraction * float64(fresh))
	}
	// A load that takes longer than the TTL would put the point before the entry
	// itself; half the TTL is kept in any case.
	ahead := p.EarlyBeta * float64(took) * mathrand.ExpFloat64()
	return fresh - time.Duration(min(ahead, float64(fresh)/2))
}

// life is the lifetime of what was loaded: the policy's, but for what the loader has set.
func (got *loaded[V]) life(p *Policy) lifetime {
	l := p.draw(got.took)
	if got.missing {
		l = p.drawMissing()
	}
	stale := l.hard - l.fresh
	if got.load.stale == Off {
		stale = 0
	} else if got.load.stale > 0 {
		stale = got.load.stale
	}
	if got.load.ttl > 0 {
		l.fresh, l.early = got.load.ttl, got.load.ttl
		if !got.missing {
			l.early = p.earlyPoint(l.fresh, got.took)
		}
	}
	l.hard = l.fresh + stale
	return l
}

// encoded is an entry ready to be stored. The script that stores it writes its
// build time.
type encoded struct {
	entry []byte
	seen  wire.Seen // its version
	size  int       // of the payload, before it was compressed
}

// b is the value as it is stored, if that is known already.
func (c *Cache[V]) encode(keys remote.Keys, what content[V], l lifetime, generation uint64, p *Policy, b body) (encoded, error) {
	header := wire.Header{
		Codec:   c.policy.Codec.ID(),
		Schema:  c.policy.Version,
		KeyHash: wire.KeyHash(keys.V, generation),
		Fresh:   uint32(l.fresh / time.Millisecond),
		Hard:    uint32(l.hard / time.Millisecond),
		Early:   uint32(l.early / time.Millisecond),
		Version: newVersion(),
	}
	if what.missing {
		header.Flags |= wire.FlagNegative
	} else {
		if b.data == nil {
			var err error
			if b, err = c.pack(what.value, p); err != nil {
				return encoded{}, err
			}
		}
		if n := len(b.data); n > p.MaxSize && c.gate.store != nil {
			return encoded{}, fmt.Errorf("%w: %d bytes, want at most Policy.MaxSize, which is %d", ErrTooLarge, n, p.MaxSize)
		}
		header.Flags |= b.flags
	}
	payload := b.data
	if !what.extended.Empty() {
		header.Flags |= wire.FlagExtended
		payload = append(wire.AppendExtended(nil, what.extended), payload...)
	}
	entry := wire.Append(nil, header, payload)
	return encoded{entry: entry, seen: wire.SeenIn(entry), size: b.size}, nil
}

// newVersion is random so that two stores never share one, in whatever process.
func newVersion() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// made is the local copy of an entry that was stored at the time built.
func (c *Cache[V]) made(of content[V], e encoded, l lifetime, built time.Duration, p *Policy) *copied[V] {
	cp := &copied[V]{content: of}
	c.fill(cp, e, l, built, p)
	return cp
}

// fill completes a copy that has its content.
func (c *Cache[V]) fill(cp *copied[V], e encoded, l lifetime, built time.Duration, p *Policy) {
	cp.size, cp.seen = e.size, e.seen
	cp.built, cp.early, cp.fresh, cp.hard = built, built+l.early, built+l.fresh, built+l.hard
	if c.hooks.size != nil && !cp.missing {
		cp.size = int(max(0, c.hooks.size(cp.value)))
	}
	cp.apart = p.LocalTTL == Off || !c.tiered
	cp.tagged = len(cp.extended.Tags) > 0
	cp.check, cp.ahead = cp.hard, cp.early
	if c.gate.store != nil && !cp.apart {
		// A hot copy is checked in the last tenth of its LocalTTL, so that no caller
		// waits for Redis at its end.
		check := c.gate.now() + p.LocalTTL
		cp.check, cp.ahead = min(cp.hard, check), min(cp.early, check-p.LocalTTL/10)
	}
}

// found is an entry as it was read.
type found[V any] struct {
	cp    *copied[V] // nil: absent, or unusable
	seen  wire.Seen  // its version, for the acquire script
	newer bool       // written by a newer version of the code: not to be touched

	at   time.Duration // when it was known, if there is a cp
	body body          // cp's value as it is stored; without data if that is not known
}

// interpret reads an entry, which never changes afterwards: a codec may keep parts of
// it. An error means that its age cannot be told, as Redis does not answer; an entry
// that cannot be used is no error but absent (I7). at is when the reply was there: to read
// a clock takes longer than the rest.
func (c *Cache[V]) interpret(ctx context.Context, key string, keys remote.Keys, entry []byte, at time.Duration, generation uint64, p *plan[V]) (found[V], error) {
	if entry == nil {
		return found[V]{}, nil
	}
	end := at // later, if more had to be asked
	seen := wire.SeenIn(entry)
	header, payload, err := wire.Parse(entry, c.want(keys, generation))
	if errors.Is(err, wire.ErrOther) {
		c.events.emit(Event{Kind: EventOutdated, Key: key})
		return found[V]{seen: seen}, nil
	}
	if errors.Is(err, wire.ErrNewer) {
		c.events.emit(Event{Kind: EventNewerEntry, Key: key})
		return found[V]{seen: seen, newer: true}, nil
	}
	cp := new(copied[V])
	what := &cp.content
	what.missing = header.Flags&wire.FlagNegative != 0
	var b body
	if err == nil && header.Flags&wire.FlagExtended != 0 {
		what.extended, payload, err = wire.CutExtended(payload)
	}
	if err == nil && len(what.extended.Tags) > 0 {
		hold, err := c.holds(ctx, what.extended)
		if err != nil {
			return found[V]{}, err
		}
		if !hold {
			c.events.emit(Event{Kind: EventOutdated, Key: key})
			return found[V]{seen: seen}, nil
		}
		end = c.gate.now()
	}
	var old *copied[V]
	if c.tiered {
		old = c.copies.Load(key)
	}
	if err == nil && old != nil && old.seen == seen {
		// The copy is of this very entry.
		what.value, b = old.value, body{data: payload, flags: header.Flags & (wire.FlagS2 | wire.FlagZstd), size: old.size}
	} else if err == nil && !what.missing {
		b, err = singleflight.Protect(func() (body, error) {
			b, plain, err := c.unpack(payload, header.Flags)
			if err == nil {
				err = c.policy.Codec.Unmarshal(plain, &what.value)
			}
			return b, err
		})
	}
	if err != nil {
		c.events.emit(Event{Kind: EventBadPayload, Key: key, Err: err})
		return found[V]{seen: seen}, nil //nolint:nilerr // a bad payload is a miss, told to the observer
	}
	ms := func(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }
	l := lifetime{fresh: ms(header.Fresh), hard: ms(header.Hard), early: ms(header.Early)}
	var age time.Duration
	known := header.BuiltAt > 0
	if known {
		server, waited, err := c.gate.store.ServerTime(ctx, keys, at)
		if err != nil {
			return found[V]{}, err
		}
		if waited {
			end = c.gate.now()
		}
		age = server - time.Duration(min(header.BuiltAt, math.MaxInt64/int64(time.Millisecond)))*time.Millisecond
		known = age > -clockError && age < l.hard
		age = max(age, 0)
	}
	c.fill(cp, encoded{seen: seen, size: b.size}, l, at-age, p.policy)
	if !known {
		// Marked stale by Expire, or stamped by another clock: stale, and for how long
		// more cannot be told. That Redis still has it says that it is not over (I11).
		cp.built, cp.early, cp.ahead, cp.fresh = at-l.hard, at, at, at
		cp.hard = at
		if l.hard > l.fresh {
			cp.hard = at + l.hard - l.fresh
		}
		cp.check = min(cp.hard, at+unknownCheck) // only Redis knows when it ends
	}
	return found[V]{cp: cp, seen: seen, at: end, body: b}, nil
}

// want is what an entry of this cache must look like.
func (c *Cache[V]) want(keys remote.Keys, generation uint64) wire.Want {
	return wire.Want{Codec: c.policy.Codec.ID(), Schema: c.policy.Version, KeyHash: wire.KeyHash(keys.V, generation)}
}

// unknownCheck is how long a copy of unknown age is served without asking Redis.
const unknownCheck = 200 * time.Millisecond

// clockError is how far the server's time may be misjudged between two samples of it.
const clockError = time.Second
