// Package prom counts what a herdgate gate does, as Prometheus metrics.
//
// A [Collector] is both ends: the gate's Observer, and what a registry collects.
// README.md lists the metrics and when to worry; alerts.yml has the rules.
package prom

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdgate/herdgate"
)

// Options are what a collector is made with. The zero value of each field is its
// default.
type Options struct {
	// Buckets are the upper bounds of the histograms' buckets, in seconds, above 0
	// and increasing. Default: 17 from 100 µs to 30 s.
	Buckets []float64

	// GetDuration adds a histogram of what calls of Get, Fetch, Lookup and Refresh take.
	// It costs a local hit more than its counter does. Such a hit is not timed: it
	// counts as 0 s. Default: no such histogram.
	GetDuration bool

	// NoBus leaves out the metrics of the message bus: for a gate without Redis, which
	// has none, and would be reported as not connected. Default: they are there.
	NoBus bool
}

// Collector makes metrics of the events of one gate and its caches. Give it to the
// gate as Options.Observer, alone or through herdgate.Observers, and register it. Two
// gates of a process need a collector each, registered through
// prometheus.WrapRegistererWith under a label that tells them apart. No metric has a
// label that grows with the keys.
//
// A collector outlives its gate and keeps the last values: unregister it if the
// process goes on after Close. Safe for concurrent use.
type Collector struct {
	metrics []prometheus.Collector

	// What is left of the labels of these vectors is the cache.
	gets         [herdgate.OutcomeDefault + 1]*prometheus.CounterVec
	kinds        map[herdgate.EventKind]*prometheus.CounterVec // all others of a cache
	getDuration  *prometheus.HistogramVec                      // nil: not wanted
	loadDuration *prometheus.HistogramVec
	waitDuration *prometheus.HistogramVec

	connected prometheus.Gauge
	busLosses prometheus.Counter
	down      prometheus.Gauge
	outages   prometheus.Counter

	// caches holds the children of each cache seen so far, so that an event looks up
	// no label. The map is never written to, but replaced by a longer one.
	caches atomic.Pointer[map[string]*series]
}

// series are the metrics of one cache.
type series struct {
	gets         [herdgate.OutcomeDefault + 1]prometheus.Counter
	kinds        map[herdgate.EventKind]prometheus.Counter
	getDuration  prometheus.Observer // nil: not wanted
	loadDuration prometheus.Observer
	waitDuration prometheus.Observer
}

// NewCollector makes a collector that has counted nothing. It returns a
// *herdgate.ConfigError for buckets that cannot be used.
func NewCollector(options Options) (*Collector, error) {
	buckets, err := options.buckets()
	if err != nil {
		return nil, err
	}
	c := &Collector{}
	c.caches.Store(&map[string]*series{})

	gets := c.counter("gets_total", "Calls of Get, Fetch, Lookup and Refresh that ended, by where the value came from.", "outcome")
	for outcome := range c.gets {
		c.gets[outcome] = with(gets, "outcome", herdgate.Outcome(outcome).String())
	}
	leases := c.counter("leases_total", "Rebuild leases: won and held by somebody else when asked for, lost and revoked while the loader ran.", "result")
	commits := c.counter("commits_total", "Loaded values that were stored, refused since the lease was not held any more, or failed to be stored.", "result")
	changes := c.counter("changes_total", "Changes, one for each key of a Set, Delete or Expire, for a Clear and for each invalidation of tags: that took effect, or failed or may have.", "result")
	c.kinds = map[herdgate.EventKind]*prometheus.CounterVec{
		herdgate.EventCoalesced:     c.counter("coalesced_gets_total", "Calls that joined the flight of another one in this process."),
		herdgate.EventLoad:          c.counter("loads_total", "Runs of loaders that ended or were abandoned."),
		herdgate.EventLoadFailed:    c.counter("load_failures_total", "Runs of loaders that failed; a not-found is no failure."),
		herdgate.EventAbandoned:     c.counter("abandoned_loads_total", "Runs of loaders that did not return when their context ended."),
		herdgate.EventRefresh:       c.counter("refreshes_total", "Refreshes begun behind a value that was served."),
		herdgate.EventWait:          c.counter("waits_total", "Times that a flight waited for the load of another process."),
		herdgate.EventWaitTimeout:   c.counter("wait_timeouts_total", "Flights that waited longer than WaitTimeout, for another process or a load slot."),
		herdgate.EventBackoff:       c.counter("backoffs_total", "Flights and refreshes that met the mark of a failed load."),
		herdgate.EventLeaseWon:      with(leases, "result", "won"),
		herdgate.EventLeaseHeld:     with(leases, "result", "held"),
		herdgate.EventRenewalFailed: c.counter("renewal_failures_total", "Renewals of a lease that failed and were tried again until it ended."),
		herdgate.EventLeaseLost:     with(leases, "result", "lost"),
		herdgate.EventLeaseRevoked:  with(leases, "result", "revoked"),
		herdgate.EventLockerFailed:  c.counter("locker_failures_total", "Answers that Options.Locker did not give, so that Redis alone decided who loads."),
		herdgate.EventCommitStored:  with(commits, "result", "stored"),
		herdgate.EventCommitRefused: with(commits, "result", "refused"),
		herdgate.EventCommitFailed:  with(commits, "result", "failed"),
		herdgate.EventBadPayload:    c.counter("bad_payloads_total", "Entries that could not be used and counted as missing."),
		herdgate.EventOutdated:      c.counter("outdated_total", "Entries from before a Clear, or the invalidation of one of their tags, that counted as missing."),
		herdgate.EventNewerEntry:    c.counter("newer_entries_total", "Entries of a newer version of the code, which are left alone."),
		herdgate.EventDegraded:      c.counter("degraded_total", "Flights that went on without Redis, which did not answer."),
		herdgate.EventChange:        with(changes, "result", "done"),
		herdgate.EventChangeFailed:  with(changes, "result", "failed"),
		herdgate.EventJournaled:     with(changes, "result", "journaled"),
		herdgate.EventReplayed:      c.counter("replayed_changes_total", "Changes that were made when Redis was back."),
		herdgate.EventJournalFull:   c.counter("journal_overflows_total", "Changes for which the journal had no room, so that the cache is cleared when Redis is back."),
		herdgate.EventNotReplicated: c.counter("unreplicated_changes_total", "Changes that took effect and that fewer replicas than ReplicaWait have confirmed."),
		herdgate.EventResent:        c.counter("resent_changes_total", "Changes that are made once more since there is another master."),
		herdgate.EventForgotten:     c.counter("forgotten_changes_total", "Changes that would not be made once more after a failover, as there were too many after them."),
	}
	c.loadDuration = c.histogram("load_duration_seconds", "What loaders took, failed ones included.", buckets)
	c.waitDuration = c.histogram("wait_duration_seconds", "What flights waited for the load of another process.", buckets)
	if options.GetDuration {
		c.getDuration = c.histogram("get_duration_seconds", "What calls of Get, Fetch, Lookup and Refresh took; a local hit counts as 0 s.", buckets)
	}

	c.connected = prometheus.NewGauge(prometheus.GaugeOpts{Name: name("bus_connected"), Help: "1 while invalidations arrive, 0 while they may be missed."})
	c.busLosses = prometheus.NewCounter(prometheus.CounterOpts{Name: name("bus_losses_total"), Help: "Times from which on invalidations may have been missed."})
	c.down = prometheus.NewGauge(prometheus.GaugeOpts{Name: name("redis_down"), Help: "Servers that do not answer and are left alone: 0 is well, more than 1 is a Cluster."})
	c.outages = prometheus.NewCounter(prometheus.CounterOpts{Name: name("redis_outages_total"), Help: "Times that a server was found down."})
	if !options.NoBus {
		c.metrics = append(c.metrics, c.connected, c.busLosses, c.down, c.outages)
	}
	return c, nil
}

func (o Options) buckets() ([]float64, error) {
	if len(o.Buckets) == 0 {
		return []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, nil
	}
	last := 0.0
	for i, bound := range o.Buckets {
		if !(bound > last) || math.IsInf(bound, 1) { // not bound <= last: NaN is neither
			return nil, &herdgate.ConfigError{
				Field: fmt.Sprintf("prom.Options.Buckets[%d]", i), Value: bound,
				Want: fmt.Sprintf("finite seconds above %v", last),
			}
		}
		last = bound
	}
	return slices.Clone(o.Buckets), nil
}

func name(s string) string { return prometheus.BuildFQName("herdgate", "", s) }

// counter adds a counter with the label cache and, before it, labels.
func (c *Collector) counter(metric, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(metric), Help: help}, append(labels, "cache"))
	c.metrics = append(c.metrics, vec)
	return vec
}

func (c *Collector) histogram(metric, help string, buckets []float64) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name(metric), Help: help, Buckets: buckets}, []string{"cache"})
	c.metrics = append(c.metrics, vec)
	return vec
}

func with(vec *prometheus.CounterVec, label, value string) *prometheus.CounterVec {
	return vec.MustCurryWith(prometheus.Labels{label: value})
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		m.Describe(descs)
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, m := range c.metrics {
		m.Collect(metrics)
	}
}

// Observe implements [herdgate.Observer]. It allocates nothing, except for the first
// event of a cache.
func (c *Collector) Observe(e herdgate.Event) {
	switch e.Kind {
	case herdgate.EventBusLost:
		c.connected.Set(0)
		c.busLosses.Inc()
	case herdgate.EventBusConfirmed:
		c.connected.Set(1)
	case herdgate.EventRedisDown:
		c.down.Inc()
		c.outages.Inc()
	case herdgate.EventRedisUp:
		c.down.Dec()
	default:
		c.cache(e.Cache).count(e)
	}
}

// cache is the series of a cache. All of them begin with its first event, at 0: a
// counter that began with its first failure would hide that one from rate.
func (c *Collector) cache(name string) *series {
	seen := *c.caches.Load()
	if s := seen[name]; s != nil {
		return s
	}
	s := c.resolve(name)
	// Of two that get here at once one may overwrite what the other has added. No
	// count is lost, as the children are the vectors'; the next event adds it again.
	longer := maps.Clone(seen)
	longer[name] = s
	c.caches.Store(&longer)
	return s
}

func (c *Collector) resolve(cache string) *series {
	s := &series{
		kinds:        make(map[herdgate.EventKind]prometheus.Counter, len(c.kinds)),
		loadDuration: c.loadDuration.WithLabelValues(cache),
		waitDuration: c.waitDuration.WithLabelValues(cache),
	}
	for outcome, vec := range c.gets {
		s.gets[outcome] = vec.WithLabelValues(cache)
	}
	for kind, vec := range c.kinds {
		s.kinds[kind] = vec.WithLabelValues(cache)
	}
	if c.getDuration != nil {
		s.getDuration = c.getDuration.WithLabelValues(cache)
	}
	return s
}

// count ignores kinds and outcomes that this version does not know.
func (s *series) count(e herdgate.Event) {
	if e.Kind == herdgate.EventGet {
		if int(e.Outcome) < len(s.gets) {
			s.gets[e.Outcome].Inc()
		}
		if s.getDuration != nil {
			s.getDuration.Observe(e.Duration.Seconds())
		}
		return
	}
	if counter := s.kinds[e.Kind]; counter != nil {
		counter.Inc()
	}
	switch e.Kind {
	case herdgate.EventLoad:
		s.loadDuration.Observe(e.Duration.Seconds())
	case herdgate.EventWait:
		s.waitDuration.Observe(e.Duration.Seconds())
	default:
	}
}
