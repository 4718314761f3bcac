package herdgate_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// wallClock is one that can be set.
type wallClock struct{ ahead atomic.Int64 }

func (w *wallClock) set(ahead time.Duration) { w.ahead.Store(int64(ahead)) }

func (w *wallClock) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

// gateAt is a gate of a process whose wall clock is this one.
func (w *world) gateAt(wall *wallClock) *herdgate.Gate {
	w.Helper()
	g, err := herdgate.OpenAt(w.Context(), herdgate.Options{Redis: w.connect(), Namespace: "test"}, wall.now)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := g.Close(context.WithoutCancel(w.Context())); err != nil {
			w.Errorf("close: %v", err)
		}
	})
	return g
}

// setServer lets the clock of a server be ahead from now on. Expiries follow it, as in Redis.
type setServer func(ahead time.Duration)

// withClocks runs a test in a bubble whose server has a clock of its own.
func withClocks(t *testing.T, test func(w *world, set setServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, connect := testutil.NewBubbleRedis(t)
		var server wallClock
		stop := make(chan struct{})
		done := make(chan struct{})
		tick := func() { m.SetTime(server.now()) }
		go keepTime(tick, stop, done)
		t.Cleanup(func() {
			close(stop)
			<-done
		})
		test(&world{T: t, connect: connect, virtual: true}, func(ahead time.Duration) {
			server.set(ahead)
			tick()
		})
	})
}

// keepTime ticks until stop is closed: the clock of a miniredis stands once it is set.
func keepTime(tick func(), stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		tick()
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
	}
}

func TestProcessesHoursApartAgreeOnWhatIsFresh(t *testing.T) { // I11
	everywhere(t, func(w *world) {
		const (
			ttl, stale = 400 * time.Millisecond, 400 * time.Millisecond
			exact      = 100 * time.Millisecond // how well the server's time is known
		)
		o := newOrigin(0)
		policy := herdgate.Policy{TTL: ttl, Stale: stale, Jitter: herdgate.Off, EarlyBeta: herdgate.Off}
		var walls [2]wallClock
		var caches [2]*herdgate.Cache[string]
		for i, ahead := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
			walls[i].set(ahead)
			caches[i] = newCache(w.T, w.gateAt(&walls[i]), o.load, policy)
		}
		for n := range 6 {
			loader, reader := caches[n%2], caches[1-n%2]
			start := time.Now()
			if r, err := loader.Lookup(w.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeLoaded || r.Stale {
				w.Errorf("%d: who loads gets %+v, %v", n, r, err)
			}
			if r, err := reader.Lookup(w.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeRemote || r.Age > time.Since(start)+exact {
				w.Errorf("%d: who reads gets %+v, %v", n, r, err)
			}
			w.pass(ttl + 50*time.Millisecond)
			for i, c := range caches {
				r, found, err := c.Peek(w.Context(), "k") // a Get would load it
				if age := time.Since(start); err != nil || age < ttl+stale && (!found || !r.Stale) || r.Age > age+exact {
					w.Errorf("%d: past the TTL instance %d has %+v, %v, %v", n, i, r, found, err)
				}
			}
			w.pass(stale)
			for i, c := range caches {
				if r, found, err := c.Peek(w.Context(), "k"); found || err != nil {
					w.Errorf("%d: past the stale window instance %d has %+v, %v", n, i, r, err)
				}
			}
		}
		if n := o.loads.Load(); n != 6 {
			w.Errorf("%d loads in 6 lifetimes", n)
		}
	})
}

// follow gets a key all the time for some lifetimes of its entries, and reports how
// often it was loaded, and how old the oldest value was that was served as fresh.
func follow(w *world, o *origin, c *herdgate.Cache[string], d time.Duration) (loads int64, oldest time.Duration) {
	w.Helper()
	before := o.loads.Load()
	for start := time.Now(); time.Since(start) < d; w.pass(20 * time.Millisecond) {
		r, err := c.Lookup(w.Context(), "k")
		if err != nil {
			w.Errorf("got %v", err)
		}
		if !r.Stale {
			oldest = max(oldest, r.Age)
		}
	}
	return o.loads.Load() - before, oldest
}

func TestASetWallClockChangesNothingButThatCopiesAreChecked(t *testing.T) { // I11, I9
	for _, to := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(to.String(), func(t *testing.T) {
			virtually(t, func(w *world) {
				const ttl = 10 * time.Second
				var wall wallClock
				g := w.gateAt(&wall)
				o := newOrigin(0)
				c := newCache(w.T, g, o.load, herdgate.Policy{TTL: ttl, Stale: time.Minute, LocalTTL: ttl, Jitter: herdgate.Off, EarlyBeta: herdgate.Off})
				get(w.T, c, "k")
				isLocal(w.T, c, "k#1")
				wall.set(to)
				w.pass(2 * time.Second) // two heartbeats
				if s := g.Stats(); s.BusLost != 1 || s.BusConfirmed != 2 {
					w.Errorf("lost %d times, confirmed %d times", s.BusLost, s.BusConfirmed)
				}
				if r, err := c.Lookup(w.Context(), "k"); err != nil || r.Outcome != herdgate.OutcomeRemote || r.Value != "k#1" || r.Age != 2*time.Second {
					w.Errorf("got %+v, %v, want it checked", r, err)
				}
				isLocal(w.T, c, "k#1")
				const lives = 6
				if loads, oldest := follow(w, o, c, lives*ttl); loads < lives-1 || loads > lives || oldest > ttl {
					w.Errorf("%d loads in %d TTLs, fresh for %v", loads, lives, oldest)
				}
				if s := g.Stats(); s.BusLost != 1 {
					w.Errorf("lost %d times for one leap", s.BusLost)
				}
			})
		})
	}
}

// The monotonic clock stands while a machine sleeps.
func TestAfterASleepOfTheMachineNothingOldIsServedAsFresh(t *testing.T) { // I11, I9
	withClocks(t, func(w *world, setServer setServer) {
		const (
			ttl   = time.Minute
			slept = 10 * time.Minute
		)
		var wall wallClock
		o := newOrigin(0)
		policy := herdgate.Policy{TTL: ttl, Stale: time.Hour, LocalTTL: ttl, Jitter: herdgate.Off, EarlyBeta: herdgate.Off}
		c := newCache(w.T, w.gateAt(&wall), o.load, policy)
		get(w.T, c, "k")
		wall.set(slept)
		setServer(slept)
		w.pass(2 * time.Second)
		r, err := c.Lookup(w.Context(), "k")
		if err != nil || !r.Stale || r.Age < slept {
			w.Errorf("got %+v, %v, want it stale and its age the true one", r, err)
		}
		w.pass(10 * time.Millisecond)
		if r, err := c.Lookup(w.Context(), "k"); err != nil || r.Value != "k#2" || r.Stale {
			w.Errorf("then %+v, %v, want what was loaded behind", r, err)
		}
		const lives = 5
		if loads, oldest := follow(w, o, c, lives*ttl); loads < lives-1 || loads > lives || oldest > ttl {
			w.Errorf("%d loads in %d TTLs, fresh for %v", loads, lives, oldest)
		}
	})
}

func TestASetClockOfTheServerCostsALoadAndNoLoop(t *testing.T) { // I11
	for _, to := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(to.String(), func(t *testing.T) {
			withClocks(t, func(w *world, setServer setServer) {
				const ttl = 10 * time.Second
				o := newOrigin(0)
				policy := herdgate.Policy{TTL: ttl, Stale: ttl, Jitter: herdgate.Off, EarlyBeta: herdgate.Off}
				var wall wallClock
				c, other := newCache(w.T, w.gateAt(&wall), o.load, policy), newCache(w.T, w.gateAt(&wall), o.load, policy)
				get(w.T, c, "k")
				get(w.T, other, "k")
				w.pass(time.Second)
				setServer(to)
				// Who does not know the time from before finds the entry gone, or from the future.
				late := newCache(w.T, w.gateAt(&wall), o.load, policy)
				if r, err := late.Lookup(w.Context(), "k"); err != nil || !r.Stale && r.Outcome != herdgate.OutcomeLoaded {
					w.Errorf("got %+v, %v", r, err)
				}
				for _, c := range []*herdgate.Cache[string]{c, other} {
					const lives = 6
					if loads, oldest := follow(w, o, c, lives*ttl); loads < lives-1 || loads > lives+2 || oldest > ttl+time.Second {
						w.Errorf("%d loads in %d TTLs, fresh for %v", loads, lives, oldest)
					}
				}
				if n := o.most.Load(); n != 1 {
					w.Errorf("%d loads at once", n)
				}
			})
		})
	}
}

const skewedRole = "skewed"

// skewed is what a process has seen that read one key all the time.
type skewed struct {
	Calls, Loads int64
	Oldest       time.Duration // that was served as fresh
	Errors       []string
	Start, End   time.Time // by the machine's clock
}

// runSkewed reads a key for a while, in a process whose wall clock is ahead.
func runSkewed(ctx context.Context, args testutil.Args) error {
	var durations [3]time.Duration
	for i, name := range []string{"ahead", "ttl", "for"} {
		var err error
		if durations[i], err = time.ParseDuration(args[name]); err != nil {
			return err
		}
	}
	var wall wallClock
	wall.set(durations[0])
	rdb := redis.NewClient(&redis.Options{Addr: args["redis"]})
	defer func() { _ = rdb.Close() }()
	g, err := herdgate.OpenAt(ctx, herdgate.Options{Redis: rdb, Namespace: "test", RedisTimeout: 5 * time.Second}, wall.now)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close(context.WithoutCancel(ctx)) }()
	seen := skewed{Start: time.Now()}
	c, err := herdgate.New(g, "things", func(context.Context, string) (string, error) {
		return fmt.Sprint("load ", atomic.AddInt64(&seen.Loads, 1)), nil
	}, herdgate.Policy{TTL: durations[1], Jitter: herdgate.Off, EarlyBeta: herdgate.Off})
	if err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; seen.End.Sub(seen.Start) < durations[2]; <-tick.C {
		r, err := c.Lookup(ctx, "k")
		seen.End = time.Now()
		if err != nil || r.Stale {
			seen.Errors = append(seen.Errors, fmt.Sprintf("%+v, %v", r, err))
		}
		seen.Calls++
		seen.Oldest = max(seen.Oldest, r.Age)
	}
	return testutil.Emit(seen)
}

func TestSeparateProcessesHoursApartLoadOnceInATTL(t *testing.T) { // I11, I1
	t.Parallel()
	const ttl, lasts = 300 * time.Millisecond, 3 * time.Second
	server := testutil.StartRedis(t)
	var children []*testutil.Child
	for _, ahead := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		children = append(children, testutil.Spawn(t, skewedRole, testutil.Args{
			"redis": server.Addr(), "ahead": ahead.String(), "ttl": ttl.String(), "for": lasts.String(),
		}))
	}
	var loads int64
	var start, end time.Time
	for _, c := range children {
		var seen skewed
		c.Next(topologyPatience, &seen)
		if err := c.Wait(topologyPatience); err != nil {
			t.Error(err)
		}
		if loads += seen.Loads; len(seen.Errors) > 0 || seen.Calls == 0 || seen.Oldest >= ttl {
			t.Errorf("%+v", seen)
		}
		if start.IsZero() || seen.Start.Before(start) {
			start = seen.Start
		}
		if seen.End.After(end) {
			end = seen.End
		}
	}
	if most := int64(end.Sub(start)/ttl) + 1; loads == 0 || loads > most {
		t.Errorf("%d loads in %v, want at most %d", loads, end.Sub(start), most)
	}
}

// A failover may lose the last numbers of generations and tags, and the new master's clock
// may be behind the old one's: what it would give next is then below what the instances,
// and the entries, have.
func TestANewMasterWhoseClockIsBehindClearsAndInvalidatesTheSame(t *testing.T) { // I2, I11
	const generation, sequence = "test:g:things", "test:t:{things}"
	for name, test := range map[string]struct {
		number string
		change func(context.Context, *herdgate.Cache[string]) error
	}{
		"clear": {generation, func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Clear(ctx) }},
		"tags":  {sequence, func(ctx context.Context, c *herdgate.Cache[string]) error { return c.InvalidateTags(ctx, "tag") }},
	} {
		for _, knows := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, by one who knows the last number: %v", name, knows), func(t *testing.T) {
				withClocks(t, func(w *world, set setServer) {
					o := newOrigin(0)
					open := func() *herdgate.Cache[string] {
						return newCache(w.T, w.gate(func(o *herdgate.Options) { o.ResendWindow = herdgate.Off }), o.load,
							herdgate.Policy{TTL: time.Hour, Stale: 10 * time.Hour, LocalTTL: time.Hour, Tags: []string{"tag"}})
					}
					rdb := w.connect()
					a, b := open(), open()
					get(w.T, a, "k")
					replicated := map[string]string{}
					for _, key := range []string{generation, sequence, sequence + ":tag"} {
						replicated[key] = rdb.Get(w.Context(), key).Val()
					}
					w.pass(time.Second)
					if err := test.change(w.Context(), a); err != nil {
						w.Fatal(err)
					}
					old := get(w.T, a, "k")
					synctest.Wait()
					last := rdb.Get(w.Context(), test.number).Val()
					for key, number := range replicated { // all that the new master has
						rdb.Set(w.Context(), key, number, 0)
					}
					set(-time.Minute)
					if v := get(w.T, b, "k"); v != old {
						w.Fatalf("%q and %q", v, old)
					}
					if !knows {
						b = open()
					}
					if err := test.change(w.Context(), b); err != nil {
						w.Fatal(err)
					}
					synctest.Wait()
					if n := rdb.Get(w.Context(), test.number).Val(); (n > last) != knows {
						w.Errorf("%s is followed by %s", last, n)
					}
					for who, c := range map[string]*herdgate.Cache[string]{"who made the change": b, "another": a, "a third, which is new": open()} {
						if v := get(w.T, c, "k"); v == old {
							w.Errorf("%s gets %q, of before it", who, v)
						}
					}
				})
			})
		}
	}
}

// Local copies are not asked for: they must be gone when the message is there.
func TestAClearOfANewMasterWhoseClockIsBehindWipesWhatOthersHave(t *testing.T) { // I2, I11
	withClocks(t, func(w *world, set setServer) {
		o := newOrigin(0)
		open := func() *herdgate.Cache[string] {
			return newCache(w.T, w.gate(func(o *herdgate.Options) { o.ResendWindow = herdgate.Off }), o.load,
				herdgate.Policy{TTL: time.Hour, Stale: 10 * time.Hour, LocalTTL: time.Hour})
		}
		rdb, a := w.connect(), open()
		get(w.T, a, "k")
		const key = "test:g:things"
		replicated := rdb.Get(w.Context(), key).Val()
		w.pass(time.Second)
		if err := a.Clear(w.Context()); err != nil {
			w.Fatal(err)
		}
		old := get(w.T, a, "k")
		rdb.Set(w.Context(), key, replicated, 0) // all that the new master has
		set(-time.Minute)
		if err := open().Clear(w.Context()); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		if v := get(w.T, a, "k"); v == old {
			w.Errorf("another gets %q, of before it", v)
		}
	})
}
