// Package stores opens what the examples of locks keep things in, a SQL database and a Redis, and counts what is sent
// to them. Both are embedded unless flags name others.
package stores

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/examples/internal/embedded"
)

// Config says which stores are meant. Zero values stand for the embedded ones.
type Config struct {
	Redis string // host:port
	DB    string // SQLite, Postgres or MySQL; empty for SQLite
	DSN   string // a file for SQLite, else what the driver takes
}

// Flags makes the fields of c flags of a program.
func (c *Config) Flags(flags *flag.FlagSet) {
	flags.StringVar(&c.Redis, "redis", "", "`host:port` of a Redis server (default: one embedded in this program)")
	flags.StringVar(&c.DB, "db", SQLite, "the database: `sqlite`, postgres or mysql")
	flags.StringVar(&c.DSN, "dsn", "", "where it is: a `file`, postgres://user:password@host/database or user:password@tcp(host:3306)/database (default: a temporary SQLite file)")
}

// Check names each flag that cannot be used, and what would be right.
func (c *Config) Check() error {
	var faults []error
	if _, _, err := net.SplitHostPort(c.Redis); c.Redis != "" && err != nil {
		faults = append(faults, fmt.Errorf("-redis is %q, want host:port, as in 127.0.0.1:6379", c.Redis))
	}
	switch c.DB {
	case "", SQLite:
		if strings.ContainsAny(c.DSN, ":@") {
			faults = append(faults, errors.New("-dsn is no plain file name, want -db postgres or -db mysql beside it"))
		}
	case Postgres, MySQL:
		if c.DSN == "" {
			faults = append(faults, fmt.Errorf("-dsn is empty, want the address of the %s of -db", c.DB))
		}
	default:
		faults = append(faults, fmt.Errorf("-db is %q, want %s, %s or %s", c.DB, SQLite, Postgres, MySQL))
	}
	return errors.Join(faults...)
}

// Stores are open. Close ends them.
type Stores struct {
	// Config opens the same stores in another process, as long as these are open.
	Config Config
	DB     *DB
	Redis  *redis.Client

	commands atomic.Int64
	cleanUp  []func()
}

// Open starts what is to be embedded, and connects: with so many connections to the database, of which Postgres allows
// 100 by default.
func (c *Config) Open(ctx context.Context, connections int) (_ *Stores, err error) {
	s := &Stores{Config: *c}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if c.DB == "" {
		s.Config.DB = SQLite
	}
	if s.Config.Redis == "" {
		server, err := embedded.StartRedis()
		if err != nil {
			return nil, fmt.Errorf("start the embedded Redis: %w", err)
		}
		s.cleanUp = append(s.cleanUp, server.Close)
		s.Config.Redis = server.Addr()
	}
	if s.Config.DSN == "" {
		dir, err := os.MkdirTemp("", "herdgate-example-")
		if err != nil {
			return nil, err
		}
		s.cleanUp = append(s.cleanUp, func() { _ = os.RemoveAll(dir) })
		s.Config.DSN = filepath.Join(dir, "example.db")
	}

	s.Redis = redis.NewClient(&redis.Options{Addr: s.Config.Redis, ContextTimeoutEnabled: true})
	s.cleanUp = append(s.cleanUp, func() { _ = s.Redis.Close() })
	s.Redis.AddHook(commandHook{&s.commands})
	if err := s.Redis.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("-redis %s: %w; want the host:port of a running Redis", s.Config.Redis, err)
	}
	if s.DB, err = openDB(s.Config.DB, s.Config.DSN, connections); err == nil {
		s.cleanUp = append(s.cleanUp, func() { _ = s.DB.pool.Close() })
		err = s.DB.connect(ctx, connections)
	}
	if err != nil {
		return nil, fmt.Errorf("-dsn: %w; want a %s that can be written", err, s.Config.DB)
	}
	return s, nil
}

// Close ends what Open began, the last first.
func (s *Stores) Close() {
	for i := range s.cleanUp {
		s.cleanUp[len(s.cleanUp)-1-i]()
	}
}

// Sent is how many statements and commands were sent until now: each one is a round trip. Those that set up
// connections, subscriptions and scripts are left out.
func (s *Stores) Sent() (statements, commands int64) { return s.DB.sent.Load(), s.commands.Load() }

// commandHook counts the commands that a client sends.
type commandHook struct{ sent *atomic.Int64 }

// DialHook implements redis.Hook.
func (commandHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h commandHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.count(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h commandHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.count(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h commandHook) count(cmd redis.Cmder) {
	switch cmd.Name() {
	case "hello", "auth", "select", "client", "ping", "subscribe", "unsubscribe", "script":
		return
	}
	h.sent.Add(1)
}
