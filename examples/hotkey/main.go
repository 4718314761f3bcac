// Command hotkey shows what a cache does when a hot key expires. Several processes
// read products through Redis, most of them the same one, first with plain
// cache-aside and then with herdgate, and the queries that reach the database are
// counted. It needs nothing but Go: Redis and the database are embedded unless
// -redis and -db name others.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/examples/internal/embedded"
)

func main() { os.Exit(start()) }

// start plays the part of this process: an instance, or the parent of all.
func start() (exitCode int) {
	if os.Getenv(workerEnv) != "" {
		signal.Ignore(os.Interrupt, syscall.SIGTERM) // the parent ends its instances
		err := work(context.Background(), os.Stdin, os.Stdout)
		if errors.Is(err, context.Canceled) {
			return 1 // the parent knows why, or is dead
		}
		return exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) (code int) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "hotkey:", err)
	return 1
}

// run measures both phases and reports. Only the table, or with -json the object,
// is written to stdout.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	world, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer world.close()
	var shown *board
	if c.metrics != "" {
		if shown, err = openBoard(ctx, c.metrics, c.instances); err != nil {
			return fmt.Errorf("-metrics %s: %w; want a host:port where this program can listen", c.metrics, err)
		}
		defer shown.close()
	}
	var r report
	for _, name := range []string{aside, gated} {
		j := world.job(c, name)
		j.Metrics = shown != nil && name == gated
		measured, err := runPhase(ctx, j, shown, stderr)
		if err != nil {
			return err
		}
		if j.Metrics {
			_, _ = io.WriteString(stderr, countsTable(measured.Counts))
		}
		r.Phases = append(r.Phases, newPhase(j, measured))
	}
	if c.out != "" {
		if err := r.writeHTML(c); err != nil {
			return fmt.Errorf("-out %q: %w", c.out, err)
		}
		_, _ = fmt.Fprintf(stderr, "wrote %s\n", c.out)
	}
	if c.json {
		return json.NewEncoder(stdout).Encode(r)
	}
	_, err = io.WriteString(stdout, r.table())
	return err
}

// world is what all instances share.
type world struct {
	redis   string
	db      string
	cleanUp []func()
}

// open starts or checks Redis, and makes the table of products.
func (c config) open(ctx context.Context) (_ *world, err error) {
	w := &world{redis: c.redis, db: c.db}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.redis == "" {
		s, err := embedded.StartRedis()
		if err != nil {
			return nil, fmt.Errorf("start the embedded Redis: %w", err)
		}
		w.cleanUp = append(w.cleanUp, s.Close)
		w.redis = s.Addr()
	} else if err := ping(ctx, w.redis); err != nil {
		return nil, fmt.Errorf("-redis %s: %w; want the host:port of a running Redis", w.redis, err)
	}
	if w.db == "" {
		dir, err := os.MkdirTemp("", "hotkey-")
		if err != nil {
			return nil, err
		}
		w.cleanUp = append(w.cleanUp, func() { _ = os.RemoveAll(dir) })
		w.db = filepath.Join(dir, "products.db")
	}
	if err := prepare(ctx, w.db); err != nil {
		return nil, fmt.Errorf("-db %s: %w; want an SQLite file or a Postgres database that can be written", redacted(w.db), err)
	}
	return w, nil
}

func (w *world) close() {
	for _, f := range w.cleanUp {
		f()
	}
}

// job is the work of the instances of a phase. Each has Redis keys of its own,
// which expire by themselves.
func (w *world) job(c config, phase string) job {
	return job{
		Phase: phase, Redis: w.redis, DB: w.db, Namespace: fmt.Sprintf("hotkey-%016x", rand.Uint64()),
		Instances: c.instances, Callers: c.callers, TTL: c.ttl, Load: c.load, Duration: c.duration,
	}
}

func ping(ctx context.Context, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	return rdb.Ping(ctx).Err()
}
