package suite

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFlagsMayStandBeforeAndAfterTheScenario(t *testing.T) {
	for _, args := range [][]string{
		{"stampede", "-peer", "otter,herdgate", "-runs", "3", "-json"},
		{"-peer", "otter,herdgate", "stampede", "-runs", "3", "-json"},
		{"-peer=herdgate,otter", "-runs=3", "-json", "stampede"},
	} {
		c, err := parse(args, io.Discard)
		if err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		if len(c.scenarios) != 1 || c.scenarios[0].Name != "stampede" || c.runs != 3 || !c.json {
			t.Errorf("%q is understood as %+v", args, c)
		}
		var peers []string
		for _, k := range c.peers {
			peers = append(peers, k.Name)
		}
		if !slices.Equal(peers, []string{"herdgate", "otter"}) {
			t.Errorf("%q asks for the peers %q", args, peers)
		}
	}
}

func TestAllMeansEveryScenarioAndPeer(t *testing.T) {
	c, err := parse([]string{"all", "-peer", "all"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.scenarios) < 9 || len(c.peers) < 11 {
		t.Errorf("all are %d scenarios and %d peers", len(c.scenarios), len(c.peers))
	}
}

func TestAVariantIsChosenByItsName(t *testing.T) {
	c, err := parse([]string{"all", "-variant", "l1,g64"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range c.scenarios {
		if v := c.variantsOf(s); len(v) > 0 {
			got[s.Name] = strings.Join(v, ",")
		}
	}
	for name, want := range map[string]string{"remote": "g64", "expiry": "l1", "redisdown": "l1", "delrace": "l1"} {
		if got[name] != want {
			t.Errorf("%s runs the variants %q, want %q", name, got[name], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("scenarios without such a variant run, too: %v", got)
	}
}

func TestFleetsGoAsFarAsAskedFor(t *testing.T) {
	for instances, want := range map[string]string{"8": "n8", "1000": "n1000", "10000": "n10000", "999": "n512"} {
		c, err := parse([]string{"fleet", "-instances", instances}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if v := c.variantsOf(c.scenarios[0]); v[len(v)-1] != want {
			t.Errorf("up to %s instances the last variant is %s, want %s", instances, v[len(v)-1], want)
		}
	}
}

func TestWhatIsAskedForWronglyIsNamed(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"", []string{"which scenario", "local"}},
		{"lokal", []string{`no scenario "lokal"`, "local", "fleet", "all"}},
		{"local -peer redis", []string{`no peer "redis"`, "herdgate", "sturdyc"}},
		{"local -peer rockscache", []string{`"rockscache" is left out`}},
		{"local -peer otter,", []string{`no peer ""`}},
		{"local -variant g64", []string{`no variant "g64"`, "hot-1p"}},
		{"local -runs 0", []string{"-runs is 0", "at least 1"}},
		{"fleet -instances 7", []string{"-instances is 7", "8 to 10000"}},
		{"fleet -instances 10001", []string{"-instances is 10001"}},
		{"local remote", []string{`"remote"`, `"local"`}},
		{"local -pears otter", []string{"-pears"}},
	} {
		_, err := parse(strings.Fields(test.args), io.Discard)
		if err == nil {
			t.Errorf("%q is accepted", test.args)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v; want it to say %s", test.args, err, want)
			}
		}
	}
}

func TestHelpTellsScenariosPeersAndFlags(t *testing.T) {
	var help bytes.Buffer
	if _, err := parse([]string{"-h"}, &help); err == nil {
		t.Error("-h is no end")
	}
	for _, want := range []string{"holderdeath", "sigstop", "n10000", "poll-lock", "jetcache-go", "-instances"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("help does not tell of %s:\n%s", want, help.String())
		}
	}
}
