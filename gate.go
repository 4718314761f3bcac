package herdgate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"github.com/herdgate/herdgate/internal/local"
	"github.com/herdgate/herdgate/internal/remote"
)

// Gate is what the caches of a service share: the connection to Redis and its
// message bus, the memory of the local tier, and the limit of concurrent loads. A
// service opens one. Safe for concurrent use.
type Gate struct {
	options  Options
	instance string
	store    *remote.Store       // nil without Redis
	bus      *remote.Bus         // nil without Redis
	slots    *semaphore.Weighted // load slots; nil: no limit
	strays   *semaphore.Weighted // abandoned loaders whose slot was given back
	outer    outerLocks
	loaders  sync.WaitGroup // running loaders, also abandoned ones
	events   *counters
	tracer   Tracer // nil: none
	replicas bool   // reads may come from replicas
	clock    *clock
	lent     context.Context //nolint:containedctx // lends the values of Open's to the commands of New, which is given none

	gap       gapCounter
	confirmed chan struct{} // closed when the bus is confirmed for the first time
	refused   chan error    // holds why the first subscription was refused, for Open
	journal   journal
	recent    recent
	replayer  *replayer // nil without Redis
	own       ownChanges
	stripes   [stripeCount]stripe

	// life is held for reading while a flight is started, and for writing to close:
	// no flight starts after Close has begun to wait for them.
	life      sync.RWMutex
	keepers   sync.WaitGroup // goroutines that keep keys fresh
	closing   chan struct{}  // closed when Close begins
	calls     sync.WaitGroup // calls that use Redis outside of a flight: changes and peeks
	closed    atomic.Bool
	closeOnce sync.Once
	closeErr  error

	mu     sync.Mutex // protects the fields below
	caches map[string]keyspace
	tier   *local.Tier    // opened with the first cache
	ticks  sync.WaitGroup // the goroutine that sets the clock of the tier's hits
}

// keyspace is what a gate knows of a cache.
type keyspace interface {
	invalidate(key string)
	wake(key string)
	settled(ctx context.Context) error
	cancel(cause error)
	counters() *counters

	cleared(generation uint64)
	learn(generation, turn uint64)
	due(now time.Duration) (turn uint64, due bool)
	raised(tags []string, number uint64)
	doubt()

	resend(ch recentChange) (whole bool)
	wipe()
	replay(ctx context.Context, key string, j journaled) (done bool)
	replayWhole(ctx context.Context, j journaledCache) (done bool)
	dropSpares()
}

// drainTime is how long Close lets running loads and refreshes finish.
const drainTime = 5 * time.Second

// letGoTime is how long Close waits for commands that were given up on. go-redis lets
// go of one when its ReadTimeout ends, by default after 5 s: this must be more.
const letGoTime = 6 * time.Second

// Open opens a gate. It returns a *[ConfigError] for options that cannot be used, also for
// the client of a single node where a Cluster says that others have a part of the keys,
// and the server's error if Redis refuses this client: the authentication, or a right
// that a gate needs, which the error names (docs/acl.md has the list). If Redis cannot be
// reached, the gate opens all the same and goes on trying: a service must be able to
// start while its cache is out. A right that is taken away later is an outage of what
// needs it. ctx bounds Open only, and its values go along with the gate's own commands.
func Open(ctx context.Context, options Options) (*Gate, error) {
	return open(ctx, options, time.Now)
}

// open is Open with a wall clock.
func open(ctx context.Context, options Options, wall func() time.Time) (*Gate, error) {
	options, err := options.resolved()
	if err != nil {
		return nil, err
	}
	g := &Gate{
		options:   options,
		instance:  randomHex(8),
		events:    newCounters("", options.Observer),
		clock:     newClock(),
		lent:      context.WithoutCancel(ctx),
		confirmed: make(chan struct{}),
		refused:   make(chan error, 1),
		closing:   make(chan struct{}),
		journal:   journal{kicks: make(chan struct{}, 1)},
		recent:    recent{window: options.ResendWindow},
		caches:    map[string]keyspace{},
	}
	g.outer = outerLocks{locker: options.Locker, now: g.now, calls: &g.calls}
	g.tracer, _ = options.Observer.(Tracer)
	if cluster, ok := options.Redis.(*redis.ClusterClient); ok {
		o := cluster.Options()
		g.replicas = o.ReadOnly || o.RouteByLatency || o.RouteRandomly
	}
	if options.MaxLoads != Off {
		g.slots = semaphore.NewWeighted(int64(options.MaxLoads))
		g.strays = semaphore.NewWeighted(int64(options.MaxLoads))
	}
	if options.Redis == nil {
		g.gap.confirm() // nobody else can change anything
		return g, nil
	}
	if _, ring := options.Redis.(*redis.Ring); ring {
		return nil, &ConfigError{Field: "Options.Redis", Value: "a *redis.Ring", Want: "a client of a single node, Sentinel or Cluster: a ring moves keys without telling when a shard is down"}
	}
	if single, ok := options.Redis.(*redis.Client); ok && (single.Options().ClientSideCacheConfig != nil || single.Options().ClientSideCache != nil) {
		return nil, &ConfigError{Field: "Options.Redis", Value: "a *redis.Client with client-side caching", Want: "one without: a read could have an entry from before a change that has returned; LocalTTL keeps entries in the process"}
	}
	g.store = remote.NewStore(options.Redis, options.Namespace, g.instance, options.RedisTimeout)
	g.store.CountFrom(g.clock.start)
	g.store.AwaitReplicas(options.ReplicaWait)
	if options.ResendWindow != Off {
		g.store.WatchMasters()
	}
	g.store.OnHealth(g.health)
	g.store.SetWall(wall)
	err = g.store.Load(ctx)
	if err == nil {
		err = g.store.CheckRights(ctx)
	}
	if remote.Rejected(err) {
		_ = g.store.Wait(ctx) // its probes
		return nil, rejected(err)
	}
	if (err == nil || remote.Moved(err)) && g.store.Sharded(ctx) {
		_ = g.store.Wait(ctx)
		return nil, &ConfigError{Field: "Options.Redis", Value: "the client of a single node", Want: "a *redis.ClusterClient: it is a node of a Cluster, whose other nodes have a part of the keys"}
	}
	g.bus = g.store.Listen(ctx, busListener{g})
	g.replayer = g.startReplayer(ctx)
	if err := g.awaitBus(ctx); err != nil {
		_ = g.Close(ctx) // nothing was done with it
		return nil, rejected(err)
	}
	return g, nil
}

func rejected(err error) error { return fmt.Errorf("herdgate: Redis refuses this client: %w", err) }

// awaitBus gives the first subscription one command's time, so that what is read
// right after Open may be kept as fresh. It returns an error if the subscription is refused.
func (g *Gate) awaitBus(ctx context.Context) error {
	patience := time.NewTimer(g.options.RedisTimeout)
	defer patience.Stop()
	select {
	case <-g.confirmed:
	case err := <-g.refused:
		return err
	case <-patience.C:
	case <-ctx.Done():
	}
	return nil
}

// Close ends the gate and its caches: calls from then on return ErrClosed. Loads
// and refreshes that run may finish and commit for at most 5 s, or until ctx ends;
// then their loaders are cancelled and their leases released. A Redis client that
// hangs may take another 6 s to let go of its commands. Close returns nil
// when nothing of the gate runs any more and no change is left to be made, otherwise an
// error that says what still runs (a loader that ignores its context, a command that the
// client holds on to), or that matches [ErrJournaled]: changes that Redis has not got are
// lost then, and should be made by somebody else.
// Further calls do nothing and return what the first returned.
func (g *Gate) Close(ctx context.Context) error {
	g.closeOnce.Do(func() { g.closeErr = g.close(ctx) })
	return g.closeErr
}

// enter counts a call in that uses Redis outside of a flight, unless the gate is
// closed. The caller ends it with calls.Done.
func (g *Gate) enter() bool {
	g.life.RLock()
	defer g.life.RUnlock()
	if g.closed.Load() {
		return false
	}
	g.calls.Add(1)
	return true
}

func (g *Gate) close(ctx context.Context) error {
	g.life.Lock()
	g.closed.Store(true)
	close(g.closing)
	g.life.Unlock()
	drain, cancel := context.WithTimeout(ctx, drainTime)
	err := g.settled(drain)
	cancel()
	if err != nil {
		for _, c := range g.all() {
			c.cancel(ErrClosed)
		}
		// Ending a cancelled load takes the loader's grace and one command. That much
		// time is given also when ctx is over: a lease left behind costs others more.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), loaderGrace+3*g.options.RedisTimeout)
		err = g.settled(release)
		cancel()
	}
	if g.store != nil {
		g.replayer.close(ctx)
		g.bus.Close()
		g.store.Stop()
	}
	g.mu.Lock()
	tier := g.tier
	g.mu.Unlock()
	if tier != nil {
		tier.Close()
	}
	g.ticks.Wait()
	if err == nil && g.store != nil {
		// Commands that were given up on end by the client's own timeouts. Those of the
		// last moment get theirs, also if ctx is over.
		patience := letGoTime
		if deadline, ok := ctx.Deadline(); ok {
			patience = min(letGoTime, max(time.Until(deadline), g.options.RedisTimeout))
		}
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		err = g.store.Wait(rest)
		cancel()
	}
	if err != nil {
		err = fmt.Errorf("herdgate: closed while loaders or Redis commands did not end: %w", err)
	}
	if n := g.journal.len(); n > 0 {
		err = errors.Join(err, &lostChangesError{n})
	}
	return err
}

// settled waits until no flight, refresh, loader or other call runs.
func (g *Gate) settled(ctx context.Context) error {
	for _, c := range g.all() {
		if err := c.settled(ctx); err != nil {
			return err
		}
	}
	for _, group := range []*sync.WaitGroup{&g.calls, &g.keepers} {
		if err := waitGroup(ctx, group); err != nil {
			return err
		}
	}
	return waitGroup(ctx, &g.loaders)
}

func (g *Gate) all() []keyspace {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]keyspace, 0, len(g.caches))
	for _, c := range g.caches {
		all = append(all, c)
	}
	return all
}

func (g *Gate) cache(name string) keyspace {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.caches[name]
}

// Stats are the counts of the gate and all its caches.
func (g *Gate) Stats() Stats {
	var t totals
	g.events.addTo(&t)
	for _, c := range g.all() {
		c.counters().addTo(&t)
	}
	return t.stats()
}

// CacheStats are the counts of each cache, by its name.
func (g *Gate) CacheStats() map[string]Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]Stats, len(g.caches))
	for name, c := range g.caches {
		var t totals
		c.counters().addTo(&t)
		all[name] = t.stats()
	}
	return all
}

// Connected reports whether the gate's subscription to Redis is confirmed and its
// heartbeats come back: whether invalidations arrive. It is for dashboards and
// readiness; a gate that is not connected still serves. Without Redis it is true.
func (g *Gate) Connected() bool { return g.gap.current() != inGap }

// RedisUp reports whether every server that this gate uses is believed to answer. One
// that has not answered a few commands in a row counts as down until it answers a
// probe, which is sent every 0.1 to 0.3 s. It is for dashboards: a gate that has no Redis
// still serves. Without Options.Redis it is true.
func (g *Gate) RedisUp() bool { return g.store == nil || g.store.Healthy() }

// health is told when a server is found down, and when it is back.
func (g *Gate) health(down error) {
	if down != nil {
		g.events.emit(Event{Kind: EventRedisDown, Err: down})
		return
	}
	g.events.emit(Event{Kind: EventRedisUp})
	g.journal.kick()
}

// now is the monotonic time since the gate was opened.
func (g *Gate) now() time.Duration { return g.clock.now() }

// mayUse returns an error if Redis denies the keys of a cache. All else that may be wrong
// with Redis passes by itself.
func (g *Gate) mayUse(cache string, tagged bool) error {
	if g.store == nil {
		return nil
	}
	denied, ok := errors.AsType[*remote.DeniedError](g.store.CheckKeys(g.lent, cache, tagged))
	if !ok {
		return nil
	}
	return fmt.Errorf("herdgate: Redis refuses cache %q: %w", cache, denied)
}

// register makes a cache known under its name.
func (g *Gate) register(name string, c keyspace) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Load() {
		return ErrClosed
	}
	if _, taken := g.caches[name]; taken {
		return &ConfigError{Field: "name", Value: strconv.Quote(name), Want: "a name that no other cache of this gate has"}
	}
	g.caches[name] = c
	return nil
}

// spareBytes bounds what is kept while Redis is out by a gate without a local tier.
const spareBytes = 16 << 20

// localTier is the memory of the gate's copies, opened by the first cache.
func (g *Gate) localTier() (*local.Tier, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Load() {
		return nil, ErrClosed
	}
	if g.tier == nil {
		bytes := g.options.LocalBytes
		if bytes == Off {
			bytes = spareBytes
		}
		tier, err := local.New(local.Limits{Bytes: bytes})
		if err != nil {
			return nil, fmt.Errorf("herdgate: local tier: %w", err)
		}
		g.tier = tier
		g.ticks.Go(func() { g.clock.run(g.closing) })
	}
	return g.tier, nil
}

// busListener hands what comes over the bus to the caches.
type busListener struct{ g *Gate }

// Invalidated implements remote.Listener.
func (l busListener) Invalidated(m remote.Invalidation) {
	c := l.g.cache(m.Cache)
	if c == nil {
		return
	}
	if m.Instance == l.g.instance && l.g.own.takes(m.ID) {
		// The call that made this change does, or did, all that is to be done about
		// it; only those who wait for the lease that it took need to hear.
		c.wake(m.Key)
		return
	}
	c.invalidate(m.Key)
}

// Cleared implements remote.Listener.
func (l busListener) Cleared(m remote.Cleared) {
	if c := l.g.cache(m.Cache); c != nil && (m.Instance != l.g.instance || !l.g.own.takes(m.ID)) {
		c.cleared(m.Generation)
	}
}

// TagsRaised implements remote.Listener.
func (l busListener) TagsRaised(m remote.TagsRaised) {
	if c := l.g.cache(m.Cache); c != nil && (m.Instance != l.g.instance || !l.g.own.takes(m.ID)) {
		c.raised(m.Tags, m.Number)
	}
}

// Caches implements remote.Listener.
func (l busListener) Caches() (names []string, told func(generations []uint64)) {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	var caches []keyspace
	var turns []uint64
	for name, c := range l.g.caches {
		if turn, due := c.due(l.g.now()); due {
			names, caches, turns = append(names, name), append(caches, c), append(turns, turn)
		}
	}
	return names, func(generations []uint64) {
		for i, n := range generations {
			if n != 0 {
				caches[i].learn(n, turns[i])
			}
		}
	}
}

// Woken implements remote.Listener.
func (l busListener) Woken(cache, key string) {
	if c := l.g.cache(cache); c != nil {
		c.wake(key)
	}
}

// Lost implements remote.Listener.
func (l busListener) Lost(reason error) {
	if remote.Rejected(reason) {
		select {
		case l.g.refused <- reason:
		default: // nobody has taken the one before: Open is over
		}
	}
	if !l.g.gap.open() {
		return // another vain attempt to get out of the gap
	}
	l.g.events.emit(Event{Kind: EventBusLost, Err: reason})
}

// Confirmed implements remote.Listener.
func (l busListener) Confirmed() {
	l.g.own.forget() // those of the gap too: if a message still comes, it is of a second copy
	for _, c := range l.g.all() {
		c.doubt()
	}
	l.g.gap.confirm()
	l.g.journal.kick()
	l.g.events.emit(Event{Kind: EventBusConfirmed})
	select {
	case <-l.g.confirmed:
	default:
		close(l.g.confirmed)
	}
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails: the runtime would stop the program
	return hex.EncodeToString(b)
}

func waitGroup(ctx context.Context, wg *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
