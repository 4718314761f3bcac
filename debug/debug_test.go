package debug_test

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/debug"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func monitor(tb testing.TB, options debug.Options) *debug.Monitor {
	tb.Helper()
	m, err := debug.New(options)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// service is a gate without Redis and a cache of it.
func service(tb testing.TB, observer herdgate.Observer) (*herdgate.Gate, *herdgate.Cache[string]) {
	tb.Helper()
	gate, err := herdgate.Open(tb.Context(), herdgate.Options{Observer: observer})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = gate.Close(context.WithoutCancel(tb.Context())) })
	load := func(_ context.Context, key string) (string, error) { return "value of " + key, nil }
	cache, err := herdgate.New(gate, "product", load, herdgate.Policy{TTL: time.Hour, EarlyBeta: herdgate.Off})
	if err != nil {
		tb.Fatal(err)
	}
	return gate, cache
}

func get(tb testing.TB, cache *herdgate.Cache[string], key string, times int) {
	tb.Helper()
	for range times {
		if _, err := cache.Get(tb.Context(), key); err != nil {
			tb.Fatal(err)
		}
	}
}

// ask is a request to the handler and what it answered.
func ask(t *testing.T, h http.Handler, method string) *httptest.ResponseRecorder {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, "/debug/herdgate", nil))
	return answer
}

func observe(m *debug.Monitor, key string, times int) {
	for range times {
		m.Observe(herdgate.Event{Kind: herdgate.EventGet, Cache: "product", Key: key})
	}
}

// hot are the keys that m shows, most frequent first, as "key calls±error".
func hot(m *debug.Monitor, gate *herdgate.Gate) []string {
	var keys []string
	for _, k := range m.Snapshot(gate).Hot.Keys {
		keys = append(keys, fmt.Sprintf("%s %d±%d", k.Key, k.Calls, k.Error))
	}
	return keys
}

func TestTheHandlerServesTheCountsOfGateAndCachesAndTheHottestKeys(t *testing.T) {
	m := monitor(t, debug.Options{Sample: 1})
	gate, cache := service(t, m)
	get(t, cache, "7", 1)
	get(t, cache, "42", 3)

	answer := ask(t, m.Handler(gate), http.MethodGet)
	if answer.Code != http.StatusOK || answer.Header().Get("Content-Type") != "application/json" || answer.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %v", answer.Code, answer.Header())
	}
	var got debug.Snapshot
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if !got.Connected || got.UptimeSeconds <= 0 || got.Total.Gets != 4 || got.Caches["product"] != cache.Stats() || len(got.Caches) != 1 {
		t.Errorf("got %s", answer.Body)
	}
	want := []debug.HotKey{{Cache: "product", Key: "42", Calls: 3}, {Cache: "product", Key: "7", Calls: 1}}
	if fmt.Sprint(got.Hot.Keys) != fmt.Sprint(want) || got.Hot.WindowSeconds <= 0 {
		t.Errorf("got %+v, want %+v", got.Hot, want)
	}
}

func TestTheHandlerAnswersNothingButGetAndHead(t *testing.T) {
	m := monitor(t, debug.Options{})
	gate, _ := service(t, m)
	if answer := ask(t, m.Handler(gate), http.MethodPost); answer.Code != http.StatusMethodNotAllowed || answer.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("got %d %v", answer.Code, answer.Header())
	}
}

func TestASnapshotIsAnExpvar(t *testing.T) {
	m := monitor(t, debug.Options{})
	gate, cache := service(t, m)
	get(t, cache, "42", 1)
	var got debug.Snapshot
	text := expvar.Func(func() any { return m.Snapshot(gate) }).String()
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.Caches["product"].Loaded != 1 {
		t.Errorf("%v: %s", err, text)
	}
}

func TestAMonitorWithoutKeysShowsNone(t *testing.T) {
	m := monitor(t, debug.Options{Keys: herdgate.Off, Sample: 1})
	gate, cache := service(t, m)
	get(t, cache, "secret", 5)
	body := ask(t, m.Handler(gate), http.MethodGet).Body.String()
	if strings.Contains(body, "secret") || !strings.Contains(body, `"Keys": []`) {
		t.Errorf("got %s", body)
	}
}

func TestTheNextObserverSeesEveryEvent(t *testing.T) {
	var seen []herdgate.EventKind
	next := herdgate.ObserverFunc(func(e herdgate.Event) { seen = append(seen, e.Kind) })
	m := monitor(t, debug.Options{Next: next})
	for kind := herdgate.EventGet; kind <= herdgate.EventBusConfirmed; kind++ {
		m.Observe(herdgate.Event{Kind: kind, Cache: "product", Key: "42"})
	}
	if len(seen) != int(herdgate.EventBusConfirmed)+1 {
		t.Errorf("got %v", seen)
	}
}

func TestOnlyCallsMakeAKeyHot(t *testing.T) {
	m := monitor(t, debug.Options{Sample: 1})
	gate, _ := service(t, nil)
	m.Observe(herdgate.Event{Kind: herdgate.EventLoad, Cache: "product", Key: "42"})
	if got := hot(m, gate); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}

func TestKeysAreCountedInWindows(t *testing.T) {
	gate, _ := service(t, nil) // outside of the bubble: its goroutines would keep it open
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, debug.Options{Sample: 1, Window: 10 * time.Second})
		expect := func(when string, want ...string) {
			t.Helper()
			if got := hot(m, gate); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		time.Sleep(5 * time.Second)
		observe(m, "a", 3)
		expect("in the first window", "a 3±0")
		if window := m.Snapshot(gate).Hot.WindowSeconds; window != 5 {
			t.Errorf("half of the first window is %v s", window)
		}
		time.Sleep(5 * time.Second)
		observe(m, "b", 2)
		expect("while the next is counted", "a 3±0")
		if window := m.Snapshot(gate).Hot.WindowSeconds; window != 10 {
			t.Errorf("a whole window is %v s", window)
		}
		time.Sleep(13 * time.Second)
		observe(m, "c", 1)
		expect("in the third", "b 2±0")
		time.Sleep(7 * time.Second)
		expect("in the fourth, which began at 30 s though its first call was later", "c 1±0")
		time.Sleep(time.Hour)
		expect("after an hour without calls")
	})
}

// The guarantee of Space-Saving: a key with more than one in Keys of the calls is
// among those that are counted, and its count is never too low, nor too high by more
// than its error.
func TestAHotKeyIsFoundInAFloodOfOthers(t *testing.T) {
	m := monitor(t, debug.Options{Keys: 64, Sample: 1, Window: time.Hour})
	gate, _ := service(t, nil)
	random := rand.New(rand.NewPCG(1, 2))
	calls := 0
	for i := range 100_000 {
		if i > 10_000 && random.IntN(25) == 0 { // 4 % of the calls, and 64 counters find 1.6 %
			observe(m, "hot", 1)
			calls++
		} else {
			observe(m, fmt.Sprint(i), 1)
		}
	}
	top := m.Snapshot(gate).Hot.Keys[0]
	if least, most := int(top.Calls-top.Error), int(top.Calls); top.Key != "hot" || top.Error == 0 || calls < least || calls > most {
		t.Errorf("%d calls of hot are told as %+v", calls, top)
	}
}

func TestASampleIsScaledUp(t *testing.T) {
	m := monitor(t, debug.Options{Sample: 10, Window: time.Hour})
	gate, _ := service(t, nil)
	observe(m, "hot", 1_000_000)
	got := m.Snapshot(gate).Hot.Keys[0].Calls
	// The deviation is √(100,000 · 0.9) samples, 3,000 calls: 20 of them are never seen.
	if got%10 != 0 || got < 940_000 || got > 1_060_000 {
		t.Errorf("got %d", got)
	}
}

func TestLongKeysAreShortenedAndKeptApart(t *testing.T) {
	m := monitor(t, debug.Options{Sample: 1})
	gate, _ := service(t, nil)
	long := strings.Repeat("k", 1<<20)
	observe(m, long+"1", 2)
	observe(m, long+"2", 1)
	keys := m.Snapshot(gate).Hot.Keys
	if len(keys) != 2 || keys[0].Calls != 2 || len(keys[0].Key) > 256 || !strings.HasPrefix(keys[0].Key, long[:128]+"…(1048577 bytes, ") {
		t.Errorf("got %+v", keys)
	}
}

// A key is often a piece of a request. Counting it must not keep the request.
func TestTheMemoryOfAMonitorIsBounded(t *testing.T) {
	m := monitor(t, debug.Options{Keys: 64, Sample: 1, Window: time.Hour})
	before := heap()
	for i := range 64 {
		request := strings.Repeat(" ", 1<<20) + fmt.Sprint(i)
		observe(m, request[1<<20:], 1)
	}
	if after := heap(); after > before+8<<20 {
		t.Errorf("64 keys keep %d KiB", (after-before)>>10)
	}
	runtime.KeepAlive(m)
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestAMonitorMayBeUsedByManyAtOnce(t *testing.T) {
	m := monitor(t, debug.Options{Keys: 8, Sample: 1, Window: time.Millisecond})
	gate, _ := service(t, nil)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 1000 {
				observe(m, fmt.Sprint(i*j%100), 1)
				if j%100 == 0 {
					m.Snapshot(gate)
				}
			}
		})
	}
	all.Wait()
}

func TestANumberThatMakesNoSenseIsNamed(t *testing.T) {
	for want, options := range map[string]debug.Options{
		"Options.Keys is -7, want a positive number, 0 for the default, or Off":  {Keys: -7},
		"Options.Sample is -200, want a positive number, or 0 for the default":   {Sample: -200},
		"Options.Window is Off, want a positive duration, or 0 for the default":  {Window: herdgate.Off},
		"Options.Window is -1µs, want a positive duration, or 0 for the default": {Window: -time.Microsecond},
	} {
		_, err := debug.New(options)
		if _, ok := errors.AsType[*herdgate.ConfigError](err); !ok || err.Error() != "herdgate: "+want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// What a monitor costs a local hit: of one key, and of a flood of keys that are each
// asked for once, the worst there is for the sketch.
func BenchmarkObserve(b *testing.B) {
	names := make([]string, 1<<16)
	for i := range names {
		names[i] = fmt.Sprintf("customer:%d:profile", i)
	}
	for _, bench := range []struct {
		name    string
		options debug.Options
		keys    []string
	}{
		{"one key", debug.Options{}, names[:1]},
		{"flood", debug.Options{}, names},
		{"flood, every call", debug.Options{Sample: 1}, names},
		{"no keys", debug.Options{Keys: herdgate.Off}, names},
	} {
		b.Run(bench.name, func(b *testing.B) {
			m := monitor(b, bench.options)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(len(bench.keys)); pb.Next(); i++ {
					m.Observe(herdgate.Event{Kind: herdgate.EventGet, Cache: "product", Key: bench.keys[i%len(bench.keys)]})
				}
			})
		})
	}
}

func BenchmarkLocalHit(b *testing.B) {
	for name, observer := range map[string]func() herdgate.Observer{
		"no observer":        func() herdgate.Observer { return nil },
		"idle observer":      func() herdgate.Observer { return herdgate.ObserverFunc(func(herdgate.Event) {}) },
		"monitor":            func() herdgate.Observer { return monitor(b, debug.Options{}) },
		"monitor, no keys":   func() herdgate.Observer { return monitor(b, debug.Options{Keys: herdgate.Off}) },
		"monitor, all calls": func() herdgate.Observer { return monitor(b, debug.Options{Sample: 1}) },
	} {
		b.Run(name, func(b *testing.B) {
			_, cache := service(b, observer())
			get(b, cache, "42", 1)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = cache.Get(b.Context(), "42")
			}
		})
	}
}
