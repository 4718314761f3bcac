// Package herdotel tells OpenTelemetry what a herdgate gate does: metrics, and spans
// of the work that its callers wait for.
//
// An [Observer] is both ends: the gate's Options.Observer, and a source of metrics
// for a MeterProvider and of spans for a TracerProvider. README.md lists them.
package herdotel

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/singleflight"
)

// Scope is the name of the instrumentation scope of all metrics and spans.
const Scope = "github.com/herdgate/herdgate/extra/otel"

// The attributes of metrics and spans. No metric has the key as an attribute.
const (
	CacheKey   = attribute.Key("herdgate.cache")
	OutcomeKey = attribute.Key("herdgate.outcome") // of a get: local, remote, stale, loaded, waited, unlocked, default, failed
	ResultKey  = attribute.Key("herdgate.result")  // of leases, commits and changes
	KeyKey     = attribute.Key("herdgate.key")     // of spans, with Options.KeysOnSpans
	errorType  = attribute.Key("error.type")
)

// Options are what an observer is made with. The zero value of each field is its
// default.
type Options struct {
	// MeterProvider gets the metrics. Default: the global one. One of the package
	// go.opentelemetry.io/otel/metric/noop switches metrics off.
	MeterProvider metric.MeterProvider

	// TracerProvider gets the spans. Default: the global one. One of the package
	// go.opentelemetry.io/otel/trace/noop switches spans off.
	TracerProvider trace.TracerProvider

	// TimeLocalHits adds local hits to herdgate.get.duration, which otherwise has the
	// other outcomes only. It costs such a hit more than its counter does. Most of them
	// are not timed, and count as 0 s. Default: they are only counted.
	TimeLocalHits bool

	// KeysOnSpans puts the key on each span, as herdgate.key: for caches whose keys are
	// no secret. Default: a span tells the cache.
	KeysOnSpans bool

	// NoBus leaves out the metrics of the message bus: for a gate without Redis, which
	// has none, and would be reported as not connected. Default: they are there.
	NoBus bool
}

// Observer counts, times and traces what one gate and its caches do. Give it to the
// gate as Options.Observer, alone or through herdgate.Observers. Two gates of a
// process need an observer each, of MeterProviders whose resources differ.
//
// Safe for concurrent use.
type Observer struct {
	options  Options
	tracer   trace.Tracer
	counters map[herdgate.EventKind]counter                   // of a cache, but for gets; read-only
	steps    [herdgate.StepCommit + 1]metric.Float64Histogram // what they took
	gets     metric.Float64Histogram                          // what they took

	connected atomic.Bool
	busLosses atomic.Int64
	down      atomic.Int64 // servers
	outages   atomic.Int64

	// caches holds what is known of each cache seen so far, so that an event makes no
	// attributes. The map is never written to, but replaced by a longer one.
	caches atomic.Pointer[map[string]*series]

	registration metric.Registration
}

var _ herdgate.Tracer = (*Observer)(nil)

// New makes an observer that has counted nothing, and registers its metrics. The
// error is that of the MeterProvider.
func New(options Options) (*Observer, error) {
	if options.MeterProvider == nil {
		options.MeterProvider = otel.GetMeterProvider()
	}
	if options.TracerProvider == nil {
		options.TracerProvider = otel.GetTracerProvider()
	}
	o := &Observer{options: options, tracer: options.TracerProvider.Tracer(Scope)}
	o.caches.Store(&map[string]*series{})
	if err := o.register(options.MeterProvider.Meter(Scope)); err != nil {
		return nil, err
	}
	return o, nil
}

// Close ends the metrics that are collected from this observer: without it they go
// on after the gate is closed, with their last values.
func (o *Observer) Close() error { return o.registration.Unregister() }

// series is what is counted of one cache, and the options that its measurements and
// spans are made with.
type series struct {
	gets  [herdgate.OutcomeDefault + 1]*xsync.Counter
	kinds map[herdgate.EventKind]*atomic.Int64 // as Observer.counters; read-only

	cache     attribute.KeyValue
	outcomes  [herdgate.OutcomeDefault + 1]get
	succeeded []metric.RecordOption   // a step that did
	span      []trace.SpanStartOption // shared: clipped before an append
}

// get is how a get of one outcome is told of.
type get struct {
	observe []metric.ObserveOption
	record  []metric.RecordOption
}

func (o *Observer) resolve(cache string) *series {
	s := &series{
		kinds: make(map[herdgate.EventKind]*atomic.Int64, len(o.counters)),
		cache: CacheKey.String(cache),
	}
	s.succeeded = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(s.cache))}
	s.span = []trace.SpanStartOption{trace.WithAttributes(s.cache)}
	for outcome := range s.gets {
		set := metric.WithAttributeSet(attribute.NewSet(s.cache, OutcomeKey.String(herdgate.Outcome(outcome).String())))
		s.gets[outcome] = xsync.NewCounter()
		s.outcomes[outcome] = get{observe: []metric.ObserveOption{set}, record: []metric.RecordOption{set}}
	}
	for kind := range o.counters {
		s.kinds[kind] = new(atomic.Int64)
	}
	return s
}

// of is the series of a cache. All of them begin with its first event, at 0.
func (o *Observer) of(cache string) *series {
	for {
		seen := o.caches.Load()
		if s := (*seen)[cache]; s != nil {
			return s
		}
		longer := maps.Clone(*seen)
		longer[cache] = o.resolve(cache)
		if o.caches.CompareAndSwap(seen, &longer) { // else somebody else has added one
			return longer[cache]
		}
	}
}

// Observe implements [herdgate.Observer]. It allocates nothing, except for the first
// event of a cache. Kinds and outcomes that this version does not know are ignored.
func (o *Observer) Observe(e herdgate.Event) {
	switch e.Kind {
	case herdgate.EventGet:
		if s := o.of(e.Cache); int(e.Outcome) < len(s.gets) {
			o.got(s, e)
		}
	case herdgate.EventBusLost:
		o.connected.Store(false)
		o.busLosses.Add(1)
	case herdgate.EventBusConfirmed:
		o.connected.Store(true)
	case herdgate.EventRedisDown:
		o.down.Add(1)
		o.outages.Add(1)
	case herdgate.EventRedisUp:
		o.down.Add(-1)
	default:
		if n := o.of(e.Cache).kinds[e.Kind]; n != nil {
			n.Add(1)
		}
	}
}

func (o *Observer) got(s *series, e herdgate.Event) {
	s.gets[e.Outcome].Inc()
	if e.Outcome != herdgate.OutcomeLocal || o.options.TimeLocalHits {
		ctx := context.Background() //nolint:forbidigo // an event has no context, and nothing here can be cancelled
		o.gets.Record(ctx, e.Duration.Seconds(), s.outcomes[e.Outcome].record...)
	}
}

// Begin implements [herdgate.Tracer]: a step has a span below that of the call that
// started its flight, and its time is recorded under that span.
func (o *Observer) Begin(ctx context.Context, step herdgate.Step, cache, key string) (context.Context, func(error)) {
	s := o.of(cache)
	ctx, end := o.start(ctx, s, step.String(), key)
	if int(step) >= len(o.steps) {
		return ctx, end
	}
	began := time.Now()
	return ctx, func(err error) {
		o.steps[step].Record(ctx, time.Since(began).Seconds(), s.ended(err)...)
		end(err)
	}
}

// Join implements [herdgate.Tracer]: the span of a call that waits for another one's
// flight links to the span of that other call.
func (o *Observer) Join(ctx, flight context.Context, cache, key string) func(error) {
	var links []trace.SpanStartOption
	if winner := trace.SpanContextFromContext(flight); winner.IsValid() {
		links = append(links, trace.WithLinks(trace.Link{SpanContext: winner}))
	}
	_, end := o.start(ctx, o.of(cache), "join", key, links...)
	return end
}

func (o *Observer) start(ctx context.Context, s *series, step, key string, more ...trace.SpanStartOption) (context.Context, func(error)) {
	options := append(slices.Clip(s.span), more...)
	if o.options.KeysOnSpans {
		options = append(options, trace.WithAttributes(KeyKey.String(key)))
	}
	ctx, span := o.tracer.Start(ctx, "herdgate."+step+" "+s.cache.Value.AsString(), options...)
	return ctx, func(err error) {
		if failed(err) {
			span.RecordError(err)
			span.SetAttributes(errorType.String(typeOf(err)))
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// ended is what a step that ended with err is recorded with.
func (s *series) ended(err error) []metric.RecordOption {
	if !failed(err) {
		return s.succeeded
	}
	return []metric.RecordOption{metric.WithAttributes(s.cache, errorType.String(typeOf(err)))}
}

// failed reports whether err is one: that a key does not exist is an answer.
func failed(err error) bool {
	return err != nil && (!errors.Is(err, herdgate.ErrNotFound) || typeOf(err) == "panic")
}

// typeOf is the error.type of err: one of a few words.
func typeOf(err error) string {
	if _, ok := errors.AsType[*singleflight.PanicError](err); ok || errors.Is(err, singleflight.ErrGoexit) {
		return "panic"
	}
	for _, known := range [...]struct {
		err  error
		word string
	}{
		{herdgate.ErrLoadTimeout, "load_timeout"},
		{herdgate.ErrWaitTimeout, "wait_timeout"},
		{herdgate.ErrRedisTimeout, "redis_timeout"},
		{herdgate.ErrBackoff, "backoff"},
		{herdgate.ErrRevoked, "revoked"},
		{lock.ErrLost, "lease_lost"},
		{herdgate.ErrNotStored, "not_stored"},
		{herdgate.ErrNoLoader, "no_loader"},
		{herdgate.ErrClosed, "closed"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline_exceeded"},
	} {
		if errors.Is(err, known.err) {
			return known.word
		}
	}
	return "_OTHER" // the conventions' word for what has none
}
