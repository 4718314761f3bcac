package rig

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Commands counts what a client sends, and remembers how it went. It is a
// [redis.Hook]; the zero value is ready.
type Commands struct {
	mu       sync.Mutex
	counts   Counts    // protected by mu
	underWay int       // calls, a pipeline being one; protected by mu
	since    time.Time // of the first command that succeeded after the last that failed; protected by mu
}

// Counts are the commands of a client, without the set-up of connections,
// subscriptions and scripts.
type Counts struct {
	Calls      int64 // that some request has caused
	Heartbeats int64 // what a gate sends by the clock
	RoundTrips int64 // times that a call was sent while none was under way
}

// Sub returns c - o.
func (c Counts) Sub(o Counts) Counts {
	return Counts{c.Calls - o.Calls, c.Heartbeats - o.Heartbeats, c.RoundTrips - o.RoundTrips}
}

// Counts returns what has been sent so far.
func (c *Commands) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// WellSince is when commands began to succeed after the last failure; zero if the last
// one failed.
func (c *Commands) WellSince() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since
}

// kindOf says what a command counts as.
func kindOf(cmd redis.Cmder) (counted, heartbeat bool) {
	name := cmd.Name()
	switch {
	case setUp(name):
		return false, false
	case name == "publish" && cmd.Args()[len(cmd.Args())-1] == "H":
		return false, true
	case name == "get" && ofGeneration(cmd.Args()[1]), name == "evalsha" && readsGeneration(cmd.Args()):
		return false, true
	}
	return true, false
}

// readsGeneration reports whether a script with these arguments is the one that reads
// a cache's generation where there may be none yet.
func readsGeneration(args []any) bool {
	return len(args) > 4 && ofGeneration(args[3]) && args[4] == "read"
}

// ofGeneration reports whether a key is that of a cache's generation, which gates ask
// for by the clock.
func ofGeneration(key any) bool {
	name, _ := key.(string)
	_, rest, _ := strings.Cut(name, ":")
	return strings.HasPrefix(rest, "g:")
}

func isCall(cmd redis.Cmder) bool {
	counted, _ := kindOf(cmd)
	return counted
}

func (c *Commands) sent(cmds []redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		switch counted, heartbeat := kindOf(cmd); {
		case counted:
			c.counts.Calls++
		case heartbeat:
			c.counts.Heartbeats++
		}
	}
	if slices.ContainsFunc(cmds, isCall) {
		if c.underWay == 0 {
			c.counts.RoundTrips++
		}
		c.underWay++
	}
}

// answered notes how a request went; err is that of the whole, which a command does
// not know yet while hooks run.
func (c *Commands) answered(cmds []redis.Cmder, err error) {
	_, answer := errors.AsType[redis.Error](err)
	failed := err != nil && !answer
	called := slices.ContainsFunc(cmds, isCall)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if called {
		c.underWay--
	}
	for _, cmd := range cmds {
		counted, _ := kindOf(cmd)
		if !counted || cmd.Name() == "time" { // only what touches entries tells that they are used again
			continue
		}
		if failed {
			c.since = time.Time{}
		} else if c.since.IsZero() {
			c.since = now
		}
	}
}

// DialHook implements redis.Hook.
func (*Commands) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (c *Commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		one := [...]redis.Cmder{cmd}
		c.sent(one[:])
		err := next(ctx, cmd)
		c.answered(one[:], err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *Commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.sent(cmds)
		err := next(ctx, cmds)
		c.answered(cmds, err)
		return err
	}
}
