package herdgate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/herdgate/herdgate/internal/wire"
)

// LoaderFunc loads the value of a key from its source.
//
// It runs in a goroutine of its own, for all callers that want the key, in the
// whole fleet: ctx carries the values of the call that started it, but not its
// cancellation. ctx ends after Policy.LoadTimeout, when a change of the key makes
// the load worthless (cause [ErrRevoked]), when the lease was lost (cause
// lock.ErrLost), and when the gate closes (cause [ErrClosed]); but the third load in
// a row that changes overtake runs to its end, for whoever waits since. A loader that
// does not return then is abandoned: its callers go on without it and its load slot is
// given back.
//
// [ErrNotFound], wrapped or not, says that the key does not exist, and is
// remembered. Any other error, a panic or a runtime.Goexit is a failed load: the
// callers get it as a *[LoadError], and nobody in the fleet tries again before the
// back-off has passed.
//
// A loader may call Get on this or another cache with its ctx; it then needs no
// second load slot. It must not Get the key that it loads.
type LoaderFunc[V any] func(ctx context.Context, key string) (V, error)

// Loader is the rich form of a [LoaderFunc], for [NewLoader]: it is handed the load,
// from which it learns what is stored already, and which it tells how to store what
// it returns. All that is said of a LoaderFunc holds for it.
type Loader[V any] interface {
	Load(ctx context.Context, load *Load[V]) (V, error)
}

// Load is one run of a [Loader] for one key. It is the loader's until that returns,
// and not safe for concurrent use.
//
// What the loader sets holds for the entry it makes and for no other. A setting that
// makes no sense fails the load, with a *[ConfigError].
type Load[V any] struct {
	key string
	old *copied[V] // nil: there is none
	age time.Duration

	settings
	token       string
	unmodified  bool
	uncacheable bool
}

// settings are what an entry has in place of its policy's.
type settings struct {
	ttl, stale time.Duration // 0: the policy's; stale may be Off
	tags       []string      // nil: the policy's
	err        error         // what makes no sense in them
}

func newLoad[V any](key string, old *copied[V], now time.Duration) *Load[V] {
	l := &Load[V]{key: key, old: old}
	if old != nil {
		l.age = old.age(now)
	}
	return l
}

// Key is the key to load.
func (l *Load[V]) Key() string { return l.key }

// Old returns the value that is stored for the key, stale or still fresh, and its
// age; ok is false if there is none, or a remembered ErrNotFound. The value is shared
// with callers that are served it meanwhile: it must not be changed.
func (l *Load[V]) Old() (value V, age time.Duration, ok bool) {
	if l.old == nil || l.old.missing {
		return value, 0, false
	}
	return l.old.value, l.age, true
}

// Token returns what the loader that made the stored entry has set with
// [Load.SetToken]; "" if nothing.
func (l *Load[V]) Token() string {
	if l.old == nil {
		return ""
	}
	return l.old.extended.Token
}

// SetToken keeps a mark of the source with the entry, such as an ETag or a version,
// for the next load to ask whether anything has changed: at most 4096 bytes.
func (l *Load[V]) SetToken(token string) {
	if len(token) > wire.MaxToken {
		l.fail("Load.SetToken", fmt.Sprintf("%d bytes", len(token)), fmt.Sprintf("at most %d bytes", wire.MaxToken))
	}
	l.token = token
}

// SetTTL sets how long the entry is fresh, in place of Policy.TTL and without its
// jitter: the source may know when its value ends. At least 1 ms; fractions of a
// millisecond are cut off. It holds for a not-found, too, in place of
// Policy.NegativeTTL.
func (l *Load[V]) SetTTL(ttl time.Duration) {
	l.setTTL("Load.SetTTL", ttl)
}

// SetStale sets how long the entry may be served after its TTL, in place of
// Policy.Stale. At least 1 ms, with fractions of a millisecond cut off, or Off.
func (l *Load[V]) SetStale(stale time.Duration) {
	l.setStale("Load.SetStale", stale)
}

// SetTags sets what the entry can be invalidated by, see [Cache.InvalidateTags], in
// place of Policy.Tags: at most 64 tags of 1 to 256 bytes.
func (l *Load[V]) SetTags(tags ...string) {
	l.setTags("Load.SetTags", tags)
}

// NotModified is what a loader returns when the source says that the stored value
// still holds: the entry is fresh anew, from now on, without being encoded and sent
// anywhere else. Its token and tags stay unless they are set. Without an old value
// the load fails.
//
//	return load.NotModified()
func (l *Load[V]) NotModified() (V, error) {
	v, _, ok := l.Old()
	if !ok {
		return v, errNothingOld
	}
	l.unmodified = true
	return v, nil
}

var errNothingOld = errors.New("herdgate: the loader says \"not modified\", but there is no old value")

// DoNotCache says that what the loader returns is for those who wait for it in this
// process, and is not stored. What was stored goes. For a second, the other callers
// of the key load for themselves, without waiting for one another.
func (l *Load[V]) DoNotCache() { l.uncacheable = true }

func (s *settings) setTTL(by string, ttl time.Duration) { s.ttl = s.duration(by, ttl) }

func (s *settings) setStale(by string, stale time.Duration) {
	if s.stale = Off; stale != Off {
		s.stale = s.duration(by, stale)
	}
}

func (s *settings) setTags(by string, tags []string) {
	if want := wire.CheckTags(tags); want != "" {
		s.fail(by, fmt.Sprintf("%q", tags), want)
	}
	s.tags = append([]string{}, tags...) // not nil: it says that there shall be none
}

func (s *settings) duration(by string, d time.Duration) time.Duration {
	whole := d.Truncate(time.Millisecond)
	if whole <= 0 || whole > maxLifetime {
		s.fail(by, d, fmt.Sprintf("at least 1ms and at most %v", maxLifetime))
	}
	return whole
}

func (s *settings) fail(by string, value any, want string) {
	if s.err == nil {
		s.err = &ConfigError{Field: by, Value: value, Want: want}
	}
}

// check returns what makes no sense in the settings.
func (s *settings) check(p *Policy) error {
	ttl, stale := s.ttl, s.stale
	if ttl == 0 {
		ttl = time.Duration(float64(p.TTL) * (1 + p.Jitter))
	}
	if stale == 0 {
		stale = p.Stale
	}
	if ttl+stale > maxLifetime {
		s.fail("the entry's TTL", ttl, fmt.Sprintf("with the stale window of %v at most %v", stale, maxLifetime))
	}
	return s.err
}

// body is the value as it is stored, if that is known: of one that was not modified.
func (l *Load[V]) body(old found[V]) body {
	if l.unmodified {
		return old.body
	}
	return body{}
}

// extended is what is stored beside the value.
func (l *Load[V]) extended(p *Policy) wire.Extended {
	x := wire.Extended{Tags: p.Tags, Token: l.token}
	if l.tags != nil {
		x.Tags = l.tags
	}
	if l.unmodified {
		if l.tags == nil {
			x.Tags = l.old.extended.Tags
		}
		if l.token == "" {
			x.Token = l.old.extended.Token
		}
	}
	return x
}

// plan is how a key is loaded, and how its entry is treated.
type plan[V any] struct {
	loader Loader[V] // nil: nothing loads it
	policy *Policy
}

func (p *plan[V]) loads() bool { return p != nil && p.loader != nil }

// simple makes a Loader of a LoaderFunc.
type simple[V any] LoaderFunc[V]

// Load implements Loader.
func (s simple[V]) Load(ctx context.Context, load *Load[V]) (V, error) { return s(ctx, load.key) }

// Mux is a [Loader] that chooses among others by the key, each with a policy of its
// own, for families of keys in one cache: Refresh, GetMany and the refreshes behind
// stale values then find the loader of every key. Make it with [NewMux], fill it, and
// hand it to [NewLoader]; the cache uses what it holds then. Not safe for concurrent
// use while it is filled.
type Mux[V any] struct {
	rules []rule[V] // the one to try first first
}

type rule[V any] struct {
	pattern pattern
	plan    plan[V]
}

// NewMux returns an empty Mux. A key that no pattern matches has no loader.
func NewMux[V any]() *Mux[V] { return &Mux[V]{} }

// Handle loads the keys that match a pattern with a loader, under a policy. In a
// pattern, '*' stands for any number of any bytes, also none; all else for itself:
// "user:*", "user:*:cart", "*" for all keys. Of the patterns that match a key, the
// one with the longest text before its first '*' counts; of those the one with the
// most text; of those the one that was handled first.
//
// The fields of policy that are zero have their defaults, not those of the cache's
// policy. Codec and Version belong to the whole cache and must be zero here. A
// *[ConfigError] says what in pattern or policy cannot be used.
func (m *Mux[V]) Handle(pattern string, load Loader[V], policy Policy) error {
	resolved, err := policy.resolved()
	switch {
	case err != nil:
		return fmt.Errorf("pattern %q: %w", pattern, err)
	case load == nil:
		return &ConfigError{Field: "load", Value: "nil", Want: fmt.Sprintf("a loader for the keys that match %q", pattern)}
	case policy.Codec != nil:
		return &ConfigError{Field: "Policy.Codec", Value: policy.Codec.Name(), Want: "none for a pattern: a cache has one codec"}
	case policy.Version != 0:
		return &ConfigError{Field: "Policy.Version", Value: policy.Version, Want: "0 for a pattern: a cache has one version"}
	case slices.ContainsFunc(m.rules, func(r rule[V]) bool { return r.pattern == newPattern(pattern) }):
		return &ConfigError{Field: "pattern", Value: fmt.Sprintf("%q", pattern), Want: "a pattern that is not handled yet"}
	}
	m.rules = append(m.rules, rule[V]{pattern: newPattern(pattern), plan: plan[V]{loader: load, policy: &resolved}})
	slices.SortStableFunc(m.rules, func(a, b rule[V]) int { return a.pattern.compare(b.pattern) })
	return nil
}

// HandleFunc is Handle for a plain function.
func (m *Mux[V]) HandleFunc(pattern string, load LoaderFunc[V], policy Policy) error {
	if load == nil {
		return m.Handle(pattern, nil, policy)
	}
	return m.Handle(pattern, simple[V](load), policy)
}

// Load implements [Loader]: with the loader of the load's key, or ErrNoLoader.
func (m *Mux[V]) Load(ctx context.Context, load *Load[V]) (V, error) {
	if p := m.plan(load.key); p != nil {
		return p.loader.Load(ctx, load)
	}
	var zero V
	return zero, ErrNoLoader
}

// clone is a copy that further rules do not change.
func (m *Mux[V]) clone() *Mux[V] { return &Mux[V]{rules: slices.Clone(m.rules)} }

// plan is that of the first rule that matches key, nil for none.
func (m *Mux[V]) plan(key string) *plan[V] {
	for i := range m.rules {
		if m.rules[i].pattern.matches(key) {
			return &m.rules[i].plan
		}
	}
	return nil
}
