package herdgate

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/wire"
)

// maxJournal is how many keys, and how many tags of a cache, the journal of a gate
// holds. Past it the cache is cleared in their place.
const maxJournal = 1 << 16

// journal holds the changes that Redis has not got, or perhaps not. A key in it is not
// read from Redis: what is there may be from before its change. It leaves the journal
// in one step with the knowledge that its change is made, so that no read comes between.
type journal struct {
	size  atomic.Int64  // of changes and whole: most reads look no further
	kicks chan struct{} // gets a token when it is worth trying

	mu      sync.Mutex // protects the fields below
	changes map[journalKey]journaled
	whole   map[string]journaledCache
	stamp   uint64
}

type journalKey struct{ cache, key string }

// journaled is a change to be made. A Set is made as a delete: its value may be older
// by then than that of another.
type journaled struct {
	op      remote.Op // OpDelete or OpExpire, the stronger of all that were asked for
	stamp   uint64    // of the last
	horizon int64     // server time, in µs, past which none of them can come by itself; 0: none can
}

// journaledCache is what is to be made of all keys of a cache, or of those with a tag:
// which they are is not known here, so that none of the cache is read from Redis.
type journaledCache struct {
	clear bool
	tags  map[string]struct{} // to be invalidated
	stamp uint64
}

// add puts a change into the journal. It reports false if there is no room: then the
// whole cache is to be cleared.
func (j *journal) add(k journalKey, op remote.Op, horizon int64) (fits bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	old, there := j.changes[k]
	if full := len(j.changes) >= maxJournal; !there && (full || j.whole[k.cache].clear) {
		fits = j.whole[k.cache].clear // then the Clear makes this change, too
		j.put(k.cache, journaledCache{clear: true})
		return fits
	}
	if op != remote.OpExpire || old.op == remote.OpDelete {
		op = remote.OpDelete
	}
	if j.changes == nil {
		j.changes = map[journalKey]journaled{}
	}
	j.stamp++
	j.changes[k] = journaled{op: op, stamp: j.stamp, horizon: max(horizon, old.horizon)}
	j.resized()
	return true
}

// addWhole puts a Clear into the journal, or the invalidation of tags. It reports false
// if there is no room for these: then the cache is to be cleared.
func (j *journal) addWhole(cache string, tags []string) (fits bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ch := j.whole[cache]
	if ch.clear || len(tags) == 0 {
		j.put(cache, journaledCache{clear: true})
		return true
	}
	if len(ch.tags)+len(tags) > maxJournal {
		j.put(cache, journaledCache{clear: true})
		return false
	}
	if ch.tags == nil {
		ch.tags = map[string]struct{}{}
	}
	for _, tag := range tags {
		ch.tags[tag] = struct{}{}
	}
	j.put(cache, ch)
	return true
}

// put is called with mu held.
func (j *journal) put(cache string, ch journaledCache) {
	if j.whole == nil {
		j.whole = map[string]journaledCache{}
	}
	j.stamp++
	ch.stamp = j.stamp
	j.whole[cache] = ch
	j.resized()
}

// holds reports whether a key must not be read from Redis.
func (j *journal) holds(cache, key string) bool {
	if j.size.Load() == 0 {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, whole := j.whole[cache]
	_, there := j.changes[journalKey{cache, key}]
	return whole || there
}

// remove takes a change out that was made, unless another came meanwhile.
func (j *journal) remove(k journalKey, stamp uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changes[k].stamp == stamp {
		delete(j.changes, k)
		j.resized()
	}
}

// removeWhole is remove for a whole cache.
func (j *journal) removeWhole(cache string, stamp uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.whole[cache].stamp == stamp {
		delete(j.whole, cache)
		j.resized()
	}
}

// resized is called with mu held, and kicks when there is something at last.
func (j *journal) resized() {
	if j.size.Swap(int64(len(j.changes)+len(j.whole))) == 0 {
		j.kick()
	}
}

func (j *journal) len() int { return int(j.size.Load()) }

func (j *journal) kick() {
	select {
	case j.kicks <- struct{}{}:
	default:
	}
}

// all are the changes of this moment.
func (j *journal) all() (changes map[journalKey]journaled, whole map[string]journaledCache) {
	j.mu.Lock()
	defer j.mu.Unlock()
	whole = maps.Clone(j.whole)
	for cache, ch := range whole {
		ch.tags = maps.Clone(ch.tags) // more may come while these are made
		whole[cache] = ch
	}
	return maps.Clone(j.changes), whole
}

const (
	// replayFloor and replayCap bound the time between two tries to empty the journal.
	replayFloor = 20 * time.Millisecond
	replayCap   = time.Second
	// replaysAtOnce is how many changes are under way at once.
	replaysAtOnce = 16
)

// replayer is the goroutine that makes the changes of the journal.
type replayer struct {
	g    *Gate
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// startReplayer starts the replayer. ctx lends its values. Its changes wait for no replicas:
// their callers have been answered, and after a failover the replica that is missing is often
// the old master. Until the journal is empty its keys are not read from Redis. What the
// replicas lack of it is remembered for when they become masters.
func (g *Gate) startReplayer(ctx context.Context) *replayer {
	ctx, stop := context.WithCancel(remote.Unawaited(context.WithoutCancel(ctx)))
	r := &replayer{g: g, stop: stop}
	r.wg.Go(func() { r.run(ctx) })
	return r
}

// close ends the replayer. While Redis answers, it may take some commands' time, or
// until ctx ends, to make what is left.
func (r *replayer) close(ctx context.Context) {
	r.g.journal.kick()
	over := time.NewTimer(4 * r.g.options.RedisTimeout)
	defer over.Stop()
	look := time.NewTicker(replayFloor)
	defer look.Stop()
wait:
	for r.g.journal.len() > 0 && r.g.store.Healthy() {
		select {
		case <-look.C:
		case <-over.C:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	r.stop()
	r.wg.Wait()
}

func (r *replayer) run(ctx context.Context) {
	retry := time.NewTimer(0)
	defer retry.Stop()
	wait := replayFloor
	for {
		select {
		case <-r.g.journal.kicks:
			wait = replayFloor
		case <-retry.C:
		case <-ctx.Done():
			return
		}
		r.round(ctx)
		if r.g.journal.len() > 0 {
			retry.Reset(wait/2 + rand.N(wait/2))
			wait = min(2*wait, replayCap)
		}
	}
}

// round makes the changes that can be made now.
func (r *replayer) round(ctx context.Context) {
	g := r.g
	changes, whole := g.journal.all()
	var some errgroup.Group
	some.SetLimit(replaysAtOnce)
	for k, ch := range changes {
		if ctx.Err() != nil {
			break
		}
		some.Go(func() error {
			if g.cache(k.cache).replay(ctx, k.key, ch) {
				g.journal.remove(k, ch.stamp)
			}
			return nil
		})
	}
	_ = some.Wait() // what failed is still in the journal
	for cache, ch := range whole {
		if g.cache(cache).replayWhole(ctx, ch) {
			g.journal.removeWhole(cache, ch.stamp)
		}
	}
	if g.journal.len() == 0 && g.store.Healthy() {
		for _, c := range g.all() {
			c.dropSpares()
		}
	}
}

// journaled puts a change that Redis has not got, or perhaps not, into the journal, and
// lets it act in this process at once. The journal comes first: who has not seen the
// change there reads under a ticket from before the epoch that it moves.
func (c *Cache[V]) journaled(ch remote.Change, horizon int64, cause error) error {
	c.journal(ch, horizon)
	c.events.emit(Event{Kind: EventJournaled, Key: ch.Key, Err: cause})
	if c.gate.options.AcceptJournaled {
		return nil
	}
	return c.changeError(ch.Op, ch.Key, fmt.Errorf("%w: %w", ErrJournaled, cause))
}

func (c *Cache[V]) journal(ch remote.Change, horizon int64) {
	if !c.gate.journal.add(journalKey{c.name, ch.Key}, ch.Op, horizon) {
		c.events.emit(Event{Kind: EventJournalFull})
	}
	if ch.Op == remote.OpExpire {
		c.expireCopy(ch.Key)
	} else {
		c.replace(ch.Key, nil, ticket{})
	}
	c.outdate(ch.Key)
}

// expireCopy marks a copy stale, for as long as Redis is not asked for its key.
func (c *Cache[V]) expireCopy(key string) {
	s := c.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch.Add(1)
	if old := c.copies.Load(key); old != nil && old.hard > old.fresh {
		cp := old.expired(c.gate.now())
		cp.spare = true
		c.put(key, cp, ticket{gap: inGap})
	} else {
		c.copies.Delete(key)
	}
}

// replay makes a change of the journal in Redis. It reports whether that is certain.
func (c *Cache[V]) replay(ctx context.Context, key string, j journaled) (done bool) {
	keys := c.keys(key)
	if c.gate.store.Down(ctx, keys) != nil {
		return false
	}
	if j.horizon > 0 {
		// Copies of the change that timed out may still be on their way. The last of them
		// must come before this one.
		if past, err := c.gate.store.Past(ctx, keys, j.horizon); err != nil || !past {
			return false
		}
	}
	ch := remote.Change{
		ID: randomHex(8), Op: j.op, Cache: c.name, Key: key, Interval: c.plan(key).policy.MinRebuildInterval,
	}
	c.gate.own.add(ch.ID)
	remembered := c.remember(ch.Op, key, nil)
	if stored, err := c.gate.store.Change(ctx, keys, ch); stored != remote.Done || err != nil {
		c.gate.own.drop(ch.ID)
		c.gate.recent.drop(remembered)
		return false
	}
	c.events.emit(Event{Kind: EventReplayed, Key: key})
	return true
}

// journaledWhole is journaled for a Clear, or for tags if there are some.
func (c *Cache[V]) journaledWhole(op remote.Op, tags []string, cause error) error {
	if !c.gate.journal.addWhole(c.name, tags) {
		c.events.emit(Event{Kind: EventJournalFull})
	}
	c.wipe()
	key := strings.Join(tags, ", ")
	c.events.emit(Event{Kind: EventJournaled, Key: key, Err: cause})
	if c.gate.options.AcceptJournaled {
		return nil
	}
	return c.changeError(op, key, fmt.Errorf("%w: %w", ErrJournaled, cause))
}

// replayWhole makes a change of the journal in Redis that is not of single keys. It
// reports whether that is certain.
func (c *Cache[V]) replayWhole(ctx context.Context, j journaledCache) (done bool) {
	down := c.gate.store.TagsDown
	if j.clear {
		down = c.gate.store.GenerationDown
	}
	if down(ctx, c.name) != nil { // one that fails drops all copies
		return false
	}
	if j.clear {
		if err := c.clear(ctx); err != nil {
			return false
		}
	} else {
		tags := slices.Collect(maps.Keys(j.tags))
		for some := range slices.Chunk(tags, wire.MaxTags) {
			if err := c.raise(ctx, some); err != nil {
				return false
			}
		}
	}
	c.events.emit(Event{Kind: EventReplayed})
	return true
}
