package herdgate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
)

// logged are the lines of what an observer from LogTo was told.
func logged(t *testing.T, tell func(herdgate.Observer)) []string {
	t.Helper()
	var out bytes.Buffer
	tell(herdgate.LogTo(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))))
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestALineTellsWhatHasHappenedAndWhere(t *testing.T) {
	lines := logged(t, func(o herdgate.Observer) {
		o.Observe(herdgate.Event{Kind: herdgate.EventLoadFailed, Cache: "product", Key: "42", Duration: time.Second, Err: errors.New("no connection")})
		o.Observe(herdgate.Event{Kind: herdgate.EventLeaseLost, Cache: "product", Key: "42"})
		o.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})
	})
	want := []string{
		`level=ERROR msg="herdgate: load failed" cache=product key=42 took=1s error="no connection"`,
		`level=WARN msg="herdgate: lease lost while the loader ran, another process may load beside it" cache=product key=42`,
		`level=INFO msg="herdgate: invalidations arrive"`,
	}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
}

func TestAnOperatorReadsOfTroubleAndOfNothingElse(t *testing.T) {
	trouble := map[herdgate.EventKind]string{
		herdgate.EventLoadFailed:    "ERROR",
		herdgate.EventAbandoned:     "ERROR",
		herdgate.EventChangeFailed:  "ERROR",
		herdgate.EventDegraded:      "WARN",
		herdgate.EventBusLost:       "WARN",
		herdgate.EventRenewalFailed: "WARN",
		herdgate.EventLockerFailed:  "WARN",
		herdgate.EventLeaseLost:     "WARN",
		herdgate.EventCommitRefused: "WARN",
		herdgate.EventCommitFailed:  "WARN",
		herdgate.EventWaitTimeout:   "WARN",
		herdgate.EventBadPayload:    "WARN",
		herdgate.EventBusConfirmed:  "INFO",
		herdgate.EventRedisDown:     "WARN",
		herdgate.EventRedisUp:       "INFO",
		herdgate.EventJournaled:     "WARN",
		herdgate.EventJournalFull:   "WARN",
		herdgate.EventNotReplicated: "WARN",
		herdgate.EventResent:        "INFO",
		herdgate.EventForgotten:     "WARN",
		herdgate.EventNewerEntry:    "INFO",
	}
	for kind := herdgate.EventKind(0); kind.String() != "unknown"; kind++ {
		line := logged(t, func(o herdgate.Observer) { o.Observe(herdgate.Event{Kind: kind, Cache: "product", Key: "42"}) })[0]
		if level := trouble[kind]; level == "" && line != "" || !strings.Contains(line, level) {
			t.Errorf("an event %q is logged as %q, want the level %q", kind, line, level)
		}
	}
}

func TestRepeatedEventsOfOneKindAndCacheAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := logged(t, func(o herdgate.Observer) {
			for range 3 {
				o.Observe(herdgate.Event{Kind: herdgate.EventDegraded, Cache: "product", Key: "42"})
			}
			o.Observe(herdgate.Event{Kind: herdgate.EventDegraded, Cache: "price", Key: "42"})
			o.Observe(herdgate.Event{Kind: herdgate.EventBadPayload, Cache: "product", Key: "42"})
			time.Sleep(10 * time.Second)
			for range 2 {
				o.Observe(herdgate.Event{Kind: herdgate.EventDegraded, Cache: "product", Key: "43"})
			}
		})
		want := []string{"cache=product key=42", "cache=price key=42", "cache=product key=42", "cache=product key=43 suppressed=2"}
		if len(lines) != len(want) {
			t.Fatalf("got\n%s", strings.Join(lines, "\n"))
		}
		for i, line := range lines {
			if !strings.HasSuffix(line, want[i]) {
				t.Errorf("line %d is %s, want %s", i, line, want[i])
			}
		}
	})
}

// Whoever reads the log must know how it stands now.
func TestEachLossAndConfirmationOfTheBusIsLogged(t *testing.T) {
	lines := logged(t, func(o herdgate.Observer) {
		for range 3 {
			o.Observe(herdgate.Event{Kind: herdgate.EventBusLost, Err: errors.New("EOF")})
			o.Observe(herdgate.Event{Kind: herdgate.EventBusConfirmed})
		}
	})
	if len(lines) != 6 || !strings.HasPrefix(lines[5], "level=INFO") {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
}

func TestAGateLogsTheFailedLoadAndNoHit(t *testing.T) {
	virtually(t, func(w *world) {
		lines := logged(t, func(o herdgate.Observer) {
			g := w.gate(func(options *herdgate.Options) { options.Observer = o })
			c := newCache(w.T, g, func(_ context.Context, key string) (string, error) {
				if key == "bad" {
					return "", errors.New("no connection")
				}
				return key, nil
			}, herdgate.Policy{})
			for range 3 {
				get(w.T, c, "good")
				if _, err := c.Get(w.Context(), "bad"); err == nil {
					w.Error("a failed load gives no error")
				}
			}
		})
		want := []string{
			`level=INFO msg="herdgate: invalidations arrive"`,
			`level=ERROR msg="herdgate: load failed" cache=things key=bad error="no connection"`,
		}
		if fmt.Sprint(lines) != fmt.Sprint(want) {
			w.Errorf("got\n%s", strings.Join(lines, "\n"))
		}
	})
}
