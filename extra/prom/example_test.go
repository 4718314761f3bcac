package prom_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/extra/prom"
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

	metrics, err := prom.NewCollector(prom.Options{})
	if err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "shop", Observer: metrics})
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

	page := httptest.NewRecorder() // what Prometheus gets from /metrics
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).
		ServeHTTP(page, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "herdgate_leases_total{") || strings.HasPrefix(line, "herdgate_loads_total{") {
			fmt.Print(line)
		}
	}
	// Output:
	// herdgate_leases_total{cache="product",result="held"} 0
	// herdgate_leases_total{cache="product",result="lost"} 0
	// herdgate_leases_total{cache="product",result="revoked"} 0
	// herdgate_leases_total{cache="product",result="won"} 1
	// herdgate_loads_total{cache="product"} 1
}
