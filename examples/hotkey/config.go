package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/herdgate/herdgate/examples/internal/cli"
)

// config is what the command line asks for.
type config struct {
	redis     string // "" for the embedded server
	db        string // an SQLite file or a postgres:// URL; "" for a temporary SQLite file
	instances int
	callers   int
	ttl       time.Duration
	load      time.Duration
	duration  time.Duration
	json      bool
	metrics   string // host:port to serve the instances' metrics at; "" for nowhere
	out       string // "" for no report
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	err := cli.Parse("hotkey", args, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&c.redis, "redis", "", "`host:port` of a Redis server (default: one embedded in this program)")
		flags.StringVar(&c.db, "db", "", "SQLite `file`, or postgres://user:password@host/database (default: a temporary SQLite file)")
		flags.IntVar(&c.instances, "instances", 8, "operating-system processes of the service")
		flags.IntVar(&c.callers, "callers", 50, "concurrent callers in each of them")
		flags.DurationVar(&c.ttl, "ttl", time.Second, "how long a cached value is fresh")
		flags.DurationVar(&c.load, "load", 100*time.Millisecond, "how long a database query takes")
		flags.DurationVar(&c.duration, "duration", 8*time.Second, "measured time of each of the two phases")
		flags.BoolVar(&c.json, "json", false, "print one JSON object instead of the table")
		flags.StringVar(&c.metrics, "metrics", "", "serve the metrics of the herdgate instances at http://`host:port`/metrics while they run, and print their sums")
		flags.StringVar(&c.out, "out", "", "write a report with charts to this HTML `file`")
	})
	if err != nil {
		return config{}, err
	}
	return c, c.check()
}

// check names each flag that cannot be used, and what would be right.
func (c config) check() error {
	var faults []error
	fault := func(flagName string, value any, want string) {
		faults = append(faults, fmt.Errorf("-%s is %v, want %s", flagName, value, want))
	}
	within := func(flagName string, d, least, most time.Duration) {
		if d < least || d > most || d%time.Millisecond != 0 {
			fault(flagName, d, fmt.Sprintf("whole milliseconds from %v to %v", least, most))
		}
	}
	if _, _, err := net.SplitHostPort(c.redis); c.redis != "" && err != nil {
		fault("redis", fmt.Sprintf("%q", c.redis), "host:port, as in 127.0.0.1:6379")
	}
	if _, _, err := net.SplitHostPort(c.metrics); c.metrics != "" && err != nil {
		fault("metrics", fmt.Sprintf("%q", c.metrics), "host:port, as in 127.0.0.1:9100")
	}
	if strings.Contains(c.db, "://") && !isPostgres(c.db) {
		fault("db", redacted(c.db), "a file, or a URL that begins with postgres://")
	}
	if c.instances < 1 || c.instances > 64 {
		fault("instances", c.instances, "a number from 1 to 64")
	}
	if c.callers < 1 || c.callers > 1000 {
		fault("callers", c.callers, "a number from 1 to 1000")
	}
	within("ttl", c.ttl, 100*time.Millisecond, time.Minute)
	within("load", c.load, time.Millisecond, 5*time.Second)
	within("duration", c.duration, max(c.ttl, time.Second), 10*time.Minute)
	if c.out != "" {
		if dir := filepath.Dir(c.out); !isDir(dir) {
			fault("out", fmt.Sprintf("%q", c.out), fmt.Sprintf("a file in a directory that exists; %q does not", dir))
		} else if isDir(c.out) {
			fault("out", fmt.Sprintf("%q", c.out), "a file, not a directory")
		}
	}
	return errors.Join(faults...)
}

// redacted is a -db as it may be shown: without its password.
func redacted(db string) string {
	if u, err := url.Parse(db); err == nil && u.Host != "" {
		return u.Redacted()
	}
	if strings.Contains(db, "://") {
		return "no valid URL"
	}
	return strconv.Quote(db)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
