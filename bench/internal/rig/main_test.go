package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if IsSimulation() {
		ServeSimulation(map[string]Simulation{
			"echo": func(_ *testing.T, args json.RawMessage) any { return args },
			"fail": func(t *testing.T, _ json.RawMessage) any { t.Fatal("no luck today"); return nil },
		})
	}
	if IsWorker() {
		err := Serve(context.Background(), os.Stdin, os.Stdout, map[string]Op{
			"double": Handle(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
			"fail":   Handle(func(context.Context, int) (int, error) { return 0, errors.New("no luck today") }),
			"wait":   Handle(func(ctx context.Context, _ int) (int, error) { <-ctx.Done(); return 0, ctx.Err() }),
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
