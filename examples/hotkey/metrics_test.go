package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// freeAddr is an address of this machine where nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func scrape(ctx context.Context, addr string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	page, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(response.Status))
	}
	return string(page), err
}

// sum adds up the series of a page that begin with a name and have a label.
func sum(t *testing.T, page, name, label string) (total float64) {
	t.Helper()
	for _, line := range regexp.MustCompile(`(?m)^`+name+`\{(.*)\} (.*)$`).FindAllStringSubmatch(page, -1) {
		if n, err := strconv.ParseFloat(line[2], 64); err != nil {
			t.Error(err)
		} else if strings.Contains(line[1], label) {
			total += n
		}
	}
	return total
}

func TestAScrapeShowsOneLoadPerExpiry(t *testing.T) {
	addr := freeAddr(t)
	var page string
	var table bytes.Buffer
	stderr := writerFunc(func(p []byte) {
		if bytes.HasPrefix(p, []byte("OpenTelemetry")) { // the instances have ended, and their last metrics are there
			table.Write(p)
			var err error
			if page, err = scrape(t.Context(), addr); err != nil {
				t.Error(err)
			}
		}
	})
	args := []string{"-json", "-metrics", addr, "-duration", "2s", "-instances", "2", "-callers", "5"}
	if err := run(t.Context(), args, io.Discard, stderr); err != nil {
		t.Fatal(err)
	}
	for _, instance := range []string{`instance="0"`, `instance="1"`} {
		if sum(t, page, "herdgate_gets_total", instance) == 0 {
			t.Errorf("the page tells of no calls of %s", instance)
		}
	}
	loads := sum(t, page, "herdgate_loads_total", "") - sum(t, page, "herdgate_load_failures_total", "")
	stored := sum(t, page, "herdgate_commits_total", `result="stored"`)
	// On a machine that is too busy Redis does not always answer in time.
	excused := sum(t, page, "herdgate_gets_total", `outcome="unlocked"`) + sum(t, page, "herdgate_leases_total", `result="lost"`) +
		sum(t, page, "herdgate_commits_total", `result="failed"`)
	if stored == 0 || loads < stored || loads > stored+excused {
		t.Errorf("%v loads for %v expiries, %v of them excused", loads, stored, excused)
	}
	if want := strconv.FormatFloat(stored, 'f', 0, 64) + "  herdgate.commits{herdgate.cache=product,herdgate.result=stored}\n"; !strings.Contains(table.String(), want) {
		t.Errorf("OpenTelemetry and Prometheus differ: there is no line %q in\n%s", want, table.String())
	}
	t.Logf("%s", table.String())
}

func TestAnAddressThatIsTakenIsToldBeforeTheRun(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	err = run(t.Context(), []string{"-metrics", l.Addr().String()}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-metrics "+l.Addr().String()) {
		t.Errorf("the run ended with %v", err)
	}
}
