package herdgate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/singleflight"
)

const (
	// lockerTimeout bounds what is asked of Options.Locker.
	lockerTimeout = time.Second
	// lockerPause is how long it is left alone after it has not answered.
	lockerPause = time.Second
	// lockersAtOnce is how many locks a call for many keys takes at a time.
	lockersAtOnce = 16
)

// outerLocks are the locks of Options.Locker. That of a key is taken before its lease
// and given back after it. Who loads has both, so that one load runs at a time (I1) as long
// as either of the two keeps its promise; the lease alone is the right to commit, so that
// no locker can break I2.
//
// A lease is not taken from who has it without the lock: that is one whom the locker has not
// answered, or who has none yet in a roll-out; and what a dead one leaves ends with LockTTL.
//
// A locker that does not answer is left alone for a while: the lease alone decides then.
type outerLocks struct {
	locker lock.Locker // nil: there are none
	now    func() time.Duration
	calls  *sync.WaitGroup // the gate's
	resume atomic.Int64    // when one flight may ask it again; 0: all may
	hung   atomic.Int64    // calls of TryLock whose time is over, and that have not returned
}

// outerLock is what the locker has said of a key.
type outerLock struct {
	says  remote.Outer
	lease *lock.Lease // of remote.Mine, else nil
}

var (
	errLockerRests = errors.New("herdgate: Options.Locker has not answered lately, and is not asked")
	errNoLease     = errors.New("neither a lease nor an error from TryLock: want one of them")
)

// try asks for the lock of a name. An error says that the locker gave no answer.
func (o *outerLocks) try(ctx context.Context, name string) (outerLock, error) {
	resume, now := o.resume.Load(), o.now()
	if o.hung.Load() >= lockersAtOnce || resume != 0 && (now < time.Duration(resume) || !o.resume.CompareAndSwap(resume, int64(now+lockerPause))) {
		return outerLock{}, errLockerRests
	}
	asking, cancel := context.WithTimeout(ctx, lockerTimeout)
	defer cancel()
	lease, err := o.ask(asking, name)
	if err == nil {
		if err = held(lease); errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrReleased) {
			_ = lease.Unlock(ctx) // the store may have it still
		}
	}
	switch {
	case err == nil:
		o.resume.Store(0)
		return outerLock{remote.Mine, lease}, nil
	case asking.Err() == nil && errors.Is(err, lock.ErrNotAcquired):
		o.resume.Store(0)
		return outerLock{says: remote.Theirs}, nil
	case ctx.Err() == nil:
		o.resume.Store(int64(o.now() + lockerPause))
	}
	return outerLock{}, fmt.Errorf("herdgate: Options.Locker: %w", err)
}

// held is an error for what TryLock has returned and nobody can work under.
func held(l *lock.Lease) error {
	if l == nil {
		return errNoLease
	}
	ended, err := singleflight.Protect(func() (error, error) { return l.Err(), nil }) // one that no engine has made panics
	return cmp.Or(err, ended)
}

// ask waits for an answer no longer than ctx allows, whatever the locker does: a flight
// that stood there for ever would take its key with it (I4). A lock that comes later is
// given back. Like briefly, it must be called by a flight or a batch.
func (o *outerLocks) ask(ctx context.Context, name string) (*lock.Lease, error) {
	type answer struct {
		lease *lock.Lease
		err   error
	}
	answers := make(chan answer) // without room: an answer is taken, or late
	var over atomic.Bool         // the call has returned, or was given up on: what comes first
	o.calls.Go(func() {
		a := answer{err: singleflight.ErrGoexit}
		defer func() {
			if over.Swap(true) {
				o.hung.Add(-1)
			}
			select {
			case answers <- a:
			case <-ctx.Done():
				if a.err == nil && held(a.lease) == nil {
					_ = a.lease.Unlock(ctx) // its TTL ends it otherwise
				}
			}
		}()
		a.lease, a.err = singleflight.Protect(func() (*lock.Lease, error) { return o.locker.TryLock(ctx, name) })
	})
	select {
	case a := <-answers:
		return a.lease, a.err
	case <-ctx.Done():
		if !over.Swap(true) {
			o.hung.Add(1)
		}
		return nil, ctx.Err()
	}
}

// lockOuter asks Options.Locker, if there is one, for the lock of a key, which has the
// name of its build key. If there is no answer the lease alone decides.
func (c *Cache[V]) lockOuter(ctx context.Context, key string, keys remote.Keys) outerLock {
	if c.gate.outer.locker == nil {
		return outerLock{}
	}
	o, err := c.gate.outer.try(ctx, keys.B())
	if err != nil && ctx.Err() == nil {
		c.events.emit(Event{Kind: EventLockerFailed, Key: key, Err: err})
	}
	return o
}

// lockOuterMany is lockOuter for members, some at a time.
func (c *Cache[V]) lockOuterMany(ms []*member[V]) {
	if c.gate.outer.locker != nil {
		someAtOnce(ms, func(m *member[V]) { m.a.outer = c.lockOuter(m.f.Context(), m.key, m.keys) })
	}
}

// unlockOuter gives back the lock of a key whose lease has ended, or was not granted.
func (c *Cache[V]) unlockOuter(f *flight[V], o outerLock) {
	if o.lease != nil {
		c.gate.briefly(func() { c.unlock(f, o.lease) })
	}
}

// unlockOuterMany is unlockOuter for members, some at a time.
func (c *Cache[V]) unlockOuterMany(ms []*member[V]) {
	if c.gate.outer.locker == nil {
		return
	}
	locked := slices.DeleteFunc(slices.Clone(ms), func(m *member[V]) bool { return m.a.outer.lease == nil })
	c.gate.briefly(func() { someAtOnce(locked, func(m *member[V]) { c.unlock(m.f, m.a.outer.lease) }) })
}

// unlockRefused is unlockOuterMany for those members that were not granted their leases.
func (c *Cache[V]) unlockRefused(ms []*member[V]) {
	if c.gate.outer.locker == nil {
		return
	}
	granted := func(m *member[V]) bool { return m.a.State == remote.Granted }
	c.unlockOuterMany(slices.DeleteFunc(slices.Clone(ms), granted))
}

func (c *Cache[V]) unlock(f *flight[V], l *lock.Lease) {
	if err := l.Unlock(f.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) { // its loss was told
		c.events.emit(Event{Kind: EventLockerFailed, Key: f.Key(), Err: fmt.Errorf("herdgate: Options.Locker: %w", err)})
	}
}

// briefly does work that a flight leaves behind, and waits for it no longer than for a
// command of Redis: a locker that hangs does not keep a value from its callers. It must be
// called by a flight or a batch: Close waits for these, and only then for what they leave.
func (g *Gate) briefly(work func()) {
	done := make(chan struct{})
	g.calls.Go(func() {
		defer close(done)
		work()
	})
	patience := time.NewTimer(g.options.RedisTimeout)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// someAtOnce does work for each member.
func someAtOnce[V any](ms []*member[V], work func(*member[V])) {
	next := make(chan *member[V])
	var workers sync.WaitGroup
	for range min(len(ms), lockersAtOnce) {
		workers.Go(func() {
			for m := range next {
				work(m)
			}
		})
	}
	for _, m := range ms {
		next <- m
	}
	close(next)
	workers.Wait()
}

// heldFor is how long to wait before who was told that a key's lock is held asks again,
// the n-th time in a row. Where another locker says so and there is no lease that would
// end at a known time, its holder is just beginning or ending, or is dead.
func heldFor(rest time.Duration, n int) time.Duration {
	if rest > 0 {
		return rest + askSlack
	}
	d := min(firstPoll<<min(n, 10), netPoll)
	return d + rand.N(d/2)
}
