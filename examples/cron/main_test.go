//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/examples/internal/stores"
	"github.com/herdgate/herdgate/examples/internal/stores/storestest"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

// TestMain lets the test binary be a process of the service, as the program itself is.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(start())
	}
	goleak.VerifyTestMain(m)
}

func TestAJobIsDoneOnceATickAlthoughItsHolderIsFrozen(t *testing.T) {
	for name, servers := range storestest.Everywhere() {
		t.Run(name, func(t *testing.T) {
			var story bytes.Buffer
			if err := run(t.Context(), append(servers(t), "-every", "1s"), &story, t.Output()); err != nil {
				t.Fatalf("%v\n%s", err, story.String())
			}
			t.Logf("%s", story.String())
			frozen := regexp.MustCompile(`process (\d)  is frozen`).FindStringSubmatch(story.String())
			if frozen == nil {
				t.Fatal("nobody was frozen")
			}
			rest := story.String()
			for _, want := range []string{
				`has done it, in 500ms: its lease of 250ms was renewed [1-9]\d* times`,
				`process ` + frozen[1] + `  is frozen`,
				`process [^` + frozen[1] + `]  has the lock, and runs the job of tick 3`,
				`process [^` + frozen[1] + `]  has done it`,
				`process ` + frozen[1] + `  goes on, and its context was cancelled: lock: lease lost`,
				`process ` + frozen[1] + `  writes its result all the same: refused`,
				`4 ticks, one result of each`,
			} {
				at := regexp.MustCompile(want).FindStringIndex(rest)
				if at == nil {
					t.Fatalf("the story does not go on with %q", want)
				}
				rest = rest[at[1]:]
			}
		})
	}
}

func TestAFormerHolderThatComesLateDoesNotRunTheJob(t *testing.T) {
	world, err := new(stores.Config).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	s := &service{run: 7}
	if err := s.makeTables(t.Context(), world.DB); err != nil {
		t.Fatal(err)
	}
	locks, err := lock.New(memlock.New(), lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locks.TryLock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := world.DB.Exec(t.Context(), `UPDATE cron_jobs SET fence = ?`, lease.Token()+1); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	w := &worker{job: job{Run: s.run}, db: world.DB, out: json.NewEncoder(&said)}
	if err := w.holding(t.Context(), lease, 1); !errors.Is(err, errRefused) || said.Len() > 0 {
		t.Errorf("it gets %v, and says %q", err, said.String())
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAnInterruptedRunLeavesNothingBehind(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	story := writerFunc(func(p []byte) {
		if strings.Contains(string(p), "is frozen") {
			cancel(interrupted)
		}
	})
	if err := run(ctx, []string{"-every", "500ms"}, story, io.Discard); !errors.Is(err, interrupted) {
		t.Errorf("the run ended with %v", err)
	}
	if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("processes are left: waiting for a child process gives %v", err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func TestAFlagThatCannotBeUsedIsNamedWithWhatWouldBeRight(t *testing.T) {
	for _, test := range []struct{ args, fault string }{
		{"-processes=1", "-processes is 1, want a number from 2 to 20"},
		{"-every=100ms", "-every is 100ms, want a time from 500ms to 1m0s"},
		{"-redis=localhost", `-redis is "localhost", want host:port`},
		{"now", `unexpected argument "now"`},
	} {
		_, err := parse(strings.Fields(test.args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v, want %q", test.args, err, test.fault)
		}
	}
}
