package herdotel_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/herdgate/herdgate"
	herdotel "github.com/herdgate/herdgate/extra/otel"
	"github.com/herdgate/herdgate/internal/testutil"
)

// gate opens a gate as an instance of its own on an embedded Redis.
func (s *scope) gate(t *testing.T, server *miniredis.Miniredis) *herdgate.Gate {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	gate, err := herdgate.Open(t.Context(), herdgate.Options{
		Redis: rdb, Observer: s.Observer,
		RedisTimeout: 10 * time.Second, // Open waits for the bus, also on a busy machine
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gate.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return gate
}

func products(t *testing.T, gate *herdgate.Gate, load herdgate.LoaderFunc[string]) *herdgate.Cache[string] {
	t.Helper()
	c, err := herdgate.New(gate, "product", load, herdgate.Policy{TTL: time.Hour, MinRebuildInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// named are the ended spans of a name.
func (s *scope) named(name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(s.spans.Ended(), func(span sdktrace.ReadOnlySpan) bool { return span.Name() != name })
}

func TestAGateIsCountedAsItCountsItself(t *testing.T) {
	s := observe(t, herdotel.Options{})
	gate := s.gate(t, miniredis.RunT(t))
	c := products(t, gate, func(_ context.Context, key string) (string, error) {
		if key == "bad" {
			return "", errors.New("out of order")
		}
		return "value of " + key, nil
	})
	for _, key := range []string{"1", "1", "2", "1"} {
		if _, err := c.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(t.Context(), "bad"); err == nil {
		t.Fatal("a failed load gives no error")
	}
	if err := c.Delete(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	stats := gate.Stats()
	if stats.Gets != 5 || stats.Loads != 3 {
		t.Fatalf("the gate counts %+v", stats)
	}
	points := s.points()
	for metric, want := range map[string]uint64{
		"herdgate.gets":             stats.Gets,
		"herdgate.get.duration":     stats.Gets - stats.Local,
		"herdgate.loads":            stats.Loads,
		"herdgate.load.duration":    stats.Loads,
		"herdgate.load.failures":    stats.LoadFailures,
		"herdgate.leases":           stats.LeasesWon + stats.LeasesHeld + stats.LeasesLost + stats.LeasesRevoked,
		"herdgate.acquire.duration": stats.LeasesWon + stats.LeasesHeld,
		"herdgate.commits":          stats.CommitsStored + stats.CommitsRefused + stats.CommitsFailed,
		"herdgate.commit.duration":  stats.CommitsStored + stats.CommitsRefused + stats.CommitsFailed,
		"herdgate.changes":          stats.Changes + stats.ChangesFailed,
		"herdgate.bus.connected":    1,
	} {
		var got int64
		for point, n := range points {
			if strings.HasPrefix(point, metric+"{") {
				got += n
			}
		}
		if got != int64(want) { //nolint:gosec // a handful
			t.Errorf("%s is %d, the gate says %d", metric, got, want)
		}
	}
}

func TestTheSpansOfAMissAreBelowThatOfItsCall(t *testing.T) {
	s := observe(t, herdotel.Options{})
	c := products(t, s.gate(t, miniredis.RunT(t)), func(ctx context.Context, _ string) (string, error) {
		_, query := s.tracer.Start(ctx, "SELECT")
		query.End()
		return "", herdgate.ErrNotFound
	})
	ctx, request := s.tracer.Start(t.Context(), "GET /products/42")
	if _, err := c.Get(ctx, "42"); !errors.Is(err, herdgate.ErrNotFound) {
		t.Fatal(err)
	}
	request.End()
	var names []string
	for _, span := range s.spans.Ended() {
		names = append(names, span.Name())
		if span.Status().Code == codes.Error {
			t.Errorf("%s failed: %v", span.Name(), span.Status())
		}
		if strings.HasPrefix(span.Name(), "herdgate.") && span.Parent().SpanID() != request.SpanContext().SpanID() {
			t.Errorf("%s is below %v", span.Name(), span.Parent())
		}
	}
	want := []string{"herdgate.acquire product", "SELECT", "herdgate.load product", "herdgate.commit product", "GET /products/42"}
	if !slices.Equal(names, want) {
		t.Errorf("the spans are %q, want %q", names, want)
	}
	if load, query := s.named("herdgate.load product"), s.named("SELECT"); len(load) == 1 && query[0].Parent().SpanID() != load[0].SpanContext().SpanID() {
		t.Errorf("the query is below %v", query[0].Parent())
	}
}

func TestACallThatJoinsAFlightLinksToWhoStartedIt(t *testing.T) {
	s := observe(t, herdotel.Options{})
	begun, release := make(chan struct{}), make(chan struct{})
	c := products(t, s.gate(t, miniredis.RunT(t)), func(context.Context, string) (string, error) {
		close(begun)
		<-release
		return "Teapot", nil
	})
	got := make(chan error, 2)
	call := func(name string) {
		ctx, span := s.tracer.Start(t.Context(), name)
		go func() {
			_, err := c.Get(ctx, "42")
			span.End()
			got <- err
		}()
	}
	call("winner")
	<-begun
	call("follower")
	testutil.Eventually(t, 10*time.Second, func() bool { return c.Stats().Coalesced == 1 }, "the follower has joined")
	close(release)
	for range 2 {
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
	joins, winner := s.named("herdgate.join product"), s.named("winner")
	if len(joins) != 1 || len(joins[0].Links()) != 1 || !joins[0].Links()[0].SpanContext.Equal(winner[0].SpanContext()) {
		t.Errorf("the joins are %v", joins)
	}
}

func TestAWaitForAnotherProcessIsASpan(t *testing.T) {
	server := miniredis.RunT(t)
	begun, release := make(chan struct{}), make(chan struct{})
	first := products(t, observe(t, herdotel.Options{}).gate(t, server), func(context.Context, string) (string, error) {
		close(begun)
		<-release
		return "Teapot", nil
	})
	s := observe(t, herdotel.Options{})
	second := products(t, s.gate(t, server), func(context.Context, string) (string, error) {
		return "", errors.New("loaded twice")
	})
	got := make(chan error, 2)
	get := func(c *herdgate.Cache[string]) {
		_, err := c.Get(t.Context(), "42")
		got <- err
	}
	go get(first)
	<-begun
	go get(second)
	testutil.Eventually(t, 10*time.Second, func() bool { return second.Stats().LeasesHeld > 0 }, "the second process has asked for the lease")
	close(release)
	for range 2 {
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
	if waits := s.named("herdgate.wait product"); len(waits) == 0 || waits[0].Status().Code == codes.Error {
		t.Errorf("the waits are %v", waits)
	}
	if n := s.points()["herdgate.wait.duration{herdgate.cache=product}"]; n == 0 {
		t.Error("the wait is not timed")
	}
}
