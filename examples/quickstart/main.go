// Command quickstart is a small service with herdgate in it: products from a SQL
// database over HTTP, cached in Redis. service.go is the part to copy; this file
// starts what a real service has anyway. Both Redis and the database are embedded
// unless -redis names a server.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/herdgate/herdgate"
)

// drainTime is how long requests and loads that run may take when the service ends.
const drainTime = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, and says on out where.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("quickstart", flag.ExitOnError)
	addr := flags.String("addr", "127.0.0.1:8080", "`host:port` to serve on")
	redisAddr := flags.String("redis", "", "`host:port` of a Redis server (default: one embedded in this program)")
	_ = flags.Parse(args) // it exits on errors
	if *redisAddr == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			return fmt.Errorf("start the embedded Redis: %w", err)
		}
		defer embedded.Close()
		embedded.ClockTTL(true)
		*redisAddr = embedded.Addr()
	}
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()

	rdb := redis.NewClient(&redis.Options{Addr: *redisAddr, ContextTimeoutEnabled: true})
	defer func() { _ = rdb.Close() }()
	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "quickstart"})
	if err != nil {
		return err
	}
	// ctx is over by then; what is left to do gets a moment all the same.
	defer func() { err = errors.Join(err, gate.Close(context.WithoutCancel(ctx))) }()
	s, err := newService(gate, db)
	if err != nil {
		return err
	}
	return serve(ctx, *addr, s, out)
}

func serve(ctx context.Context, addr string, s *service, out io.Writer) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("-addr %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /products/{id}", s.get)
	mux.HandleFunc("PUT /products/{id}/name", s.rename)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(s.products.Stats())
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	_, _ = fmt.Fprintf(out, "serving http://%s/products/1\n", listener.Addr())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err = server.Shutdown(drain)
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

// openDatabase makes a database in memory, with three products.
func openDatabase(ctx context.Context) (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection to ":memory:" has a database of its own
	_, err = db.ExecContext(ctx, `
		CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price_cents INTEGER NOT NULL);
		INSERT INTO products VALUES (1, 'Kettle', 2900), (2, 'Teapot', 3400), (3, 'Cup', 650)`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}
