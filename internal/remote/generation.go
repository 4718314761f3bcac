package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// A generation is a number that goes into the hash of every entry of a cache: with
// another one none of the old entries matches. It only rises, so that a message or a
// command that comes twice, or late, undoes nothing. The server alone cannot see to that: a
// new master may lack the last number, and its clock may be behind.

func (s *Store) generationKey(cache string) string { return s.namespace + ":g:" + cache }

// Generation reads the generation of a cache. One that has none, or whose key was lost,
// gets one, and everybody is told.
func (s *Store) Generation(ctx context.Context, cache string) (uint64, error) {
	return s.runGeneration(ctx, cache, "read", "0", 0)
}

// Clear begins a generation of a cache, above the one that is known, and tells everybody.
// It may be sent twice. The generation comes with an error that matches ErrNotReplicated
// if too few replicas have it.
func (s *Store) Clear(ctx context.Context, cache, id string, known uint64) (uint64, error) {
	return s.runGeneration(ctx, cache, "clear", id, known)
}

// maxLeap is the most, in µs, that a number is ahead of the server's time for the sake of
// being another one than that of a master before.
const maxLeap = 1 << 16

func leapAhead() int64 { return 1 + rand.Int64N(maxLeap) }

func (s *Store) runGeneration(ctx context.Context, cache, op, id string, known uint64) (uint64, error) {
	message := "G " + s.instance + " " + id + " " + cache + " "
	return retried(ctx, s.route(ctx, s.generationKey(cache)).scripts(), ordinary, func(ctx context.Context) (uint64, error) {
		run := s.run
		if op == "clear" {
			run = s.runChange
		}
		v, err := run(ctx, s.generation, again, []string{s.generationKey(cache)}, op, s.channel, message, known, leapAhead())
		return readReply(v, err, func(v any) (uint64, error) {
			r := newReply(v)
			return uint64(r.integer(0)), r.err
		})
	})
}

// beat publishes a heartbeat on a channel and reads the generations of caches, in one
// step; those that are not there begin. Those that could not be read are 0. It is sent
// also to a server that is down: what comes back tells that it is there again. In a
// Cluster several servers have a part in it, and it says nothing of one of them.
func (s *Store) beat(ctx context.Context, channel string, caches []string) []uint64 {
	generations := make([]uint64, len(caches))
	send := func(ctx context.Context) ([]*redis.StringCmd, error) {
		pipe := s.rdb.Pipeline()
		pipe.Publish(ctx, channel, heartbeat)
		gets := make([]*redis.StringCmd, len(caches))
		for i, cache := range caches {
			gets[i] = pipe.Get(ctx, s.generationKey(cache))
		}
		_, err := pipe.Exec(ctx)
		return gets, err
	}
	var read []*redis.StringCmd
	if _, cluster := s.rdb.(*redis.ClusterClient); cluster {
		read, _ = counted(ctx, &s.server, s.timeout, send)
	} else {
		read, _ = guarded(ctx, route{breaker: &s.server}, urgent, send)
	}
	for i, get := range read {
		switch err := get.Err(); {
		case err == nil:
			generations[i], _ = strconv.ParseUint(get.Val(), 10, 64)
		case errors.Is(err, redis.Nil):
			generations[i], _ = s.Generation(ctx, caches[i])
		}
	}
	return generations
}
