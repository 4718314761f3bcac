//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestAnInterruptedRunLeavesNothingBehind(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	progress := writerFunc(func(p []byte) {
		if strings.Contains(string(p), "warm up") {
			cancel(interrupted)
		}
	})
	err := run(ctx, []string{"-instances", "2", "-callers", "5"}, io.Discard, progress)
	if !errors.Is(err, interrupted) {
		t.Errorf("the run ended with %v", err)
	}
	if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("instances are left: waiting for a child process gives %v", err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
