package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotReplicated means that a change was made on the master, and that fewer replicas
// than were asked for have confirmed that they have it.
var ErrNotReplicated = errors.New("herdgate: a change is not on enough replicas")

// AwaitReplicas makes every change wait until so many replicas have it, 0 for none. Call
// it before the first command.
func (s *Store) AwaitReplicas(n int) { s.replicas = n }

// WatchMasters says that the [Bus] will ask who the masters are. Call it before the first
// command.
func (s *Store) WatchMasters() { s.watchesMasters = true }

type unawaitedKey struct{}

// Unawaited is a ctx for changes that wait for no replicas, whatever AwaitReplicas says:
// those that nobody waits for, and that must not be held up by a replica that is gone.
func Unawaited(ctx context.Context) context.Context {
	return context.WithValue(ctx, unawaitedKey{}, true)
}

// runChange is [script.run] of a change, followed by a WAIT where replicas are to have it:
// on the same connection, since WAIT is about what its own has written. An error that
// matches ErrNotReplicated comes with the reply.
func (s *Store) runChange(ctx context.Context, sc *script, how sends, keys []string, args ...any) (any, error) {
	if s.replicas == 0 || ctx.Value(unawaitedKey{}) != nil {
		return sc.run(ctx, s.rdb, how, keys, args...)
	}
	server := s.rdb
	if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
		// A pipeline of the Cluster's client would send the WAIT, which has no key, anywhere.
		master, err := cluster.MasterForKey(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		server = master
	}
	v, err := sc.runAwaited(ctx, server, how, s.replicas, s.replicaTime(server), keys, args)
	if err != nil && !errors.Is(err, ErrNotReplicated) && judge(err) == verdictMoving {
		// The slot is on its way to another server. The Cluster's client finds it, but
		// does not say where.
		if v, err = sc.run(ctx, s.rdb, how, keys, args...); err == nil {
			err = fmt.Errorf("%w: not asked, as the key's slot is moving", ErrNotReplicated)
		}
	}
	return v, err
}

// replicaTime is how long a change waits for replicas: so that its reply, too, is there
// before the store, or the client, gives it up.
func (s *Store) replicaTime(server redis.UniversalClient) time.Duration {
	most := s.timeout
	if client, ok := server.(*redis.Client); ok {
		if read := client.Options().ReadTimeout; read > 0 {
			most = min(most, read)
		}
	}
	return max(most/2, time.Millisecond) // WAIT takes 0 for ever
}

// runAwaited is run with a WAIT for replicas behind it.
func (sc *script) runAwaited(ctx context.Context, server redis.UniversalClient, how sends, replicas int, patience time.Duration, keys []string, args []any) (any, error) {
	try := func(verb, what string) (any, error) {
		cmd := evalCmd(ctx, verb, what, keys, args)
		var sent redis.Cmder = cmd
		if how == once {
			sent = onceCmd{cmd} // nor does the client then repeat the pipeline
		}
		wait := redis.NewIntCmd(ctx, "wait", replicas, patience.Milliseconds())
		pipe := server.Pipeline()
		_ = pipe.Process(ctx, sent) // only puts it into the pipeline
		_ = pipe.Process(ctx, wait)
		_, _ = pipe.Exec(ctx) // each command has its own error
		v, err := cmd.Result()
		switch have, unknown := wait.Result(); {
		case err != nil:
			return nil, err
		case unknown != nil:
			return v, fmt.Errorf("%w: %w", ErrNotReplicated, unknown)
		case have < int64(replicas):
			return v, fmt.Errorf("%w: %d of %d have confirmed it within %v", ErrNotReplicated, have, replicas, patience)
		}
		return v, nil
	}
	if hash := sc.hash.Load(); hash != nil {
		v, err := try("evalsha", *hash)
		if err == nil || !unknownScript(err) {
			return v, err
		}
	}
	return try("eval", sc.source)
}

// masters knows the masters by their replication ids: a server has a new one from when it
// becomes a master, be it that it was a replica or that it has started anew. It is used by
// one goroutine.
type masters struct {
	asked bool // they have answered, if only that they do not tell
	known map[string]struct{}
}

// learn takes the ids of the masters of this moment. It reports whether one of them was no
// master when they were asked last.
func (m *masters) learn(ids []string) (other bool) {
	m.asked = true
	now := make(map[string]struct{}, len(ids))
	for _, id := range ids {
		if _, known := m.known[id]; !known && len(m.known) > 0 {
			other = true
		}
		now[id] = struct{}{}
	}
	m.known = now
	return other
}

// errNoMaster is the answer of a server that has become a replica.
var errNoMaster = errors.New("herdgate: the server is no master")

// masterIDs asks all masters for their replication ids.
func (s *Store) masterIDs(ctx context.Context) ([]string, error) {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return guarded(ctx, route{breaker: &s.server}, urgent, func(ctx context.Context) ([]string, error) {
			id, err := masterID(ctx, s.rdb)
			return []string{id}, err
		})
	}
	return counted(ctx, &s.server, s.timeout, func(ctx context.Context) (ids []string, err error) {
		var mu sync.Mutex
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			id, err := masterID(ctx, master)
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, id)
			return err
		})
		return ids, err
	})
}

func masterID(ctx context.Context, server redis.Cmdable) (string, error) {
	info, err := server.Info(ctx, "replication").Result()
	if err != nil {
		return "", err
	}
	var role, id string
	for line := range strings.Lines(info) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "role":
			role = value
		case "master_replid":
			id = value
		}
	}
	if role != "master" || id == "" {
		return "", errNoMaster
	}
	return id, nil
}
