package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

// locks is a backend of locks in memory that a test watches and breaks.
type locks struct {
	*memlock.Backend

	mu    sync.Mutex
	fail  error // what each request is answered with
	deaf  bool  // nothing is answered
	asked map[string]int
}

func newLocks() *locks { return &locks{Backend: memlock.New(), asked: map[string]int{}} }

func (l *locks) set(fail error, deaf bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail, l.deaf = fail, deaf
}

func (l *locks) answer(ctx context.Context, what string) error {
	l.mu.Lock()
	l.asked[what]++
	fail, deaf := l.fail, l.deaf
	l.mu.Unlock()
	if deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	return fail
}

func (l *locks) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked[what]
}

func (l *locks) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := l.answer(ctx, "acquire "+req.Name); err != nil {
		return lock.Grant{}, err
	}
	return l.Backend.Acquire(ctx, req)
}

func (l *locks) Renew(ctx context.Context, claim lock.Claim, ttl time.Duration) error {
	if err := l.answer(ctx, "renew "+claim.Name); err != nil {
		return err
	}
	return l.Backend.Renew(ctx, claim, ttl)
}

func (l *locks) Release(ctx context.Context, claim lock.Claim) error {
	if err := l.answer(ctx, "release "+claim.Name); err != nil {
		return err
	}
	return l.Backend.Release(ctx, claim)
}

// held reports whether the lock of a key of the tests' cache is held.
func (l *locks) held(ctx context.Context, t *testing.T, key string) bool {
	t.Helper()
	req := lock.Request{Name: "test:b:things:{" + key + "}", Owner: t.Name(), TTL: time.Minute}
	grant, err := l.Backend.Acquire(ctx, req)
	if errors.Is(err, lock.ErrNotAcquired) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Backend.Release(ctx, lock.Claim{Name: req.Name, Owner: req.Owner, Token: grant.Token}); err != nil {
		t.Fatal(err)
	}
	return false
}

// instance opens a gate with a locker over the backend.
func (w *world) instance(b lock.Backend, options lock.Options) *herdgate.Gate {
	w.Helper()
	e := engine(w.T, b, options)
	return w.gate(func(o *herdgate.Options) { o.Locker = e })
}

func TestALockerWithoutRedisIsRefused(t *testing.T) {
	_, err := herdgate.Open(t.Context(), herdgate.Options{Locker: engine(t, memlock.New(), lock.Options{})})
	var wrong *herdgate.ConfigError
	if !errors.As(err, &wrong) || wrong.Field != "Options.Locker" {
		t.Errorf("got %v, want a *ConfigError for Options.Locker", err)
	}
}

func TestTheLockIsNamedLikeTheBuildKeyAndGivenBackAfterTheCommit(t *testing.T) {
	onEachRedis(t, func(w *world) {
		l := newLocks()
		o := newOrigin(0)
		var during bool
		c := newCache(w.T, w.instance(l, lock.Options{}), func(ctx context.Context, key string) (string, error) {
			during = l.held(ctx, w.T, key)
			return o.load(ctx, key)
		}, herdgate.Policy{})

		get(w.T, c, "a")

		if !during || l.held(w.Context(), w.T, "a") {
			w.Errorf("held while the loader ran %v, and afterwards %v, want only the first", during, l.held(w.Context(), w.T, "a"))
		}
		if a, r := l.count("acquire test:b:things:{a}"), l.count("release test:b:things:{a}"); a != 1 || r != 1 {
			w.Errorf("asked for the lock %d times and gave it back %d times, want once", a, r)
		}
		get(w.T, c, "a")
		if a := l.count("acquire test:b:things:{a}"); a != 1 {
			w.Errorf("a hit has asked for the lock")
		}
	})
}

// I1: an instance that the locker does not answer, or that has none yet, has the lease alone.
func TestALeaseIsNotTakenFromOneWithoutTheLock(t *testing.T) {
	onEachRedis(t, func(w *world) {
		l, o := newLocks(), newOrigin(500*time.Millisecond)
		without := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Locker = nil }), o.load, herdgate.Policy{})
		with := newCache(w.T, w.instance(l, lock.Options{}), o.load, herdgate.Policy{})
		var early sync.WaitGroup
		early.Go(func() { get(w.T, without, "a") })
		<-o.begun

		get(w.T, with, "a")
		early.Wait()

		if n := o.loads.Load(); n != 1 {
			w.Errorf("%d loads, want 1", n)
		}
		if s := without.Stats(); s.CommitsStored != 1 {
			w.Errorf("the one without has stored %d values, want 1", s.CommitsStored)
		}
		if l.held(w.Context(), w.T, "a") {
			w.Error("the lock is still held")
		}
	})
}

// I1: the lock alone keeps others from loading, whatever Redis forgets.
func TestALeaseThatRedisForgetsIsNotGivenToAnotherWhileTheLockIsHeld(t *testing.T) {
	onEachRedis(t, func(w *world) {
		l, o := newLocks(), newOrigin(500*time.Millisecond)
		rdb := w.connect()
		a := newCache(w.T, w.instance(l, lock.Options{}), o.load, herdgate.Policy{LockTTL: time.Minute})
		b := newCache(w.T, w.instance(l, lock.Options{}), o.load, herdgate.Policy{LockTTL: time.Minute})
		var first sync.WaitGroup
		first.Go(func() { _, _ = a.Get(w.Context(), "a") })
		<-o.begun
		if err := rdb.Del(w.Context(), "test:b:things:{a}").Err(); err != nil {
			w.Fatal(err)
		}

		get(w.T, b, "a")
		first.Wait()

		if n := o.most.Load(); n != 1 {
			w.Errorf("%d loads at a time, want 1", n)
		}
		if s := a.Stats(); s.CommitsStored != 0 || s.CommitsRefused != 1 {
			w.Errorf("a commit without a lease was stored")
		}
		if n := o.loads.Load(); n != 2 {
			w.Errorf("%d loads, want one more after the refused one", n)
		}
	})
}

// I1, I2: the lease is one, however many are given the lock; and without the lease that
// Redis forgets, the lock is no right to store.
func TestALockThatTwoAreGivenIsNoRightToStore(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *herdgate.Cache[string]) (string, error){
		"Get": func(ctx context.Context, c *herdgate.Cache[string]) (string, error) { return c.Get(ctx, "a") },
		"GetMany": func(ctx context.Context, c *herdgate.Cache[string]) (string, error) {
			m, err := c.GetMany(ctx, []string{"a"})
			return m["a"], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEachRedis(t, func(w *world) {
				o, rdb := newOrigin(300*time.Millisecond), w.connect()
				var caches [2]*herdgate.Cache[string]
				for i := range caches { // each has all locks for itself
					caches[i] = newCache(w.T, w.instance(newLocks(), lock.Options{}), o.load, herdgate.Policy{LockTTL: time.Minute, LocalTTL: herdgate.Off})
				}
				var both sync.WaitGroup
				got := func(c *herdgate.Cache[string], want ...string) {
					both.Go(func() {
						if v, err := call(w.Context(), c); err != nil || !slices.Contains(want, v) {
							w.Errorf("got %q, %v, want one of %v", v, err, want)
						}
					})
				}
				for _, c := range caches {
					got(c, "a#1")
				}
				both.Wait()
				if n := o.loads.Load(); n != 1 {
					w.Errorf("%d loads, want 1", n)
				}
				<-o.begun

				if err := caches[0].Delete(w.Context(), "a"); err != nil {
					w.Fatal(err)
				}
				got(caches[0], "a#2", "a#3")
				<-o.begun
				if err := rdb.Del(w.Context(), "test:b:things:{a}").Err(); err != nil {
					w.Fatal(err)
				}
				got(caches[1], "a#3")
				both.Wait()
				for _, c := range caches {
					if v := get(w.T, c, "a"); v != "a#3" {
						w.Errorf("stored is %q, want what was loaded under the lease", v)
					}
				}
				if s := caches[0].Stats(); s.CommitsRefused != 1 || s.LockerFailures > 0 {
					w.Errorf("%+v, want the commit refused of who has the lock alone", s)
				}
			})
		})
	}
}

func TestALoadEndsWhenTheLockIsLost(t *testing.T) {
	onEachRedis(t, func(w *world) {
		l := newLocks()
		const ttl = 300 * time.Millisecond
		g := w.instance(l, lock.Options{TTL: ttl})
		cause := make(chan error, 2)
		c := newCache(w.T, g, func(ctx context.Context, _ string) (string, error) {
			if len(cause) > 0 {
				return "second", nil
			}
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return "", context.Cause(ctx)
		}, herdgate.Policy{})
		var values sync.WaitGroup
		values.Go(func() {
			if v := get(w.T, c, "a"); v != "second" {
				w.Errorf("got %q", v)
			}
		})
		w.until("it loads", func() bool { return c.Stats().LeasesWon == 1 })

		l.set(errors.New("out"), false)
		values.Wait()

		if err := <-cause; !errors.Is(err, lock.ErrLost) {
			w.Errorf("the loader's context ended with %v, want lock.ErrLost", err)
		}
		if s := c.Stats(); s.LeasesLost != 1 || s.LockerFailures == 0 || s.LoadFailures != 0 {
			w.Errorf("%+v, want a lost lease, locker failures and no load failure", s)
		}
	})
}

func TestWithoutAnAnswerOfTheLockerTheLeaseDecides(t *testing.T) {
	for name, broken := range map[string]struct {
		fail error
		deaf bool
	}{"it fails": {fail: errors.New("etcd is out")}, "it does not answer": {deaf: true}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				l, o := newLocks(), newOrigin(200*time.Millisecond)
				l.set(broken.fail, broken.deaf)
				a := newCache(w.T, w.instance(l, lock.Options{CallTimeout: time.Minute}), o.load, herdgate.Policy{})
				b := newCache(w.T, w.instance(l, lock.Options{CallTimeout: time.Minute}), o.load, herdgate.Policy{})
				start := time.Now()

				var both sync.WaitGroup
				both.Go(func() { get(w.T, a, "a") })
				both.Go(func() { get(w.T, b, "a") })
				both.Wait()

				if n := o.loads.Load(); n != 1 {
					w.Errorf("%d loads, want 1 under the lease of Redis", n)
				}
				if d := time.Since(start); d > 1300*time.Millisecond {
					w.Errorf("it took %v: want at most a second for the locker", d)
				}
				if n := a.Stats().LockerFailures + b.Stats().LockerFailures; n != 2 {
					w.Errorf("%d failures of the locker counted, want 2", n)
				}

				// It is left alone for a second, and then asked by one flight.
				asked := func() int { return l.count("acquire test:b:things:{b}") + l.count("acquire test:b:things:{c}") }
				get(w.T, a, "b")
				if asked() != 0 {
					w.Error("it was asked again at once")
				}
				w.pass(2 * time.Second)
				l.set(nil, false)
				get(w.T, a, "c")
				get(w.T, a, "d")
				if asked() != 1 || l.count("acquire test:b:things:{d}") != 1 {
					w.Error("it was not asked again when it was back")
				}
			})
		})
	}
}

// A holder that dies leaves its lock to the TTL: the others ask now and then, and no
// more often than a poll.
func TestTheLockOfADeadHolderIsWaitedOutWithoutSpinning(t *testing.T) {
	virtually(t, func(w *world) {
		l, o := newLocks(), newOrigin(0)
		const ttl = 6 * time.Second
		_, err := l.Backend.Acquire(w.Context(), lock.Request{Name: "test:b:things:{a}", Owner: "dead", TTL: ttl})
		if err != nil {
			w.Fatal(err)
		}
		c := newCache(w.T, w.instance(l, lock.Options{}), o.load, herdgate.Policy{})
		start := time.Now()

		get(w.T, c, "a")

		if d := time.Since(start); d < ttl || d > ttl+2*time.Second {
			w.Errorf("loaded after %v, want soon after %v", d, ttl)
		}
		if n := l.count("acquire test:b:things:{a}"); n > 16 {
			w.Errorf("asked for the lock %d times", n)
		}
	})
}

// What stands at the key in Redis counts whoever has the lock.
func TestAFailedLoadBacksOffWithALocker(t *testing.T) {
	onEachRedis(t, func(w *world) {
		l := newLocks()
		loads := 0
		load := func(context.Context, string) (string, error) {
			loads++
			return "", errors.New("no luck")
		}
		policy := herdgate.Policy{FailureBackoff: 10 * time.Second, WaitTimeout: time.Second}
		a := newCache(w.T, w.instance(l, lock.Options{}), load, policy)
		b := newCache(w.T, w.instance(l, lock.Options{}), load, policy)

		if _, err := a.Get(w.Context(), "a"); err == nil {
			w.Fatal("a failed load gave a value")
		}
		for _, c := range []*herdgate.Cache[string]{a, b} {
			if _, err := c.Get(w.Context(), "a"); !errors.Is(err, herdgate.ErrBackoff) {
				w.Errorf("got %v, want ErrBackoff", err)
			}
		}
		if loads != 1 {
			w.Errorf("%d loads, want 1", loads)
		}
		if l.held(w.Context(), w.T, "a") {
			w.Error("the lock is still held")
		}
	})
}

func TestALoaderThatPanicsLeavesNoLock(t *testing.T) {
	onEachRedis(t, func(w *world) {
		l := newLocks()
		c := newCache(w.T, w.instance(l, lock.Options{}), func(context.Context, string) (string, error) { panic("oh") }, herdgate.Policy{})
		if _, err := c.Get(w.Context(), "a"); err == nil {
			w.Error("a panic gave a value")
		}
		if l.held(w.Context(), w.T, "a") {
			w.Error("the lock is still held")
		}
	})
}

func TestALockerThatPanicsIsOneThatDoesNotAnswer(t *testing.T) {
	onEachRedis(t, func(w *world) {
		o := newOrigin(0)
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Locker = panicLocker{} }), o.load, herdgate.Policy{})
		get(w.T, c, "a")
		if n := c.Stats().LockerFailures; n != 1 {
			w.Errorf("%d failures of the locker, want 1", n)
		}
	})
}

type panicLocker struct{ lock.Locker }

func (panicLocker) TryLock(context.Context, string) (*lock.Lease, error) { panic("oh") }

// tryLocker is a locker of which a gate uses only TryLock.
type tryLocker func(ctx context.Context, name string) (*lock.Lease, error)

func (t tryLocker) TryLock(ctx context.Context, name string) (*lock.Lease, error) {
	return t(ctx, name)
}

func (t tryLocker) Lock(ctx context.Context, name string) (*lock.Lease, error) { return t(ctx, name) }

func TestALockerThatGivesNoLeaseHasNotAnswered(t *testing.T) {
	const late = "one of no engine, too late"
	for name, give := range map[string]func(context.Context, *lock.Engine, string) (*lock.Lease, error){
		late: func(context.Context, *lock.Engine, string) (*lock.Lease, error) {
			<-time.NewTimer(2 * time.Second).C
			return &lock.Lease{}, nil
		},
		"nothing":          func(context.Context, *lock.Engine, string) (*lock.Lease, error) { return nil, nil }, //nolint:nilnil // the fault
		"one of no engine": func(context.Context, *lock.Engine, string) (*lock.Lease, error) { return &lock.Lease{}, nil },
		"one that has ended": func(ctx context.Context, e *lock.Engine, name string) (*lock.Lease, error) {
			lease, err := e.TryLock(ctx, name)
			if err == nil {
				err = lease.Unlock(ctx)
			}
			return lease, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				e := engine(w.T, memlock.New(), lock.Options{})
				locker := tryLocker(func(ctx context.Context, name string) (*lock.Lease, error) { return give(ctx, e, name) })
				var told string
				c := newCache(w.T, w.gate(func(o *herdgate.Options) {
					o.Locker = locker
					o.Observer = herdgate.ObserverFunc(func(e herdgate.Event) {
						if e.Kind == herdgate.EventLockerFailed {
							told = e.Err.Error()
						}
					})
				}), newOrigin(0).load, herdgate.Policy{})
				get(w.T, c, "k")
				w.pass(2 * time.Second)
				if name == "nothing" && !strings.Contains(told, "neither a lease nor an error") {
					w.Errorf("told %q", told)
				}
				if s := c.Stats(); s.LockerFailures != 1 || s.Loaded != 1 || s.Loads != 1 {
					w.Errorf("%+v", s)
				}
			})
		})
	}
}

// As by an engine that its service has closed too early.
func TestALockThatItsLockerLetsGoIsNoFailureOfTheLoad(t *testing.T) { // I4, I12
	virtually(t, func(w *world) {
		e := engine(w.T, memlock.New(), lock.Options{})
		var given sync.WaitGroup
		fickle := tryLocker(func(ctx context.Context, name string) (*lock.Lease, error) {
			lease, err := e.TryLock(ctx, name)
			if err == nil {
				given.Go(func() {
					w.pass(50 * time.Millisecond)
					_ = lease.Unlock(ctx)
				})
			}
			return lease, err
		})
		defer given.Wait()
		o := newOrigin(200 * time.Millisecond)
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Locker = fickle }), o.load, herdgate.Policy{})
		get(w.T, c, "k")
		if _, err := c.GetMany(w.Context(), []string{"a", "b"}); err != nil {
			w.Error(err)
		}
		if s := c.Stats(); s.LeasesLost == 0 || s.LoadFailures != 0 {
			w.Errorf("%+v, want lost leases and no load failure", s)
		}
	})
}

// I4: also one that does not look at its context keeps nobody from a value.
func TestALockerThatNeverReturnsIsOneThatDoesNotAnswer(t *testing.T) {
	virtually(t, func(w *world) {
		l, o := newLocks(), newOrigin(0)
		stuck := stuckLocker{Locker: engine(w.T, l, lock.Options{}), until: make(chan struct{})}
		g := w.gate(func(o *herdgate.Options) { o.Locker = &stuck })
		c := newCache(w.T, g, o.load, herdgate.Policy{})
		start := time.Now()
		get(w.T, c, "a")
		if d := time.Since(start); d > 1100*time.Millisecond {
			w.Errorf("it took %v, want at most a second for the locker", d)
		}
		w.pass(2 * time.Second)
		if _, err := c.GetMany(w.Context(), []string{"b", "c"}); err != nil {
			w.Error(err)
		}
		for i := range 20 { // more than may hang
			w.pass(2 * time.Second)
			get(w.T, c, fmt.Sprint("more", i))
		}
		if n := stuck.calls.Load(); n > 17 {
			w.Errorf("%d calls hang", n)
		}
		close(stuck.until)
		w.until("a lock that came too late is given back", func() bool {
			return l.count("acquire test:b:things:{a}") > 0 && !l.held(w.Context(), w.T, "a")
		})
		w.pass(2 * time.Second)
		before := stuck.calls.Load()
		get(w.T, c, "d")
		if stuck.calls.Load() != before+1 {
			w.Error("it was not asked again when it was back")
		}
	})
}

// stuckLocker does not return until it may, whatever its context says.
type stuckLocker struct {
	lock.Locker

	until chan struct{}
	calls atomic.Int64
}

func (s *stuckLocker) TryLock(ctx context.Context, name string) (*lock.Lease, error) {
	s.calls.Add(1)
	<-s.until
	return s.Locker.TryLock(context.WithoutCancel(ctx), name)
}

// A locker that hangs at an unlock does not keep the value from who waits for it.
func TestALockerThatHangsAtAnUnlockKeepsNoValueBack(t *testing.T) {
	virtually(t, func(w *world) {
		l := newLocks()
		c := newCache(w.T, w.instance(l, lock.Options{}), func(context.Context, string) (string, error) {
			l.set(nil, true)
			return "value", nil
		}, herdgate.Policy{})
		start := time.Now()
		get(w.T, c, "a")
		if d := time.Since(start); d > 250*time.Millisecond {
			w.Errorf("it took %v, want at most RedisTimeout", d)
		}
		w.pass(3 * time.Second)
		if n := c.Stats().LockerFailures; n != 1 {
			w.Errorf("%d failures of the locker, want the unlock", n)
		}
	})
}

func TestEachKeyOfABatchHasItsLock(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("one call of the loader %v", together), func(t *testing.T) {
			onEachRedis(t, func(w *world) {
				l := newLocks()
				other := engine(w.T, l, lock.Options{})
				lease, err := other.TryLock(w.Context(), "test:b:things:{k07}")
				if err != nil {
					w.Fatal(err)
				}
				var mu sync.Mutex
				var loaded []string
				load := func(ctx context.Context, keys []string) (map[string]string, error) {
					mu.Lock()
					defer mu.Unlock()
					values := map[string]string{}
					for _, key := range keys {
						if !l.held(ctx, w.T, key) {
							w.Errorf("%s is loaded without its lock", key)
						}
						loaded = append(loaded, key)
						values[key] = "v" + key
					}
					return values, nil
				}
				g := w.instance(l, lock.Options{})
				var c *herdgate.Cache[string]
				if together {
					c, err = herdgate.NewLoader(g, "things", herdgate.BatchLoaderFunc[string](load), herdgate.Policy{})
				} else {
					c, err = herdgate.New(g, "things", func(ctx context.Context, key string) (string, error) {
						m, err := load(ctx, []string{key})
						return m[key], err
					}, herdgate.Policy{})
				}
				if err != nil {
					w.Fatal(err)
				}
				keys := make([]string, 40)
				want := map[string]string{}
				for i := range keys {
					keys[i] = fmt.Sprintf("k%02d", i)
					want[keys[i]] = "v" + keys[i]
				}
				var all sync.WaitGroup
				all.Go(func() {
					got, err := c.GetMany(w.Context(), keys)
					if err != nil || !maps.Equal(got, want) {
						w.Errorf("got %v, %v", got, err)
					}
				})
				w.until("the others are stored", func() bool { return c.Stats().CommitsStored == 39 })
				mu.Lock()
				if s := strings.Join(loaded, " "); strings.Contains(s, "k07") {
					w.Errorf("k07 was loaded while its lock was held: %s", s)
				}
				mu.Unlock()
				if err := lease.Unlock(w.Context()); err != nil {
					w.Error(err)
				}
				all.Wait()
				for _, key := range keys {
					if l.held(w.Context(), w.T, key) {
						w.Errorf("the lock of %s is still held", key)
					}
				}
			})
		})
	}
}
