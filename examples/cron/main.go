//go:build unix

// Command cron runs a job once a tick in a service of five processes: the one that gets the lock runs it, and renews its
// lease while it does. One of them is frozen in the middle of the job: another takes over when the lease has ended, and
// the frozen one, when it goes on, learns that it has lost the lock, and what it writes late is refused. It needs nothing
// but Go: Redis and the database are embedded unless -redis and -db name others. worker.go is the part to copy.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/herdgate/herdgate/examples/internal/cli"
	"github.com/herdgate/herdgate/examples/internal/stores"
)

func main() { os.Exit(start()) }

// start plays the part of this process: one of the service, or the parent of all.
func start() (exitCode int) {
	ctx := context.Background()
	if text := os.Getenv(workerEnv); text != "" {
		signal.Ignore(os.Interrupt, syscall.SIGTERM) // the parent ends its processes
		return exit(startWorker(ctx, text, os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) (code int) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "cron:", err)
	return 1
}

const (
	ticks      = 4
	frozenTick = 3 // the one at which the process that runs the job is frozen
)

// config is what the command line asks for.
type config struct {
	stores    stores.Config
	processes int
	every     time.Duration
}

// ttl is short, so that another process takes over soon; work is longer, so that it takes a watchdog.
func (c *config) ttl() time.Duration  { return c.every / 4 }
func (c *config) work() time.Duration { return c.every / 2 }

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	err := cli.Parse("cron", args, stderr, func(flags *flag.FlagSet) {
		c.stores.Flags(flags)
		flags.IntVar(&c.processes, "processes", 5, "processes of the service")
		flags.DurationVar(&c.every, "every", 2*time.Second, "time from tick to tick; the job takes half of it, and a lock lasts a quarter")
	})
	if err != nil {
		return config{}, err
	}
	return c, c.check()
}

// check names each flag that cannot be used, and what would be right.
func (c *config) check() error {
	faults := []error{c.stores.Check()}
	if c.processes < 2 || c.processes > 20 {
		faults = append(faults, fmt.Errorf("-processes is %d, want a number from 2 to 20: somebody must take over", c.processes))
	}
	if c.every < 500*time.Millisecond || c.every > time.Minute {
		faults = append(faults, fmt.Errorf("-every is %v, want a time from 500ms to 1m0s", c.every))
	}
	return errors.Join(faults...)
}

// job is what a process is told at its start, and begin what it is told when all are there.
type job struct {
	Process int           `json:"process"`
	Run     int64         `json:"run"`
	Stores  stores.Config `json:"stores"`
	TTL     time.Duration `json:"ttl"`
	Work    time.Duration `json:"work"`
	Every   time.Duration `json:"every"`
}

type begin struct {
	First int64 `json:"first"` // the first tick, in nanoseconds of Unix time
}

// event is what a process tells.
type event struct {
	Process int    `json:"process"`
	What    what   `json:"what"`
	Tick    int    `json:"tick,omitempty"`
	Text    string `json:"text,omitempty"`
}

type what string

const (
	ready   what = "ready"
	runs    what = "runs"
	ran     what = "ran"
	lost    what = "lost"
	refused what = "refused"
	ended   what = "ended" // told by the parent
)

// decode reads one object.
func decode[T any](text string) (v T, err error) {
	err = json.Unmarshal([]byte(text), &v)
	return v, err
}
