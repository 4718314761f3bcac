package suite

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/scenario"
)

// outcome is what one tiny run of everything has written.
type outcome struct {
	lines         []line
	stderr        string
	page, results string
}

type line struct {
	Scenario string
	Peer     string
	Variant  string
	Figures  map[string]float64
}

// runSmall runs the suite at a size that says nothing about speed.
func runSmall(t *testing.T, args ...string) outcome {
	t.Helper()
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	c, err := parse(append(args, "-json", "-out", dir, "-results", filepath.Join(dir, "RESULTS.md"), "-instances", "32"), &stderr)
	if err != nil {
		t.Fatal(err)
	}
	c.options.Small = true
	if err := c.run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	o := outcome{stderr: stderr.String()}
	for encoded := range strings.Lines(stdout.String()) {
		var l line
		if err := json.Unmarshal([]byte(encoded), &l); err != nil {
			t.Fatalf("%v: %s", err, encoded)
		}
		o.lines = append(o.lines, l)
	}
	for name, content := range map[string]*string{"report.html": &o.page, "RESULTS.md": &o.results} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		*content = string(data)
	}
	return o
}

func (o outcome) figures(t *testing.T, name, peer, variant string) map[string]float64 {
	t.Helper()
	for _, l := range o.lines {
		if l.Scenario == name && l.Peer == peer && l.Variant == variant {
			return l.Figures
		}
	}
	t.Errorf("there is no line of %s/%s by %s", name, variant, peer)
	return nil
}

func TestTheWholeSuiteRunsAtATinySize(t *testing.T) {
	o := runSmall(t, "all", "-peer", "herdgate,aside,otter")

	known := map[string]bool{}
	for _, f := range result.All() {
		known[f.Name] = true
	}
	for _, l := range o.lines {
		for name := range l.Figures {
			if !known[name] {
				t.Errorf("%s/%s has a figure %q that nothing describes", l.Scenario, l.Variant, name)
			}
		}
	}
	for _, s := range scenario.All() {
		for _, variant := range s.Variants(scenario.Options{Instances: 32}) {
			o.figures(t, s.Name, "herdgate", variant)
		}
	}

	// What holds at any size and speed. Times, and counts that depend on them, do not.
	for _, want := range []struct {
		scenario, peer, variant, figure string
		least, most                     float64
	}{
		{"local", "otter", "zipf-2p", "ns_op", 1, math.Inf(1)},
		{"remote", "herdgate", "g1", "calls_per_request", 1, 1.05},
		{"remote", "herdgate", "g64", "helper_keys", 0, 1},
		{"remote", "aside", "g64", "calls_per_request", 1, 1},
		{"batch", "aside", "cluster", "round_trips", 1, 1},
		{"batch", "herdgate", "single", "calls_per_request", 1, 105},
		{"stampede", "herdgate", "200ms", "loads", 1, 1},
		{"stampede", "herdgate", "5s", "loads", 1, 1},
		{"stampede", "aside", "5s", "loads", 1, 40},
		{"expiry", "aside", "remote", "calls_per_request", 1, 2},
		{"delrace", "herdgate", "l1", "stale_reads", 0, 0},
		{"delrace", "herdgate", "remote", "stale_reads", 0, 0},
		{"delrace", "herdgate", "l1", "value_c", 2, 2},
		{"holderdeath", "herdgate", "sigkill", "loads", 1, 2},
		{"holderdeath", "herdgate", "sigstop", "stale_reads", 0, 0},
		{"redisdown", "herdgate", "remote", "recover_ms", 0, math.Inf(1)},
		{"fleet", "herdgate", "n32", "instances", 32, 32},
		{"fleet", "herdgate", "n32", "loads", 1, 1},
		{"fleet", "aside", "n32", "loads", 32, 32},
		{"fleet", "aside", "n32", "calls", 64, 64},
		{"wave", "herdgate", "plain", "peak_loads", 200, 200},
	} {
		got, ok := o.figures(t, want.scenario, want.peer, want.variant)[want.figure]
		if !ok || got < want.least || got > want.most {
			t.Errorf("%+v: it is %v", want, got)
		}
	}
	if f := o.figures(t, "wave", "herdgate", "shielded"); f["x_plain"] >= 1 {
		t.Errorf("jitter lets as many loads coincide as none: %v", f)
	}

	for _, want := range []string{"remote/g1: otter is skipped: it has no tier in Redis", "local/hot-1p: aside is skipped: it keeps nothing in the process"} {
		if !strings.Contains(o.stderr, want) || !strings.Contains(o.results, want) {
			t.Errorf("nothing says %q", want)
		}
	}
	for _, want := range []string{"<svg", "herdgate", "stampede", "rockscache"} {
		if !strings.Contains(o.page, want) {
			t.Errorf("report.html does not contain %q", want)
		}
	}
	for _, never := range []string{"src=", "href=", "@import", "url("} {
		if strings.Contains(o.page, never) {
			t.Errorf("report.html contains %q: it must load nothing", never)
		}
	}
}
