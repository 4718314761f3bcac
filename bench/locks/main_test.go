package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/bench/internal/rig"
)

// Libraries of peers start goroutines when they are linked, before any test.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }

func measured(t *testing.T, args ...string) (rows []row, stderr string) {
	t.Helper()
	var out, progress bytes.Buffer
	if err := run(t.Context(), append([]string{"-json", "-for", "20ms"}, args...), &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	for line := range strings.Lines(out.String()) {
		var r row
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		rows = append(rows, r)
	}
	return rows, progress.String()
}

func TestTheLocksOfOneServerAreMeasuredInEachWay(t *testing.T) {
	rows, _ := measured(t, "-contenders", "1,4", "-hold", "0", "memlock,redislock,redislock-fence,bsm,redsync")
	if len(rows) != 5*3 {
		t.Errorf("%d rows, want three of each of five locks", len(rows))
	}
	for _, r := range rows {
		if r.PerSecond < 0 || r.Measure != "greedy" && (r.PerSecond == 0 || r.P50 == 0 || r.P99 < r.P50) {
			t.Errorf("%+v measures nothing", r)
		}
		if want := strings.HasPrefix(r.Lock, "redislock"); want && r.Measure == "alone" && (r.Ratios["bsm"] <= 0 || r.Ratios["redsync"] <= 0) {
			t.Errorf("%+v is not compared with its peers", r)
		}
	}
}

func TestAServerThatIsNotInstalledLeavesItsLocksOut(t *testing.T) {
	t.Setenv("PATH", "")
	rows, stderr := measured(t, "-contenders", "1", "memlock,etcdlock")
	if len(rows) != 1 || rows[0].Lock != "memlock" {
		t.Errorf("got %+v, want memlock alone", rows)
	}
	if !strings.Contains(stderr, "etcd is left out: etcd is not installed") {
		t.Errorf("nothing says that etcd is left out:\n%s", stderr)
	}
}

// freely is a lock that excludes nobody.
func freely(context.Context) (unlock func(context.Context) error, err error) {
	return func(context.Context) error { return nil }, nil
}

func TestALockThatTwoHoldIsLeftOutAndTheOthersAreMeasured(t *testing.T) {
	memory := kinds()[0]
	broken := memory
	broken.name = "broken"
	broken.open = func(_ context.Context, _ *rig.Host, _ []string, n int) ([]contender, error) {
		return repeat(n, freely), nil
	}
	c := config{duration: time.Millisecond, hold: time.Millisecond, contenders: []int{1, 2}}
	rows, err := c.measureAt(t.Context(), places()[0], []kind{broken, memory}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "broken is left out, from 2 contenders, wave, on: two held the lock") {
		t.Errorf("got error %v, want one that tells what is wrong with the lock", err)
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Lock+" "+r.Measure)
	}
	if got, want := strings.Join(names, ", "), "broken alone, memlock alone, memlock wave, memlock greedy"; got != want {
		t.Errorf("rows are %s, want %s", got, want)
	}
}

func TestArgumentsThatMakeNoSenseAreNamed(t *testing.T) {
	for want, args := range map[string][]string{
		`"zookeeper"`:        {"zookeeper"},
		"-for is 0s":         {"-for", "0s"},
		"-hold is -1s":       {"-hold", "-1s"},
		`-contenders has ""`: {"-contenders", "1,"},
		"one list":           {"bsm", "redsync"},
	} {
		if err := run(t.Context(), args, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want one with %s", args, err, want)
		}
	}
}

func TestATargetIsMissedByALowRatioAndByNone(t *testing.T) {
	met := func(alone float64) []row {
		return []row{
			{Lock: "redislock", Measure: "alone", Ratios: map[string]float64{"bsm": alone}},
			{Lock: "redislock", Measure: "wave", Ratios: map[string]float64{"redsync": 3}},
		}
	}
	for name, c := range map[string]struct {
		rows   []row
		missed bool
	}{
		"reached": {met(0.95), false}, "below": {met(0.94), true}, "not measured": {met(0.95)[1:], true},
	} {
		var said bytes.Buffer
		if err := check(c.rows, &said); (err != nil) != c.missed {
			t.Errorf("%s: got error %v\n%s", name, err, said.String())
		}
	}
}

func TestTheDocumentedFiguresNameTheLocksOfThisProgram(t *testing.T) {
	page, err := os.ReadFile("../../docs/locks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, figures, ok := strings.Cut(string(page), "\n## Figures\n")
	if !ok {
		t.Fatal("docs/locks.md has no section Figures")
	}
	var documented, want []string
	for line := range strings.Lines(figures) {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			documented = append(documented, name)
		}
	}
	for _, k := range kinds() {
		want = append(want, k.name)
	}
	if !slices.Equal(documented, want) {
		t.Errorf("the rows are of %q, want %q", documented, want)
	}
}

func TestTheTableNamesWhoStarves(t *testing.T) {
	var out bytes.Buffer
	rows := []row{
		{Lock: "a", Place: "p", Contenders: 2, Measure: "greedy", PerSecond: 10, P50: 1, P99: 2000, Luckiest: 6, Unluckiest: 3},
		{Lock: "b", Place: "p", Contenders: 2, Measure: "greedy", PerSecond: math.Pi, Luckiest: 6},
	}
	if err := (config{}).print(&out, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"6 : 3 = 2.0", "6 : 0", "2.0 ms"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q:\n%s", want, out.String())
		}
	}
}
