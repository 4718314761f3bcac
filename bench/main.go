// Command bench runs herdgate and other caches through the same scenarios and prints
// what they measured, for people, as JSON lines, or as an HTML report. README.md tells
// what the scenarios and the figures are.
//
// The tests in this folder are benchmarks of herdgate's own paths.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/rig"
	"github.com/herdgate/herdgate/bench/internal/scenario"
	"github.com/herdgate/herdgate/bench/internal/suite"
)

func main() { os.Exit(start()) }

// start plays the part of this process: a worker, a fleet in virtual time, or the
// suite.
func start() (exitCode int) {
	peer.Silence()
	switch {
	case scenario.IsSimulation():
		scenario.Simulate() // ends the process
	case rig.IsWorker():
		signal.Ignore(os.Interrupt, syscall.SIGTERM) // the parent ends its workers
		return exit(scenario.Work(context.Background(), os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return exit(suite.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) (code int) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}
