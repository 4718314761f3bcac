package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/debug"
)

func topCommand(flags *flag.FlagSet) action {
	every := flags.Duration("every", time.Second, "time between two looks at the service")
	timeout := flags.Duration("timeout", 2*time.Second, "for each answer of the service")
	once := flags.Bool("once", false, "show one frame, of the rates within -every, and end")
	asJSON := flags.Bool("json", false, "one line of JSON for each frame")
	keys := flags.Int("keys", 10, "how many of the hottest keys to show")
	return func(ctx context.Context, args []string, out output, notes io.Writer) error {
		if len(args) != 1 {
			return misused("top takes one URL, where the service serves package debug: like http://127.0.0.1:6060/debug/herdgate")
		}
		service, err := url.Parse(args[0])
		if err != nil || (service.Scheme != "http" && service.Scheme != "https") || service.Host == "" {
			return misused("%q is no URL like http://127.0.0.1:6060/debug/herdgate", args[0])
		}
		if *every <= 0 || *timeout <= 0 || *keys < 0 {
			return misused("-every and -timeout want a positive duration, -keys a number")
		}
		t := &top{url: service, client: &http.Client{Timeout: *timeout}, keys: *keys, json: *asJSON, out: out}
		defer t.client.CloseIdleConnections()
		return t.run(ctx, *every, *once, notes)
	}
}

// top looks at a service again and again.
type top struct {
	url    *url.URL
	client *http.Client
	keys   int
	json   bool
	out    output
}

// run shows a frame for each two looks that succeed. A service that does not answer
// at first is an error; one that stops to answer may be restarting, and is waited for.
func (t *top) run(ctx context.Context, every time.Duration, once bool, notes io.Writer) error { //nolint:revive // once is a flag of the command
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := t.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && once:
			return err
		case err != nil:
			_, _ = fmt.Fprintf(notes, "%v\n", err)
			continue
		}
		t.show(compare(before, now))
		if once {
			return nil
		}
		before = now
	}
}

// look asks the service.
func (t *top) look(ctx context.Context) (debug.Snapshot, error) {
	var s debug.Snapshot
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url.String(), http.NoBody)
	if err != nil {
		return s, err
	}
	response, err := t.client.Do(request)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return s, fmt.Errorf("no service at %s: %w", t.url.Redacted(), err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return s, fmt.Errorf("%s answers %s: is package debug mounted there?", t.url.Redacted(), response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, largestAnswer)).Decode(&s); err != nil || s.Caches == nil {
		return s, fmt.Errorf("%s does not answer what package debug serves: is it mounted there?", t.url.Redacted())
	}
	return s, nil
}

// largestAnswer is far more than a service with a thousand caches says.
const largestAnswer = 16 << 20

// frame is what happened between two looks.
type frame struct {
	UptimeSeconds float64          `json:"uptime_seconds"`
	Connected     bool             `json:"connected"`
	Seconds       float64          `json:"seconds"` // that the rates are of
	Total         rates            `json:"total"`
	Caches        map[string]rates `json:"caches"`
	HotSeconds    float64          `json:"hot_seconds"` // that the keys were counted in
	Hot           []hotKey         `json:"hot"`
}

// rates are numbers a second.
type rates struct {
	Gets     float64 `json:"gets"`
	Local    float64 `json:"local"` // these seven add up to gets
	Remote   float64 `json:"remote"`
	Stale    float64 `json:"stale"`
	Loaded   float64 `json:"loaded"`
	Waited   float64 `json:"waited"`
	Unlocked float64 `json:"unlocked"`
	Failed   float64 `json:"failed"`
	Loads    float64 `json:"loads"`
	LoadErrs float64 `json:"load_failures"`
	Changes  float64 `json:"changes"`
}

// hotKey is a key that is asked for often.
type hotKey struct {
	Cache string  `json:"cache"`
	Key   string  `json:"key"`
	Calls float64 `json:"calls"` // a second
	Error float64 `json:"error"` // how much of it may be of other keys
}

// compare makes a frame of two looks. A service that was restarted in between counts
// from its start.
func compare(before, now debug.Snapshot) frame {
	passed := now.UptimeSeconds - before.UptimeSeconds
	if passed <= 0 {
		before, passed = debug.Snapshot{}, now.UptimeSeconds
	}
	f := frame{
		UptimeSeconds: now.UptimeSeconds, Connected: now.Connected, Seconds: passed,
		Total: ratesOf(before.Total, now.Total, passed), Caches: map[string]rates{},
		HotSeconds: now.Hot.WindowSeconds, Hot: []hotKey{},
	}
	for name, stats := range now.Caches {
		f.Caches[name] = ratesOf(before.Caches[name], stats, passed)
	}
	for _, k := range now.Hot.Keys {
		if k.Calls < 2*k.Error { // more likely the calls of others
			continue
		}
		f.Hot = append(f.Hot, hotKey{k.Cache, k.Key, perSecond(k.Calls, f.HotSeconds), perSecond(k.Error, f.HotSeconds)})
	}
	return f
}

func ratesOf(before, now herdgate.Stats, seconds float64) rates {
	rate := func(a, b uint64) float64 { return perSecond(b-min(a, b), seconds) }
	return rates{
		Gets:     rate(before.Gets, now.Gets),
		Local:    rate(before.Local, now.Local),
		Remote:   rate(before.Remote, now.Remote),
		Stale:    rate(before.Stale, now.Stale),
		Loaded:   rate(before.Loaded, now.Loaded),
		Waited:   rate(before.Waited, now.Waited),
		Unlocked: rate(before.Unlocked, now.Unlocked),
		Failed:   rate(before.Failed, now.Failed),
		Loads:    rate(before.Loads, now.Loads),
		LoadErrs: rate(before.LoadFailures, now.LoadFailures),
		Changes:  rate(before.Changes, now.Changes),
	}
}

func perSecond(n uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(n) / seconds
}

// clearScreen moves a terminal's cursor home and clears what is below.
const clearScreen = "\x1b[H\x1b[J"

// show writes a frame in one piece, so that a screen does not flicker.
func (t *top) show(f frame) {
	f.Hot = f.Hot[:min(t.keys, len(f.Hot))]
	if t.json {
		_ = json.NewEncoder(t.out).Encode(f)
		return
	}
	var text strings.Builder
	if t.out.live {
		text.WriteString(clearScreen)
	}
	f.write(&text, t.url.Redacted())
	_, _ = io.WriteString(t.out, text.String())
}

func (f frame) write(out io.Writer, service string) {
	bus := "hears the others"
	if !f.Connected {
		bus = "MAY MISS what others change"
	}
	_, _ = fmt.Fprintf(out, "%s  up %s, %s; a second, over %.1f s:\n\n", service, time.Duration(f.UptimeSeconds)*time.Second, bus, f.Seconds)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "cache\tgets\tlocal\tremote\tstale\tloaded\twaited\tunlocked\tfailed\tloads\tload failures\tchanges\t")
	for _, name := range slices.Sorted(maps.Keys(f.Caches)) {
		f.Caches[name].write(table, name)
	}
	if len(f.Caches) > 1 {
		f.Total.write(table, "all")
	}
	_ = table.Flush()
	if len(f.Hot) == 0 {
		_, _ = fmt.Fprintln(out)
		return
	}
	_, _ = fmt.Fprintf(out, "\nhottest keys, counted for %.0f s:\n\n", f.HotSeconds)
	table = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, k := range f.Hot {
		_, _ = fmt.Fprintf(table, "%s\t  %s %s\n", number(k.Calls), k.Cache, strconv.Quote(k.Key))
	}
	_ = table.Flush()
	_, _ = fmt.Fprintln(out)
}

func (r rates) write(table io.Writer, name string) {
	_, _ = fmt.Fprint(table, name)
	for _, n := range []float64{r.Gets, r.Local, r.Remote, r.Stale, r.Loaded, r.Waited, r.Unlocked, r.Failed, r.Loads, r.LoadErrs, r.Changes} {
		_, _ = fmt.Fprintf(table, "\t%s", number(n))
	}
	_, _ = fmt.Fprint(table, "\t\n")
}

// number is short, and not 0 for what is rare.
func number(n float64) string {
	switch {
	case n == 0:
		return "-"
	case n < 10:
		return strconv.FormatFloat(n, 'g', 2, 64)
	}
	return strconv.FormatFloat(n, 'f', 0, 64)
}
