package herdotel_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/herdgate/herdgate"
	herdotel "github.com/herdgate/herdgate/extra/otel"
)

func Example() {
	server, err := miniredis.Run() // your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	ctx := context.Background()

	// What your exporters are in a service; with global providers, leave both out.
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter()
	telemetry, err := herdotel.New(herdotel.Options{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer telemetry.Close()
	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "shop", Observer: telemetry})
	if err != nil {
		log.Fatal(err)
	}
	defer gate.Close(ctx)

	products, err := herdgate.New(gate, "product", func(context.Context, string) (string, error) {
		return "Teapot", nil
	}, herdgate.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := products.Get(ctx, "42"); err != nil {
			log.Fatal(err)
		}
	}

	for _, span := range spans.GetSpans() {
		fmt.Println(span.Name)
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if loads, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "herdgate.loads" {
			fmt.Println(m.Name, loads.DataPoints[0].Value, m.Unit)
		}
	}
	// Output:
	// herdgate.acquire product
	// herdgate.load product
	// herdgate.commit product
	// herdgate.loads 1 {load}
}
