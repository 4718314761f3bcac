package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the test binary be an instance, as the program itself is.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(start())
	}
	goleak.VerifyTestMain(m)
}

func TestAShortRunReportsThatHerdgateLoadsTheHotKeyLess(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	var stdout bytes.Buffer
	args := []string{"-json", "-duration", "2s", "-instances", "2", "-callers", "5", "-out", page}
	if err := run(t.Context(), args, &stdout, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", stdout.Bytes())
	checkShape(t, stdout.Bytes())
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	plain, gate := r.Phases[0], r.Phases[1]
	if plain.Name != "cache-aside" || gate.Name != "herdgate" {
		t.Errorf("the phases are %q and %q", plain.Name, gate.Name)
	}
	for _, p := range r.Phases {
		if p.Errors != 0 || p.Hot.Requests == 0 || p.Requests <= p.Hot.Requests || p.DBQueries < p.Hot.DBQueries || p.Hot.MaxAge <= 0 ||
			p.Hot.P50 > p.Hot.P99 || p.Hot.P99 > p.Hot.P999 || p.Hot.P999 > p.Hot.Max {
			t.Errorf("%s does not add up: %+v", p.Name, p)
		}
	}
	if gate.Hot.DBQueries == 0 || gate.Hot.DBQueries >= plain.Hot.DBQueries {
		t.Errorf("herdgate queried %d times for the hot key, cache-aside %d times", gate.Hot.DBQueries, plain.Hot.DBQueries)
	}
	if gate.RedisCallsPerRequest <= 0 || gate.RedisCallsPerRequest >= plain.RedisCallsPerRequest {
		t.Errorf("herdgate sent %v commands a read, cache-aside %v", gate.RedisCallsPerRequest, plain.RedisCallsPerRequest)
	}
	checkPage(t, page)
}

// checkShape holds the names that readers of the JSON rely on.
func checkShape(t *testing.T, out []byte) {
	t.Helper()
	lines := json.NewDecoder(bytes.NewReader(out))
	var object struct {
		Phases []map[string]any `json:"phases"`
	}
	if err := lines.Decode(&object); err != nil {
		t.Fatal(err)
	}
	if _, err := lines.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than one object on standard output: %v", err)
	}
	if len(object.Phases) != 2 {
		t.Fatalf("there are %d phases", len(object.Phases))
	}
	phaseNames := []string{"db_queries", "errors", "hot", "name", "redis_calls_per_request", "requests"}
	hotNames := []string{"db_queries", "db_queries_per_expiry", "max_age_ms", "max_ms", "p50_ms", "p999_ms", "p99_ms", "requests", "stale", "waited"}
	for _, p := range object.Phases {
		if got := slices.Sorted(maps.Keys(p)); !slices.Equal(got, phaseNames) {
			t.Errorf("a phase has %v", got)
		}
		hot, _ := p["hot"].(map[string]any)
		if got := slices.Sorted(maps.Keys(hot)); !slices.Equal(got, hotNames) {
			t.Errorf("hot has %v", got)
		}
	}
}

func checkPage(t *testing.T, file string) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(page, []byte("<svg")); n != 3 {
		t.Errorf("the page has %d charts", n)
	}
	for _, loads := range []string{"<script", "<link", "src=", "@import", "url("} {
		if bytes.Contains(page, []byte(loads)) {
			t.Errorf("the page is not self-contained: it has %q", loads)
		}
	}
}
