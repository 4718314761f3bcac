// Command idempotent applies callbacks of a payment provider, which delivers each of them five times in parallel: with
// nothing against it, with a unique constraint, and with a lock. It needs nothing but Go: Redis and the database are
// embedded unless -redis and -db name others. ways.go is the part to copy.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdgate/herdgate/examples/internal/cli"
	"github.com/herdgate/herdgate/examples/internal/stores"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "idempotent:", err)
		os.Exit(1)
	}
}

// run delivers, and reports. Only the table, or with -json the object, is written to stdout.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	world, err := c.stores.Open(ctx, c.deliveries)
	if err != nil {
		return err
	}
	defer world.Close()
	if err := makeTables(ctx, world.DB); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	var r report
	for _, w := range ways() {
		measured, err := deliver(ctx, world, c, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		r.Ways = append(r.Ways, measured)
	}
	if c.json {
		return json.NewEncoder(stdout).Encode(r)
	}
	_, err = io.WriteString(stdout, r.table())
	return err
}

// config is what the command line asks for.
type config struct {
	stores     stores.Config
	payments   int
	deliveries int
	pause      time.Duration
	json       bool
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	err := cli.Parse("idempotent", args, stderr, func(flags *flag.FlagSet) {
		c.stores.Flags(flags)
		flags.IntVar(&c.payments, "payments", 20, "payments, one after the other")
		flags.IntVar(&c.deliveries, "deliveries", 5, "times that each is delivered, in parallel")
		flags.DurationVar(&c.pause, "pause", 5*time.Millisecond, "what a service does for a payment before it is applied")
		flags.BoolVar(&c.json, "json", false, "print one JSON object instead of the table")
	})
	if err != nil {
		return config{}, err
	}
	return c, c.check()
}

// check names each flag that cannot be used, and what would be right.
func (c *config) check() error {
	faults := []error{c.stores.Check()}
	if c.payments < 1 || c.payments > 10_000 {
		faults = append(faults, fmt.Errorf("-payments is %d, want a number from 1 to 10000", c.payments))
	}
	if c.deliveries < 2 || c.deliveries > 80 {
		faults = append(faults, fmt.Errorf("-deliveries is %d, want a number from 2 to 80", c.deliveries))
	}
	if c.pause < time.Millisecond || c.pause > time.Second {
		faults = append(faults, fmt.Errorf("-pause is %v, want a time from 1ms to 1s", c.pause))
	}
	return errors.Join(faults...)
}

// report is what this program finds; its JSON is the output of -json.
type report struct {
	Ways []measured `json:"ways"`
}

// measured is what became of all payments in one way. Statements and commands are those of one delivery on average.
type measured struct {
	Name       string  `json:"name"`
	Payments   int     `json:"payments"`
	Deliveries int     `json:"deliveries"` // of each
	Applied    int     `json:"applied"`    // by the balance that there is in the end
	Median     float64 `json:"p50_ms"`
	Slowest    float64 `json:"max_ms"`
	Statements float64 `json:"statements"`
	Commands   float64 `json:"redis_commands"`
}

// deliver delivers the payments one after the other, each of them in parallel.
func deliver(ctx context.Context, world *stores.Stores, c config, w way) (m measured, err error) {
	err = open(ctx, world, c.pause, func(s *service) error {
		statements, commands := world.Sent()
		var took []time.Duration
		for payment := range c.payments {
			each := make([]time.Duration, c.deliveries)
			all, ctx := errgroup.WithContext(ctx)
			for i := range each {
				all.Go(func() error {
					start := time.Now()
					err := w.apply(s, ctx, payment)
					each[i] = time.Since(start)
					return err
				})
			}
			if err := all.Wait(); err != nil {
				return fmt.Errorf("payment %d: %w", payment, err)
			}
			took = append(took, each...)
		}
		statementsNow, commandsNow := world.Sent()
		applied, err := s.applied(ctx)
		if err != nil {
			return err
		}
		slices.Sort(took)
		n := float64(len(took))
		m = measured{
			Name: w.name, Payments: c.payments, Deliveries: c.deliveries, Applied: applied,
			Median: inMillis(took[len(took)/2]), Slowest: inMillis(took[len(took)-1]),
			Statements: round(float64(statementsNow-statements) / n), Commands: round(float64(commandsNow-commands) / n),
		}
		return nil
	})
	return m, err
}

func inMillis(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

// round leaves one decimal.
func round(x float64) float64 { return math.Round(x*10) / 10 }

func (r report) table() string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "\tpayments\tdelivered\tapplied\thalf within\tslowest\tSQL a delivery\tRedis a delivery\t")
	for _, m := range r.Ways {
		_, _ = fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.1f ms\t%.1f ms\t%.1f\t%.1f\t\n",
			m.Name, m.Payments, m.Payments*m.Deliveries, m.Applied, m.Median, m.Slowest, m.Statements, m.Commands)
	}
	_ = t.Flush() // a Builder takes everything
	return b.String()
}
