package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/singleflight"
)

func TestAPanicInALoaderReachesAllCallersAndTheNextCallLoads(t *testing.T) { // C1
	everywhere(t, func(w *world) {
		var loads atomic.Int64
		all := make(chan struct{})
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			if loads.Add(1) == 1 {
				<-all
				panic("boom")
			}
			return "fine", nil
		}, herdgate.Policy{})
		go func() {
			defer close(all)
			w.until("all wait", func() bool { return c.Stats().Coalesced == 19 })
		}()
		_, errs := herd(w.T, 20, func() (string, error) { return c.Get(w.Context(), "k") })
		for _, err := range errs {
			p, ok := errors.AsType[*singleflight.PanicError](err)
			if !ok || p.Value != "boom" || !strings.Contains(string(p.Stack), "load_test.go") {
				w.Fatalf("got %v, want the panic and its stack", err)
			}
			l, ok := errors.AsType[*herdgate.LoadError](err)
			if !ok || l.Cache != "things" || l.Key != "k" {
				w.Fatalf("got %v, want the key in it", err)
			}
		}
		if b, _ := w.connect().Get(w.Context(), "test:b:things:{k}").Result(); strings.HasPrefix(b, "L") {
			w.Errorf("the lease is still there: %q", b)
		}
		if v := get(w.T, c, "k"); v != "fine" {
			w.Errorf("next call got %q", v)
		}
	})
}

func TestGoexitInALoaderIsAnErrorForAllWaiters(t *testing.T) { // C2
	everywhere(t, func(w *world) {
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			runtime.Goexit()
			return "", nil
		}, herdgate.Policy{})
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_, errs := herd(w.T, 5, func() (string, error) { return c.Get(ctx, "k") })
		for _, err := range errs {
			if !errors.Is(err, singleflight.ErrGoexit) {
				w.Errorf("got %v", err)
			}
		}
	})
}

func TestAPanicInARefreshLeavesTheStaleValue(t *testing.T) { // C3
	everywhere(t, func(w *world) {
		var loads atomic.Int64
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			if loads.Add(1) > 1 {
				panic("boom")
			}
			return "old", nil
		}, herdgate.Policy{TTL: 100 * time.Millisecond, Stale: time.Minute})
		get(w.T, c, "k")
		w.pass(120 * time.Millisecond)
		w.until("the failure is counted", func() bool {
			return get(w.T, c, "k") == "old" && c.Stats().LoadFailures == 1
		})
		for range 20 {
			get(w.T, c, "k")
		}
		if n := loads.Load(); n != 2 {
			w.Errorf("%d loads, want no retry inside the back-off", n)
		}
	})
}

func TestTheFirstCallersCancelDoesNotStopTheLoad(t *testing.T) { // C5
	everywhere(t, func(w *world) {
		o := newOrigin(200 * time.Millisecond)
		c := newCache(w.T, w.gate(), o.load, herdgate.Policy{})
		ctx, cancel := context.WithCancel(w.Context())
		first := make(chan error, 1)
		go func() {
			_, err := c.Get(ctx, "k")
			first <- err
		}()
		<-o.begun
		time.AfterFunc(20*time.Millisecond, cancel)
		values, errs := herd(w.T, 10, func() (string, error) { return c.Get(w.Context(), "k") })
		for i := range values {
			if errs[i] != nil || values[i] != "k#1" {
				w.Errorf("got %q, %v", values[i], errs[i])
			}
		}
		if err := <-first; !errors.Is(err, context.Canceled) {
			w.Errorf("the first got %v", err)
		}
		if get(w.T, c, "k"); o.loads.Load() != 1 {
			w.Errorf("%d loads", o.loads.Load())
		}
	})
}

func TestAValueIsStoredThoughItsOnlyCallerIsGone(t *testing.T) { // C6
	everywhere(t, func(w *world) {
		release := make(chan struct{})
		begun := make(chan struct{})
		c := newCache(w.T, w.gate(), func(context.Context, string) (string, error) {
			close(begun)
			<-release
			return "late", nil
		}, herdgate.Policy{})
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Get(ctx, "k")
			done <- err
		}()
		<-begun
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.Fatalf("got %v", err)
		}
		close(release)
		rdb := w.connect()
		w.until("the value is in Redis", func() bool { return rdb.Exists(w.Context(), "test:v:things:{k}").Val() == 1 })
		if b := rdb.Get(w.Context(), "test:b:things:{k}").Val(); strings.HasPrefix(b, "L") {
			w.Errorf("the lease is still there: %q", b)
		}
	})
}

func TestAFailedLoadIsSharedAndNotRetriedDuringItsBackoff(t *testing.T) { // C16, C36, I12
	everywhere(t, func(w *world) {
		var loads atomic.Int64
		boom := errors.New("database is down")
		begun := make(chan struct{}, 10)
		allWait := make(chan struct{})
		load := func(context.Context, string) (string, error) {
			loads.Add(1)
			begun <- struct{}{}
			<-allWait
			return "", boom
		}
		policy := herdgate.Policy{FailureBackoff: 300 * time.Millisecond}
		var caches []*herdgate.Cache[string]
		for range 8 {
			caches = append(caches, newCache(w.T, w.gate(), load, policy))
		}
		failed := make(chan error, 8)
		go func() {
			_, err := caches[0].Get(w.Context(), "k")
			failed <- err
		}()
		<-begun
		for _, c := range caches[1:] {
			go func() {
				_, err := c.Get(w.Context(), "k")
				failed <- err
			}()
		}
		w.until("the others wait for the load", func() bool {
			return !slices.ContainsFunc(caches[1:], func(c *herdgate.Cache[string]) bool { return c.Stats().LeasesHeld == 0 })
		})
		close(allWait)
		own, shared := 0, 0
		for range 8 {
			switch err := <-failed; {
			case errors.Is(err, boom):
				own++
			case errors.Is(err, herdgate.ErrBackoff):
				shared++
			default:
				w.Errorf("got %v", err)
			}
		}
		if own != 1 || shared != 7 || loads.Load() != 1 {
			w.Errorf("%d own failures, %d shared, %d loads, want 1, 7, 1", own, shared, loads.Load())
		}
		// Who comes now waits for the end of the short back-off, and loads.
		start := time.Now()
		if _, err := caches[3].Get(w.Context(), "k"); !errors.Is(err, boom) {
			w.Errorf("after the back-off: %v", err)
		}
		if waited := time.Since(start); w.virtual && (waited < 300*time.Millisecond || waited > 500*time.Millisecond) {
			w.Errorf("answered after %v", waited)
		}
		// The second back-off is longer than what a call waits for.
		_, err := caches[4].Get(w.Context(), "k")
		if b, ok := errors.AsType[*herdgate.BackoffError](err); !ok || b.Failures != 2 || b.Reason != "error" || b.RetryAfter > 600*time.Millisecond {
			w.Errorf("got %v", err)
		}
		if loads.Load() != 2 {
			w.Errorf("%d loads", loads.Load())
		}
	})
}

func TestALoadLongerThanTheLeaseRunsOnce(t *testing.T) { // C17
	everywhere(t, func(w *world) {
		o := newOrigin(time.Second)
		policy := herdgate.Policy{LockTTL: 300 * time.Millisecond}
		a := newCache(w.T, w.gate(), o.load, policy)
		b := newCache(w.T, w.gate(), o.load, policy)
		got := make(chan string, 1)
		go func() { got <- get(w.T, a, "k") }()
		if v := get(w.T, b, "k"); v != "k#1" || <-got != v {
			w.Errorf("got %q", v)
		}
		if o.loads.Load() != 1 {
			w.Errorf("%d loads", o.loads.Load())
		}
	})
}

func TestALoaderIsToldThatItsLeaseIsLostAndItsCallersStartAgain(t *testing.T) { // I1, I8
	everywhere(t, func(w *world) {
		told := make(chan error, 1)
		begun := make(chan struct{})
		var loads atomic.Int64
		c := newCache(w.T, w.gate(), func(ctx context.Context, _ string) (string, error) {
			if loads.Add(1) > 1 {
				return "again", nil
			}
			close(begun)
			<-ctx.Done()
			told <- context.Cause(ctx)
			return "", ctx.Err()
		}, herdgate.Policy{LockTTL: 300 * time.Millisecond})
		got := make(chan string, 1)
		go func() { got <- get(w.T, c, "k") }()
		<-begun
		w.connect().Del(w.Context(), buildKey) // Redis has lost it
		if err := <-told; !errors.Is(err, lock.ErrLost) {
			w.Errorf("told %v", err)
		}
		if v := <-got; v != "again" {
			w.Errorf("got %q", v)
		}
		if s := c.Stats(); s.LeasesLost != 1 || s.LoadFailures != 0 || s.CommitsStored != 1 {
			w.Errorf("stats %+v", s)
		}
	})
}

func TestEveryRefreshHappensThoughTheLeaseOutlivesTheTTL(t *testing.T) { // C15
	everywhere(t, func(w *world) {
		o := newOrigin(10 * time.Millisecond)
		policy := herdgate.Policy{TTL: 200 * time.Millisecond, Stale: time.Minute, LockTTL: 10 * time.Second, Jitter: herdgate.Off, EarlyBeta: herdgate.Off}
		a := newCache(w.T, w.gate(), o.load, policy)
		b := newCache(w.T, w.gate(), o.load, policy)
		get(w.T, a, "k")
		for n := int64(2); n < 6; n++ {
			w.pass(220 * time.Millisecond)
			w.until("a refresh", func() bool {
				get(w.T, a, "k")
				get(w.T, b, "k")
				return o.loads.Load() == n
			})
		}
	})
}

func TestALoaderThatIgnoresItsContextIsAbandoned(t *testing.T) { // I3, I4
	everywhere(t, func(w *world) {
		hang := make(chan struct{})
		var loads atomic.Int64
		load := func(context.Context, string) (string, error) {
			if loads.Add(1) == 1 {
				<-hang
			}
			return "second", nil
		}
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 })
		c := newCache(w.T, g, load, herdgate.Policy{LoadTimeout: 200 * time.Millisecond, WaitTimeout: time.Second})
		if _, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrLoadTimeout) {
			w.Fatalf("got %v", err)
		}
		if s := c.Stats(); s.Abandoned != 1 || s.LoadFailures != 1 {
			w.Errorf("stats %+v", s)
		}
		if v := get(w.T, c, "k"); v != "second" {
			w.Errorf("got %q", v)
		}
		close(hang)
		w.until("what it returns at last is refused", func() bool { return c.Stats().CommitsRefused == 1 })
	})
}

func TestAtMostMaxLoadsLoadersRun(t *testing.T) { // I6, I3
	everywhere(t, func(w *world) {
		o := newOrigin(50 * time.Millisecond)
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 3 })
		c := newCache(w.T, g, o.load, herdgate.Policy{})
		keys := make(chan string, 30)
		for i := range cap(keys) {
			keys <- string(rune('a' + i))
		}
		_, errs := herd(w.T, cap(keys), func() (string, error) { return c.Get(w.Context(), <-keys) })
		if err := errors.Join(errs...); err != nil {
			w.Error(err)
		}
		if most := o.most.Load(); most != 3 {
			w.Errorf("%d loaders at once, want 3", most)
		}
	})
}

func TestWaitTimeoutBoundsTheQueueForASlotAndTheWaitForAnother(t *testing.T) { // I3
	everywhere(t, func(w *world) {
		o := newOrigin(2 * time.Second)
		policy := herdgate.Policy{WaitTimeout: 100 * time.Millisecond}
		a := newCache(w.T, w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 }), o.load, policy)
		b := newCache(w.T, w.gate(), o.load, policy)
		first := make(chan string, 1)
		go func() { first <- get(w.T, a, "k") }()
		<-o.begun
		if _, err := a.Get(w.Context(), "other"); !errors.Is(err, herdgate.ErrWaitTimeout) {
			w.Errorf("queue: got %v", err)
		}
		if _, err := b.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrWaitTimeout) {
			w.Errorf("wait: got %v", err)
		}
		fast := newOrigin(0)
		policy.AfterWait = herdgate.LoadAfterWait
		c := newCache(w.T, w.gate(), fast.load, policy)
		if r, err := c.Lookup(w.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeUnlocked || r.Value != "k#1" {
			w.Errorf("load after wait: %+v, %v", r, err)
		}
		<-first
	})
}

func TestAGetInsideALoaderNeedsNoSecondSlot(t *testing.T) { // I4
	everywhere(t, func(w *world) {
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 })
		inner, err := herdgate.New(g, "inner", newOrigin(10*time.Millisecond).load, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		begun, proceed := make(chan struct{}), make(chan struct{})
		outer := newCache(w.T, g, func(ctx context.Context, key string) (string, error) {
			close(begun)
			<-proceed
			return inner.Get(ctx, "i")
		}, herdgate.Policy{})
		got := make(chan string, 2)
		go func() { got <- get(w.T, outer, "o") }()
		<-begun
		// This one waits for the only slot, which the outer loader has, and the outer
		// loader is about to join it.
		go func() { got <- get(w.T, inner, "i") }()
		w.until("the inner flight waits", func() bool { return g.Stats().Gets == 0 })
		w.pass(50 * time.Millisecond)
		close(proceed)
		for range 2 {
			if v := <-got; v != "i#1" {
				w.Errorf("got %q", v)
			}
		}
	})
}

func TestAGetInsideALoaderStartsALoadWithoutASlotOfItsOwn(t *testing.T) { // I4
	virtually(t, func(w *world) {
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 })
		inner, err := herdgate.New(g, "inner", newOrigin(10*time.Millisecond).load, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		outer := newCache(w.T, g, func(ctx context.Context, _ string) (string, error) { return inner.Get(ctx, "i") }, herdgate.Policy{})
		if v := get(w.T, outer, "o"); v != "i#1" {
			w.Errorf("got %q", v)
		}
	})
}

func TestALoadersContextCarriesTheCallersValuesAndNoDeadline(t *testing.T) {
	virtually(t, func(w *world) {
		type mark struct{}
		c := newCache(w.T, w.gate(), func(ctx context.Context, _ string) (string, error) {
			deadline, _ := ctx.Deadline()
			if left := time.Until(deadline); left < 5*time.Second {
				return "", errors.New("the caller's deadline came along")
			}
			v, _ := ctx.Value(mark{}).(string)
			return v, nil
		}, herdgate.Policy{})
		ctx, cancel := context.WithTimeout(context.WithValue(w.Context(), mark{}, "here"), time.Second)
		defer cancel()
		if v, err := c.Get(ctx, "k"); err != nil || v != "here" {
			w.Errorf("got %q, %v", v, err)
		}
	})
}

func TestTwoFetchesOfOneKeyShareOneLoad(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache[string](w.T, w.gate(), nil, herdgate.Policy{})
		if _, err := c.Get(w.Context(), "k"); !errors.Is(err, herdgate.ErrNoLoader) {
			w.Fatalf("got %v", err)
		}
		a, b := newOrigin(100*time.Millisecond), newOrigin(100*time.Millisecond)
		got := make(chan string, 1)
		go func() {
			v, _ := c.Fetch(w.Context(), "k", a.load)
			got <- v
		}()
		<-a.begun
		if v, err := c.Fetch(w.Context(), "k", b.load); err != nil || v != <-got {
			w.Errorf("got %q, %v", v, err)
		}
		if a.loads.Load() != 1 || b.loads.Load() != 0 {
			w.Errorf("%d and %d loads", a.loads.Load(), b.loads.Load())
		}
	})
}

func TestAFetchIsNotAnsweredByAFlightWithoutALoader(t *testing.T) {
	virtually(t, func(w *world) {
		h := newHolding("get")
		c := newCache[string](w.T, w.gate(func(o *herdgate.Options) {
			o.Redis.AddHook(h)
			o.RedisTimeout = time.Minute
		}), nil, herdgate.Policy{})
		h.arm()
		without := make(chan error, 1)
		go func() {
			_, err := c.Get(w.Context(), "k")
			without <- err
		}()
		synctest.Wait()
		with := make(chan error, 1)
		go func() {
			v, err := c.Fetch(w.Context(), "k", newOrigin(0).load)
			if v != "k#1" {
				w.Errorf("got %q", v)
			}
			with <- err
		}()
		synctest.Wait()
		h.release()
		if err := <-with; err != nil {
			w.Error(err)
		}
		if err := <-without; !errors.Is(err, herdgate.ErrNoLoader) {
			w.Error(err)
		}
	})
}

func TestAKeyThatIsDeletedAllTheTimeIsStillRead(t *testing.T) { // I3
	virtually(t, func(w *world) {
		o := newOrigin(2 * time.Second) // longer than a renewal, which finds the lease taken
		c := newCache(w.T, w.gate(), o.load, herdgate.Policy{})
		got := make(chan string, 1)
		go func() { got <- get(w.T, c, "k") }()
		for {
			select {
			case <-got:
				if n := o.loads.Load(); n > 4 {
					w.Errorf("%d loads", n)
				}
				return
			default:
				if err := c.Delete(w.Context(), "k"); err != nil {
					w.Fatal(err)
				}
				w.pass(150 * time.Millisecond)
			}
		}
	})
}

func TestAbandonedLoadersOfRefreshesAreCappedToo(t *testing.T) { // I4
	virtually(t, func(w *world) {
		hang := make(chan struct{})
		defer close(hang)
		var refreshing atomic.Bool
		var running atomic.Int64
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 }), func(context.Context, string) (string, error) {
			if refreshing.Load() {
				running.Add(1)
				<-hang
			}
			return "v", nil
		}, herdgate.Policy{TTL: time.Second, Stale: time.Hour, LoadTimeout: 100 * time.Millisecond})
		for i := range 20 {
			get(w.T, c, fmt.Sprint(i))
		}
		refreshing.Store(true)
		w.pass(2 * time.Second)
		for i := range 20 {
			get(w.T, c, fmt.Sprint(i))
			w.pass(400 * time.Millisecond)
		}
		if n := running.Load(); n != 2 { // one in the slot, one abandoned
			w.Errorf("%d loaders run", n)
		}
	})
}

func TestACallThatJoinsAWaitingFlightHasItsOwnTimeToWait(t *testing.T) { // I3
	virtually(t, func(w *world) {
		o := newOrigin(4 * time.Second)
		policy := herdgate.Policy{WaitTimeout: 3 * time.Second}
		a, b := newCache(w.T, w.gate(), o.load, policy), newCache(w.T, w.gate(), o.load, policy)
		go func() { _, _ = a.Get(w.Context(), "k") }()
		<-o.begun
		go func() { _, _ = b.Get(w.Context(), "k") }() // gives up after 3 s
		w.pass(2 * time.Second)
		if v := get(w.T, b, "k"); v != "k#1" {
			w.Errorf("got %q", v)
		}
	})
}

func TestNobodyWaitsLongerThanWaitTimeoutThoughTheFlightIsAnothers(t *testing.T) { // I3
	virtually(t, func(w *world) {
		o := newOrigin(time.Minute)
		policy := herdgate.Policy{LoadTimeout: 2 * time.Minute, WaitTimeout: 10 * time.Second}
		a, b := newCache(w.T, w.gate(), o.load, policy), newCache(w.T, w.gate(), o.load, policy)
		go func() { _, _ = a.Get(w.Context(), "k") }()
		<-o.begun
		start := time.Now()
		_, errs := herd(w.T, 3, func() (string, error) {
			w.pass(time.Since(start) + time.Millisecond)
			return b.Get(w.Context(), "k")
		})
		if took := time.Since(start); took > 11*time.Second {
			w.Errorf("waited %v", took)
		}
		for _, err := range errs {
			if !errors.Is(err, herdgate.ErrWaitTimeout) {
				w.Errorf("got %v", err)
			}
		}
		w.pass(time.Minute)
	})
}

func TestTheTimeOfACallsOwnLoadIsNoWait(t *testing.T) { // I3
	virtually(t, func(w *world) {
		for name, read := range singlyOrMany() {
			o := newOrigin(2 * time.Second)
			c := newCache(w.T, w.gate(), o.load, herdgate.Policy{WaitTimeout: 1500 * time.Millisecond})
			deleted := make(chan error, 1)
			go func() {
				<-o.begun
				w.pass(1800 * time.Millisecond)
				deleted <- c.Delete(w.Context(), name)
			}()
			if v, err := read(w.Context(), c, name); err != nil || v != name+"#2" {
				w.Errorf("%s: got %q, %v", name, v, err)
			}
			if err := <-deleted; err != nil {
				w.Error(err)
			}
		}
	})
}

func TestACallThatAChangeSendsBackHasWhatIsLeftOfItsTimeToWait(t *testing.T) { // I3
	for _, unlocked := range []bool{false, true} {
		virtually(t, func(w *world) {
			for name, read := range singlyOrMany() {
				o := newOrigin(3 * time.Second)
				policy := herdgate.Policy{WaitTimeout: 4 * time.Second}
				c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 }), o.load, policy)
				if unlocked { // a newer version of the code has stored it
					policy.Version = 1
					if err := newCache(w.T, w.gate(), o.load, policy).Set(w.Context(), name, "newer"); err != nil {
						w.Fatal(err)
					}
				}
				var others sync.WaitGroup
				load := func(key string) { others.Go(func() { _, _ = c.Get(w.Context(), key) }) }
				load(name + " before it")
				<-o.begun
				began := time.Now()
				others.Go(func() {
					<-o.begun // after 3 s in the queue for the slot
					load(name + " after it")
					w.pass(500 * time.Millisecond)
					if err := c.Delete(w.Context(), name); err != nil {
						w.Error(err)
					}
				})
				_, err := read(w.Context(), c, name)
				if took := time.Since(began); !errors.Is(err, herdgate.ErrWaitTimeout) || took < 4*time.Second || took > 5*time.Second {
					w.Errorf("%s: %v after %v", name, err, took)
				}
				if n := c.Stats().WaitTimeouts; n != 1 {
					w.Errorf("%s: %d flights waited for too long", name, n)
				}
				others.Wait()
			}
		})
	}
}

func TestACallThatAChangeSendsBackLoadsAfterItsWaitAtOnce(t *testing.T) { // I3
	virtually(t, func(w *world) {
		slow, fast := newOrigin(10*time.Second), newOrigin(3*time.Second)
		policy := herdgate.Policy{WaitTimeout: 4 * time.Second, LoadTimeout: time.Minute, AfterWait: herdgate.LoadAfterWait}
		a, b := newCache(w.T, w.gate(), slow.load, policy), newCache(w.T, w.gate(), fast.load, policy)
		go func() { _, _ = a.Get(w.Context(), "k") }()
		<-slow.begun
		began := time.Now()
		go func() {
			<-fast.begun // b has waited for 4 s
			w.pass(time.Second)
			if err := a.Delete(w.Context(), "k"); err != nil {
				w.Error(err)
			}
		}()
		if v := get(w.T, b, "k"); v != "k#2" {
			w.Errorf("got %q", v)
		}
		if took := time.Since(began); took > 9*time.Second {
			w.Errorf("after %v", took)
		}
		w.pass(time.Minute)
	})
}

func TestABatchWaitsForItsSlotAndForOthersWithinOneWaitTimeout(t *testing.T) { // I3
	virtually(t, func(w *world) {
		o := newOrigin(6 * time.Second)
		policy := herdgate.Policy{WaitTimeout: 4 * time.Second, LoadTimeout: time.Minute}
		loading := newCache(w.T, w.gate(), o.load, policy)
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 })
		busy, err := herdgate.New(g, "busy", newOrigin(3*time.Second).load, policy)
		if err != nil {
			w.Fatal(err)
		}
		together, err := herdgate.NewLoader(g, "things", herdgate.BatchLoaderFunc[string](func(context.Context, []string) (map[string]string, error) {
			return nil, errors.New("another instance loads it")
		}), policy)
		if err != nil {
			w.Fatal(err)
		}
		go func() { _, _ = busy.Get(w.Context(), "k") }()
		w.pass(100 * time.Millisecond)
		go func() { _, _ = loading.Get(w.Context(), "k") }()
		<-o.begun
		began := time.Now()
		_, err = together.GetMany(w.Context(), []string{"k"})
		if took := time.Since(began); !errors.Is(err, herdgate.ErrWaitTimeout) || took > 5*time.Second {
			w.Errorf("%v after %v", err, took)
		}
		w.pass(time.Minute)
	})
}

// singlyOrMany are the ways to read a key.
func singlyOrMany() map[string]func(context.Context, *herdgate.Cache[string], string) (string, error) {
	return map[string]func(context.Context, *herdgate.Cache[string], string) (string, error){
		"one": func(ctx context.Context, c *herdgate.Cache[string], key string) (string, error) {
			return c.Get(ctx, key)
		},
		"many": func(ctx context.Context, c *herdgate.Cache[string], key string) (string, error) {
			all, err := c.GetMany(ctx, []string{key})
			return all[key], err
		},
	}
}

func TestALoadersErrorIsNotTakenForTheFlightsOwn(t *testing.T) {
	virtually(t, func(w *world) {
		for _, inner := range []error{herdgate.ErrNoLoader, herdgate.ErrWaitTimeout} {
			var loads atomic.Int64
			c, err := herdgate.New(w.gate(), "outer", func(context.Context, string) (int, error) {
				loads.Add(1)
				w.pass(100 * time.Millisecond)
				return 0, fmt.Errorf("the other cache: %w", inner)
			}, herdgate.Policy{})
			if err != nil {
				w.Fatal(err)
			}
			_, errs := herd(w.T, 5, func() (int, error) { return c.Get(w.Context(), inner.Error()) })
			for _, err := range errs {
				if !errors.Is(err, inner) {
					w.Errorf("got %v", err)
				}
			}
			if n := loads.Load(); n != 1 {
				w.Errorf("%d loads", n)
			}
		}
	})
}

func TestALeaseThatIsGoneBeforeItsLoaderBeginsIsNotLoadedUnder(t *testing.T) { // I1
	t.Parallel()
	for name, read := range map[string]func(context.Context, *herdgate.Cache[string]) (string, error){
		"one": func(ctx context.Context, c *herdgate.Cache[string]) (string, error) { return c.Get(ctx, "k") },
		"many": func(ctx context.Context, c *herdgate.Cache[string]) (string, error) {
			all, err := c.GetMany(ctx, []string{"k", "l"})
			return all["k"], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEachRedis(t, func(w *world) { // with a locker nobody else loads until the holder knows
				late := &lateReply{answered: make(chan struct{}), release: make(chan struct{})}
				client := w.connect()
				client.AddHook(late)
				patient := func(o *herdgate.Options) { o.RedisTimeout = time.Minute }
				o := newOrigin(200 * time.Millisecond)
				loser := newCache(w.T, w.gate(patient, func(o *herdgate.Options) { o.Redis = client }), o.load, herdgate.Policy{})
				other := newCache(w.T, w.gate(), o.load, herdgate.Policy{})

				if err := other.Set(w.Context(), "last", "old"); err != nil {
					w.Fatal(err)
				}
				get(w.T, loser, "last")
				late.armed.Store(true)
				type got struct {
					value string
					err   error
				}
				done := make(chan got, 1)
				go func() {
					v, err := read(w.Context(), loser)
					done <- got{v, err}
				}()
				<-late.answered // the lease is granted, and its holder does not know yet
				if err := other.Delete(w.Context(), "k"); err != nil {
					w.Fatal(err)
				}
				if err := other.Set(w.Context(), "last", "new"); err != nil {
					w.Fatal(err)
				}
				w.until("the changes are known", func() bool { return get(w.T, loser, "last") == "new" })
				loads := make(chan error, 1)
				go func() {
					_, err := other.Get(w.Context(), "k")
					loads <- err
				}()
				<-o.begun // the successor loads
				close(late.release)
				if g := <-done; g.err != nil || g.value == "" {
					w.Errorf("got %+v", g)
				}
				if err := <-loads; err != nil {
					w.Error(err)
				}
				if s := loser.Stats(); s.LeasesRevoked != 1 {
					w.Errorf("%d leases revoked, want 1", s.LeasesRevoked)
				}
				if s := loser.Stats().Loads; name == "one" && s != 0 {
					w.Errorf("%d loads under a lease that was gone", s)
				}
			})
		})
	}
}

// lateReply holds back the reply of the next script, or pipeline of scripts, once armed.
type lateReply struct {
	armed             atomic.Bool
	answered, release chan struct{}
}

func (*lateReply) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lateReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		l.hold(cmd.Name())
		return err
	}
}

func (l *lateReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		l.hold(cmds[0].Name())
		return err
	}
}

func (l *lateReply) hold(command string) {
	if command == "evalsha" && l.armed.CompareAndSwap(true, false) {
		close(l.answered)
		<-l.release
	}
}
