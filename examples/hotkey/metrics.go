package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/herdgate/herdgate"
	herdotel "github.com/herdgate/herdgate/extra/otel"
	"github.com/herdgate/herdgate/extra/prom"
)

// telemetry is what an instance tells of its gate, once for Prometheus and once for
// OpenTelemetry.
type telemetry struct {
	observer herdgate.Observer
	registry *prometheus.Registry
	reader   *sdkmetric.ManualReader
}

func newTelemetry(instance int) (*telemetry, error) {
	collector, err := prom.NewCollector(prom.Options{})
	if err != nil {
		return nil, err
	}
	t := &telemetry{registry: prometheus.NewRegistry(), reader: sdkmetric.NewManualReader()}
	// A server names what it scrapes; here one page has all instances.
	named := prometheus.WrapRegistererWith(prometheus.Labels{"instance": strconv.Itoa(instance)}, t.registry)
	if err := named.Register(collector); err != nil {
		return nil, err
	}
	observer, err := herdotel.New(herdotel.Options{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(t.reader)),
		TracerProvider: tracenoop.NewTracerProvider(),
	})
	if err != nil {
		return nil, err
	}
	t.observer = herdgate.Observers(collector, observer)
	return t, nil
}

// page is what a server would scrape.
func (t *telemetry) page() (string, error) {
	families, err := t.registry.Gather()
	if err != nil {
		return "", err
	}
	var page bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			return "", err
		}
	}
	return page.String(), nil
}

// counts are the counters of OpenTelemetry, by name and attributes.
func (t *telemetry) counts(ctx context.Context) (map[string]int64, error) {
	var all metricdata.ResourceMetrics
	if err := t.reader.Collect(ctx, &all); err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, p := range sum.DataPoints {
					counts[m.Name+"{"+p.Attributes.Encoded(attribute.DefaultEncoder())+"}"] = p.Value
				}
			}
		}
	}
	return counts, nil
}

// countsTable lists the sums over all instances, and the ratio that matters.
func countsTable(counts map[string]int64) string {
	var b strings.Builder
	b.WriteString("OpenTelemetry, all instances:\n")
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > 0 {
			fmt.Fprintf(&b, "%12d  %s\n", counts[name], name)
		}
	}
	loads := counts["herdgate.loads{herdgate.cache=product}"] - counts["herdgate.load.failures{herdgate.cache=product}"]
	stored := counts["herdgate.commits{herdgate.cache=product,herdgate.result=stored}"]
	fmt.Fprintf(&b, "%12.2f  loads per expiry, of all keys\n", ratio(float64(loads), float64(stored)))
	return b.String()
}

// board shows the last metrics of each instance on one page.
type board struct {
	server  *http.Server
	serving sync.WaitGroup

	mu    sync.Mutex
	pages []string // protected by mu
}

func openBoard(ctx context.Context, addr string, instances int) (*board, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	b := &board{pages: make([]string, instances)}
	var all prometheus.Gatherers
	for instance := range instances {
		all = append(all, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return b.gather(instance) }))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	b.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	b.serving.Go(func() { _ = b.server.Serve(listener) }) // until close
	return b, nil
}

func (b *board) close() {
	_ = b.server.Close()
	b.serving.Wait()
}

// show replaces the metrics of an instance, unless there are none.
func (b *board) show(instance int, page string) {
	if b == nil || page == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pages[instance] = page
}

func (b *board) gather(instance int) ([]*dto.MetricFamily, error) {
	b.mu.Lock()
	page := b.pages[instance]
	b.mu.Unlock()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return slices.Collect(maps.Values(families)), nil
}
