package main

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// Each test here is a row of README.md's cost table: the commands that one process
// sends. What scripts run inside themselves is logged (-v).

const patience = 20 * time.Second // for what nothing but a broken machine prevents

// calls counts commands by name.
type calls = map[string]int

func wantCalls(t *testing.T, who string, got, want calls) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s sent %v, want %v", who, got, want)
	}
}

// withoutTime lets one question for the server's time pass: a gate that has read an
// entry asks for it if no script has told it within the last minute.
func withoutTime(t *testing.T, sent calls) calls {
	t.Helper()
	if sent["time"] > 1 {
		t.Errorf("asked %d times for the server's time", sent["time"])
	}
	delete(sent, "time")
	return sent
}

// logInside logs what the server ran since before, inside scripts and out.
func logInside(t *testing.T, server *testutil.Redis, before map[string]int64) {
	t.Helper()
	ran := server.CommandStats()
	for name := range ran {
		ran[name] -= before[name]
	}
	maps.DeleteFunc(ran, func(name string, n int64) bool { return n == 0 || name == "info" })
	t.Logf("the server ran %v", ran)
}

// gatedLoad is a loader that says when it runs and returns when it may.
type gatedLoad struct{ running, release chan struct{} }

func newGatedLoad() gatedLoad {
	return gatedLoad{running: make(chan struct{}), release: make(chan struct{})}
}

func (l gatedLoad) load(ctx context.Context, _ string) (product, error) {
	close(l.running)
	select {
	case <-l.release:
		return newProduct(), nil
	case <-ctx.Done():
		return product{}, ctx.Err()
	}
}

// neverLoad is the loader of an instance that must not load.
func neverLoad(t *testing.T) herdgate.LoaderFunc[product] {
	t.Helper()
	return func(context.Context, string) (product, error) {
		t.Error("a loader ran where none should")
		return newProduct(), nil
	}
}

func get(t *testing.T, c *herdgate.Cache[product], key string) {
	t.Helper()
	if p, err := c.Get(t.Context(), key); err != nil || p.ID == 0 {
		t.Errorf("Get(%q) = %+v, %v", key, p, err)
	}
}

func TestALocalHitCostsNoCommandAndNoAllocation(t *testing.T) {
	in := newInstance(t, testutil.StartRedis(t))
	c := newCache(t, in, nil, herdgate.Policy{TTL: longAfter, LocalTTL: longAfter})
	if err := c.Set(t.Context(), "k", newProduct()); err != nil {
		t.Fatal(err)
	}
	in.sent.paid()
	ctx, before := t.Context(), c.Stats()
	const runs = 10_000
	allocs := testing.AllocsPerRun(runs, func() {
		if _, err := c.Get(ctx, "k"); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations a hit", allocs)
	}
	wantCalls(t, "a local hit", in.sent.paid(), nil)
	if hits := c.Stats().Local - before.Local; hits != runs+1 { // AllocsPerRun warms up with one more
		t.Errorf("%d of %d calls were local hits", hits, runs+1)
	}
}

func TestARemoteHitCostsOneGet(t *testing.T) {
	t.Parallel()
	const hits = 100
	server := testutil.StartRedis(t)
	writer := newCache(t, newInstance(t, server), nil, herdgate.Policy{})
	for i := range hits {
		if err := writer.Set(t.Context(), strconv.Itoa(i), newProduct()); err != nil {
			t.Fatal(err)
		}
	}
	for name, policy := range map[string]herdgate.Policy{"with a local tier": {}, "without": {LocalTTL: herdgate.Off}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInstance(t, server)
			c := newCache(t, in, neverLoad(t), policy)
			for i := range hits {
				get(t, c, strconv.Itoa(i))
			}
			wantCalls(t, "the reader", withoutTime(t, in.sent.paid()), calls{"get": hits})
		})
	}
}

// coldMiss lets one instance load a key while another waits for it, and returns
// what each sent and how long it took. Once the loser waits, it calls during.
func coldMiss(t *testing.T, during func()) (winner, loser calls, took time.Duration) {
	t.Helper()
	server := testutil.StartRedis(t)
	a, b := newInstance(t, server), newInstance(t, server)
	l := newGatedLoad()
	winning := newCache(t, a, l.load, herdgate.Policy{})
	losing := newCache(t, b, neverLoad(t), herdgate.Policy{})

	ran, start := server.CommandStats(), time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { get(t, winning, "k") })
	<-l.running
	wg.Go(func() { get(t, losing, "k") })
	testutil.Eventually(t, patience, func() bool { return losing.Stats().LeasesHeld > 0 }, "the loser is told of the lease")
	during()
	close(l.release)
	wg.Wait()
	took = time.Since(start)
	logInside(t, server, ran)
	return a.sent.paid(), b.sent.paid(), took
}

func TestAColdMissCostsWinnerAndLoserThreeCommandsEach(t *testing.T) {
	t.Parallel()
	winner, loser, _ := coldMiss(t, func() {})
	wantCalls(t, "the winner", winner, calls{"get": 1, "evalsha": 2}) // acquire, commit
	wantCalls(t, "the loser", loser, calls{"get": 2, "evalsha": 1})   // acquire
}

func TestALongLoadCostsARenewalEachThirdOfTheLeaseAndAPollEachFurtherSecond(t *testing.T) {
	t.Parallel()
	const lockTTL = 2 * time.Second // the default
	winner, loser, took := coldMiss(t, func() {
		long := time.NewTimer(1500 * time.Millisecond)
		defer long.Stop()
		<-long.C
	})
	t.Logf("a load of %v: the winner sent %v, the loser %v", took.Round(time.Millisecond), winner, loser)
	if most := 3 + int(took/(lockTTL/3)); total(winner) > most {
		t.Errorf("the winner of a load of %v sent %v, want at most %d", took, winner, most)
	}
	if most := 3 + int(took/time.Second); total(loser) > most {
		t.Errorf("the loser of a load of %v sent %v, want at most %d", took, loser, most)
	}
}

func TestAStaleHitCostsOneGetAndARefreshOneAcquireAProcess(t *testing.T) {
	t.Parallel()
	const hits = 100
	for name, test := range map[string]struct {
		localTTL time.Duration
		want     calls
	}{
		"with a local tier": {longAfter, calls{"get": 1, "evalsha": 1}},
		"without":           {herdgate.Off, calls{"get": hits, "evalsha": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The lease outlives the test, so that nobody has reason to ask again.
			policy := herdgate.Policy{TTL: longAfter, Stale: longAfter, LocalTTL: test.localTTL, LockTTL: 2 * patience}
			server := testutil.StartRedis(t)
			// Made before the others listen: a message that arrives late would drop what
			// they have read, rightly.
			writer := newCache(t, newInstance(t, server), nil, policy)
			if err := writer.Set(t.Context(), "k", newProduct()); err != nil {
				t.Fatal(err)
			}
			if err := writer.Expire(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			a, b := newInstance(t, server), newInstance(t, server)
			l := newGatedLoad()
			winning, losing := newCache(t, a, l.load, policy), newCache(t, b, neverLoad(t), policy)
			get(t, winning, "k")
			<-l.running

			get(t, losing, "k")
			testutil.Eventually(t, patience, func() bool { return losing.Stats().LeasesHeld > 0 }, "the refresh is told of the lease")
			for range hits - 1 {
				get(t, losing, "k")
			}
			wantCalls(t, "who does not get the lease", withoutTime(t, b.sent.paid()), test.want)
			if s := losing.Stats(); s.Stale != hits {
				t.Errorf("%d of %d hits were stale", s.Stale, hits)
			}

			close(l.release)
			testutil.Eventually(t, patience, func() bool { return winning.Stats().CommitsStored > 0 }, "the refresh is stored")
			wantCalls(t, "who gets it", withoutTime(t, a.sent.paid()), calls{"get": 1, "evalsha": 2}) // acquire, commit
		})
	}
}

func TestAChangeCostsOneScript(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	in := newInstance(t, server)
	c := newCache(t, in, nil, herdgate.Policy{Stale: time.Minute})
	for _, change := range []struct {
		name string
		make func() error
	}{
		{"Set", func() error { return c.Set(t.Context(), "k", newProduct()) }},
		{"Expire", func() error { return c.Expire(t.Context(), "k") }},
		{"Delete", func() error { return c.Delete(t.Context(), "k") }},
	} {
		ran := server.CommandStats()
		if err := change.make(); err != nil {
			t.Fatal(err)
		}
		logInside(t, server, ran)
		wantCalls(t, change.name, withoutTime(t, in.sent.paid()), calls{"evalsha": 1})
	}
}

func TestAnIdleGateSendsOnlyItsHeartbeats(t *testing.T) {
	t.Parallel()
	in := newInstance(t, testutil.StartRedis(t))
	c := newCache(t, in, neverLoad(t), herdgate.Policy{})
	if err := c.Set(t.Context(), "k", newProduct()); err != nil {
		t.Fatal(err)
	}
	in.sent.take()
	start := time.Now()
	idle := time.NewTimer(3 * time.Second)
	defer idle.Stop()
	<-idle.C
	sent := in.sent.take()
	delete(sent, masters)
	// One may have been due when the count began, and one when it ended.
	if most := int(time.Since(start)/time.Second) + 1; sent[heartbeat] == 0 || sent[heartbeat] > most {
		t.Errorf("%d heartbeats in %v, want 1 to %d", sent[heartbeat], time.Since(start), most)
	}
	delete(sent, heartbeat)
	delete(sent, generation)
	wantCalls(t, "an idle gate", sent, nil)
}
