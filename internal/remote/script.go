package remote

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/prelude.lua
var preludeSource string

//go:embed scripts/acquire.lua
var acquireSource string

//go:embed scripts/renew.lua
var renewSource string

//go:embed scripts/commit.lua
var commitSource string

//go:embed scripts/finish.lua
var finishSource string

//go:embed scripts/change.lua
var changeSource string

//go:embed scripts/generation.lua
var generationSource string

//go:embed scripts/tags.lua
var tagsSource string

//go:embed scripts/rights.lua
var rightsSource string

// script is one Lua script and the hash its server gave it. The hash is not
// computed here: SHA-1 panics where only FIPS 140 algorithms are allowed.
type script struct {
	name   string
	source string
	hash   atomic.Pointer[string]
}

func newScript(name, source string) *script {
	return &script{name: name, source: preludeSource + source}
}

// load puts the script into the script cache of every master and learns its hash.
func (sc *script) load(ctx context.Context, rdb redis.UniversalClient) error {
	hash, err := rdb.ScriptLoad(ctx, sc.source).Result()
	if err != nil {
		return fmt.Errorf("load script %s: %w", sc.name, err)
	}
	sc.hash.Store(&hash)
	return nil
}

// sends says how often the client may send a command that got no reply.
type sends uint8

const (
	again sends = iota
	once
)

// run is [script.run] with the client of the store.
func (s *Store) run(ctx context.Context, sc *script, how sends, keys []string, args ...any) (any, error) {
	return sc.run(ctx, s.rdb, how, keys, args...)
}

// run sends the script by its hash, and whole where the server does not know it
// (never loaded there, SCRIPT FLUSH, failover to a fresh node): EVAL loads it too.
func (sc *script) run(ctx context.Context, rdb redis.UniversalClient, how sends, keys []string, args ...any) (any, error) {
	if hash := sc.hash.Load(); hash != nil {
		v, err := eval(ctx, rdb, how, "evalsha", *hash, keys, args)
		if err == nil || !unknownScript(err) {
			return v, err
		}
	}
	return eval(ctx, rdb, how, "eval", sc.source, keys, args)
}

func unknownScript(err error) bool { return strings.HasPrefix(err.Error(), "NOSCRIPT") }

func eval(ctx context.Context, rdb redis.UniversalClient, how sends, verb, what string, keys []string, args []any) (any, error) {
	cmd := evalCmd(ctx, verb, what, keys, args)
	var sent redis.Cmder = cmd
	if how == once {
		sent = onceCmd{cmd}
	}
	if err := rdb.Process(ctx, sent); err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

func evalCmd(ctx context.Context, verb, what string, keys []string, args []any) *redis.Cmd {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, verb, what, len(keys))
	for _, k := range keys {
		line = append(line, k)
	}
	line = append(line, args...)
	cmd := redis.NewCmd(ctx, line...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// onceCmd is a command that go-redis must not send again after a lost reply.
type onceCmd struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (onceCmd) NoRetry() bool { return true }

// scriptCall is one run of a script for one key: what is sent, and what the reply means.
type scriptCall[T any] struct {
	store  *Store
	script *script
	how    sends
	change bool     // replicas are to have it, see Store.AwaitReplicas
	keys   Keys     // they say which server
	names  []string // the KEYS of the script
	// args are the ARGV of one try; notAfter is the server time past which it must do nothing.
	args func(notAfter string) []any
	read func(v any, c *clock, sent time.Duration) (T, error)
}

// send is one try.
func (q scriptCall[T]) send(ctx context.Context) (T, error) {
	s := q.store
	clock := s.clockOf(ctx, q.keys)
	sent := clock.mono()
	run := s.run
	if q.change {
		run = s.runChange
	}
	v, err := run(ctx, q.script, q.how, q.names, q.args(s.notAfter(clock))...)
	return readReply(v, err, func(v any) (T, error) { return q.read(v, clock, sent) })
}

// readReply reads a reply that came with this error: one that matches ErrNotReplicated
// says nothing against it.
func readReply[T any](v any, err error, read func(any) (T, error)) (T, error) {
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		var zero T
		return zero, err
	}
	t, unread := read(v)
	if unread != nil {
		err = unread
	}
	return t, err
}

// timed is the read of a script whose reply is an array with the server's time as
// its second field.
func timed[T any](read func(r *reply, sent time.Time) T) func(any, *clock, time.Duration) (T, error) {
	return func(v any, c *clock, sent time.Duration) (T, error) {
		r := newReply(v)
		t, micros := read(r, c.start.Add(sent)), r.integer(1)
		if r.err != nil {
			var zero T
			return zero, r.err
		}
		c.observe(micros, sent)
		return t, nil
	}
}

// reply reads the array a script answers with.
type reply struct {
	fields []any
	err    error
}

func (r *reply) text(i int) string {
	if r.err == nil && i < len(r.fields) {
		if s, ok := r.fields[i].(string); ok {
			return s
		}
	}
	r.fail(i, "text")
	return ""
}

func (r *reply) integer(i int) int64 {
	if r.err == nil && i < len(r.fields) {
		switch v := r.fields[i].(type) {
		case int64:
			return v
		case string:
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				return n
			}
		}
	}
	r.fail(i, "an integer")
	return 0
}

func (r *reply) fail(i int, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("herdgate: unexpected script reply %v: field %d is not %s", r.fields, i, want)
	}
}

func newReply(v any) *reply {
	fields, ok := v.([]any)
	r := &reply{fields: fields}
	if !ok {
		r.err = fmt.Errorf("herdgate: unexpected script reply %v", v)
	}
	return r
}
