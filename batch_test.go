package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/singleflight"
)

// manyOrigin is a source that loads many keys in one call, and counts.
type manyOrigin struct {
	origin

	calls   atomic.Int64
	mu      sync.Mutex
	perKey  map[string]int // protected by mu
	batches [][]string     // protected by mu
	without func(key string) bool
	fails   func(ctx context.Context, keys []string) (answered int, err error)
}

func newManyOrigin(delay time.Duration) *manyOrigin {
	return &manyOrigin{origin: origin{delay: delay, begun: make(chan struct{}, 1024)}, perKey: map[string]int{}}
}

// loadMany returns "key*n" for each key, n being the number of its loads.
func (o *manyOrigin) loadMany(ctx context.Context, keys []string) (map[string]string, error) {
	o.calls.Add(1)
	values := map[string]string{}
	o.mu.Lock()
	o.batches = append(o.batches, slices.Clone(keys))
	for _, key := range keys {
		o.perKey[key]++
		if o.without == nil || !o.without(key) {
			values[key] = fmt.Sprintf("%s*%d", key, o.perKey[key])
		}
	}
	o.mu.Unlock()
	if _, err := o.load(ctx, ""); err != nil {
		return nil, err
	}
	if o.fails != nil {
		n, err := o.fails(ctx, keys)
		for _, key := range keys[n:] {
			delete(values, key)
		}
		return values, err
	}
	return values, nil
}

// loadOne is the same for a single key.
func (o *manyOrigin) loadOne(ctx context.Context, key string) (string, error) {
	values, err := o.loadMany(ctx, []string{key})
	if v, ok := values[key]; ok {
		return v, nil
	}
	if err == nil {
		err = herdgate.ErrNotFound
	}
	return "", err
}

func (o *manyOrigin) times(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.perKey[key]
}

func (o *manyOrigin) wantLoads(w *world, each int, keys ...string) {
	w.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	want := map[string]int{}
	for _, key := range keys {
		want[key] = each
	}
	if !maps.Equal(o.perKey, want) {
		w.Errorf("loads %v, want %v", o.perKey, want)
	}
}

// patient lets Redis take its time on a busy machine: what is degraded loads again.
func patient(o *herdgate.Options) { o.RedisTimeout = 5 * time.Second }

// crew is a test with one of the two ways to load many keys.
type crew struct {
	*world
	together bool
}

// byBothLoaders runs a test everywhere with a loader of many keys and with one of single
// keys.
func byBothLoaders(t *testing.T, test func(w *crew)) {
	t.Helper()
	t.Parallel()
	for name, together := range map[string]bool{"together": true, "one by one": false} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) { test(&crew{w, together}) })
		})
	}
}

// long is a duration in which other things are to happen, on a busy machine too.
func (w *world) long(d time.Duration) time.Duration {
	if w.virtual {
		return d
	}
	return 10 * d
}

func (w *crew) cache(g *herdgate.Gate, o *manyOrigin, policy herdgate.Policy) *herdgate.Cache[string] {
	w.Helper()
	if w.together {
		return newBatchCache(w.T, g, o, policy)
	}
	return newCache(w.T, g, o.loadOne, policy)
}

func newBatchCache(t *testing.T, g *herdgate.Gate, o *manyOrigin, policy herdgate.Policy) *herdgate.Cache[string] {
	t.Helper()
	c, err := herdgate.NewLoader(g, "things", herdgate.BatchLoaderFunc[string](o.loadMany), policy)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func numbered(from, to int) (keys []string) {
	for i := from; i < to; i++ {
		keys = append(keys, fmt.Sprintf("k%03d", i))
	}
	return keys
}

// loadedOnce are the values of keys after the n-th load of each.
func loadedTimes(n int, keys ...string) map[string]string {
	values := map[string]string{}
	for _, key := range keys {
		values[key] = fmt.Sprintf("%s*%d", key, n)
	}
	return values
}

func wantMany(w *world, c *herdgate.Cache[string], keys []string, want map[string]string) {
	w.Helper()
	if got, err := c.GetMany(w.Context(), keys); err != nil || !maps.Equal(got, want) {
		w.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestGetManyReturnsWhatThereIsAndLoadsTheRest(t *testing.T) {
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(10 * time.Millisecond)
		o.without = func(key string) bool { return key == "k003" }
		a, b := w.cache(w.gate(patient), o, herdgate.Policy{}), w.cache(w.gate(patient), o, herdgate.Policy{})
		if v := get(w.T, a, "k000"); v != "k000*1" {
			w.Errorf("got %q", v)
		}
		keys := numbered(0, 10)
		want := loadedTimes(1, keys...)
		delete(want, "k003")
		for range 2 {
			wantMany(w.world, a, append(keys, keys...), want)
			wantMany(w.world, b, keys, want)
		}
		o.wantLoads(w.world, 1, keys...)
		if n := o.calls.Load(); w.together && n != 2 {
			w.Errorf("%d calls of the loader, want one for the first key and one for the others", n)
		}
		if _, err := a.Get(w.Context(), "k003"); !errors.Is(err, herdgate.ErrNotFound) {
			w.Errorf("got %v", err)
		}
		wantMany(w.world, a, nil, map[string]string{})
		stats := a.Stats()
		if stats.Gets != 2*10+2 || stats.Failed != 0 {
			w.Errorf("%d gets, %d of them failed: %+v", stats.Gets, stats.Failed, stats)
		}
	})
}

// stepCounter counts what one client sends for keys, by the name of its first command: a
// pipeline is one.
type stepCounter struct {
	mu sync.Mutex
	n  map[string]int // protected by mu
}

func (s *stepCounter) count(cmd redis.Cmder) {
	name := cmd.Name()
	switch name {
	case "get", "mget", "time":
	case "eval", "evalsha":
		switch kind, _, _ := strings.Cut(strings.TrimPrefix(fmt.Sprint(cmd.Args()[3]), "test:"), ":"); kind {
		case "v", "b":
		case "t":
			name = "tags"
		default:
			return
		}
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[string]int{}
	}
	s.n[name]++
}

func (s *stepCounter) took() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.n
	s.n = nil
	return n
}

func (*stepCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stepCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.count(cmd)
		return next(ctx, cmd)
	}
}

func (s *stepCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.count(cmds[0])
		return next(ctx, cmds)
	}
}

func TestABatchTakesThreeStepsOfRedis(t *testing.T) { // the cost table
	everywhere(t, func(w *world) {
		steps := &stepCounter{}
		o := newManyOrigin(10 * time.Millisecond)
		policy := herdgate.Policy{LocalTTL: herdgate.Off, TTL: time.Minute, Stale: time.Minute, MinRebuildInterval: time.Millisecond}
		c := newBatchCache(w.T, w.gate(func(options *herdgate.Options) { options.Redis.AddHook(steps) }), o, policy)
		keys := numbered(0, 100)
		expire := func() {
			for _, key := range keys {
				if err := c.Expire(w.Context(), key); err != nil {
					w.Fatal(err)
				}
			}
		}
		for _, step := range []struct {
			name   string
			before func()
			want   map[string]int
		}{
			{"cold", func() {}, map[string]int{"mget": 1, "evalsha": 2}},
			{"remote hits", func() {}, map[string]int{"mget": 1}},
			{"stale, and a refresh behind", expire, map[string]int{"mget": 1, "evalsha": 2}},
		} {
			step.before()
			loads := c.Stats().CommitsStored
			steps.took()
			if got, err := c.GetMany(w.Context(), keys); err != nil || len(got) != len(keys) {
				w.Fatalf("%s: %d values, %v", step.name, len(got), err)
			}
			if step.want["evalsha"] > 0 {
				w.until("all are stored", func() bool { return c.Stats().CommitsStored == loads+100 })
			}
			if took := steps.took(); !maps.Equal(took, step.want) {
				w.Errorf("%s took %v, want %v", step.name, took, step.want)
			}
		}
		if n := o.calls.Load(); n != 2 {
			w.Errorf("%d calls of the loader, want 2", n)
		}
	})
}

func TestOverlappingBatchesLoadEachKeyOnce(t *testing.T) { // I1
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(50 * time.Millisecond)
		policy := herdgate.Policy{LockTTL: 10 * time.Second}
		gates := []*herdgate.Cache[string]{w.cache(w.gate(patient), o, policy), w.cache(w.gate(patient), o, policy), w.cache(w.gate(patient), o, policy)}
		var all sync.WaitGroup
		for i := range 9 { // each pair of neighbours has keys in common, in this process and elsewhere
			all.Go(func() {
				keys := numbered(5*i, 5*i+30)
				if i%2 == 1 {
					slices.Reverse(keys)
				}
				wantMany(w.world, gates[i%3], keys, loadedTimes(1, keys...))
			})
		}
		all.Wait()
		o.wantLoads(w.world, 1, numbered(0, 70)...)
	})
}

func TestSingleCallsAndBatchesShareTheirLoads(t *testing.T) { // I1
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(w.long(100 * time.Millisecond))
		c := w.cache(w.gate(patient), o, herdgate.Policy{})
		keys := numbered(0, 10)
		var all sync.WaitGroup
		all.Go(func() { get(w.T, c, keys[0]) })
		<-o.begun
		all.Go(func() { wantMany(w.world, c, keys, loadedTimes(1, keys...)) })
		<-o.begun
		for _, key := range keys {
			all.Go(func() {
				if v := get(w.T, c, key); v != key+"*1" {
					w.Errorf("got %q", v)
				}
			})
		}
		all.Go(func() {
			if v, err := c.Refresh(w.Context(), keys[1]); err != nil || v != keys[1]+"*1" {
				w.Errorf("Refresh: %q, %v", v, err)
			}
		})
		all.Wait()
		o.wantLoads(w.world, 1, keys...)
	})
}

func TestAChangeDuringABatchTakesOnlyItsOwnKey(t *testing.T) { // I2
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(w.long(200 * time.Millisecond))
		c, other := w.cache(w.gate(patient), o, herdgate.Policy{}), w.cache(w.gate(patient), o, herdgate.Policy{})
		keys := numbered(0, 5)
		var all sync.WaitGroup
		all.Go(func() {
			want := loadedTimes(1, keys...)
			want[keys[2]] = keys[2] + "*2"
			want[keys[3]] = "set"
			wantMany(w.world, c, keys, want)
		})
		<-o.begun
		w.until("all leases are won", func() bool { return c.Stats().LeasesWon == 5 })
		if err := other.Delete(w.Context(), keys[2]); err != nil {
			w.Fatal(err)
		}
		if err := c.Set(w.Context(), keys[3], "set"); err != nil {
			w.Fatal(err)
		}
		all.Wait()
		for i, key := range keys {
			want := []string{"*1", "*1", "*2", "", "*1"}[i]
			if v := get(w.T, other, key); i != 3 && v != key+want || i == 3 && v != "set" {
				w.Errorf("%s is %q", key, v)
			}
		}
		if s := c.Stats(); s.LeasesRevoked > 2 || s.LoadFailures > 2 {
			w.Errorf("%d leases revoked, %d loads failed", s.LeasesRevoked, s.LoadFailures)
		}
	})
}

func TestWhatABatchLoadsDuringAChangeIsNotUsed(t *testing.T) { // I2
	everywhere(t, func(w *world) {
		o := newManyOrigin(w.long(200 * time.Millisecond))
		c := newBatchCache(w.T, w.gate(patient), o, herdgate.Policy{MinRebuildInterval: time.Millisecond})
		var batch sync.WaitGroup
		batch.Go(func() { _, _ = c.GetMany(w.Context(), numbered(0, 3)) })
		<-o.begun
		if err := c.Delete(w.Context(), "k001"); err != nil {
			w.Fatal(err)
		}
		start := time.Now()
		if v := get(w.T, c, "k001"); v != "k001*2" {
			w.Errorf("a call after the change got %q", v)
		}
		if d := time.Since(start); w.virtual && d > 250*time.Millisecond {
			w.Errorf("it took %v: it waited for the batch", d)
		}
		batch.Wait()
		for range 3 {
			if v := get(w.T, c, "k001"); v != "k001*2" {
				w.Errorf("afterwards %q", v)
			}
		}
	})
}

func TestABatchWhoseKeysHaveAllChangedIsCancelled(t *testing.T) { // I2
	everywhere(t, func(w *world) {
		causes := make(chan error, 1)
		var calls atomic.Int64
		c, err := herdgate.NewLoader(w.gate(patient), "things", herdgate.BatchLoaderFunc[string](func(ctx context.Context, keys []string) (map[string]string, error) {
			if calls.Add(1) == 1 {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return nil, ctx.Err()
			}
			return loadedTimes(2, keys...), nil
		}), herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		keys := numbered(0, 3)
		var batch sync.WaitGroup
		batch.Go(func() { wantMany(w, c, keys, loadedTimes(2, keys...)) })
		w.until("the loader runs", func() bool { return calls.Load() == 1 })
		if err := c.Delete(w.Context(), keys...); err != nil {
			w.Fatal(err)
		}
		if err := <-causes; !errors.Is(err, herdgate.ErrRevoked) {
			w.Errorf("the loader's context ended with %v", err)
		}
		batch.Wait()
	})
}

func TestASourceThatFailsHalfWayMakesNoNegativeEntries(t *testing.T) { // C21
	everywhere(t, func(w *world) {
		for name, boom := range map[string]error{"boom": errors.New("boom"), "not found": fmt.Errorf("no table: %w", herdgate.ErrNotFound)} {
			o := newManyOrigin(0)
			var healthy atomic.Bool
			o.fails = func(_ context.Context, keys []string) (int, error) {
				if healthy.Load() {
					return len(keys), nil
				}
				return min(60, len(keys)), boom
			}
			g := w.gate(func(o *herdgate.Options) { o.Namespace = strings.ReplaceAll(name, " ", "-") })
			c := newBatchCache(w.T, g, o, herdgate.Policy{FailureBackoff: 10 * time.Millisecond, MinRebuildInterval: time.Millisecond})
			keys := numbered(0, 100)
			got, err := c.GetMany(w.Context(), keys)
			if !maps.Equal(got, loadedTimes(1, keys[:60]...)) {
				w.Errorf("%s: got %d values", name, len(got))
			}
			many, ok := errors.AsType[*herdgate.ManyError](err)
			if !ok || len(many.Failed) != 40 || many.Asked != 100 {
				w.Fatalf("%s: the error is %v", name, err)
			}
			for i, f := range many.Failed {
				load, ok := errors.AsType[*herdgate.LoadError](f.Err)
				if f.Key != keys[60+i] || !ok || load.Key != f.Key || errors.Is(f.Err, herdgate.ErrNotFound) || !strings.Contains(f.Err.Error(), boom.Error()) {
					w.Errorf("%s: %d: %q failed with %v", name, i, f.Key, f.Err)
				}
			}
			if name == "boom" && !errors.Is(err, boom) {
				w.Errorf("the error does not match the loader's: %v", err)
			}
			if m := err.Error(); !strings.HasPrefix(m, `herdgate: 40 of 100 keys of things failed, the first "k060": herdgate: load things "k060": `) {
				w.Errorf("it reads %q", m)
			}
			if s := c.Stats(); s.LoadFailures != 40 || s.CommitsStored != 60 {
				w.Errorf("%s: %d loads failed, %d stored", name, s.LoadFailures, s.CommitsStored)
			}
			healthy.Store(true)
			w.pass(30 * time.Millisecond)
			got, err = c.GetMany(w.Context(), keys)
			want := loadedTimes(1, keys[:60]...)
			maps.Copy(want, loadedTimes(2, keys[60:]...))
			if err != nil || !maps.Equal(got, want) {
				w.Errorf("%s: once the source is well again: %d values, %v", name, len(got), err)
			}
		}
	})
}

func TestAFailingBatchIsAnErrorForEachKeyAndWedgesNone(t *testing.T) { // I4, C1, C2
	t.Parallel()
	boom := errors.New("boom")
	for name, fails := range map[string]struct {
		with func(ctx context.Context) error
		is   func(error) bool
	}{
		"error": {func(context.Context) error { return boom }, func(err error) bool { return errors.Is(err, boom) }},
		"panic": {func(context.Context) error { panic(boom) }, func(err error) bool {
			p, ok := errors.AsType[*singleflight.PanicError](err)
			return ok && errors.Is(p, boom) && len(p.Stack) > 0
		}},
		"goexit": {func(context.Context) error { runtime.Goexit(); return nil }, func(err error) bool { return errors.Is(err, singleflight.ErrGoexit) }},
		"timeout": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, func(err error) bool {
			return errors.Is(err, herdgate.ErrLoadTimeout) && errors.Is(err, context.DeadlineExceeded)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			byBothLoaders(t, func(w *crew) {
				var broken atomic.Bool
				broken.Store(true)
				o := newManyOrigin(0)
				o.fails = func(ctx context.Context, keys []string) (int, error) {
					if broken.Load() {
						return 0, fails.with(ctx)
					}
					return len(keys), nil
				}
				g := w.gate(patient)
				c := w.cache(g, o, herdgate.Policy{LoadTimeout: 50 * time.Millisecond, FailureBackoff: 20 * time.Millisecond, MinRebuildInterval: time.Millisecond, WaitTimeout: 5 * time.Second})
				keys := numbered(0, 5)
				got, err := c.GetMany(w.Context(), keys)
				many, ok := errors.AsType[*herdgate.ManyError](err)
				if !ok || len(many.Failed) != len(keys) || len(got) != 0 {
					w.Fatalf("got %v, %v", got, err)
				}
				for _, f := range many.Failed {
					if !fails.is(f.Err) {
						w.Errorf("%s: %v", f.Key, f.Err)
					}
				}
				broken.Store(false)
				wantMany(w.world, c, keys, loadedTimes(2, keys...))
			})
		})
	}
}

func TestABatchLoaderThatIgnoresItsContextIsAbandoned(t *testing.T) { // I3, I4
	everywhere(t, func(w *world) {
		release := make(chan struct{})
		var calls atomic.Int64
		c, err := herdgate.NewLoader(w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 }), "things",
			herdgate.BatchLoaderFunc[string](func(_ context.Context, keys []string) (map[string]string, error) {
				if calls.Add(1) == 1 {
					<-release
				}
				return loadedTimes(1, keys...), nil
			}), herdgate.Policy{LoadTimeout: 50 * time.Millisecond, FailureBackoff: 10 * time.Millisecond, MinRebuildInterval: time.Millisecond, WaitTimeout: 5 * time.Second})
		if err != nil {
			w.Fatal(err)
		}
		keys := numbered(0, 3)
		if got, err := c.GetMany(w.Context(), keys); !errors.Is(err, herdgate.ErrLoadTimeout) || len(got) > 0 {
			w.Errorf("got %v, %v", got, err)
		}
		wantMany(w, c, keys, loadedTimes(1, keys...))
		close(release)
		w.until("what came late is counted as refused", func() bool { return c.Stats().CommitsRefused == 3 })
		if s := c.Stats(); s.Abandoned != 3 {
			w.Errorf("%d abandoned", s.Abandoned)
		}
	})
}

func TestACallerThatLeavesABatchStopsNothing(t *testing.T) { // C5, C6
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(w.long(100 * time.Millisecond))
		c := w.cache(w.gate(patient), o, herdgate.Policy{})
		keys := numbered(0, 5)
		if err := c.Set(w.Context(), keys[0], "there"); err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.Context())
		var batch sync.WaitGroup
		batch.Go(func() {
			got, err := c.GetMany(ctx, keys)
			if many, ok := errors.AsType[*herdgate.ManyError](err); !ok || !errors.Is(err, context.Canceled) || len(many.Failed) != 4 || got[keys[0]] != "there" {
				w.Errorf("got %v, %v", got, err)
			}
		})
		<-o.begun
		cancel()
		batch.Wait()
		want := loadedTimes(1, keys...)
		want[keys[0]] = "there"
		wantMany(w.world, c, keys, want)
		o.wantLoads(w.world, 1, keys[1:]...)
	})
}

func TestStaleKeysOfABatchAreServedAndRefreshedBehindTogether(t *testing.T) { // I5
	byBothLoaders(t, func(w *crew) {
		for name, localTTL := range localTiers() {
			o := newManyOrigin(20 * time.Millisecond)
			g := w.gate(func(o *herdgate.Options) { o.Namespace = strings.ReplaceAll(name, " ", "-") })
			c := w.cache(g, o, herdgate.Policy{TTL: 200 * time.Millisecond, Stale: time.Hour, Jitter: herdgate.Off, EarlyBeta: herdgate.Off, LocalTTL: localTTL})
			keys := numbered(0, 20)
			wantMany(w.world, c, keys, loadedTimes(1, keys...))
			w.pass(250 * time.Millisecond)
			wantMany(w.world, c, keys, loadedTimes(1, keys...))
			w.until("they are refreshed", func() bool { return c.Stats().CommitsStored == 40 })
			got, err := c.GetMany(w.Context(), keys)
			if err != nil || w.virtual && !maps.Equal(got, loadedTimes(2, keys...)) {
				w.Errorf("%s: got %v, %v", name, got, err)
			}
			s := c.Stats()
			if s.Refreshes != 20 {
				w.Errorf("%s: %d refreshes", name, s.Refreshes)
			}
			if n := o.calls.Load(); w.together && n != 2 {
				w.Errorf("%s: %d calls of the loader", name, n)
			}
		}
	})
}

func TestABatchKeepsToTheLoadSlots(t *testing.T) { // I6
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(10 * time.Millisecond)
		c := w.cache(w.gate(func(o *herdgate.Options) { o.MaxLoads = 3 }), o, herdgate.Policy{})
		keys := numbered(0, 20)
		wantMany(w.world, c, keys, loadedTimes(1, keys...))
		o.wantLoads(w.world, 1, keys...)
		if most := o.most.Load(); most > 3 || w.together && most != 1 {
			w.Errorf("%d loads at once", most)
		}
	})
}

func TestABatchThatWaitsForASlotHasItsTimeToWait(t *testing.T) { // I3
	byBothLoaders(t, func(w *crew) {
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 })
		slow, err := herdgate.New(g, "slow", newOrigin(time.Second).load, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		o := newManyOrigin(0)
		c := w.cache(g, o, herdgate.Policy{WaitTimeout: 100 * time.Millisecond})
		var busy sync.WaitGroup
		busy.Go(func() { get(w.T, slow, "k") })
		w.until("the slot is taken", func() bool { return slow.Stats().LeasesWon == 1 })
		start := time.Now()
		if got, err := c.GetMany(w.Context(), numbered(0, 5)); !errors.Is(err, herdgate.ErrWaitTimeout) || len(got) > 0 {
			w.Errorf("got %v, %v", got, err)
		}
		if d := time.Since(start); w.virtual && d > 150*time.Millisecond {
			w.Errorf("it took %v", d)
		}
		busy.Wait()
		keys := numbered(0, 5)
		wantMany(w.world, c, keys, loadedTimes(1, keys...))
	})
}

func TestAGetManyInsideALoaderNeedsNoSecondSlot(t *testing.T) { // I4
	byBothLoaders(t, func(w *crew) {
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 })
		o := newManyOrigin(0)
		inner := w.cache(g, o, herdgate.Policy{WaitTimeout: time.Second})
		keys := numbered(0, 5)
		outer, err := herdgate.New(g, "outer", func(ctx context.Context, _ string) (int, error) {
			values, err := inner.GetMany(ctx, keys)
			return len(values), err
		}, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		if n := get(w.T, outer, "k"); n != len(keys) {
			w.Errorf("got %d values", n)
		}
	})
}

// The slot holder of the test below joins a batch that waits for the slot it holds.
func TestABatchThatWaitsForASlotIsLentOneByWhoJoinsIt(t *testing.T) { // I4
	everywhere(t, func(w *world) {
		g := w.gate(func(o *herdgate.Options) { o.MaxLoads = 1 })
		inner := newBatchCache(w.T, g, newManyOrigin(0), herdgate.Policy{WaitTimeout: 2 * time.Second})
		keys := numbered(0, 5)
		holds, join := make(chan struct{}), make(chan struct{})
		outer, err := herdgate.New(g, "outer", func(ctx context.Context, _ string) (string, error) {
			close(holds)
			<-join
			return inner.Get(ctx, keys[4])
		}, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		start := time.Now()
		var all sync.WaitGroup
		all.Go(func() { get(w.T, outer, "k") })
		<-holds
		all.Go(func() { wantMany(w, inner, keys, loadedTimes(1, keys...)) })
		w.pass(100 * time.Millisecond)
		close(join)
		all.Wait()
		if d := time.Since(start); w.virtual && d >= time.Second {
			w.Errorf("it took %v", d)
		}
	})
}

func TestABatchIsLoadedWithoutRedisToo(t *testing.T) {
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(10 * time.Millisecond)
		o.without = func(key string) bool { return key == "k003" }
		c := w.cache(openGate(w.T, herdgate.Options{}), o, herdgate.Policy{TTL: time.Minute, Stale: time.Minute, MinRebuildInterval: time.Millisecond})
		keys := numbered(0, 10)
		want := loadedTimes(1, keys...)
		delete(want, "k003")
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { wantMany(w.world, c, keys, want) })
		}
		all.Wait()
		o.wantLoads(w.world, 1, keys...)
		for _, key := range keys {
			if err := c.Expire(w.Context(), key); err != nil {
				w.Fatal(err)
			}
		}
		delete(want, "k003")
		if got, err := c.GetMany(w.Context(), keys); err != nil || !maps.Equal(got, want) {
			w.Errorf("stale: %v, %v", got, err)
		}
		w.until("they are refreshed", func() bool { return o.times("k009") == 2 })
	})
}

func TestWhileRedisIsOutABatchLoadsEachKeyOnce(t *testing.T) { // I6
	t.Parallel()
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("together %v", together), func(t *testing.T) {
			t.Parallel()
			really(t, func(one *world) {
				w := &crew{one, together}
				server := testutil.StartRedis(w.T)
				o := newManyOrigin(time.Millisecond)
				g := openGate(w.T, herdgate.Options{Redis: server.Client(w.T), RedisTimeout: 100 * time.Millisecond})
				c := w.cache(g, o, herdgate.Policy{})
				server.Kill()
				keys := numbered(0, 20)
				wantMany(w.world, c, keys, loadedTimes(1, keys...))
				o.wantLoads(w.world, 1, keys...)
				if s := c.Stats(); s.Unlocked != 20 {
					w.Errorf("%+v", s)
				}
			})
		})
	}
}

func TestABatchIsLoadedByTheLoaderOfEachKey(t *testing.T) {
	everywhere(t, func(w *world) {
		users, carts, others := newManyOrigin(0), newManyOrigin(0), newManyOrigin(0)
		mux := herdgate.NewMux[string]()
		for pattern, load := range map[string]herdgate.Loader[string]{
			"user:*": herdgate.BatchLoaderFunc[string](users.loadMany), "cart:*": herdgate.BatchLoaderFunc[string](carts.loadMany),
		} {
			if err := mux.Handle(pattern, load, herdgate.Policy{}); err != nil {
				w.Fatal(err)
			}
		}
		if err := mux.HandleFunc("*", others.loadOne, herdgate.Policy{}); err != nil {
			w.Fatal(err)
		}
		c, err := herdgate.NewLoader(w.gate(patient), "things", mux, herdgate.Policy{})
		if err != nil {
			w.Fatal(err)
		}
		keys := []string{"user:1", "cart:1", "x", "user:2", "cart:2", "y"}
		wantMany(w, c, keys, loadedTimes(1, keys...))
		if u, c, o := users.calls.Load(), carts.calls.Load(), others.calls.Load(); u != 1 || c != 1 || o != 2 {
			w.Errorf("%d calls for users, %d for carts, %d for the others", u, c, o)
		}
	})
}

func TestABatchWithoutALoaderServesWhatThereIs(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache[string](w.T, w.gate(patient), nil, herdgate.Policy{})
		if err := c.Set(w.Context(), "a", "v"); err != nil {
			w.Fatal(err)
		}
		got, err := c.GetMany(w.Context(), []string{"a", "b"})
		many, ok := errors.AsType[*herdgate.ManyError](err)
		if !ok || !errors.Is(err, herdgate.ErrNoLoader) || len(many.Failed) != 1 || many.Failed[0].Key != "b" || got["a"] != "v" {
			w.Errorf("got %v, %v", got, err)
		}
	})
}

func TestABatchLongerThanItsLeasesRunsOnce(t *testing.T) { // C17
	byBothLoaders(t, func(w *crew) {
		ttl, delay, most := 300*time.Millisecond, time.Second, 1+10+1 // steps: of acquires, renewals and commits
		if !w.virtual {                                               // on a machine that may be busy
			ttl, delay, most = 4*time.Second, 5*time.Second, 1+3+1+20
		}
		if !w.together {
			most += 20 // loads end one by one
		}
		o := newManyOrigin(delay)
		steps := &stepCounter{}
		policy := herdgate.Policy{LockTTL: ttl}
		a := w.cache(w.gate(patient, func(o *herdgate.Options) { o.Redis.AddHook(steps) }), o, policy)
		b := w.cache(w.gate(patient), o, policy)
		keys := numbered(0, 20)
		var all sync.WaitGroup
		all.Go(func() { wantMany(w.world, a, keys, loadedTimes(1, keys...)) })
		w.until("the leases are won", func() bool { return a.Stats().LeasesWon == 20 })
		all.Go(func() { wantMany(w.world, b, keys, loadedTimes(1, keys...)) })
		all.Wait()
		o.wantLoads(w.world, 1, keys...)
		if n := steps.took()["evalsha"]; n > most {
			w.Errorf("%d steps, want at most %d", n, most)
		}
	})
}

func TestAKeyOfABatchWhoseLeaseIsLostIsLoadedAnew(t *testing.T) { // I8
	everywhere(t, func(w *world) {
		ttl := time.Second // the loss is noticed by a renewal, after a third of it
		if !w.virtual {
			ttl = 6 * time.Second // a busy machine must not lose the others
		}
		o := newManyOrigin(ttl / 2)
		c := newBatchCache(w.T, w.gate(patient), o, herdgate.Policy{LockTTL: ttl, MinRebuildInterval: time.Millisecond})
		keys := numbered(0, 5)
		var all sync.WaitGroup
		all.Go(func() {
			want := loadedTimes(1, keys...)
			want[keys[2]] = keys[2] + "*2"
			wantMany(w, c, keys, want)
		})
		<-o.begun
		if n := w.connect().Del(w.Context(), "test:b:things:{"+keys[2]+"}").Val(); n != 1 {
			w.Fatalf("deleted %d leases", n)
		}
		all.Wait()
		if s := c.Stats(); s.LeasesLost != 1 {
			w.Errorf("%d leases lost", s.LeasesLost)
		}
	})
}

func TestABatchThatMustRestStaysABatch(t *testing.T) {
	everywhere(t, func(w *world) {
		for _, fails := range []bool{false, true} {
			o := newManyOrigin(0)
			var boom atomic.Bool
			o.fails = func(_ context.Context, keys []string) (int, error) {
				if boom.Swap(false) {
					return 0, errors.New("boom")
				}
				return len(keys), nil
			}
			g := w.gate(func(o *herdgate.Options) { o.Namespace = fmt.Sprint(fails) })
			rest := 300 * time.Millisecond
			if w.locks != nil && !w.virtual {
				rest = 2 * time.Second // longer than the locks take on a busy machine
			}
			c := newBatchCache(w.T, g, o, herdgate.Policy{MinRebuildInterval: rest})
			keys := numbered(0, 10)
			boom.Store(fails)
			_, _ = c.GetMany(w.Context(), keys)
			if err := c.Delete(w.Context(), keys...); err != nil {
				w.Fatal(err)
			}
			want := loadedTimes(2, keys...)
			want["new"] = "new*1"
			wantMany(w, c, append(keys, "new"), want)
			if n := o.calls.Load(); n != 3 {
				w.Errorf("%d calls of the loader, want one before, one for the new key, and one when the rest was over", n)
			}
		}
	})
}

func TestCloseEndsABatch(t *testing.T) { // I10
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(time.Hour)
		g := w.gate(patient)
		c := w.cache(g, o, herdgate.Policy{LoadTimeout: time.Hour, WaitTimeout: time.Hour})
		keys := numbered(0, 5)
		var batch sync.WaitGroup
		batch.Go(func() {
			got, err := c.GetMany(w.Context(), keys)
			if many, ok := errors.AsType[*herdgate.ManyError](err); !ok || !errors.Is(err, herdgate.ErrClosed) || len(many.Failed) < 4 || len(got)+len(many.Failed) != 5 {
				w.Errorf("got %v, %v", got, err)
			}
		})
		w.until("the leases are won", func() bool { return c.Stats().LeasesWon == 5 })
		// The flight of the first key is over; the batch goes on for the others.
		if err := c.Set(w.Context(), keys[0], "set"); err != nil {
			w.Fatal(err)
		}
		w.until("it is taken", func() bool { return c.Stats().LeasesRevoked == 1 })
		ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			w.Errorf("Close: %v", err)
		}
		batch.Wait()
		for _, key := range w.connect().Keys(w.Context(), "test:b:*").Val() {
			if b := w.connect().Get(w.Context(), key).Val(); strings.HasPrefix(b, "L") {
				w.Errorf("%s is %q", key, b)
			}
		}
		if got, err := c.GetMany(w.Context(), keys); !errors.Is(err, herdgate.ErrClosed) || len(got) > 0 {
			w.Errorf("afterwards: %v, %v", got, err)
		}
	})
}

// richMany is a BatchLoader in its rich form.
type richMany func(ctx context.Context, loads []*herdgate.Load[string]) (map[string]string, error)

func (r richMany) LoadMany(ctx context.Context, loads []*herdgate.Load[string]) (map[string]string, error) {
	return r(ctx, loads)
}

func (r richMany) Load(ctx context.Context, load *herdgate.Load[string]) (string, error) {
	values, err := r(ctx, []*herdgate.Load[string]{load})
	return values[load.Key()], err
}

func TestEachLoadOfABatchIsSetByItself(t *testing.T) {
	everywhere(t, func(w *world) {
		var asked atomic.Int64
		load := func(_ context.Context, loads []*herdgate.Load[string]) (map[string]string, error) {
			n := asked.Add(1)
			values := map[string]string{"not asked for": "v"}
			for _, l := range loads {
				values[l.Key()] = fmt.Sprintf("%s at %d", l.Key(), n)
				switch l.Key() {
				case "brief":
					l.SetTTL(100 * time.Millisecond)
				case "unmodified":
					l.SetTTL(100 * time.Millisecond)
					if old, _, ok := l.Old(); ok {
						if l.Token() != "etag" || old != "unmodified at 1" {
							w.Errorf("the old value is %q with token %q", old, l.Token())
						}
						_, _ = l.NotModified()
						delete(values, l.Key())
					} else {
						l.SetToken("etag")
					}
				case "uncacheable":
					l.DoNotCache()
				case "nonsense":
					l.SetTTL(-time.Second)
				}
			}
			return values, nil
		}
		c, err := herdgate.NewLoader(w.gate(patient), "things", richMany(load), herdgate.Policy{TTL: time.Hour, Stale: time.Hour, MinRebuildInterval: time.Millisecond})
		if err != nil {
			w.Fatal(err)
		}
		keys := []string{"plain", "brief", "unmodified", "uncacheable", "nonsense"}
		got, err := c.GetMany(w.Context(), keys)
		want := map[string]string{"plain": "plain at 1", "brief": "brief at 1", "unmodified": "unmodified at 1", "uncacheable": "uncacheable at 1"}
		many, ok := errors.AsType[*herdgate.ManyError](err)
		if !ok || len(many.Failed) != 1 || many.Failed[0].Key != "nonsense" || !strings.Contains(err.Error(), "SetTTL") || !maps.Equal(got, want) {
			w.Fatalf("got %v, %v", got, err)
		}
		w.pass(200 * time.Millisecond)
		keys = keys[:3]
		wantMany(w, c, keys, map[string]string{"plain": "plain at 1", "brief": "brief at 1", "unmodified": "unmodified at 1"})
		w.until("what was brief is refreshed", func() bool { return c.Stats().CommitsStored == 5 })
		w.until("and read", func() bool { return get(w.T, c, "brief") == "brief at 2" })
		r, err := c.Lookup(w.Context(), "unmodified")
		if err != nil || r.Value != "unmodified at 1" || w.virtual && r.Stale {
			w.Errorf("what was not modified is %+v, %v", r, err)
		}
		if _, found, err := c.Peek(w.Context(), "uncacheable"); found || err != nil {
			w.Errorf("what must not be cached is: %v, %v", found, err)
		}
		if _, found, err := c.Peek(w.Context(), "not asked for"); found || err != nil {
			w.Errorf("what was not asked for is: %v, %v", found, err)
		}
	})
}

func TestAHookThatPanicsOrExitsWedgesNoKeyOfABatch(t *testing.T) { // I4
	t.Parallel()
	for name, fail := range map[string]func(){"panic": func() { panic("size") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				var armed atomic.Int64
				size := herdgate.WithSize(func(string) int64 {
					if armed.Add(-1) == 0 {
						fail()
					}
					return 1
				})
				o := newManyOrigin(0)
				g := w.gate(patient)
				policy := herdgate.Policy{FailureBackoff: 10 * time.Millisecond, MinRebuildInterval: time.Millisecond, WaitTimeout: 5 * time.Second, LockTTL: time.Minute}
				c, err := herdgate.NewLoader(g, "things", herdgate.BatchLoaderFunc[string](o.loadMany), policy, size)
				if err != nil {
					w.Fatal(err)
				}
				policy.LocalTTL = herdgate.Off
				reading, err := herdgate.NewLoader(w.gate(patient), "things", herdgate.BatchLoaderFunc[string](o.loadMany), policy, size)
				if err != nil {
					w.Fatal(err)
				}
				keys := numbered(0, 5)
				for step, cache := range []*herdgate.Cache[string]{c, reading} { // as it stores, and as it reads
					armed.Store(3)
					if _, err := cache.GetMany(w.Context(), keys); err == nil {
						w.Errorf("step %d: that is no error", step)
					}
					armed.Store(0)
					if got, err := cache.GetMany(w.Context(), keys); err != nil || len(got) != len(keys) {
						w.Errorf("step %d, afterwards: %v, %v", step, got, err)
					}
				}
			})
		})
	}
}

func TestValuesOfABatchAreCloned(t *testing.T) {
	everywhere(t, func(w *world) {
		c := newCache(w.T, w.gate(patient), func(context.Context, string) (*thing, error) { return &thing{1}, nil }, herdgate.Policy{}, herdgate.WithClone(cloneThing))
		for range 3 {
			got, err := c.GetMany(w.Context(), []string{"a", "b"})
			if err != nil || got["a"].N != 1 || got["b"].N != 1 {
				w.Errorf("got %v, %v", got, err)
			}
			got["a"].N, got["b"].N = 2, 3
		}
	})
}

func TestWarmLoadsWhatIsMissingOrStale(t *testing.T) {
	byBothLoaders(t, func(w *crew) {
		o := newManyOrigin(10 * time.Millisecond)
		o.without = func(key string) bool { return key == "k003" }
		policy := herdgate.Policy{TTL: time.Hour, Stale: time.Hour, MinRebuildInterval: time.Millisecond}
		a, b := w.cache(w.gate(patient), o, policy), w.cache(w.gate(patient), o, policy)
		keys := numbered(0, 25)
		warm := func(c *herdgate.Cache[string]) (progress []string) {
			w.Helper()
			err := c.Warm(w.Context(), append(keys, keys[:5]...), herdgate.WarmOptions{
				Batch: 10, Concurrency: 2, Progress: func(done, total int) { progress = append(progress, fmt.Sprintf("%d/%d", done, total)) },
			})
			if err != nil {
				w.Error(err)
			}
			return progress
		}
		get(w.T, a, keys[0])
		if p := warm(a); len(p) != 3 || p[2] != "25/25" {
			w.Errorf("progress %v", p)
		}
		o.wantLoads(w.world, 1, keys...)
		if n := o.calls.Load(); w.together && n != 1+3 {
			w.Errorf("%d calls of the loader", n)
		}
		warm(b) // it reads what is there
		o.wantLoads(w.world, 1, keys...)
		for _, key := range []string{keys[1], keys[12]} {
			if err := a.Expire(w.Context(), key); err != nil {
				w.Fatal(err)
			}
		}
		w.until("the other instance has heard of it", func() bool {
			r1, found1, _ := b.Peek(w.Context(), keys[1])
			r12, found12, _ := b.Peek(w.Context(), keys[12])
			return found1 && found12 && r1.Stale && r12.Stale
		})
		get(w.T, b, keys[1]) // its refresh is under way already
		warm(b)
		if v := get(w.T, b, keys[1]) + get(w.T, b, keys[12]); v != "k001*2k012*2" {
			w.Errorf("right after Warm the stale ones are %q", v)
		}
		if n := o.times(keys[2]); n != 1 {
			w.Errorf("a fresh one was loaded %d times", n)
		}
	})
}

func TestWarmSaysWhatFailed(t *testing.T) {
	byBothLoaders(t, func(w *crew) {
		boom := errors.New("boom")
		o := newManyOrigin(0)
		o.fails = func(_ context.Context, keys []string) (int, error) {
			if keys[0] >= "k010" && keys[0] < "k020" {
				return 0, boom
			}
			return len(keys), nil
		}
		c := w.cache(w.gate(patient), o, herdgate.Policy{})
		err := c.Warm(w.Context(), numbered(0, 30), herdgate.WarmOptions{Batch: 10})
		many, ok := errors.AsType[*herdgate.ManyError](err)
		if !ok || !errors.Is(err, boom) || len(many.Failed) != 10 || many.Asked != 30 || many.Failed[0].Key != "k010" {
			w.Errorf("got %v", err)
		}
		if s := c.Stats(); s.CommitsStored != 20 {
			w.Errorf("%d stored", s.CommitsStored)
		}
		for _, wrong := range []herdgate.WarmOptions{{Batch: -2}, {Concurrency: herdgate.Off}} {
			if err := c.Warm(w.Context(), nil, wrong); !isConfigError(err, "WarmOptions.") {
				w.Errorf("%+v: %v", wrong, err)
			}
		}
		if err := c.Warm(w.Context(), nil, herdgate.WarmOptions{}); err != nil {
			w.Error(err)
		}
	})
}

func isConfigError(err error, field string) bool {
	c, ok := errors.AsType[*herdgate.ConfigError](err)
	return ok && strings.HasPrefix(c.Field, field)
}

func TestWarmEndsWithItsContext(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newManyOrigin(100 * time.Millisecond)
		c := newBatchCache(w.T, w.gate(patient), o, herdgate.Policy{})
		ctx, cancel := context.WithCancel(w.Context())
		err := c.Warm(ctx, numbered(0, 100), herdgate.WarmOptions{Batch: 10, Progress: func(done, _ int) {
			if done == 20 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "20 of 100") {
			w.Errorf("got %v", err)
		}
		w.until("the load that runs is stored", func() bool { return c.Stats().CommitsStored == uint64(10*o.calls.Load()) })
		if n := o.calls.Load(); n > 3 {
			w.Errorf("%d batches were begun", n)
		}
		func() {
			defer func() {
				if recover() == nil {
					w.Error("a panic in Progress is lost")
				}
			}()
			_ = c.Warm(w.Context(), numbered(0, 100), herdgate.WarmOptions{Batch: 10, Concurrency: 4, Progress: func(int, int) { panic("progress") }})
		}()
	})
}

func TestABatchTakesThreeStepsOfEachNodeOfACluster(t *testing.T) { // the cost table
	t.Parallel()
	cluster := testutil.StartCluster(t)
	steps := &stepCounter{}
	o := newManyOrigin(10 * time.Millisecond)
	open := func(rdb *redis.ClusterClient) *herdgate.Cache[string] {
		return newBatchCache(t, openGate(t, herdgate.Options{Namespace: "test", Redis: rdb, RedisTimeout: 2 * time.Second}), o, herdgate.Policy{})
	}
	rdb := cluster.Client(t)
	rdb.OnNewNode(func(node *redis.Client) { node.AddHook(steps) })
	a, b := open(rdb), open(cluster.Client(t))
	keys := numbered(0, 100)
	for i, c := range []*herdgate.Cache[string]{a, b, a} {
		steps.took()
		if got, err := c.GetMany(t.Context(), keys); err != nil || !maps.Equal(got, loadedTimes(1, keys...)) {
			t.Errorf("call %d got %v, %v", i, got, err)
		}
		want := []map[string]int{{"get": 3, "evalsha": 6}, nil, nil}[i]
		if took := steps.took(); !maps.Equal(took, want) {
			t.Errorf("call %d took %v, want %v", i, took, want)
		}
	}
	if n := o.calls.Load(); n != 1 {
		t.Errorf("%d calls of the loader", n)
	}
}

func TestKeysOfABatchDoNotMakeEachOthersCopiesOld(t *testing.T) {
	byBothLoaders(t, func(w *crew) {
		steps := &stepCounter{}
		g := w.gate(func(o *herdgate.Options) {
			o.Redis.AddHook(steps)
			o.RedisTimeout = 5 * time.Second
			o.MaxLoads = herdgate.Off
		})
		c := w.cache(g, newManyOrigin(0), herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour, LockTTL: time.Minute})
		keys := numbered(0, 1000) // so many that some pairs share what guards a copy
		wantMany(w.world, c, keys, loadedTimes(1, keys...))
		steps.took()
		wantMany(w.world, c, keys, loadedTimes(1, keys...))
		if took := steps.took(); len(took) > 0 {
			w.Errorf("the second time it took %v", took)
		}
	})
}

func TestAKeyOfABatchThatHasChangedKeepsNoCopyFromBefore(t *testing.T) { // I2
	everywhere(t, func(w *world) {
		o := newManyOrigin(w.long(100 * time.Millisecond))
		c := newBatchCache(w.T, w.gate(patient), o, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour, MinRebuildInterval: time.Millisecond})
		keys := numbered(0, 1000)
		var batch sync.WaitGroup
		batch.Go(func() { _, _ = c.GetMany(w.Context(), keys) })
		<-o.begun
		for _, key := range keys[:20] {
			if err := c.Set(w.Context(), key, "set"); err != nil {
				w.Error(err)
			}
		}
		batch.Wait()
		for _, key := range keys[:20] {
			if v := get(w.T, c, key); v != "set" {
				w.Errorf("%s is %q", key, v)
			}
		}
	})
}

func TestWhileABackoffRunsABatchAsksForNoLease(t *testing.T) { // I5, I12
	byBothLoaders(t, func(w *crew) {
		for name, localTTL := range localTiers() {
			o := newManyOrigin(0)
			var broken atomic.Bool
			o.fails = func(_ context.Context, keys []string) (int, error) {
				if broken.Load() {
					return 0, errors.New("boom")
				}
				return len(keys), nil
			}
			g := w.gate(func(o *herdgate.Options) { o.Namespace = strings.ReplaceAll(name, " ", "-") })
			c := w.cache(g, o, herdgate.Policy{TTL: 50 * time.Millisecond, Stale: time.Hour, LocalTTL: localTTL, FailureBackoff: time.Minute, EarlyBeta: herdgate.Off})
			keys := numbered(0, 5)
			wantMany(w.world, c, keys, loadedTimes(1, keys...))
			broken.Store(true)
			w.pass(150 * time.Millisecond)
			for range 20 {
				wantMany(w.world, c, keys, loadedTimes(1, keys...))
				w.pass(20 * time.Millisecond)
			}
			o.wantLoads(w.world, 2, keys...)
			if s := c.Stats(); s.Backoffs > 5 || s.LeasesWon != 10 {
				w.Errorf("%s: %d times the mark was met, %d leases won", name, s.Backoffs, s.LeasesWon)
			}
		}
	})
}

func TestABatchOfTaggedEntriesIsCheckedInOneStep(t *testing.T) { // I2 with tags
	everywhere(t, func(w *world) {
		o := newManyOrigin(0)
		load := func(ctx context.Context, asked []*herdgate.Load[string]) (map[string]string, error) {
			var keys []string
			for _, l := range asked {
				keys = append(keys, l.Key())
				l.SetTags("all", "of "+l.Key())
			}
			return o.loadMany(ctx, keys)
		}
		steps := &stepCounter{}
		open := func(change ...func(*herdgate.Options)) *herdgate.Cache[string] {
			c, err := herdgate.NewLoader(w.gate(change...), "things", richMany(load), herdgate.Policy{MinRebuildInterval: time.Millisecond})
			if err != nil {
				w.Fatal(err)
			}
			return c
		}
		a, b := open(), open(func(o *herdgate.Options) { o.Redis.AddHook(steps) })
		keys := numbered(0, 50)
		wantMany(w, a, keys, loadedTimes(1, keys...))
		steps.took()
		wantMany(w, b, keys, loadedTimes(1, keys...))
		if took := steps.took(); took["mget"] != 1 || took["tags"] != 1 || took["evalsha"] > 0 {
			w.Errorf("it took %v, want one step for the entries and one for their tags", took)
		}
		if err := a.InvalidateTags(w.Context(), "of "+keys[3]); err != nil {
			w.Fatal(err)
		}
		want := loadedTimes(1, keys...)
		want[keys[3]] = keys[3] + "*2"
		wantMany(w, a, keys, want)
		w.until("the other instance hears of it", func() bool { return get(w.T, b, keys[3]) == keys[3]+"*2" })
		wantMany(w, b, keys, want)
		if err := b.InvalidateTags(w.Context(), "all"); err != nil {
			w.Fatal(err)
		}
		want = loadedTimes(2, keys...)
		want[keys[3]] = keys[3] + "*3"
		wantMany(w, b, keys, want)
		if err := b.Clear(w.Context()); err != nil {
			w.Fatal(err)
		}
		want = loadedTimes(3, keys...)
		want[keys[3]] = keys[3] + "*4"
		wantMany(w, b, keys, want)
	})
}

func TestABatchWaitsSoftlyForWhatIsStale(t *testing.T) {
	byBothLoaders(t, func(w *crew) {
		for name, localTTL := range localTiers() {
			o := newManyOrigin(20 * time.Millisecond)
			g := w.gate(patient, func(o *herdgate.Options) { o.Namespace = strings.ReplaceAll(name, " ", "-") })
			c := w.cache(g, o, herdgate.Policy{TTL: 200 * time.Millisecond, Stale: time.Hour, SoftTimeout: 4 * time.Second, LocalTTL: localTTL, EarlyBeta: herdgate.Off, Jitter: herdgate.Off})
			keys := numbered(0, 10)
			wantMany(w.world, c, keys, loadedTimes(1, keys...))
			w.pass(250 * time.Millisecond)
			wantMany(w.world, c, keys, loadedTimes(2, keys...))
		}
	})
}

func TestABatchReturnsDefaultsForWhatCannotBeLoaded(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newManyOrigin(0)
		o.without = func(key string) bool { return key == "k001" }
		o.fails = func(_ context.Context, keys []string) (int, error) { return 2, errors.New("boom") }
		o.delay = 0
		c, err := herdgate.NewLoader(w.gate(patient), "things", herdgate.BatchLoaderFunc[string](o.loadMany), herdgate.Policy{},
			herdgate.WithDefault(func(key string, _ error) (string, bool) { return "default", key != "k003" }))
		if err != nil {
			w.Fatal(err)
		}
		got, err := c.GetMany(w.Context(), numbered(0, 4))
		many, ok := errors.AsType[*herdgate.ManyError](err)
		if !ok || len(many.Failed) != 1 || many.Failed[0].Key != "k003" || !maps.Equal(got, map[string]string{"k000": "k000*1", "k001": "default", "k002": "default"}) {
			w.Errorf("got %v, %v", got, err)
		}
	})
}

func TestAKeptKeyThatABatchRefreshesStaysKept(t *testing.T) {
	everywhere(t, func(w *world) {
		o := newManyOrigin(50 * time.Millisecond)
		c := newBatchCache(w.T, w.gate(patient), o, herdgate.Policy{TTL: 300 * time.Millisecond, Stale: time.Hour, EarlyFraction: 0.5, Jitter: herdgate.Off, MinRebuildInterval: time.Millisecond})
		keys := numbered(0, 3)
		if err := c.Keep(w.Context(), 0, keys...); err != nil {
			w.Fatal(err)
		}
		for range 40 { // so often that a batch begins the refreshes
			if _, err := c.GetMany(w.Context(), keys); err != nil {
				w.Error(err)
			}
			w.pass(10 * time.Millisecond)
		}
		n := o.times(keys[0])
		w.until("it is refreshed without readers", func() bool { return o.times(keys[0]) > n+2 })
	})
}

// heldReads holds the replies to MGETs back.
type heldReads struct {
	held    chan struct{} // gets a token when a reply is there
	release chan struct{}
}

func (heldReads) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h heldReads) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "mget" {
			h.held <- struct{}{}
			<-h.release
		}
		return err
	}
}

func (heldReads) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestWhatABatchHasReadDuringAChangeIsNotKept(t *testing.T) { // I2
	everywhere(t, func(w *world) {
		h := heldReads{make(chan struct{}, 1), make(chan struct{})}
		o := newManyOrigin(0)
		keys := numbered(0, 3)
		other := newBatchCache(w.T, w.gate(patient), o, herdgate.Policy{})
		wantMany(w, other, keys, loadedTimes(1, keys...))
		c := newBatchCache(w.T, w.gate(patient, func(o *herdgate.Options) { o.Redis.AddHook(h) }), o, herdgate.Policy{})
		var batch sync.WaitGroup
		batch.Go(func() { wantMany(w, c, keys, loadedTimes(1, keys...)) })
		<-h.held
		if err := c.Set(w.Context(), keys[1], "set"); err != nil {
			w.Error(err)
		}
		if v := get(w.T, c, keys[1]); v != "set" {
			w.Errorf("while the reply is under way: %q", v)
		}
		close(h.release)
		batch.Wait()
		if v := get(w.T, c, keys[1]); v != "set" {
			w.Errorf("afterwards: %q", v)
		}
	})
}

// heldCommits holds the reply to the second pipeline back: that of a batch's commits.
type heldCommits struct {
	heldReads

	pipelines *atomic.Int64
}

func (heldCommits) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h heldCommits) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if cmds[0].Name() == "evalsha" && h.pipelines.Add(1) == 2 {
			h.held <- struct{}{}
			<-h.release
		}
		return err
	}
}

func TestWhatABatchHasStoredBeforeAChangeIsNotKept(t *testing.T) { // I2
	everywhere(t, func(w *world) {
		h := heldCommits{heldReads{make(chan struct{}, 1), make(chan struct{})}, new(atomic.Int64)}
		c := newBatchCache(w.T, w.gate(patient, func(o *herdgate.Options) { o.Redis.AddHook(h) }), newManyOrigin(0), herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour})
		keys := numbered(0, 3)
		var batch sync.WaitGroup
		batch.Go(func() { _, _ = c.GetMany(w.Context(), keys) })
		<-h.held
		if err := c.Set(w.Context(), keys[1], "set"); err != nil {
			w.Error(err)
		}
		close(h.release)
		batch.Wait()
		if v := get(w.T, c, keys[1]); v != "set" {
			w.Errorf("afterwards: %q", v)
		}
	})
}
