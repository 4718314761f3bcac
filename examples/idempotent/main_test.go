package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/examples/internal/stores/storestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestACallbackIsAppliedOnce(t *testing.T) {
	for name, servers := range storestest.Everywhere() {
		t.Run(name, func(t *testing.T) {
			var stdout bytes.Buffer
			if err := run(t.Context(), append(servers(t), "-json", "-payments", "10"), &stdout, t.Output()); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s", stdout.Bytes())
			var r report
			objects := json.NewDecoder(&stdout)
			objects.DisallowUnknownFields()
			if err := objects.Decode(&r); err != nil {
				t.Fatal(err)
			}
			if _, err := objects.Token(); !errors.Is(err, io.EOF) {
				t.Errorf("there is more than one object on standard output: %v", err)
			}
			var names []string
			for _, m := range r.Ways {
				names = append(names, m.Name)
				if once := m.Applied == 10; once != (m.Name != "none") {
					t.Errorf("%s: 10 payments are applied %d times", m.Name, m.Applied)
				}
				if m.Statements == 0 || m.Median <= 0 || m.Slowest < m.Median || (m.Commands > 0) != (m.Name == "lock") {
					t.Errorf("%s does not add up: %+v", m.Name, m)
				}
			}
			if got := strings.Join(names, " "); got != "none constraint lock" {
				t.Errorf("the ways are %s", got)
			}
		})
	}
}

func TestTheTableHasALineForEachWay(t *testing.T) {
	var stdout bytes.Buffer
	if err := run(t.Context(), []string{"-payments", "1"}, &stdout, t.Output()); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(stdout.String(), "\n"); lines != 4 {
		t.Errorf("the table has %d lines:\n%s", lines, stdout.String())
	}
}

func TestAFlagThatCannotBeUsedIsNamedWithWhatWouldBeRight(t *testing.T) {
	for _, test := range []struct{ args, fault string }{
		{"-payments=0", "-payments is 0, want a number from 1 to 10000"},
		{"-deliveries=1", "-deliveries is 1, want a number from 2 to 80"},
		{"-pause=2s", "-pause is 2s, want a time from 1ms to 1s"},
		{"-db=oracle", `-db is "oracle", want sqlite, postgres or mysql`},
		{"now", `unexpected argument "now"`},
	} {
		_, err := parse(strings.Fields(test.args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v, want %q", test.args, err, test.fault)
		}
	}
}
