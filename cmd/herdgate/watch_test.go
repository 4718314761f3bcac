package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// watching runs watch in this process until the test ends or stop is called.
func (s *shop) watching(flags ...string) (out, notes *lines, stop func()) {
	s.Helper()
	out, notes = &lines{}, &lines{}
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"watch", "-redis", s.server.Addr(), "-namespace", "shop"}, flags...), output{Writer: out}, notes)
	}()
	stop = func() {
		cancel()
		if code := <-ended; code != exitDone {
			s.Errorf("watch ends with %d: %s", code, notes)
		}
	}
	notes.await(s.T, "watching namespace shop on "+s.server.Addr())
	return out, notes, stop
}

// begin gives caches a generation, which is told to everybody, before anything is watched.
func (s *shop) begin(caches ...string) {
	s.Helper()
	for _, cache := range caches {
		s.must(s.rdb.Set(s.Context(), "shop:g:"+cache, "1", 0).Err())
	}
}

func TestWatchPrintsWhatServicesTellEachOther(t *testing.T) {
	s := newShop(t)
	s.begin("product", "other")
	out, _, stop := s.watching()
	gate := s.gate()
	cache := newCache[product](t, gate, nil, steady())
	other, err := herdgate.New[product](gate, "other", nil, steady())
	s.must(err)
	s.must(cache.Set(t.Context(), "a b\n", product{}))
	s.must(cache.Expire(t.Context(), "42"))
	s.must(other.Delete(t.Context(), "42"))
	s.must(cache.Clear(t.Context()))
	s.must(cache.InvalidateTags(t.Context(), "brand:a", "b b"))
	s.must(s.rdb.Publish(t.Context(), "shop:bus", "W product 42").Err())
	s.must(s.rdb.Publish(t.Context(), "shop:bus", "Z \x1b[x").Err())
	out.await(t, "unknown")
	stop()
	golden(t, "watch.golden", out.String())
}

func TestWatchShowsOneCacheAndHeartbeatsInJSON(t *testing.T) {
	s := newShop(t)
	s.begin("product", "other")
	out, _, stop := s.watching("-json", "-beats", "-cache", "product")
	gate := s.gate()
	cache := newCache[product](t, gate, nil, steady())
	other, err := herdgate.New[product](gate, "other", nil, steady())
	s.must(err)
	s.must(other.Delete(t.Context(), "42"))
	s.must(cache.Delete(t.Context(), "42"))
	out.await(t, `"delete"`)
	testutil.Eventually(t, 10*time.Second, func() bool { return strings.Count(out.String(), `"kind":"beat"`) > 1 }, "heartbeats")
	stop()
	instances := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		var h heard
		decoder := json.NewDecoder(bytes.NewReader([]byte(line)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&h); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		instances[h.Instance] = true
		change := h.Kind == "delete" && h.Cache == "product" && h.Key != nil && *h.Key == "42" && regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(h.ID)
		if !change && h.Kind != "beat" || h.Time.IsZero() {
			t.Errorf("got %s", line)
		}
	}
	if len(instances) != 1 { // the gate that changes is the one that is alive, and watch sends nothing
		t.Errorf("instances %v", instances)
	}
}

func TestWatchTellsThatMessagesAreMissed(t *testing.T) {
	s := newShop(t)
	out, notes, stop := s.watching()
	s.server.Kill()
	notes.await(t, "messages are missed from here on: ")
	s.server.Restart()
	testutil.Eventually(t, 20*time.Second, func() bool { return strings.Count(notes.String(), "watching namespace") == 2 }, "the watch goes on")
	s.must(s.server.Client(t).Publish(t.Context(), "shop:bus", "W product 42").Err())
	out.await(t, `wake-up  product "42"`)
	stop()
}
