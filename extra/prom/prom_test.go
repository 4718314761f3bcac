package prom_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/extra/prom"
)

func collector(tb testing.TB, options prom.Options) *prom.Collector {
	tb.Helper()
	c, err := prom.NewCollector(options)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestEachEventHasItsMetric(t *testing.T) {
	c := collector(t, prom.Options{Buckets: []float64{0.5, 1}})
	observe := func(times int, e herdgate.Event) {
		for range times {
			e.Cache, e.Key = "product", "42"
			c.Observe(e)
		}
	}
	observe(1, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeFailed})
	observe(2, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeLocal})
	observe(3, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeRemote})
	observe(4, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeStale})
	observe(5, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeLoaded})
	observe(6, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeWaited})
	observe(7, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeUnlocked})
	observe(8, herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeDefault})
	observe(8, herdgate.Event{Kind: herdgate.EventCoalesced})
	observe(9, herdgate.Event{Kind: herdgate.EventLoad, Duration: 750 * time.Millisecond})
	observe(10, herdgate.Event{Kind: herdgate.EventLoadFailed})
	observe(11, herdgate.Event{Kind: herdgate.EventAbandoned})
	observe(12, herdgate.Event{Kind: herdgate.EventRefresh})
	observe(13, herdgate.Event{Kind: herdgate.EventWait, Duration: 2 * time.Second})
	observe(14, herdgate.Event{Kind: herdgate.EventWaitTimeout})
	observe(15, herdgate.Event{Kind: herdgate.EventBackoff})
	observe(16, herdgate.Event{Kind: herdgate.EventLeaseWon})
	observe(17, herdgate.Event{Kind: herdgate.EventLeaseHeld})
	observe(18, herdgate.Event{Kind: herdgate.EventLeaseLost})
	observe(19, herdgate.Event{Kind: herdgate.EventLeaseRevoked})
	observe(20, herdgate.Event{Kind: herdgate.EventCommitStored})
	observe(21, herdgate.Event{Kind: herdgate.EventCommitRefused})
	observe(22, herdgate.Event{Kind: herdgate.EventCommitFailed})
	observe(23, herdgate.Event{Kind: herdgate.EventBadPayload})
	observe(24, herdgate.Event{Kind: herdgate.EventNewerEntry})
	observe(25, herdgate.Event{Kind: herdgate.EventDegraded})
	observe(26, herdgate.Event{Kind: herdgate.EventChange})
	observe(27, herdgate.Event{Kind: herdgate.EventChangeFailed})
	observe(28, herdgate.Event{Kind: herdgate.EventRenewalFailed})
	observe(29, herdgate.Event{Kind: herdgate.EventOutdated})
	observe(30, herdgate.Event{Kind: herdgate.EventJournaled})
	observe(31, herdgate.Event{Kind: herdgate.EventReplayed})
	observe(32, herdgate.Event{Kind: herdgate.EventJournalFull})
	observe(33, herdgate.Event{Kind: herdgate.EventNotReplicated})
	observe(34, herdgate.Event{Kind: herdgate.EventResent})
	observe(35, herdgate.Event{Kind: herdgate.EventForgotten})
	observe(36, herdgate.Event{Kind: herdgate.EventLockerFailed})
	c.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})

	const want = `
# HELP herdgate_abandoned_loads_total Runs of loaders that did not return when their context ended.
# TYPE herdgate_abandoned_loads_total counter
herdgate_abandoned_loads_total{cache="product"} 11
# HELP herdgate_backoffs_total Flights and refreshes that met the mark of a failed load.
# TYPE herdgate_backoffs_total counter
herdgate_backoffs_total{cache="product"} 15
# HELP herdgate_bad_payloads_total Entries that could not be used and counted as missing.
# TYPE herdgate_bad_payloads_total counter
herdgate_bad_payloads_total{cache="product"} 23
# HELP herdgate_bus_connected 1 while invalidations arrive, 0 while they may be missed.
# TYPE herdgate_bus_connected gauge
herdgate_bus_connected 1
# HELP herdgate_bus_losses_total Times from which on invalidations may have been missed.
# TYPE herdgate_bus_losses_total counter
herdgate_bus_losses_total 0
# HELP herdgate_changes_total Changes, one for each key of a Set, Delete or Expire, for a Clear and for each invalidation of tags: that took effect, or failed or may have.
# TYPE herdgate_changes_total counter
herdgate_changes_total{cache="product",result="done"} 26
herdgate_changes_total{cache="product",result="failed"} 27
herdgate_changes_total{cache="product",result="journaled"} 30
# HELP herdgate_coalesced_gets_total Calls that joined the flight of another one in this process.
# TYPE herdgate_coalesced_gets_total counter
herdgate_coalesced_gets_total{cache="product"} 8
# HELP herdgate_commits_total Loaded values that were stored, refused since the lease was not held any more, or failed to be stored.
# TYPE herdgate_commits_total counter
herdgate_commits_total{cache="product",result="failed"} 22
herdgate_commits_total{cache="product",result="refused"} 21
herdgate_commits_total{cache="product",result="stored"} 20
# HELP herdgate_degraded_total Flights that went on without Redis, which did not answer.
# TYPE herdgate_degraded_total counter
herdgate_degraded_total{cache="product"} 25
# HELP herdgate_forgotten_changes_total Changes that would not be made once more after a failover, as there were too many after them.
# TYPE herdgate_forgotten_changes_total counter
herdgate_forgotten_changes_total{cache="product"} 35
# HELP herdgate_gets_total Calls of Get, Fetch, Lookup and Refresh that ended, by where the value came from.
# TYPE herdgate_gets_total counter
herdgate_gets_total{cache="product",outcome="default"} 8
herdgate_gets_total{cache="product",outcome="failed"} 1
herdgate_gets_total{cache="product",outcome="loaded"} 5
herdgate_gets_total{cache="product",outcome="local"} 2
herdgate_gets_total{cache="product",outcome="remote"} 3
herdgate_gets_total{cache="product",outcome="stale"} 4
herdgate_gets_total{cache="product",outcome="unlocked"} 7
herdgate_gets_total{cache="product",outcome="waited"} 6
# HELP herdgate_journal_overflows_total Changes for which the journal had no room, so that the cache is cleared when Redis is back.
# TYPE herdgate_journal_overflows_total counter
herdgate_journal_overflows_total{cache="product"} 32
# HELP herdgate_leases_total Rebuild leases: won and held by somebody else when asked for, lost and revoked while the loader ran.
# TYPE herdgate_leases_total counter
herdgate_leases_total{cache="product",result="held"} 17
herdgate_leases_total{cache="product",result="lost"} 18
herdgate_leases_total{cache="product",result="revoked"} 19
herdgate_leases_total{cache="product",result="won"} 16
# HELP herdgate_load_duration_seconds What loaders took, failed ones included.
# TYPE herdgate_load_duration_seconds histogram
herdgate_load_duration_seconds_bucket{cache="product",le="0.5"} 0
herdgate_load_duration_seconds_bucket{cache="product",le="1"} 9
herdgate_load_duration_seconds_bucket{cache="product",le="+Inf"} 9
herdgate_load_duration_seconds_sum{cache="product"} 6.75
herdgate_load_duration_seconds_count{cache="product"} 9
# HELP herdgate_load_failures_total Runs of loaders that failed; a not-found is no failure.
# TYPE herdgate_load_failures_total counter
herdgate_load_failures_total{cache="product"} 10
# HELP herdgate_loads_total Runs of loaders that ended or were abandoned.
# TYPE herdgate_loads_total counter
herdgate_loads_total{cache="product"} 9
# HELP herdgate_newer_entries_total Entries of a newer version of the code, which are left alone.
# TYPE herdgate_newer_entries_total counter
herdgate_newer_entries_total{cache="product"} 24
# HELP herdgate_redis_down Servers that do not answer and are left alone: 0 is well, more than 1 is a Cluster.
# TYPE herdgate_redis_down gauge
herdgate_redis_down 0
# HELP herdgate_redis_outages_total Times that a server was found down.
# TYPE herdgate_redis_outages_total counter
herdgate_redis_outages_total 0
# HELP herdgate_refreshes_total Refreshes begun behind a value that was served.
# TYPE herdgate_refreshes_total counter
herdgate_refreshes_total{cache="product"} 12
# HELP herdgate_outdated_total Entries from before a Clear, or the invalidation of one of their tags, that counted as missing.
# TYPE herdgate_outdated_total counter
herdgate_outdated_total{cache="product"} 29
# HELP herdgate_locker_failures_total Answers that Options.Locker did not give, so that Redis alone decided who loads.
# TYPE herdgate_locker_failures_total counter
herdgate_locker_failures_total{cache="product"} 36
# HELP herdgate_renewal_failures_total Renewals of a lease that failed and were tried again until it ended.
# TYPE herdgate_renewal_failures_total counter
herdgate_renewal_failures_total{cache="product"} 28
# HELP herdgate_replayed_changes_total Changes that were made when Redis was back.
# TYPE herdgate_replayed_changes_total counter
herdgate_replayed_changes_total{cache="product"} 31
# HELP herdgate_resent_changes_total Changes that are made once more since there is another master.
# TYPE herdgate_resent_changes_total counter
herdgate_resent_changes_total{cache="product"} 34
# HELP herdgate_unreplicated_changes_total Changes that took effect and that fewer replicas than ReplicaWait have confirmed.
# TYPE herdgate_unreplicated_changes_total counter
herdgate_unreplicated_changes_total{cache="product"} 33
# HELP herdgate_wait_duration_seconds What flights waited for the load of another process.
# TYPE herdgate_wait_duration_seconds histogram
herdgate_wait_duration_seconds_bucket{cache="product",le="0.5"} 0
herdgate_wait_duration_seconds_bucket{cache="product",le="1"} 0
herdgate_wait_duration_seconds_bucket{cache="product",le="+Inf"} 13
herdgate_wait_duration_seconds_sum{cache="product"} 26
herdgate_wait_duration_seconds_count{cache="product"} 13
# HELP herdgate_wait_timeouts_total Flights that waited longer than WaitTimeout, for another process or a load slot.
# TYPE herdgate_wait_timeouts_total counter
herdgate_wait_timeouts_total{cache="product"} 14
# HELP herdgate_waits_total Times that a flight waited for the load of another process.
# TYPE herdgate_waits_total counter
herdgate_waits_total{cache="product"} 13
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// The core may get kinds and outcomes that nobody has thought of here.
func TestNoKindAndNoOutcomeIsForgotten(t *testing.T) {
	for kind := herdgate.EventKind(0); kind.String() != "unknown"; kind++ {
		for outcome := herdgate.Outcome(0); outcome.String() != "unknown"; outcome++ {
			c := collector(t, prom.Options{})
			c.Observe(herdgate.Event{Kind: herdgate.EventLoad, Cache: "product"})
			before := sum(t, c)
			c.Observe(herdgate.Event{Kind: kind, Outcome: outcome, Cache: "product"})
			if sum(t, c) == before {
				t.Errorf("an event %q with the outcome %q changes no metric", kind, outcome)
			}
		}
	}
}

func TestUnknownKindsAndOutcomesDoNoHarm(t *testing.T) {
	c := collector(t, prom.Options{})
	c.Observe(herdgate.Event{Kind: math.MaxUint8})
	c.Observe(herdgate.Event{Kind: herdgate.EventGet, Outcome: math.MaxUint8})
	if got := sum(t, c); got != 0 {
		t.Errorf("they count as %v", got)
	}
}

func TestTheMetricsFollowTheConventions(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	c := collector(t, prom.Options{GetDuration: true})
	registry.MustRegister(c)
	c.Observe(herdgate.Event{Kind: herdgate.EventGet, Cache: "product"})
	c.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

func TestKeysMakeNoSeries(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := collector(t, prom.Options{GetDuration: true})
	registry.MustRegister(c)
	count := func() int {
		n, err := testutil.GatherAndCount(registry)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	c.Observe(herdgate.Event{Kind: herdgate.EventGet, Cache: "product", Key: "0"})
	one := count()
	for kind := herdgate.EventKind(0); kind.String() != "unknown"; kind++ {
		c.Observe(herdgate.Event{Kind: kind, Cache: "product", Key: fmt.Sprint("key", kind), Err: fmt.Errorf("error %d", kind)})
	}
	if got := count(); got != one {
		t.Errorf("%d series for one key, %d for many", one, got)
	}
}

// An alert on a rate never sees the first failure if its counter begins with it.
func TestCountersOfACacheBeginAtZero(t *testing.T) {
	c := collector(t, prom.Options{})
	c.Observe(herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeLocal, Cache: "product"})
	const want = `
# HELP herdgate_load_failures_total Runs of loaders that failed; a not-found is no failure.
# TYPE herdgate_load_failures_total counter
herdgate_load_failures_total{cache="product"} 0
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "herdgate_load_failures_total"); err != nil {
		t.Error(err)
	}
}

func TestRedisIsDownUntilItIsUp(t *testing.T) {
	c := collector(t, prom.Options{})
	for _, step := range []struct {
		kind          herdgate.EventKind
		down, outages int
	}{{herdgate.EventRedisDown, 1, 1}, {herdgate.EventRedisDown, 2, 2}, {herdgate.EventRedisUp, 1, 2}, {herdgate.EventRedisUp, 0, 2}} {
		c.Observe(herdgate.Event{Kind: step.kind})
		want := fmt.Sprintf(`
# HELP herdgate_redis_down Servers that do not answer and are left alone: 0 is well, more than 1 is a Cluster.
# TYPE herdgate_redis_down gauge
herdgate_redis_down %d
# HELP herdgate_redis_outages_total Times that a server was found down.
# TYPE herdgate_redis_outages_total counter
herdgate_redis_outages_total %d
`, step.down, step.outages)
		if err := testutil.CollectAndCompare(c, strings.NewReader(want), "herdgate_redis_down", "herdgate_redis_outages_total"); err != nil {
			t.Error(err)
		}
	}
}

func TestTheBusIsConnectedFromItsConfirmationToItsLoss(t *testing.T) {
	c := collector(t, prom.Options{})
	check := func(connected, losses int) {
		t.Helper()
		want := fmt.Sprintf(`
# HELP herdgate_bus_connected 1 while invalidations arrive, 0 while they may be missed.
# TYPE herdgate_bus_connected gauge
herdgate_bus_connected %d
# HELP herdgate_bus_losses_total Times from which on invalidations may have been missed.
# TYPE herdgate_bus_losses_total counter
herdgate_bus_losses_total %d
`, connected, losses)
		if err := testutil.CollectAndCompare(c, strings.NewReader(want), "herdgate_bus_connected", "herdgate_bus_losses_total"); err != nil {
			t.Error(err)
		}
	}
	check(0, 0)
	c.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})
	check(1, 0)
	c.Observe(herdgate.Event{Kind: herdgate.EventBusLost})
	check(0, 1)
	c.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})
	check(1, 1)
}

func TestWithoutABusNothingIsToldOfIt(t *testing.T) {
	if n := testutil.CollectAndCount(collector(t, prom.Options{NoBus: true})); n != 0 {
		t.Errorf("%d series before the first event", n)
	}
}

func TestGetsAreTimedOnRequest(t *testing.T) {
	for _, timed := range []bool{false, true} {
		c := collector(t, prom.Options{GetDuration: timed})
		c.Observe(herdgate.Event{Kind: herdgate.EventGet, Cache: "product", Duration: time.Second})
		if got := testutil.CollectAndCount(c, "herdgate_get_duration_seconds") == 1; got != timed {
			t.Errorf("with GetDuration %v: the histogram is there: %v", timed, got)
		}
	}
}

func TestBucketsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, test := range []struct {
		buckets []float64
		want    string
	}{
		{[]float64{0, 1}, "herdgate: prom.Options.Buckets[0] is 0, want finite seconds above 0"},
		{[]float64{1, 2, 2}, "herdgate: prom.Options.Buckets[2] is 2, want finite seconds above 2"},
		{[]float64{1, math.NaN()}, "herdgate: prom.Options.Buckets[1] is NaN, want finite seconds above 1"},
		{[]float64{1, math.Inf(1)}, "herdgate: prom.Options.Buckets[1] is +Inf, want finite seconds above 1"},
	} {
		_, err := prom.NewCollector(prom.Options{Buckets: test.buckets})
		if _, typed := errors.AsType[*herdgate.ConfigError](err); !typed || err.Error() != test.want {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}

func TestTheCallerMayReuseItsBuckets(t *testing.T) {
	buckets := []float64{1, 2}
	c := collector(t, prom.Options{Buckets: buckets})
	buckets[0] = 3 // above the next: no histogram could be made of it
	c.Observe(herdgate.Event{Kind: herdgate.EventLoad, Cache: "product"})
	if got := sum(t, c, "herdgate_load_duration_seconds"); got != 1 {
		t.Errorf("counted %v loads of 1", got)
	}
}

func TestNoEventIsLostWhenManyCachesBeginAtOnce(t *testing.T) {
	const workers, caches, rounds = 8, 80, 3
	c := collector(t, prom.Options{})
	start := make(chan struct{})
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			<-start
			for i := range rounds * caches { // each begins with another cache
				c.Observe(herdgate.Event{Kind: herdgate.EventRefresh, Cache: fmt.Sprint("cache", (i+worker*caches/workers)%caches)})
				runtime.Gosched()
			}
		})
	}
	close(start)
	all.Wait()
	if got := sum(t, c); got != workers*caches*rounds {
		t.Errorf("counted %v of %d", got, workers*caches*rounds)
	}
}

func TestAGateIsCountedAsItCountsItself(t *testing.T) {
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	c := collector(t, prom.Options{})
	gate, err := herdgate.Open(t.Context(), herdgate.Options{
		Redis: rdb, Observer: c,
		RedisTimeout: 10 * time.Second, // Open waits for the bus, also on a busy machine
	})
	if err != nil {
		t.Fatal(err)
	}
	products, err := herdgate.New(gate, "product", func(_ context.Context, key string) (string, error) {
		if key == "bad" {
			return "", errors.New("out of order")
		}
		return "value of " + key, nil
	}, herdgate.Policy{TTL: time.Hour, MinRebuildInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"1", "1", "2", "1"} {
		if _, err := products.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := products.Get(t.Context(), "bad"); err == nil {
		t.Fatal("a failed load gives no error")
	}
	if err := products.Delete(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if err := gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	stats := gate.Stats()
	if stats.Gets != 5 || stats.Loads != 3 {
		t.Fatalf("the gate counts %+v", stats)
	}
	for metric, want := range map[string]uint64{
		"herdgate_gets_total":          stats.Gets,
		"herdgate_loads_total":         stats.Loads,
		"herdgate_load_failures_total": stats.LoadFailures,
		"herdgate_leases_total":        stats.LeasesWon + stats.LeasesHeld + stats.LeasesLost + stats.LeasesRevoked,
		"herdgate_commits_total":       stats.CommitsStored + stats.CommitsRefused + stats.CommitsFailed,
		"herdgate_changes_total":       stats.Changes + stats.ChangesFailed,
		"herdgate_bus_connected":       1, // Close tells nobody
	} {
		if got := sum(t, c, metric); got != float64(want) {
			t.Errorf("%s is %v, the gate says %d", metric, got, want)
		}
	}
}

func TestALocalHitAllocatesNothing(t *testing.T) {
	for _, timed := range []bool{false, true} {
		products := localCache(t, collector(t, prom.Options{GetDuration: timed, NoBus: true}))
		allocations := testing.AllocsPerRun(100, func() {
			if _, err := products.Get(t.Context(), "42"); err != nil {
				t.Fatal(err)
			}
		})
		if allocations != 0 {
			t.Errorf("with GetDuration %v: %v allocations", timed, allocations)
		}
	}
}

func BenchmarkLocalHit(b *testing.B) {
	for _, bench := range []struct {
		name     string
		observer herdgate.Observer
	}{
		{"no observer", nil},
		{"empty observer", herdgate.ObserverFunc(func(herdgate.Event) {})},
		{"collector", collector(b, prom.Options{NoBus: true})},
		{"collector with get duration", collector(b, prom.Options{NoBus: true, GetDuration: true})},
	} {
		products := localCache(b, bench.observer)
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := b.Context()
			for b.Loop() {
				if _, err := products.Get(ctx, "42"); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(bench.name+", parallel", func(b *testing.B) {
			b.ReportAllocs()
			ctx := b.Context()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := products.Get(ctx, "42"); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// localCache is a cache without Redis whose key "42" is in the local tier.
func localCache(tb testing.TB, observer herdgate.Observer) *herdgate.Cache[string] {
	tb.Helper()
	gate, err := herdgate.Open(tb.Context(), herdgate.Options{Observer: observer})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = gate.Close(context.WithoutCancel(tb.Context())) })
	products, err := herdgate.New(gate, "product", func(context.Context, string) (string, error) {
		return "Teapot", nil
	}, herdgate.Policy{TTL: time.Hour})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := products.Get(tb.Context(), "42"); err != nil {
		tb.Fatal(err)
	}
	return products
}

// sum adds up counters, gauges, and the counts of histograms.
func sum(t *testing.T, c prometheus.Collector, metrics ...string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range families {
		if len(metrics) > 0 && !slices.Contains(metrics, family.GetName()) {
			continue
		}
		for _, m := range family.GetMetric() {
			total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return total
}
