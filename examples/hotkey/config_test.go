package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAFlagThatCannotBeUsedIsNamedWithWhatWouldBeRight(t *testing.T) {
	for _, test := range []struct{ args, fault string }{
		{"-instances=0", "-instances is 0, want a number from 1 to 64"},
		{"-instances=65", "-instances is 65, want a number from 1 to 64"},
		{"-callers=-1", "-callers is -1, want a number from 1 to 1000"},
		{"-ttl=0s", "-ttl is 0s, want whole milliseconds from 100ms to 1m0s"},
		{"-ttl=100500us", "-ttl is 100.5ms, want whole milliseconds"},
		{"-load=0s", "-load is 0s, want whole milliseconds from 1ms to 5s"},
		{"-duration=500ms", "-duration is 500ms, want whole milliseconds from 1s"},
		{"-duration=2s -ttl=3s", "-duration is 2s, want whole milliseconds from 3s"},
		{"-redis=localhost", `-redis is "localhost", want host:port`},
		{"-metrics=9100", `-metrics is "9100", want host:port`},
		{"-db=mysql://u:secret@localhost/x", `-db is mysql://u:xxxxx@localhost/x, want a file, or a URL that begins with postgres://`},
		{"-out=/nowhere/at/all.html", `-out is "/nowhere/at/all.html", want a file in a directory that exists`},
		{"-out=.", `-out is ".", want a file, not a directory`},
		{"hot", `unexpected argument "hot"`},
	} {
		_, err := parse(strings.Fields(test.args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v, want %q", test.args, err, test.fault)
		}
	}
}

func TestAllFaultsAreToldAtOnce(t *testing.T) {
	_, err := parse([]string{"-instances=0", "-callers=0"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-instances") || !strings.Contains(err.Error(), "-callers") {
		t.Errorf("told: %v", err)
	}
}

func TestFlagsSayWhatIsRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.html")
	c, err := parse([]string{
		"-redis", "127.0.0.1:6379", "-db", "postgres://u@h/d", "-instances", "3", "-callers", "4",
		"-ttl", "2s", "-load", "50ms", "-duration", "5s", "-json", "-metrics", ":9100", "-out", out,
	}, io.Discard)
	want := config{
		redis: "127.0.0.1:6379", db: "postgres://u@h/d", instances: 3, callers: 4,
		ttl: 2 * time.Second, load: 50 * time.Millisecond, duration: 5 * time.Second, json: true, metrics: ":9100", out: out,
	}
	if err != nil || c != want {
		t.Errorf("parsed %+v, %v; want %+v", c, err, want)
	}
}

func TestAServerThatIsNotThereIsNamed(t *testing.T) {
	err := run(t.Context(), []string{"-redis", "127.0.0.1:1"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-redis 127.0.0.1:1: ") {
		t.Errorf("told: %v", err)
	}
	file := filepath.Join(t.TempDir(), "no", "such.db")
	err = run(t.Context(), []string{"-db", file}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("told: %v", err)
	}
}
