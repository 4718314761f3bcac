// Command locks measures the lock backends of herdgate beside those of other libraries,
// in turn on the same servers, which it starts on free loopback ports. README.md of the
// folder above tells what the figures are.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() { os.Exit(start()) }

func start() (exitCode int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	default:
		fmt.Fprintln(os.Stderr, "locks:", err)
		return 1
	}
}

type config struct {
	duration   time.Duration
	contenders []int
	hold       time.Duration
	json       bool
	check      bool
	kinds      []kind
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	var contenders string
	flags := flag.NewFlagSet("locks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "for", 3*time.Second, "`time` for each measure of each lock")
	flags.StringVar(&contenders, "contenders", "1,32", "how many want the lock, a comma between `numbers`")
	flags.DurationVar(&c.hold, "hold", time.Millisecond, "how long each of several contenders holds it")
	flags.BoolVar(&c.json, "json", false, "a JSON object a line instead of tables")
	flags.BoolVar(&c.check, "check", false, "exit with 1 if a target is missed")
	flags.Usage = func() {
		_, _ = fmt.Fprint(stderr, "locks [flags] [name,…|all]\n\nnames:\n", about(), "\nflags:\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	switch {
	case c.duration <= 0:
		return c, fmt.Errorf("-for is %v: must be positive", c.duration)
	case c.hold < 0:
		return c, fmt.Errorf("-hold is %v: must not be negative", c.hold)
	case flags.NArg() > 1:
		return c, fmt.Errorf("%q: must be one list of names, with commas, after the flags", flags.Args())
	}
	for field := range strings.SplitSeq(contenders, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > mostContenders {
			return c, fmt.Errorf("-contenders has %q: must be numbers from 1 to %d", field, mostContenders)
		}
		c.contenders = append(c.contenders, n)
	}
	var err error
	c.kinds, err = choose(flags.Arg(0))
	return c, err
}

// mostContenders leaves the databases, which allow 200 connections, some for all locks.
const mostContenders = 64

// choose returns the kinds that a list names, in the order of all of them.
func choose(list string) ([]kind, error) {
	if list == "" || list == "all" {
		return kinds(), nil
	}
	wanted := make(map[string]bool)
	for name := range strings.SplitSeq(list, ",") {
		wanted[name] = true
	}
	var chosen []kind
	for _, k := range kinds() {
		if wanted[k.name] {
			chosen = append(chosen, k)
			delete(wanted, k.name)
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("there is no lock %q: must be all, or of\n%s", name, about())
	}
	return chosen, nil
}

// run measures what args ask for, server by server.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var all []row
	var failed error
	for _, p := range places() {
		var here []kind
		for _, k := range c.kinds {
			if k.place == p.name {
				here = append(here, k)
			}
		}
		if len(here) == 0 {
			continue
		}
		rows, err := c.measureAt(ctx, p, here, stderr)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.name, err))
		}
		if ctx.Err() != nil {
			return failed
		}
		if err := c.print(stdout, rows); err != nil {
			return err
		}
		all = append(all, rows...)
	}
	if c.check {
		failed = errors.Join(failed, check(all, stderr))
	}
	return failed
}
