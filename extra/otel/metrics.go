package herdotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/herdgate/herdgate"
)

// counter is where the events of a kind are counted.
type counter struct {
	name, unit, description string

	result     string // the herdgate.result of this kind, if several kinds share the counter
	instrument metric.Int64Observable
}

// counters are those of a cache, by kind of event. No name is also the beginning of
// another, up to a dot.
func counters() map[herdgate.EventKind]counter {
	leases := func(result string) counter {
		return counter{name: "herdgate.leases", unit: "{lease}", result: result, description: "Rebuild leases: won and held by somebody else when asked for, lost and revoked while the loader ran."}
	}
	commits := func(result string) counter {
		return counter{name: "herdgate.commits", unit: "{commit}", result: result, description: "Loaded values that were stored, refused since the lease was not held any more, or failed to be stored."}
	}
	changes := func(result string) counter {
		return counter{name: "herdgate.changes", unit: "{change}", result: result, description: "Changes, one for each key of a Set, Delete or Expire, for a Clear and for each invalidation of tags: that took effect, or failed or may have."}
	}
	return map[herdgate.EventKind]counter{
		herdgate.EventCoalesced:     {name: "herdgate.get.coalesced", unit: "{call}", description: "Calls that joined the flight of another one in this process."},
		herdgate.EventLoad:          {name: "herdgate.loads", unit: "{load}", description: "Runs of loaders that ended or were abandoned."},
		herdgate.EventLoadFailed:    {name: "herdgate.load.failures", unit: "{load}", description: "Runs of loaders that failed; a not-found is no failure."},
		herdgate.EventAbandoned:     {name: "herdgate.load.abandoned", unit: "{load}", description: "Runs of loaders that did not return when their context ended."},
		herdgate.EventRefresh:       {name: "herdgate.refreshes", unit: "{load}", description: "Refreshes begun behind a value that was served."},
		herdgate.EventWait:          {name: "herdgate.waits", unit: "{wait}", description: "Times that a flight waited for the load of another process."},
		herdgate.EventWaitTimeout:   {name: "herdgate.wait.timeouts", unit: "{flight}", description: "Flights that waited longer than WaitTimeout, for another process or a load slot."},
		herdgate.EventBackoff:       {name: "herdgate.backoffs", unit: "{flight}", description: "Flights and refreshes that met the mark of a failed load."},
		herdgate.EventLeaseWon:      leases("won"),
		herdgate.EventLeaseHeld:     leases("held"),
		herdgate.EventRenewalFailed: {name: "herdgate.renewal.failures", unit: "{renewal}", description: "Renewals of a lease that failed and were tried again until it ended."},
		herdgate.EventLeaseLost:     leases("lost"),
		herdgate.EventLeaseRevoked:  leases("revoked"),
		herdgate.EventLockerFailed:  {name: "herdgate.locker.failures", unit: "{answer}", description: "Answers that Options.Locker did not give, so that Redis alone decided who loads."},
		herdgate.EventCommitStored:  commits("stored"),
		herdgate.EventCommitRefused: commits("refused"),
		herdgate.EventCommitFailed:  commits("failed"),
		herdgate.EventBadPayload:    {name: "herdgate.bad_payloads", unit: "{entry}", description: "Entries that could not be used and counted as missing."},
		herdgate.EventOutdated:      {name: "herdgate.outdated", unit: "{entry}", description: "Entries from before a Clear, or the invalidation of one of their tags, that counted as missing."},
		herdgate.EventNewerEntry:    {name: "herdgate.newer_entries", unit: "{entry}", description: "Entries of a newer version of the code, which are left alone."},
		herdgate.EventDegraded:      {name: "herdgate.degraded", unit: "{flight}", description: "Flights that went on without Redis, which did not answer."},
		herdgate.EventChange:        changes("done"),
		herdgate.EventChangeFailed:  changes("failed"),
		herdgate.EventJournaled:     changes("journaled"),
		herdgate.EventReplayed:      {name: "herdgate.replays", unit: "{change}", description: "Changes that were made when Redis was back."},
		herdgate.EventJournalFull:   {name: "herdgate.journal.overflows", unit: "{change}", description: "Changes for which the journal had no room, so that the cache is cleared when Redis is back."},
		herdgate.EventNotReplicated: {name: "herdgate.unreplicated_changes", unit: "{change}", description: "Changes that took effect and that fewer replicas than ReplicaWait have confirmed."},
		herdgate.EventResent:        {name: "herdgate.resent_changes", unit: "{change}", description: "Changes that are made once more since there is another master."},
		herdgate.EventForgotten:     {name: "herdgate.forgotten_changes", unit: "{change}", description: "Changes that would not be made once more after a failover, as there were too many after them."},
	}
}

// register makes the instruments and lets each collection read the counters.
func (o *Observer) register(meter metric.Meter) error {
	r := registrar{meter: meter, made: map[string]metric.Int64Observable{}}
	o.counters = counters()
	for kind, c := range o.counters {
		c.instrument = r.counter(c.name, c.unit, c.description)
		o.counters[kind] = c
	}
	gets := r.counter("herdgate.gets", "{call}", "Calls of Get, Fetch, Lookup and Refresh that ended, by where the value came from.")
	o.gets = r.histogram("herdgate.get.duration", "What calls of Get, Fetch, Lookup and Refresh took.")
	for step := range o.steps {
		o.steps[step] = r.histogram("herdgate."+herdgate.Step(step).String()+".duration", stepDescription(herdgate.Step(step)))
	}
	var connected, losses, down, outages metric.Int64Observable
	if !o.options.NoBus {
		connected = r.gauge("herdgate.bus.connected", "1", "1 while invalidations arrive, 0 while they may be missed.")
		losses = r.counter("herdgate.bus.losses", "{loss}", "Times from which on invalidations may have been missed.")
		down = r.gauge("herdgate.redis.down", "{server}", "Servers that do not answer and are left alone: 0 is well, more than 1 is a Cluster.")
		outages = r.counter("herdgate.redis.outages", "{outage}", "Times that a server was found down.")
	}
	if r.err != nil {
		return r.err
	}
	var err error
	o.registration, err = meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, s := range *o.caches.Load() {
			for outcome, n := range s.gets {
				to.ObserveInt64(gets, n.Value(), s.outcomes[outcome].observe...)
			}
			for kind, c := range o.counters {
				to.ObserveInt64(c.instrument, s.kinds[kind].Load(), metric.WithAttributes(c.attributes(s)...))
			}
		}
		if !o.options.NoBus {
			to.ObserveInt64(connected, o.isConnected())
			to.ObserveInt64(losses, o.busLosses.Load())
			to.ObserveInt64(down, o.down.Load())
			to.ObserveInt64(outages, o.outages.Load())
		}
		return nil
	}, r.all...)
	return err
}

func (c counter) attributes(s *series) []attribute.KeyValue {
	if c.result == "" {
		return []attribute.KeyValue{s.cache}
	}
	return []attribute.KeyValue{s.cache, ResultKey.String(c.result)}
}

func (o *Observer) isConnected() int64 {
	if o.connected.Load() {
		return 1
	}
	return 0
}

func stepDescription(step herdgate.Step) string {
	switch step {
	case herdgate.StepLoad:
		return "What loaders took."
	case herdgate.StepWait:
		return "What flights waited for the load of another process."
	case herdgate.StepAcquire:
		return "What asking Redis for the rebuild lease took."
	case herdgate.StepCommit:
		return "What storing a loaded value in Redis took."
	}
	return ""
}

// registrar makes instruments and keeps the first error.
type registrar struct {
	meter metric.Meter
	made  map[string]metric.Int64Observable // counters by name
	all   []metric.Observable
	err   error
}

func (r *registrar) counter(name, unit, description string) metric.Int64Observable {
	if c := r.made[name]; c != nil {
		return c
	}
	c, err := r.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	r.keep(c, err)
	r.made[name] = c
	return c
}

func (r *registrar) gauge(name, unit, description string) metric.Int64Observable {
	g, err := r.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	r.keep(g, err)
	return g
}

func (r *registrar) keep(observable metric.Observable, err error) {
	r.all = append(r.all, observable)
	if r.err == nil {
		r.err = err
	}
}

// histogram has bounds for what takes from a local hit to a slow query.
func (r *registrar) histogram(name, description string) metric.Float64Histogram {
	h, err := r.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	if r.err == nil {
		r.err = err
	}
	return h
}
