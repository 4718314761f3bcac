package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/debug"
)

// serve serves h on loopback until the test ends.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// running is a service that serves package debug, and a cache of it.
func running(t *testing.T) (string, *herdgate.Cache[product]) {
	t.Helper()
	monitor, err := debug.New(debug.Options{Sample: 1})
	if err != nil {
		t.Fatal(err)
	}
	gate := openGate(t, herdgate.Options{Observer: monitor})
	return serve(t, monitor.Handler(gate)), newCache(t, gate, (&versions{}).load, steady())
}

// callWhile calls get until stop is called.
func callWhile(t *testing.T, get func()) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			get()
			pause := time.NewTimer(time.Millisecond)
			<-pause.C
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func TestTopShowsRatesAndTheHottestKeysOnce(t *testing.T) {
	url, cache := running(t)
	stop := callWhile(t, func() { _, _ = cache.Get(context.WithoutCancel(t.Context()), "4\x1b2") })
	defer stop()
	a := tool(t, "top", "-once", "-every", "100ms", url)
	a.expect(t, exitDone, "")
	for _, want := range []string{
		url + "  up 0s, hears the others; a second, over 0.",
		"cache  gets  local  remote",
		`product "4\x1b2"`,
	} {
		if !strings.Contains(a.out, want) {
			t.Errorf("lacks %q:\n%s", want, a.out)
		}
	}
	if !regexp.MustCompile(`\n *product +\d+ +\d+ +- `).MatchString(a.out) || strings.Contains(a.out, "\x1b") {
		t.Errorf("got %q", a.out)
	}

	a = tool(t, "top", "-once", "-every", "100ms", "-json", "-keys", "0", url)
	a.expect(t, exitDone, "")
	var f frame
	if err := json.Unmarshal([]byte(a.out), &f); err != nil || f.Total.Local <= 0 || f.Caches["product"] != f.Total || !f.Connected || len(f.Hot) != 0 {
		t.Errorf("%v: %s", err, a.out)
	}
}

func TestRatesAreOfTheTimeBetweenTwoLooks(t *testing.T) {
	before := debug.Snapshot{UptimeSeconds: 10, Caches: map[string]herdgate.Stats{"a": {Gets: 100, Local: 90, Loaded: 10, Loads: 10}}}
	now := debug.Snapshot{UptimeSeconds: 12, Connected: true, Caches: map[string]herdgate.Stats{"a": {Gets: 110, Local: 98, Loaded: 12, Loads: 11}, "new": {Gets: 4}}}
	now.Hot = debug.Hot{WindowSeconds: 10, Keys: []debug.HotKey{{Cache: "a", Key: "hot", Calls: 100, Error: 20}, {Cache: "a", Key: "noise", Calls: 50, Error: 40}}}
	f := compare(before, now)
	if want := (rates{Gets: 5, Local: 4, Loaded: 1, Loads: 0.5}); f.Caches["a"] != want {
		t.Errorf("got %+v, want %+v", f.Caches["a"], want)
	}
	if want := (rates{Gets: 2}); f.Caches["new"] != want || f.Seconds != 2 {
		t.Errorf("a cache made in between: got %+v, want %+v", f.Caches["new"], want)
	}
	if want := (hotKey{"a", "hot", 10, 2}); len(f.Hot) != 1 || f.Hot[0] != want {
		t.Errorf("got %+v, want %+v", f.Hot, want)
	}
	now.UptimeSeconds = 4 // restarted
	if got := compare(before, now).Caches["a"]; got.Gets != 27.5 {
		t.Errorf("after a restart: got %+v", got)
	}
}

func TestOnATerminalTheScreenIsClearedForEachFrame(t *testing.T) {
	url, _ := running(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, notes lines
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"top", "-every", "10ms", url}, output{Writer: &out, live: true}, &notes)
	}()
	out.await(t, clearScreen+url)
	first := len(out.String())
	out.await(t, out.String()[:first]+clearScreen)
	cancel()
	if code := <-ended; code != exitDone || notes.String() != "" {
		t.Errorf("top ends with %d: %s", code, notes.String())
	}
}

func TestTopWaitsForAServiceThatIsRestarted(t *testing.T) {
	url, _ := running(t)
	var out atomic.Bool
	front := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if out.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		http.Redirect(w, r, url, http.StatusFound)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var text, notes lines
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"top", "-every", "10ms", front}, output{Writer: &text}, &notes) }()
	text.await(t, "hears the others")
	out.Store(true)
	notes.await(t, front+" answers 503 Service Unavailable")
	seen := len(text.String())
	out.Store(false)
	text.await(t, text.String()[:seen]+front)
	cancel()
	if code := <-ended; code != exitDone {
		t.Errorf("top ends with %d: %s", code, notes.String())
	}
}

func TestWhatIsNoServiceIsCalledSo(t *testing.T) {
	page := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	for want, url := range map[string]string{
		"no service at http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused": "http://127.0.0.1:1",
		"/debug answers 404 Not Found: is package debug mounted there?":                       serve(t, http.NotFoundHandler()) + "/debug",
		" does not answer what package debug serves: is it mounted there?":                    page,
		"no service at http://me:xxxxx@127.0.0.1:1: ":                                         "http://me:secret@127.0.0.1:1",
		" does not answer what package debug serves":                                          serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })),
	} {
		a := tool(t, "top", url)
		a.expect(t, exitFailed, want)
		if a.out != "" || strings.Contains(a.err, "secret") {
			t.Errorf("got %+v", a)
		}
	}
}
