// Command flashsale sells a hundred items to buyers who all come at once, in seven ways: without any protection, which
// sells more than there are, and with six that sell exactly what there is. It shows what each of them costs, and what
// becomes of the write of a lock's holder that was frozen past its lease. It needs nothing but Go: Redis and the
// database are embedded unless -redis and -db name others. ways.go is the part to copy.
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "flashsale:", err)
		os.Exit(1)
	}
}

// connections is the most that are opened to the database: Postgres allows 100 by default.
const connections = 80

// run sells, and reports. Only the tables, or with -json the object, are written to stdout.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	world, err := c.stores.Open(ctx, min(c.buyers, connections))
	if err != nil {
		return err
	}
	defer world.Close()
	if err := makeTables(ctx, world.DB); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	var r report
	for _, w := range ways() {
		_, _ = fmt.Fprintf(stderr, "%-10s  %d buyers try %d times each to get one of %d items\n", w.name, c.buyers, c.tries, c.items)
		measured, err := sell(ctx, world, c, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		r.Ways = append(r.Ways, measured)
	}
	if c.json {
		return json.NewEncoder(stdout).Encode(r)
	}
	for _, w := range ways() {
		if w.late == nil {
			continue
		}
		frozen, err := freeze(ctx, world, w)
		if err != nil {
			return fmt.Errorf("%s, with a frozen holder: %w", w.name, err)
		}
		r.frozen = append(r.frozen, frozen)
	}
	_, err = io.WriteString(stdout, r.table())
	return err
}

// config is what the command line asks for.
type config struct {
	stores stores.Config
	items  int
	buyers int
	tries  int
	pause  time.Duration
	json   bool
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	err := cli.Parse("flashsale", args, stderr, func(flags *flag.FlagSet) {
		c.stores.Flags(flags)
		flags.IntVar(&c.items, "items", 100, "items that there are")
		flags.IntVar(&c.buyers, "buyers", 50, "buyers who come at once")
		flags.IntVar(&c.tries, "tries", 3, "times that each of them tries to buy one item")
		flags.DurationVar(&c.pause, "pause", 5*time.Millisecond, "what a service does for an order between reading the stock and writing it")
		flags.BoolVar(&c.json, "json", false, "print one JSON object instead of the tables")
	})
	if err != nil {
		return config{}, err
	}
	return c, c.check()
}

// check names each flag that cannot be used, and what would be right.
func (c *config) check() error {
	faults := []error{c.stores.Check()}
	fault := func(flagName string, value any, want string) {
		faults = append(faults, fmt.Errorf("-%s is %v, want %s", flagName, value, want))
	}
	if c.items < 1 || c.items > 10_000 {
		fault("items", c.items, "a number from 1 to 10000")
	}
	if c.buyers < 2 || c.buyers > 1000 {
		fault("buyers", c.buyers, "a number from 2 to 1000: who is alone cannot oversell")
	}
	if c.tries < 1 || c.tries > 1000 {
		fault("tries", c.tries, "a number from 1 to 1000")
	} else if c.buyers*c.tries <= c.items {
		fault("tries", c.tries, fmt.Sprintf("more than %d of them by the %d buyers together, or there is too much for all", c.items, c.buyers))
	}
	if c.pause < time.Millisecond || c.pause > time.Second {
		fault("pause", c.pause, "a time from 1ms to 1s")
	}
	return errors.Join(faults...)
}
