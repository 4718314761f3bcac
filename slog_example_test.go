package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/herdgate/herdgate"
)

func ExampleLogTo() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" {
				return slog.Attr{} // differs from run to run
			}
			return a
		},
	}))
	ctx := context.Background()
	gate, err := herdgate.Open(ctx, herdgate.Options{Observer: herdgate.LogTo(logger)})
	if err != nil {
		log.Fatal(err)
	}
	defer gate.Close(ctx)
	products, err := herdgate.New(gate, "product", func(context.Context, string) (string, error) {
		return "", errors.New("no connection")
	}, herdgate.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	_, _ = products.Get(ctx, "42")
	// Output:
	// level=ERROR msg="herdgate: load failed" cache=product key=42 error="no connection"
}

func ExampleObservers() {
	loads := 0
	count := herdgate.ObserverFunc(func(e herdgate.Event) {
		if e.Kind == herdgate.EventLoad {
			loads++
		}
	})
	ctx := context.Background()
	gate, err := herdgate.Open(ctx, herdgate.Options{
		Observer: herdgate.Observers(herdgate.LogTo(slog.Default()), count),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer gate.Close(ctx)
	products, err := herdgate.New(gate, "product", loadProduct, herdgate.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := products.Get(ctx, "42"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("loads:", loads)
	// Output:
	// loads: 1
}
