package debug_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/debug"
)

func Example() {
	ctx := context.Background()
	monitor, err := debug.New(debug.Options{Sample: 1}) // each call, as there are so few here
	if err != nil {
		panic(err)
	}
	gate, err := herdgate.Open(ctx, herdgate.Options{Observer: monitor})
	if err != nil {
		panic(err)
	}
	defer gate.Close(ctx)
	prices, err := herdgate.New(gate, "price", func(context.Context, string) (int, error) { return 1999, nil }, herdgate.Policy{})
	if err != nil {
		panic(err)
	}

	// Where only operators get: the hottest keys are shown.
	operators := http.NewServeMux()
	operators.Handle("/debug/herdgate", monitor.Handler(gate))

	for range 3 {
		_, _ = prices.Get(ctx, "teapot")
	}
	answer := httptest.NewRecorder()
	operators.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/debug/herdgate", nil))
	var got debug.Snapshot
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
		panic(err)
	}
	fmt.Printf("price: %d loaded, %d local\n", got.Caches["price"].Loaded, got.Caches["price"].Local)
	fmt.Println("hottest:", got.Hot.Keys[0].Key)
	// Output:
	// price: 1 loaded, 2 local
	// hottest: teapot
}
