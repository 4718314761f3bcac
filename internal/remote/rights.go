package remote

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// DeniedError says what the server does not let this client do.
type DeniedError struct {
	Missing []string // as an ACL rule grants it: "+get", "~shop:*", "&shop:*"
	Err     error    // what the server has said of the first
}

// Error implements error.
func (e *DeniedError) Error() string {
	missing := strings.Join(e.Missing, " ")
	return "its user lacks " + missing + " (ACL SETUSER <name> " + missing + " grants it; docs/acl.md has all that is needed): " + e.Err.Error()
}

// Unwrap returns Err.
func (e *DeniedError) Unwrap() error { return e.Err }

// Rejected reports whether the server has answered that it will not serve this client,
// which no retry changes.
func Rejected(err error) bool {
	if _, denied := errors.AsType[*DeniedError](err); denied {
		return true
	}
	answer, ok := errors.AsType[redis.Error](err)
	return ok && (denies(answer.Error()) || slices.ContainsFunc([]string{"NOAUTH ", "WRONGPASS ", "DENIED ", "ERR AUTH "}, func(prefix string) bool {
		return strings.HasPrefix(answer.Error(), prefix)
	}))
}

// denies reports whether the text of an error says that a right is missing, or a command.
func denies(text string) bool {
	return slices.ContainsFunc([]string{
		"NOPERM ",
		"The user executing the script ", // inside a script, up to Redis 7.0
		"unknown command ",
		"Unknown Redis command ", // inside a script
	}, func(part string) bool { return strings.Contains(text, part) })
}

// lacking collects what is missing.
type lacking struct{ denied DeniedError }

// note takes down what err says is missing, if it does: the command, or what a rule
// grants that has these patterns of keys or channels.
func (l *lacking) note(err error, command, keys, channels string) {
	if err == nil || !denies(err.Error()) {
		return
	}
	missing := "+" + command
	switch text := err.Error(); {
	case strings.Contains(text, " to run "), strings.Contains(text, " can't run "): // the name of a user or key may follow
	case strings.Contains(text, " channel"):
		missing = "&" + channels
	case strings.Contains(text, " key"):
		missing = "~" + keys
	}
	if l.denied.Err == nil {
		l.denied.Err = err
	}
	if !slices.Contains(l.denied.Missing, missing) {
		l.denied.Missing = append(l.denied.Missing, missing)
	}
}

// or is what is missing as an error, and otherwise err.
func (l *lacking) or(err error) error {
	if l.denied.Err == nil {
		return err
	}
	return &l.denied
}

// denied is err, as a *DeniedError if it says that the command is not allowed.
func (s *Store) denied(err error, command string) error {
	var l lacking
	l.note(err, command, s.namespace+":*", s.namespace+":*")
	return l.or(err)
}

// nothing is a script for which it counts whether it may run with a key: a server looks
// at that first.
const nothing = "return 0"

// CheckRights tries the commands that the store sends, on one key of each master, in one
// step. A *DeniedError names those that the server denies; any other error says nothing
// of the rights. SUBSCRIBE is left to the [Bus], which has a connection for it.
func (s *Store) CheckRights(ctx context.Context) error {
	all := s.namespace + ":*"
	var l lacking
	_, err := guarded(ctx, route{breaker: &s.server}, ordinary, func(ctx context.Context) (struct{}, error) {
		keys, err := s.keyOfEach(ctx)
		if err != nil {
			return struct{}{}, err
		}
		verb, what := "eval", s.rights.source
		if hash := s.rights.hash.Load(); hash != nil {
			verb, what = "evalsha", *hash
		}
		info := ""
		if s.watchesMasters {
			info = "info"
		}
		pipe := s.rdb.Pipeline()
		tried, whole := make([]*redis.Cmd, len(keys)), make([]*redis.Cmd, len(keys))
		for i, key := range keys {
			tried[i] = evalCmd(ctx, verb, what, []string{key}, []any{s.beats(), heartbeat, info})
			whole[i] = evalCmd(ctx, "eval", nothing, []string{key}, nil)
			_, _ = pipe.Process(ctx, tried[i]), pipe.Process(ctx, whole[i]) // only put into the pipeline
		}
		var wait *redis.Cmd // no script may send it
		if s.replicas > 0 {
			wait = pipe.Do(ctx, "wait", 0, 1)
		}
		_, failed := pipe.Exec(ctx)
		if wait != nil {
			l.note(wait.Err(), "wait", all, all)
		}
		for i := range keys {
			l.note(tried[i].Err(), verb, all, all)
			l.note(whole[i].Err(), "eval", all, all)
			pairs, _ := tried[i].StringSlice()
			for pair := range slices.Chunk(pairs, 2) {
				l.note(errors.New(pair[1]), pair[0], all, all)
			}
		}
		return struct{}{}, failed
	})
	return l.or(err)
}

// Sharded reports whether the keys are on several servers of a Cluster, and the client is
// none that follows them. Where nothing is sharded it takes one command to tell: a server
// that is no part of a Cluster takes keys of different slots.
func (s *Store) Sharded(ctx context.Context) bool {
	if _, ok := s.rdb.(*redis.ClusterClient); ok {
		return false
	}
	sharded, _ := guarded(ctx, route{breaker: &s.server}, ordinary, func(ctx context.Context) (bool, error) {
		keys := make([]string, 100) // of slots all over their range
		for i := range keys {
			keys[i] = s.probeKey(strconv.Itoa(i))
		}
		err := s.rdb.Process(ctx, evalCmd(ctx, "eval", nothing, keys[:2], nil))
		if !crossesSlots(err) {
			return false, err
		}
		pipe := s.rdb.Pipeline()
		for _, key := range keys {
			_ = pipe.Process(ctx, evalCmd(ctx, "eval", nothing, []string{key}, nil)) // only puts it into the pipeline
		}
		tried, err := pipe.Exec(ctx)
		// A replica names the master of each: a Cluster may have only one.
		owners := map[string]bool{}
		for _, cmd := range tried {
			if addr, moved := redis.IsMovedError(cmd.Err()); moved || cmd.Err() == nil {
				owners[addr] = true
			}
		}
		return len(owners) > 1, err
	})
	return sharded
}

// CheckKeys tries whether scripts may use the keys of a cache, in one step; those of its
// tags, too, if it is tagged. Errors are as those of CheckRights.
func (s *Store) CheckKeys(ctx context.Context, cache string, tagged bool) error { //nolint:revive // tagged is a property of the cache, not a way to work
	v := s.Keys(cache, "").V
	names := []string{v, s.Keys(cache, "").B(), s.probeKey(v), s.generationKey(cache)}
	patterns := []string{s.pattern("v", cache), s.pattern("b", cache), s.pattern("p", cache), s.generationKey(cache)}
	if tagged {
		sequence := s.tagKeys(cache, nil)[0]
		names, patterns = append(names, sequence), append(patterns, sequence+"*")
	}
	var l lacking
	_, err := guarded(ctx, s.route(ctx, v), ordinary, func(ctx context.Context) (struct{}, error) {
		pipe := s.rdb.Pipeline()
		tried := make([]*redis.Cmd, len(names))
		for i, name := range names {
			tried[i] = evalCmd(ctx, "eval", nothing, []string{name}, nil)
			_ = pipe.Process(ctx, tried[i]) // only puts it into the pipeline
		}
		_, failed := pipe.Exec(ctx)
		for i := range names {
			l.note(tried[i].Err(), "eval", patterns[i], "")
		}
		return struct{}{}, failed
	})
	return l.or(err)
}

func (s *Store) pattern(kind, cache string) string {
	return s.namespace + ":" + kind + ":" + cache + ":*"
}

// keyOfEach is a key that is never written for each master.
func (s *Store) keyOfEach(ctx context.Context) ([]string, error) {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return []string{s.probeKey("")}, nil
	}
	var mu sync.Mutex
	without := map[string]bool{} // the addresses of masters that have no key yet
	err := cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		without[master.Options().Addr] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	var keys []string
	// So many tries find each master that has a fair share of the slots. One that has none
	// gets no key.
	for i := range 32 * len(without) {
		key := s.probeKey(strconv.Itoa(i))
		master, err := cluster.MasterForKey(ctx, key)
		if err == nil && without[master.Options().Addr] {
			delete(without, master.Options().Addr)
			keys = append(keys, key)
		}
	}
	return keys, nil
}
