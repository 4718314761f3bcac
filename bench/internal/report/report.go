// Package report writes what a run of the suite gave: a page with charts that loads
// nothing from anywhere, and tables in Markdown.
package report

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
)

// Run is a run of the suite.
type Run struct {
	Command string
	Began   time.Time
	Took    time.Duration
	Runs    int
	Machine string   // processor, memory, system
	Load    string   // of the machine before the run
	Tools   []string // versions of Go, Redis and all peers

	Scenarios []Scenario
	LeftOut   []string // peers that could not be had
	Skipped   []string // what was not run, and why
	Checks    []result.Checked
}

// Scenario is what one of them gave.
type Scenario struct {
	Name, About string
	Cells       []result.Cell
}

// Describe fills in what is known of the machine and of the program.
func (r *Run) Describe(ctx context.Context) {
	r.Machine = machine()
	r.Load = firstWords("/proc/loadavg", 3)
	r.Tools = append([]string{"Go " + strings.TrimPrefix(runtime.Version(), "go"), redisVersion(ctx)}, modules()...)
}

// Medians says what a figure in the tables is.
func (r *Run) Medians() string {
	if r.Runs == 1 {
		return "Figures are of one run, where they are medians over its rounds"
	}
	return fmt.Sprintf("Figures are medians of %d runs, in brackets the least and the greatest", r.Runs)
}

// machine says what the program runs on, as far as the system tells.
func machine() string {
	parts := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if name := field("/proc/cpuinfo", "model name"); name != "" {
		parts[0] += " of " + name
	}
	if kib := field("/proc/meminfo", "MemTotal"); kib != "" {
		var n int64
		if _, err := fmt.Sscan(kib, &n); err == nil {
			parts = append(parts, fmt.Sprintf("%d GiB", (n+1<<19)>>20))
		}
	}
	return strings.Join(append(parts, runtime.GOOS+"/"+runtime.GOARCH), ", ")
}

// field returns what follows the colon of a line of a file; "" if there is none.
func field(file, name string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return "" // another system
	}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func firstWords(file string, n int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	words := strings.Fields(string(data))
	return strings.Join(words[:min(n, len(words))], " ")
}

func redisVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return "redis-server of an unknown version"
	}
	_, rest, _ := bytes.Cut(out, []byte("v="))
	version, _, _ := bytes.Cut(rest, []byte(" "))
	return "redis-server " + string(version)
}

// modules are the versions of the peers, and of what all of them use.
func modules() []string {
	wanted := map[string]bool{"github.com/redis/go-redis/v9": true, "github.com/vmihailenco/msgpack/v5": true, "github.com/alicebob/miniredis/v2": true}
	for _, k := range peer.Kinds() {
		wanted[k.Module] = true
	}
	var versions []string
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		if wanted[m.Path] {
			versions = append(versions, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
		}
	}
	return versions
}

// value is a figure of a cell: the median, and the least and the greatest of several
// runs.
func value(c result.Cell, figure string) string {
	v, ok := c.Median()[figure]
	if !ok {
		return ""
	}
	text := result.Format(v)
	if least, most := c.Spread(); len(c.Runs) > 1 && least[figure] != most[figure] {
		text += " (" + result.Format(least[figure]) + "–" + result.Format(most[figure]) + ")"
	}
	return text
}

// text is what a figure is, with its unit.
func text(name string) string {
	for _, f := range result.All() {
		if f.Name == name {
			if f.Unit != "" {
				return f.Text + " [" + f.Unit + "]"
			}
			return f.Text
		}
	}
	return name
}
