package herdotel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/herdgate/herdgate"
	herdotel "github.com/herdgate/herdgate/extra/otel"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/singleflight"
)

// scope is an observer and what it has told.
type scope struct {
	*herdotel.Observer
	tb     testing.TB
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the application
}

func observe(tb testing.TB, options herdotel.Options) *scope {
	tb.Helper()
	s := &scope{tb: tb, reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
	s.tracer = traces.Tracer("application")
	options.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))
	options.TracerProvider = traces
	var err error
	if s.Observer, err = herdotel.New(options); err != nil {
		tb.Fatal(err)
	}
	return s
}

// points are all values there are, by metric and attributes, as in
// "herdgate.loads{herdgate.cache=product}". A histogram has the number of its values.
func (s *scope) points() map[string]int64 {
	s.tb.Helper()
	points := map[string]int64{}
	add := func(name string, attrs attribute.Set, n int64) {
		points[name+"{"+attrs.Encoded(attribute.DefaultEncoder())+"}"] += n
	}
	for _, m := range s.metrics() {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, p.Value)
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, int64(p.Count)) //nolint:gosec // a handful
			}
		default:
			s.tb.Fatalf("%s is a %T", m.Name, m.Data)
		}
	}
	return points
}

func (s *scope) metrics() []metricdata.Metrics {
	s.tb.Helper()
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(s.tb.Context(), &all); err != nil {
		s.tb.Fatal(err)
	}
	var metrics []metricdata.Metrics
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != herdotel.Scope {
			s.tb.Errorf("metrics of the scope %q", scope.Scope.Name)
		}
		metrics = append(metrics, scope.Metrics...)
	}
	return metrics
}

func (s *scope) sum() (total int64) {
	s.tb.Helper()
	for _, n := range s.points() {
		total += n
	}
	return total
}

func TestEachEventHasItsMetric(t *testing.T) {
	s := observe(t, herdotel.Options{})
	for i, e := range []herdgate.Event{
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeFailed},
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeLocal},
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeRemote},
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeStale},
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeLoaded},
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeWaited},
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeUnlocked},
		{Kind: herdgate.EventCoalesced},
		{Kind: herdgate.EventLoad},
		{Kind: herdgate.EventLoadFailed},
		{Kind: herdgate.EventAbandoned},
		{Kind: herdgate.EventRefresh},
		{Kind: herdgate.EventWait},
		{Kind: herdgate.EventWaitTimeout},
		{Kind: herdgate.EventBackoff},
		{Kind: herdgate.EventLeaseWon},
		{Kind: herdgate.EventLeaseHeld},
		{Kind: herdgate.EventLeaseLost},
		{Kind: herdgate.EventLeaseRevoked},
		{Kind: herdgate.EventCommitStored},
		{Kind: herdgate.EventCommitRefused},
		{Kind: herdgate.EventCommitFailed},
		{Kind: herdgate.EventBadPayload},
		{Kind: herdgate.EventNewerEntry},
		{Kind: herdgate.EventDegraded},
		{Kind: herdgate.EventChange},
		{Kind: herdgate.EventChangeFailed},
		{Kind: herdgate.EventRenewalFailed},
		{Kind: herdgate.EventOutdated},
		{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeDefault},
		{Kind: herdgate.EventJournaled},
		{Kind: herdgate.EventReplayed},
		{Kind: herdgate.EventJournalFull},
		{Kind: herdgate.EventNotReplicated},
		{Kind: herdgate.EventResent},
		{Kind: herdgate.EventForgotten},
		{Kind: herdgate.EventLockerFailed},
	} {
		e.Cache, e.Key = "product", "42"
		for range i + 1 {
			s.Observe(e)
		}
	}
	s.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})
	s.Observe(herdgate.Event{Kind: herdgate.EventRedisDown})
	s.Observe(herdgate.Event{Kind: herdgate.EventRedisDown})
	s.Observe(herdgate.Event{Kind: herdgate.EventRedisUp})

	want := map[string]int64{
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=failed}":           1,
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=local}":            2,
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=remote}":           3,
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=stale}":            4,
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=loaded}":           5,
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=waited}":           6,
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=unlocked}":         7,
		"herdgate.gets{herdgate.cache=product,herdgate.outcome=default}":          30,
		"herdgate.get.duration{herdgate.cache=product,herdgate.outcome=default}":  30,
		"herdgate.get.duration{herdgate.cache=product,herdgate.outcome=failed}":   1,
		"herdgate.get.duration{herdgate.cache=product,herdgate.outcome=remote}":   3,
		"herdgate.get.duration{herdgate.cache=product,herdgate.outcome=stale}":    4,
		"herdgate.get.duration{herdgate.cache=product,herdgate.outcome=loaded}":   5,
		"herdgate.get.duration{herdgate.cache=product,herdgate.outcome=waited}":   6,
		"herdgate.get.duration{herdgate.cache=product,herdgate.outcome=unlocked}": 7,
		"herdgate.get.coalesced{herdgate.cache=product}":                          8,
		"herdgate.loads{herdgate.cache=product}":                                  9,
		"herdgate.load.failures{herdgate.cache=product}":                          10,
		"herdgate.load.abandoned{herdgate.cache=product}":                         11,
		"herdgate.refreshes{herdgate.cache=product}":                              12,
		"herdgate.waits{herdgate.cache=product}":                                  13,
		"herdgate.wait.timeouts{herdgate.cache=product}":                          14,
		"herdgate.backoffs{herdgate.cache=product}":                               15,
		"herdgate.leases{herdgate.cache=product,herdgate.result=won}":             16,
		"herdgate.leases{herdgate.cache=product,herdgate.result=held}":            17,
		"herdgate.leases{herdgate.cache=product,herdgate.result=lost}":            18,
		"herdgate.leases{herdgate.cache=product,herdgate.result=revoked}":         19,
		"herdgate.commits{herdgate.cache=product,herdgate.result=stored}":         20,
		"herdgate.commits{herdgate.cache=product,herdgate.result=refused}":        21,
		"herdgate.commits{herdgate.cache=product,herdgate.result=failed}":         22,
		"herdgate.bad_payloads{herdgate.cache=product}":                           23,
		"herdgate.newer_entries{herdgate.cache=product}":                          24,
		"herdgate.degraded{herdgate.cache=product}":                               25,
		"herdgate.changes{herdgate.cache=product,herdgate.result=done}":           26,
		"herdgate.changes{herdgate.cache=product,herdgate.result=failed}":         27,
		"herdgate.renewal.failures{herdgate.cache=product}":                       28,
		"herdgate.outdated{herdgate.cache=product}":                               29,
		"herdgate.changes{herdgate.cache=product,herdgate.result=journaled}":      31,
		"herdgate.replays{herdgate.cache=product}":                                32,
		"herdgate.journal.overflows{herdgate.cache=product}":                      33,
		"herdgate.unreplicated_changes{herdgate.cache=product}":                   34,
		"herdgate.resent_changes{herdgate.cache=product}":                         35,
		"herdgate.forgotten_changes{herdgate.cache=product}":                      36,
		"herdgate.locker.failures{herdgate.cache=product}":                        37,

		"herdgate.redis.down{}":    1,
		"herdgate.redis.outages{}": 2,
		"herdgate.bus.connected{}": 1,
		"herdgate.bus.losses{}":    0,
	}
	got := s.points()
	for point, n := range want {
		if told, ok := got[point]; !ok || told != n {
			t.Errorf("%s is %d, want %d", point, told, n)
		}
	}
	for point, n := range got {
		if _, ok := want[point]; !ok {
			t.Errorf("%s is %d, and nobody wants it", point, n)
		}
	}
}

// The core may get kinds and outcomes that nobody has thought of here.
func TestNoKindAndNoOutcomeIsForgotten(t *testing.T) {
	for kind := herdgate.EventKind(0); kind.String() != "unknown"; kind++ {
		for outcome := herdgate.Outcome(0); outcome.String() != "unknown"; outcome++ {
			s := observe(t, herdotel.Options{})
			s.Observe(herdgate.Event{Kind: herdgate.EventLoad, Cache: "product"})
			before := s.sum()
			s.Observe(herdgate.Event{Kind: kind, Outcome: outcome, Cache: "product"})
			if s.sum() == before {
				t.Errorf("an event %q with the outcome %q changes no metric", kind, outcome)
			}
		}
	}
}

func TestUnknownKindsOutcomesAndStepsDoNoHarm(t *testing.T) {
	s := observe(t, herdotel.Options{})
	s.Observe(herdgate.Event{Kind: math.MaxUint8})
	s.Observe(herdgate.Event{Kind: herdgate.EventGet, Outcome: math.MaxUint8})
	_, end := s.Begin(t.Context(), math.MaxUint8, "product", "42")
	end(nil)
	if got := s.sum(); got != 0 {
		t.Errorf("they count as %v", got)
	}
}

func TestEachStepIsTimedByHowItEnded(t *testing.T) {
	s := observe(t, herdotel.Options{})
	for step := herdgate.Step(0); step.String() != "unknown"; step++ {
		for _, err := range []error{nil, nil, herdgate.ErrNotFound, errors.New("out of order")} {
			_, end := s.Begin(t.Context(), step, "product", "42")
			end(err)
		}
		name := "herdgate." + step.String() + ".duration"
		got := s.points()
		if n := got[name+"{herdgate.cache=product}"]; n != 3 {
			t.Errorf("%s counts %d of 3 that did not fail", name, n)
		}
		if n := got[name+"{error.type=_OTHER,herdgate.cache=product}"]; n != 1 {
			t.Errorf("%s counts %d of 1 that failed", name, n)
		}
	}
}

func TestTheTimeOfAStepHasItsSpanAsExemplar(t *testing.T) {
	s := observe(t, herdotel.Options{})
	ctx, end := s.Begin(t.Context(), herdgate.StepLoad, "product", "42")
	end(nil)
	id := trace.SpanContextFromContext(ctx).SpanID()
	for _, m := range s.metrics() {
		if data, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "herdgate.load.duration" {
			for _, p := range data.DataPoints {
				if len(p.Exemplars) != 1 || !slices.Equal(p.Exemplars[0].SpanID, id[:]) {
					t.Errorf("the exemplars are %v, want one of the span %v", p.Exemplars, id)
				}
			}
		}
	}
}

// The conventions: words between dots, units in UCUM, no unit and no "total" in the
// name, and no name that is the name space of another.
func TestTheMetricsFollowTheConventions(t *testing.T) {
	s := observe(t, herdotel.Options{})
	s.Observe(herdgate.Event{Kind: herdgate.EventGet, Cache: "product"})
	for step := herdgate.Step(0); step.String() != "unknown"; step++ {
		_, end := s.Begin(t.Context(), step, "product", "42")
		end(nil)
	}
	form := regexp.MustCompile(`^herdgate(\.[a-z]+(_[a-z]+)*)+$`)
	unit := regexp.MustCompile(`^(s|1|\{[a-z]+\})$`)
	all := s.metrics()
	for _, m := range all {
		if !form.MatchString(m.Name) || strings.HasSuffix(m.Name, "total") {
			t.Errorf("a metric has the name %q", m.Name)
		}
		if !unit.MatchString(m.Unit) || m.Description == "" {
			t.Errorf("%s has the unit %q and the description %q", m.Name, m.Unit, m.Description)
		}
		for _, other := range all {
			if strings.HasPrefix(other.Name, m.Name+".") {
				t.Errorf("%s is the name space of %s", m.Name, other.Name)
			}
		}
	}
}

func TestKeysMakeNoSeries(t *testing.T) {
	s := observe(t, herdotel.Options{TimeLocalHits: true, KeysOnSpans: true})
	tell := func(key string) {
		for kind := herdgate.EventKind(0); kind.String() != "unknown"; kind++ {
			s.Observe(herdgate.Event{Kind: kind, Cache: "product", Key: key, Err: errors.New(key)})
		}
		for step := herdgate.Step(0); step.String() != "unknown"; step++ {
			for _, err := range []error{nil, &herdgate.LoadError{Cache: "product", Key: key, Err: errors.New(key)}} {
				_, end := s.Begin(t.Context(), step, "product", key)
				end(err)
			}
		}
	}
	tell("first")
	one := len(s.points())
	tell("second")
	if got := len(s.points()); got != one {
		t.Errorf("%d series for one key, %d for two", one, got)
	}
}

func TestCountersOfACacheBeginAtZero(t *testing.T) {
	s := observe(t, herdotel.Options{})
	s.Observe(herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeLocal, Cache: "product"})
	if n, ok := s.points()["herdgate.load.failures{herdgate.cache=product}"]; n != 0 || !ok {
		t.Errorf("%d failures, told: %v", n, ok)
	}
}

func TestTheBusIsConnectedFromItsConfirmationToItsLoss(t *testing.T) {
	s := observe(t, herdotel.Options{})
	check := func(connected, losses int64) {
		t.Helper()
		got := s.points()
		if got["herdgate.bus.connected{}"] != connected || got["herdgate.bus.losses{}"] != losses {
			t.Errorf("got %v, want %d and %d", got, connected, losses)
		}
	}
	check(0, 0)
	s.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})
	check(1, 0)
	s.Observe(herdgate.Event{Kind: herdgate.EventBusLost})
	check(0, 1)
}

func TestWithoutABusNothingIsToldOfIt(t *testing.T) {
	if got := observe(t, herdotel.Options{NoBus: true}).points(); len(got) != 0 {
		t.Errorf("told before the first event: %v", got)
	}
}

func TestLocalHitsAreTimedOnRequest(t *testing.T) {
	for _, timed := range []bool{false, true} {
		s := observe(t, herdotel.Options{TimeLocalHits: timed})
		s.Observe(herdgate.Event{Kind: herdgate.EventGet, Outcome: herdgate.OutcomeLocal, Cache: "product"})
		const point = "herdgate.get.duration{herdgate.cache=product,herdgate.outcome=local}"
		if _, got := s.points()[point]; got != timed {
			t.Errorf("with TimeLocalHits %v they are timed: %v", timed, got)
		}
	}
}

func TestAfterCloseNothingIsCollected(t *testing.T) {
	s := observe(t, herdotel.Options{})
	s.Observe(herdgate.Event{Kind: herdgate.EventLoad, Cache: "product"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.points(); len(got) != 0 {
		t.Errorf("collected %v", got)
	}
}

func TestNoEventIsLostWhenManyCachesBeginAtOnce(t *testing.T) {
	const workers, caches = 8, 80
	s := observe(t, herdotel.Options{NoBus: true})
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := range caches { // each begins with another cache
				s.Observe(herdgate.Event{Kind: herdgate.EventRefresh, Cache: fmt.Sprint("cache", (i+worker*caches/workers)%caches)})
			}
		})
	}
	all.Wait()
	if got := s.sum(); got != workers*caches {
		t.Errorf("counted %v of %d", got, workers*caches)
	}
}

func TestAStepIsASpanBelowThatOfItsCall(t *testing.T) {
	s := observe(t, herdotel.Options{})
	ctx, request := s.tracer.Start(t.Context(), "GET /products/42")
	inner, end := s.Begin(ctx, herdgate.StepLoad, "product", "42")
	_, query := s.tracer.Start(inner, "SELECT")
	query.End()
	end(nil)
	request.End()
	spans := s.spans.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	load := spans[1]
	if load.Name() != "herdgate.load product" || load.Parent().SpanID() != request.SpanContext().SpanID() || spans[0].Parent().SpanID() != load.SpanContext().SpanID() {
		t.Errorf("the span %q is below %v, and the query below %v", load.Name(), load.Parent(), spans[0].Parent())
	}
	if load.InstrumentationScope().Name != herdotel.Scope || load.Status().Code != codes.Unset {
		t.Errorf("its scope is %q, its status %v", load.InstrumentationScope().Name, load.Status())
	}
	if got := load.Attributes(); !slices.Equal(got, []attribute.KeyValue{herdotel.CacheKey.String("product")}) {
		t.Errorf("its attributes are %v", got)
	}
}

func TestAJoinLinksToTheSpanOfTheCallThatStartedTheFlight(t *testing.T) {
	s := observe(t, herdotel.Options{})
	flight, winner := s.tracer.Start(t.Context(), "winner")
	ctx, follower := s.tracer.Start(t.Context(), "follower")
	s.Join(ctx, flight, "product", "42")(nil)
	s.Join(ctx, t.Context(), "product", "42")(nil) // the call that started it is not traced
	spans := s.spans.Ended()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, links := range []int{1, 0} {
		join := spans[i]
		if join.Name() != "herdgate.join product" || join.Parent().SpanID() != follower.SpanContext().SpanID() || len(join.Links()) != links {
			t.Errorf("%q is below %v with the links %v", join.Name(), join.Parent(), join.Links())
		}
	}
	if got := spans[0].Links()[0].SpanContext; !got.Equal(winner.SpanContext()) {
		t.Errorf("it links to %v, want %v", got, winner.SpanContext())
	}
}

func TestErrorsAreToldOnSpansInAFewWords(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string // "" for no error
	}{
		{nil, ""},
		{fmt.Errorf("no row: %w", herdgate.ErrNotFound), ""},
		{errors.New("secret 42"), "_OTHER"},
		{&herdgate.LoadError{Err: herdgate.ErrWaitTimeout}, "wait_timeout"},
		{&herdgate.BackoffError{}, "backoff"},
		{fmt.Errorf("%w: %w", herdgate.ErrLoadTimeout, context.DeadlineExceeded), "load_timeout"},
		{herdgate.ErrRevoked, "revoked"},
		{lock.ErrLost, "lease_lost"},
		{context.Canceled, "canceled"},
		{singleflight.ErrGoexit, "panic"},
		{&herdgate.LoadError{Err: panicked(herdgate.ErrNotFound)}, "panic"},
	} {
		s := observe(t, herdotel.Options{})
		_, end := s.Begin(t.Context(), herdgate.StepLoad, "product", "42")
		end(test.err)
		span := s.spans.Ended()[0]
		failed := test.want != ""
		if (span.Status().Code == codes.Error) != failed || (len(span.Events()) == 1) != failed {
			t.Errorf("%v: the status is %v, the events %v", test.err, span.Status(), span.Events())
		}
		if got := attribute.NewSet(span.Attributes()...); failed {
			if word, _ := got.Value("error.type"); word.AsString() != test.want {
				t.Errorf("%v is of the type %q, want %q", test.err, word.AsString(), test.want)
			}
		}
	}
}

func panicked(with error) error {
	_, err := singleflight.Protect(func() (int, error) { panic(with) })
	return err
}

func TestKeysAreOnSpansOnlyOnRequest(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		s := observe(t, herdotel.Options{KeysOnSpans: wanted})
		for range 2 { // the options of a cache are shared by its spans
			_, end := s.Begin(t.Context(), herdgate.StepLoad, "product", "42")
			end(nil)
			s.Join(t.Context(), t.Context(), "product", "42")(nil)
		}
		for _, span := range s.spans.Ended() {
			attrs := attribute.NewSet(span.Attributes()...)
			if key, got := attrs.Value(herdotel.KeyKey); got != wanted || got && key.AsString() != "42" || len(span.Attributes()) > 2 {
				t.Errorf("with KeysOnSpans %v %s has %v", wanted, span.Name(), span.Attributes())
			}
		}
	}
}

func TestALocalHitAllocatesNothing(t *testing.T) {
	for _, timed := range []bool{false, true} {
		products := localCache(t, observe(t, herdotel.Options{TimeLocalHits: timed, NoBus: true}))
		allocations := testing.AllocsPerRun(100, func() {
			if _, err := products.Get(t.Context(), "42"); err != nil {
				t.Fatal(err)
			}
		})
		if allocations != 0 {
			t.Errorf("with TimeLocalHits %v: %v allocations", timed, allocations)
		}
	}
}

func BenchmarkLocalHit(b *testing.B) {
	noop, err := herdotel.New(herdotel.Options{MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider()})
	if err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name     string
		observer herdgate.Observer
	}{
		{"no observer", nil},
		{"empty observer", herdgate.ObserverFunc(func(herdgate.Event) {})},
		{"no-op providers", noop},
		{"observer", observe(b, herdotel.Options{NoBus: true})},
		{"observer, local hits timed", observe(b, herdotel.Options{NoBus: true, TimeLocalHits: true})},
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

func TestTheReadmeListsEachMetric(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	s := observe(t, herdotel.Options{})
	s.Observe(herdgate.Event{Kind: herdgate.EventGet, Cache: "product"})
	for step := herdgate.Step(0); step.String() != "unknown"; step++ {
		_, end := s.Begin(t.Context(), step, "product", "42")
		end(nil)
		if name := "`herdgate." + step.String() + " product`"; !strings.Contains(string(text), name) {
			t.Errorf("README.md does not list the span %s", name)
		}
	}
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(herdgate\\.[a-z._]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		listed[row[1]] = true
	}
	for _, m := range s.metrics() {
		if !listed[m.Name] {
			t.Errorf("README.md does not list %s", m.Name)
		}
		delete(listed, m.Name)
	}
	if len(listed) > 0 {
		t.Errorf("README.md lists %v, which are no metrics", listed)
	}
}
