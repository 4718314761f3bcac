package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

func cellOf(scenario, variant string, runs ...Figures) Cell {
	c := Cell{Scenario: scenario, Peer: Subject, Variant: variant}
	for _, f := range runs {
		c.Runs = append(c.Runs, Measured{Figures: f})
	}
	return c
}

func TestACellIsTheMedianOfItsRuns(t *testing.T) {
	c := cellOf("local", "hot-1p", Figures{"ns_op": 30, "b_op": 0}, Figures{"ns_op": 10, "b_op": 0}, Figures{"ns_op": 50})
	if got := c.Median(); !maps.Equal(got, Figures{"ns_op": 30, "b_op": 0}) {
		t.Errorf("the medians are %v", got)
	}
	least, most := c.Spread()
	if least["ns_op"] != 10 || most["ns_op"] != 50 {
		t.Errorf("the spread is %v to %v", least, most)
	}
	even := cellOf("local", "hot-1p", Figures{"ns_op": 10}, Figures{"ns_op": 20})
	if got := even.Median()["ns_op"]; got != 15 {
		t.Errorf("the median of 10 and 20 is %v", got)
	}
}

func TestALineHasTheNamesThatProgramsReadFor(t *testing.T) {
	var out bytes.Buffer
	if err := WriteJSON(&out, cellOf("stampede", "2s", Figures{"wall_ms": 2010.123456, "loads": 1})); err != nil {
		t.Fatal(err)
	}
	const want = `{"scenario":"stampede","peer":"herdgate","variant":"2s","figures":{"loads":1,"wall_ms":2010.1}}` + "\n"
	if out.String() != want {
		t.Errorf("the line is %s, want %s", out.String(), want)
	}
	if !json.Valid(out.Bytes()) {
		t.Error("it is no JSON")
	}
}

func TestFiguresAreDescribedOnceAndTargetsNameThem(t *testing.T) {
	var names []string
	for _, f := range All() {
		if slices.Contains(names, f.Name) || f.Text == "" {
			t.Errorf("figure %q is described twice or not", f.Name)
		}
		names = append(names, f.Name)
	}
	for _, target := range Targets() {
		if !slices.Contains(names, target.Figure) || target.Than != "" && !slices.Contains(names, target.Than) {
			t.Errorf("target %+v names an unknown figure", target)
		}
		if _, err := path.Match(target.Variant, ""); err != nil {
			t.Errorf("target %+v: %v", target, err)
		}
	}
}

func TestTargetsAreHeldAgainstMedians(t *testing.T) {
	checks := Check([]Cell{
		cellOf("expiry", "remote", Figures{"waited_pct": 0, "p999_ms": 3, "plain_p999_ms": 2}),
		cellOf("expiry", "l1", Figures{"waited_pct": 0.1, "p999_ms": 3, "plain_p99_ms": 2}),
		{Scenario: "expiry", Peer: "aside", Variant: "remote", Runs: []Measured{{Figures: Figures{"waited_pct": 9}}}},
		{Scenario: "expiry", Peer: Subject, Variant: "remote", Err: errors.New("no luck")},
	})
	got := map[string]bool{}
	for _, c := range checks {
		got[c.Scenario+"/"+c.Variant+" "+c.Figure] = c.Pass
	}
	want := map[string]bool{
		"expiry/remote waited_pct": true, "expiry/remote p999_ms": true, // twice the plain one is 4
		"expiry/l1 waited_pct": false, "expiry/l1 p999_ms": false,
	}
	if !maps.Equal(got, want) {
		t.Errorf("checked %v, want %v", got, want)
	}
	var out strings.Builder
	missed, err := WriteChecks(&out, checks)
	if err != nil || missed != 2 || strings.Count(out.String(), "FAIL") != 2 || strings.Count(out.String(), "pass") != 2 {
		t.Errorf("%d missed, %v, printed\n%s", missed, err, out.String())
	}
}

func TestNumbersAreWrittenWithTheDigitsThatSaySomething(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 1600: "1600", 214.56: "215", 21.456: "21.5", 2.1456: "2.15", 0.5: "0.50", 0.000381: "0.00038", 12345.6: "12346",
	} {
		if got := Format(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}
