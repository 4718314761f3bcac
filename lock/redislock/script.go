package redislock

import (
	"context"
	_ "embed"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

//go:embed acquire.lua
var acquireSource string

//go:embed vote.lua
var voteSource string

//go:embed renew.lua
var renewSource string

//go:embed release.lua
var releaseSource string

// script is a Lua script, and its hash once a server, any server, has told it. It is not computed here, because SHA-1
// panics where only FIPS 140 algorithms are allowed.
type script struct {
	source string
	hash   atomic.Pointer[string]
}

// sender sends one command.
type sender func(context.Context, *redis.Cmd) error

// run sends the script by its hash, and whole to a server that has not seen it.
func (s *script) run(ctx context.Context, send sender, keys []string, args ...any) *redis.Cmd {
	hash := s.hash.Load()
	if hash == nil {
		load := redis.NewCmd(ctx, "script", "load", s.source)
		_ = send(ctx, load) // load keeps the error
		if loaded, err := load.Text(); err == nil {
			hash = &loaded
			s.hash.Store(hash)
		}
	}
	if hash != nil {
		cmd := command(ctx, "evalsha", *hash, keys, args)
		if err := send(ctx, cmd); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
			return cmd
		}
	}
	cmd := command(ctx, "eval", s.source, keys, args)
	_ = send(ctx, cmd) // cmd keeps the error
	return cmd
}

func command(ctx context.Context, verb, what string, keys []string, args []any) *redis.Cmd {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, verb, what, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	return redis.NewCmd(ctx, append(words, args...)...)
}

// once sends a command that go-redis does not send again by itself when the reply is lost.
func once(client redis.UniversalClient) sender {
	return func(ctx context.Context, cmd *redis.Cmd) error {
		return client.Process(ctx, onceCmd{cmd})
	}
}

// again sends a command that may be sent again, because a second time changes nothing.
func again(client redis.UniversalClient) sender {
	return func(ctx context.Context, cmd *redis.Cmd) error {
		return client.Process(ctx, cmd)
	}
}

type onceCmd struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (onceCmd) NoRetry() bool { return true }
