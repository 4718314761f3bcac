package testutil_test

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/herdgate/herdgate/internal/testutil"
)

func TestMain(m *testing.M) {
	os.Exit(testutil.Main(m, map[string]testutil.Role{
		"counter": func(ctx context.Context, args testutil.Args) error {
			for _, word := range []string{"one", args["second"]} {
				if err := testutil.Emit(map[string]string{"word": word}); err != nil {
					return err
				}
			}
			<-ctx.Done()
			return testutil.Emit("stopping")
		},
		"failure": func(context.Context, testutil.Args) error { return errors.New("no luck today") },
	}))
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func mustClose(tb testing.TB, c io.Closer) {
	tb.Helper()
	must(tb, c.Close())
}
