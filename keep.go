package herdgate

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Keep refreshes keys at their early point also if nobody reads them, so that the first
// who does finds them fresh; those that are not there are loaded. Each key is loaded by
// one instance of the fleet, however many keep it, and the others take its value over.
// A key of this process that nobody reads for idle is given up; 0 means that it is kept
// until [Cache.Unkeep] or the end of the gate. Keeping a key again sets its idle time anew.
//
// The early point comes from EarlyBeta or EarlyFraction: without either it is the end of
// the TTL, and a key is not refreshed before that. A key whose load fails is tried again
// when its back-off ends. Keep returns ErrNoLoader if a key has none, ErrClosed, or a
// *[ConfigError]; then it keeps none of the keys. It does not wait for the first loads:
// [Cache.Warm] does. ctx lends its values to the loads.
func (c *Cache[V]) Keep(ctx context.Context, idle time.Duration, keys ...string) error {
	if idle < 0 {
		return &ConfigError{Field: "idle", Value: idle, Want: "a positive duration, or 0 for no end"}
	}
	for _, key := range keys {
		if !c.plan(key).loads() {
			return c.failed(key, ErrNoLoader)
		}
	}
	c.gate.life.RLock()
	defer c.gate.life.RUnlock()
	if c.gate.closed.Load() {
		return ErrClosed
	}
	if first := c.kept.add(keys, idle, c.gate.now()); first {
		ctx := c.gate.withoutSlot(context.WithoutCancel(ctx))
		c.gate.keepers.Go(func() { c.keeper(ctx) })
	}
	return nil
}

// Unkeep ends what Keep began.
func (c *Cache[V]) Unkeep(keys ...string) { c.kept.remove(keys) }

// keeper refreshes the kept keys of a cache until the gate closes.
func (c *Cache[V]) keeper(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.kept.changed:
		case <-c.gate.closing:
			return
		}
		for {
			now := c.gate.now()
			key, wait, ok := c.kept.due(now)
			if !ok {
				timer.Reset(wait)
				break
			}
			c.keepFresh(ctx, key, now)
		}
	}
}

// keepFresh starts the refresh of a kept key, unless it was refreshed meanwhile.
func (c *Cache[V]) keepFresh(ctx context.Context, key string, now time.Duration) {
	var old found[V]
	if cp := c.copies.Load(key); cp != nil {
		if c.gate.gap.valid(cp.gap) && now < cp.early && now < cp.check {
			c.kept.schedule(key, min(cp.early, cp.check))
			return
		}
		old = found[V]{cp: cp, seen: cp.seen}
	}
	if c.refresh(ctx, key, c.plan(key), old, OutcomeLocal) == nil {
		c.kept.schedule(key, now+keepPause) // it is quiet for some reason that passes
	}
}

// keepPause is the time to the next look at a kept key of which nothing is known.
const keepPause = 250 * time.Millisecond

// keptKeys are the keys that are refreshed without being read.
type keptKeys struct {
	changed chan struct{} // holds one note that a key is due sooner

	mu     sync.Mutex
	began  bool                // the keeper runs
	keys   map[string]*keptKey // protected by mu, as what the keys point to
	queue  keepQueue           // by due
	number atomic.Int64        // of keys, for who only wants to know whether there are any
}

type keptKey struct {
	key  string
	idle time.Duration
	due  time.Duration
	at   int          // in the queue, −1 while its refresh runs
	read atomic.Int64 // when it was last read
}

func (k *keptKeys) add(keys []string, idle, now time.Duration) (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = map[string]*keptKey{}
	}
	for _, key := range keys {
		kept := k.keys[key]
		if kept == nil {
			kept = &keptKey{key: key, due: now}
			k.keys[key] = kept
			heap.Push(&k.queue, kept)
		}
		kept.idle = idle
		kept.read.Store(int64(now))
	}
	k.number.Store(int64(len(k.keys)))
	k.note()
	first, k.began = !k.began, true
	return first
}

func (k *keptKeys) remove(keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		if kept := k.keys[key]; kept != nil {
			k.drop(kept)
		}
	}
}

// drop must be called with mu held.
func (k *keptKeys) drop(kept *keptKey) {
	delete(k.keys, kept.key)
	if kept.at >= 0 {
		heap.Remove(&k.queue, kept.at)
	}
	k.number.Store(int64(len(k.keys)))
}

// due takes the next key that is due out of the queue, until it is scheduled again, or
// says how long there is none.
func (k *keptKeys) due(now time.Duration) (key string, wait time.Duration, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.queue) > 0 {
		kept := k.queue[0]
		switch {
		case kept.due > now:
			return "", kept.due - now, false
		case kept.idle > 0 && now-time.Duration(kept.read.Load()) >= kept.idle:
			k.drop(kept)
		default:
			heap.Pop(&k.queue)
			return kept.key, 0, true
		}
	}
	return "", time.Hour, false
}

// schedule puts a key back into the queue, if it is still kept.
func (k *keptKeys) schedule(key string, due time.Duration) {
	if k.number.Load() == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := k.keys[key]
	if kept == nil || kept.at >= 0 {
		return
	}
	kept.due = due
	heap.Push(&k.queue, kept)
	k.note()
}

func (k *keptKeys) note() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// of is the kept key of that name, nil for one that is not kept.
func (k *keptKeys) of(key string) *keptKey {
	if k.number.Load() == 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[key]
}

// touch notes that a key was read. Of a hot key it writes once in a while only.
func (kept *keptKey) touch(now time.Duration) {
	if kept != nil && now-time.Duration(kept.read.Load()) > 10*time.Millisecond {
		kept.read.Store(int64(now))
	}
}

// keepQueue is a heap.Interface.
type keepQueue []*keptKey

func (q keepQueue) Len() int           { return len(q) }
func (q keepQueue) Less(i, j int) bool { return q[i].due < q[j].due }

func (q keepQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *keepQueue) Push(x any) {
	kept, _ := x.(*keptKey)
	kept.at = len(*q)
	*q = append(*q, kept)
}

// Pop implements heap.Interface.
func (q *keepQueue) Pop() any {
	last := len(*q) - 1
	kept := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	kept.at = -1
	return kept
}
