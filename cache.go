package herdgate

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	"github.com/herdgate/herdgate/internal/local"
	"github.com/herdgate/herdgate/internal/pack"
	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/singleflight"
)

// Cache is a read-through cache of values of one type under one policy. Safe for
// concurrent use.
type Cache[V any] struct {
	gate   *Gate
	name   string
	policy *Policy
	common plan[V] // of the keys that no rule is for
	rules  *Mux[V] // nil: there are none
	hooks  hooks[V]

	tagged     bool // its entries may have tags
	tags       *tagBook
	generation generation

	builds    builder // who may load: Redis, or this process alone
	copies    *local.Map[copied[V]]
	tiered    bool       // there is a local tier; else there are copies only while Redis is out
	flights   flights[V] // what Get, Fetch and Lookup wait for
	refreshes flights[V] // behind a value that was served: nobody waits
	renewals  flights[V] // what Refresh waits for
	quiet     quietKeys
	kept      keptKeys
	failures  failures // of loads without Redis
	seed      maphash.Seed
	packer    pack.Packer
	events    *counters
}

// builder decides who loads a key, and stores what was loaded.
type builder interface {
	Acquire(context.Context, remote.Keys, remote.Acquire) (remote.Found, error)
	Commit(context.Context, remote.Keys, remote.Commit) (remote.Stored, error)
	Finish(context.Context, remote.Keys, remote.Finish) (bool, error)
	Change(context.Context, remote.Keys, remote.Change) (remote.Stored, error)
}

type (
	flights[V any] = singleflight.Group[string, work, Result[V]]
	flight[V any]  = singleflight.Flight[string, work, Result[V]]
)

// Result is a value and what is known about it.
type Result[V any] struct {
	// Value is the zero value if there is an error.
	Value V
	// Outcome says where the value, or the ErrNotFound, came from.
	Outcome Outcome
	// Age is the time since the value was stored, by Redis's clock; for one that was
	// marked stale by Expire, the longest it can be. 0 for a value just loaded.
	Age time.Duration
	// Stale says that the value was past its TTL or marked stale when it was served, or
	// that Redis did not answer and it could not be checked.
	Stale bool
}

// New makes a cache. name keeps its entries apart from those of other caches and
// must be unlike any other on the gate: letters, digits, '.', '_' and '-'. load may
// be nil for a cache that is only read, Set, or used with Fetch. A *[ConfigError]
// says what in name, policy or options cannot be used; ErrClosed is for a closed gate.
// Redis is asked once, for at most Options.RedisTimeout, whether it denies the keys of
// the cache: that is an error, too, which names them. Any other trouble with it is none.
//
// A key is any string, the empty one too; numbers are written with strconv. In Redis
// the entry of key is <namespace>:v:<name>:{<key>}, and while it is being built, has
// failed or rests there is <namespace>:b:<name>:{<key>} beside it. A key with a
// Cluster hash tag of its own, like "{user1}cart", keeps it: <namespace>:v:<name>:={user1}cart.
//
// Values are stored as MessagePack unless Policy.Codec says otherwise: exported
// fields only, `msgpack` tags and not `json` ones. [codec.RoundTrip] tells in a test
// whether a value survives that.
func New[V any](gate *Gate, name string, load LoaderFunc[V], policy Policy, options ...Option[V]) (*Cache[V], error) {
	if load == nil {
		return NewLoader[V](gate, name, nil, policy, options...)
	}
	return NewLoader(gate, name, Loader[V](simple[V](load)), policy, options...)
}

// NewLoader is [New] with a loader in its rich form: one that is told what is stored
// already and decides how to store what it loads, or a [Mux] of several. It may be nil.
func NewLoader[V any](gate *Gate, name string, load Loader[V], policy Policy, options ...Option[V]) (*Cache[V], error) {
	check := checker{}
	check.name("name", name)
	if check.err != nil {
		return nil, check.err
	}
	policy, err := policy.resolved()
	if err != nil {
		return nil, err
	}
	c := &Cache[V]{
		gate:   gate,
		name:   name,
		policy: &policy,
		common: plan[V]{loader: load, policy: &policy},
		seed:   maphash.MakeSeed(),
		events: newCounters(name, gate.options.Observer),
	}
	for _, option := range options {
		option(&c.hooks)
	}
	if mux, ok := load.(*Mux[V]); ok {
		c.common.loader = nil
		c.rules = mux.clone()
	}
	c.kept.changed = make(chan struct{}, 1)
	c.tagged = c.mayTag()
	c.tags = newTagBook(gate.store == nil)
	inMemory, everywhere := c.inMemory()
	localTier := inMemory && gate.options.LocalBytes != Off
	switch {
	case gate.store != nil:
		c.builds = gate.store
	case localTier && everywhere:
		c.builds = &solo{now: gate.now, wake: c.wake}
	case !everywhere:
		return nil, &ConfigError{Field: "Policy.LocalTTL", Value: "Off", Want: "a local tier, as the gate has no Redis"}
	default:
		return nil, &ConfigError{Field: "Options.LocalBytes", Value: "Off", Want: "a local tier, as the gate has no Redis"}
	}
	tier, err := gate.localTier()
	if err != nil {
		return nil, err
	}
	c.copies, c.tiered = local.NewMap[copied[V]](tier), localTier
	if err := gate.mayUse(name, c.tagged); err != nil {
		return nil, err
	}
	if err := gate.register(name, c); err != nil {
		return nil, err
	}
	if gate.bus != nil {
		gate.bus.Kick() // the generation is then known before the first call wants it
	}
	return c, nil
}

// Get returns the value of key: from the local tier, from Redis, or loaded by the
// cache's loader, by whoever in the fleet is first. It returns
//
//   - ErrNotFound, wrapped or not, if the key does not exist at its source;
//   - a *[LoadError] if the load that this call waited for failed;
//   - a *[BackoffError] (ErrBackoff) if an earlier load failed and its back-off runs;
//   - ErrWaitTimeout after Policy.WaitTimeout;
//   - ErrNoLoader, ErrClosed;
//   - ctx's error when ctx ends first. The load goes on for the others and is stored.
//
// Trouble with Redis is no error: the value is then loaded in this process.
func (c *Cache[V]) Get(ctx context.Context, key string) (V, error) {
	if v, ok, err := c.hit(key); ok {
		return v, err
	}
	r, err := c.lookup(ctx, key, c.plan(key))
	return r.Value, err
}

// Fetch is Get with a loader for this key. A call joins the flight that runs for
// its key, whoever started it: of two Fetches with different loaders at the same
// time, one loader runs and both get its value. A refresh behind a stale value
// uses the loader of the call that met it.
func (c *Cache[V]) Fetch(ctx context.Context, key string, load LoaderFunc[V]) (V, error) {
	if v, ok, err := c.hit(key); ok {
		return v, err
	}
	p := &plan[V]{policy: c.plan(key).policy}
	if load != nil {
		p.loader = simple[V](load)
	}
	r, err := c.lookup(ctx, key, p)
	return r.Value, err
}

// Lookup is Get that also tells where the value came from and how old it is.
func (c *Cache[V]) Lookup(ctx context.Context, key string) (Result[V], error) {
	return c.lookup(ctx, key, c.plan(key))
}

// Refresh loads the value of key anew, whether or not it is fresh, and returns it. It
// joins a load that runs anywhere in the fleet, keeps MinRebuildInterval from the one
// before, and waits, fails and returns errors like [Cache.Get]; what is stored stays
// until there is a new value, and is served meanwhile. If Redis does not answer, the
// value is loaded without it.
func (c *Cache[V]) Refresh(ctx context.Context, key string) (V, error) {
	start := c.gate.now()
	q := newRequest(key, c.plan(key), start)
	q.anew = true
	r, err := c.join(ctx, q)
	r, err = c.concluded(key, r, err, start)
	return r.Value, err
}

// Peek returns what is stored for key and never loads: a value, fresh or stale inside
// its window, or a remembered ErrNotFound. found is false, without an error, if there
// is nothing that Get would serve. Any other error is Redis's, or ctx's.
func (c *Cache[V]) Peek(ctx context.Context, key string) (r Result[V], found bool, err error) {
	if r, found, err = c.local(ctx, key, nil); !found {
		r, found, err = c.peek(ctx, key)
	}
	if found && err == nil {
		r.Value = c.cloned(r.Value)
	}
	return r, found, err
}

// Stats are the counts of this cache.
func (c *Cache[V]) Stats() Stats {
	var t totals
	c.events.addTo(&t)
	return t.stats()
}

func (c *Cache[V]) counters() *counters { return c.events }

// inMemory reports whether the policies of some, and of all, keys want a local tier.
func (c *Cache[V]) inMemory() (some, all bool) {
	some = c.policy.LocalTTL != Off
	all = some
	if c.rules != nil {
		for _, r := range c.rules.rules {
			wanted := r.plan.policy.LocalTTL != Off
			some, all = some || wanted, all && wanted
		}
	}
	return some, all
}

// mayTag reports whether an entry may come to have tags: by a policy, or by a loader
// that is told of its load.
func (c *Cache[V]) mayTag() bool {
	may := func(p plan[V]) bool {
		switch p.loader.(type) {
		case nil, simple[V], BatchLoaderFunc[V]:
			return len(p.policy.Tags) > 0
		}
		return true
	}
	return may(c.common) || c.rules != nil && slices.ContainsFunc(c.rules.rules, func(r rule[V]) bool { return may(r.plan) })
}

// plan is how key is loaded, and under which policy.
func (c *Cache[V]) plan(key string) *plan[V] {
	if c.rules != nil {
		if p := c.rules.plan(key); p != nil {
			return p
		}
	}
	return &c.common
}

func (c *Cache[V]) keys(key string) remote.Keys {
	if c.gate.store == nil {
		return remote.Keys{V: key}
	}
	return c.gate.store.Keys(c.name, key)
}

func (c *Cache[V]) stripe(key string) *stripe {
	return &c.gate.stripes[maphash.String(c.seed, key)%stripeCount]
}

// ticket is taken before a request is sent whose value may be kept.
func (c *Cache[V]) ticket(key string) ticket {
	// The epoch first: a Clear moves it after the generation.
	t := ticket{epoch: c.stripe(key).epoch.Load()}
	t.gap, t.generation = c.gate.gap.current(), c.generation.n.Load()
	return t
}

// keep stores a copy in the local tier if its ticket still holds (I2).
func (c *Cache[V]) keep(key string, cp *copied[V], t ticket) {
	if cp.apart && !cp.spare {
		return
	}
	s := c.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch.Load() == t.epoch {
		c.put(key, cp, t)
	}
}

// replace moves the epoch, so that nothing read until now is kept, and puts cp in the
// place of the copy there is, which goes in any case: the entry is another now. nil,
// or a ticket that does not hold any more, leaves no copy. It reports whether the
// ticket held.
func (c *Cache[V]) replace(key string, cp *copied[V], t ticket) bool {
	s := c.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	alone := s.epoch.Add(1) == t.epoch+1
	if cp != nil && alone {
		c.put(key, cp, t)
	} else {
		c.copies.Delete(key)
	}
	return alone
}

// put stores a copy in the local tier. The stripe of key must be locked.
func (c *Cache[V]) put(key string, cp *copied[V], t ticket) {
	if cp.apart && !cp.spare {
		c.copies.Delete(key)
		return
	}
	cp.gap = t.gap
	cp.kept = c.kept.of(key)
	c.copies.Store(key, cp, int64(cp.size)+copyOverhead)
}

// invalidate is what a change of key does in this process: nothing that was read or
// loaded before is used for a call that begins after it.
func (c *Cache[V]) invalidate(key string) {
	c.replace(key, nil, ticket{})
	c.outdate(key)
}

// outdate detaches the flights of key that read or load; one that waits will read
// what it answers from later and stays joinable.
func (c *Cache[V]) outdate(key string) {
	c.each(key, func(f *flight[V]) {
		if f.State.outdate() {
			f.Detach()
		}
	})
}

// each visits the flights of key.
func (c *Cache[V]) each(key string, visit func(*flight[V])) {
	for _, group := range c.groups() {
		group.Each(key, visit)
	}
}

func (c *Cache[V]) groups() [3]*flights[V] {
	return [...]*flights[V]{&c.flights, &c.refreshes, &c.renewals}
}

// wake tells the flights that wait for a lease of key to look again.
func (c *Cache[V]) wake(key string) {
	c.each(key, func(f *flight[V]) { f.State.wake() })
}

// cancel ends all flights and refreshes with cause.
func (c *Cache[V]) cancel(cause error) {
	for _, group := range c.groups() {
		group.All(func(f *flight[V]) { f.Cancel(cause) })
	}
}

// settled returns when no flight or refresh runs. The gate is closed before,
// so that none starts.
func (c *Cache[V]) settled(ctx context.Context) error {
	var errs []error
	for _, group := range c.groups() {
		errs = append(errs, group.Wait(ctx))
	}
	return errors.Join(errs...)
}
