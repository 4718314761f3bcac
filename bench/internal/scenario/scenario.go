// Package scenario holds what the suite measures; a file is a scenario. Each variant
// of a scenario by a peer runs on redis-servers and worker processes of its own, or,
// where what is looked for is a matter of protocol and not of the machine, in virtual
// time.
package scenario

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
)

// Scenario is one of them.
type Scenario struct {
	Name     string
	About    string // what runs
	Variants func(o Options) []string
	// Unfit says why a peer cannot run a variant; "" if it can.
	Unfit func(t peer.Tiers, variant string) string
	// Limit bounds one run of one variant by one peer.
	Limit time.Duration
	Run   func(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error)
	// Compare adds the figures that come from several variants of one peer in one
	// run; nil if there are none.
	Compare func(variants map[string]result.Figures)
}

// Options are what a user can set for the scenarios.
type Options struct {
	Instances int  // the largest fleet
	Small     bool // tiny sizes, to try the suite itself
}

// Env is what a run gets.
type Env struct {
	Options

	Stderr io.Writer // of the processes that it starts
}

// All are the scenarios in the order of the report.
func All() []Scenario {
	return []Scenario{
		local(), remote(), batch(), stampede(), expiry(), wave(), redisDown(), deleteRace(), holderDeath(), fleet(),
	}
}

// Choose returns the scenario of a name, or all.
func Choose(name string) ([]Scenario, error) {
	var names []string
	for _, s := range All() {
		if s.Name == name {
			return []Scenario{s}, nil
		}
		names = append(names, s.Name)
	}
	if name == "all" {
		return All(), nil
	}
	return nil, fmt.Errorf("no scenario %q; want one of %s, or all", name, strings.Join(names, ", "))
}

// fixed is Variants of a scenario whose variants depend on nothing.
func fixed(names ...string) func(Options) []string {
	return func(Options) []string { return names }
}

// pick returns small when the sizes are tiny.
func pick[T any](o Options, usual, small T) T {
	if o.Small {
		return small
	}
	return usual
}

func anyRedis(t peer.Tiers, _ string) string {
	if !t.Redis {
		return "it has no tier in Redis"
	}
	return ""
}

// tiers is Unfit of the variants l1 (memory and Redis) and remote (Redis alone).
func tiers(t peer.Tiers, variant string) string {
	switch {
	case !t.Redis:
		return "it has no tier in Redis"
	case variant == "l1" && !t.Memory:
		return "it keeps nothing in the process"
	case variant == "remote" && !t.RedisOnly:
		return "it always keeps values in the process"
	}
	return ""
}

func virtual(t peer.Tiers, _ string) string {
	if !t.Virtual {
		return "it cannot run in virtual time"
	}
	return ""
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
