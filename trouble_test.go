package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// trouble is a real server that answers with errors.
type trouble struct {
	answer string   // begins that of a GET, or of a SET if reads go on
	reads  bool     // go on
	down   bool     // it counts as down: nothing is sent but probes
	args   []string // of the server

	begin, end func(t *testing.T, server *testutil.Redis, direct *redis.Client)
}

// do sends commands that must succeed, in order, each as words.
func do(commands ...string) func(*testing.T, *testutil.Redis, *redis.Client) {
	return func(t *testing.T, _ *testutil.Redis, direct *redis.Client) {
		t.Helper()
		for _, line := range commands {
			var args []any
			for word := range strings.SplitSeq(line, " ") { // an empty word is one, too
				args = append(args, word)
			}
			if err := direct.Do(t.Context(), args...).Err(); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
}

// troubles are by the code of the error, as docs/operations.md has them.
func troubles() map[string]trouble {
	return map[string]trouble{
		"BUSY": {
			answer: "BUSY", down: true, args: []string{"--lua-time-limit", "20"},
			begin: func(t *testing.T, server *testutil.Redis, _ *redis.Client) {
				t.Helper()
				stuck := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = -1, -1 })
				var script sync.WaitGroup
				script.Go(func() { _ = stuck.Eval(context.WithoutCancel(t.Context()), "while true do end", nil).Err() })
				t.Cleanup(func() { // also if nobody has killed the script
					_ = stuck.Close()
					script.Wait()
				})
			},
			end: do("SCRIPT KILL"),
		},
		"LOADING": {
			answer: "LOADING", down: true, args: []string{"--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"},
			begin: func(t *testing.T, server *testutil.Redis, direct *redis.Client) {
				t.Helper()
				const fill = "for i = 1, 4000 do redis.call('SET', 'much' .. i, string.rep('x', 200)) end"
				if err := errors.Join(direct.Eval(t.Context(), fill, nil).Err(), direct.Save(t.Context()).Err()); err != nil && !errors.Is(err, redis.Nil) {
					t.Fatal(err)
				}
				server.Restart()
			},
			end: func(t *testing.T, _ *testutil.Redis, direct *redis.Client) {
				t.Helper()
				testutil.Eventually(t, topologyPatience, func() bool { return direct.Get(t.Context(), "much1").Err() == nil }, "it is loaded")
			},
		},
		"MASTERDOWN": {
			answer: "MASTERDOWN", down: true,
			begin: do("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"),
			end:   do("REPLICAOF NO ONE"),
		},
		"READONLY": {
			answer: "READONLY", reads: true, down: true,
			begin: do("REPLICAOF 127.0.0.1 1"),
			end:   do("REPLICAOF NO ONE"),
		},
		"NOAUTH": {
			answer: "NOAUTH", down: true,
			begin: do("CONFIG SET requirepass secret", "CLIENT KILL TYPE pubsub", "CLIENT KILL TYPE normal SKIPME yes"),
			end:   do("CONFIG SET requirepass "),
		},
		"OOM": {
			answer: "OOM", reads: true,
			begin: do("CONFIG SET maxmemory 1"),
			end:   do("CONFIG SET maxmemory 0"),
		},
		"NOREPLICAS": {
			answer: "NOREPLICAS", reads: true, down: true,
			begin: do("CONFIG SET min-replicas-to-write 1"),
			end:   do("CONFIG SET min-replicas-to-write 0"),
		},
		"MISCONF": {
			answer: "MISCONF", reads: true, down: true,
			begin: func(t *testing.T, server *testutil.Redis, direct *redis.Client) {
				t.Helper()
				dir := direct.ConfigGet(t.Context(), "dir").Val()["dir"]
				if err := os.Mkdir(filepath.Join(dir, "dump.rdb"), 0o700); err != nil { // where the snapshot is to be
					t.Fatal(err)
				}
				if err := errors.Join(direct.ConfigSet(t.Context(), "save", "3600 1").Err(), direct.BgSave(t.Context()).Err()); err != nil {
					t.Fatal(err)
				}
			},
			end: do("CONFIG SET stop-writes-on-bgsave-error no"),
		},
		"NOPERM": {
			answer: "NOPERM",
			begin:  do("ACL SETUSER gate nocommands"),
			end:    do("ACL SETUSER gate allcommands"),
		},
	}
}

func TestWhateverErrorRedisAnswersWithValuesAreServed(t *testing.T) { // I6
	t.Parallel()
	for name, tr := range troubles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testutil.StartRedis(t, tr.args...)
			// Without retries, so that it shows what the server answers; one connection, that no password is asked of.
			direct := server.Client(t, func(o *redis.Options) { o.PoolSize, o.MaxRetries = 1, -1 })
			as := func(*redis.Options) {}
			if name == "NOPERM" {
				restrict(t, server, aclRules)
				as = asRestricted
			}
			const most = 4
			g := openGate(t, herdgate.Options{Redis: server.Client(t, as), Namespace: "test", MaxLoads: most})
			other := openGate(t, herdgate.Options{Redis: server.Client(t, as), Namespace: "test"})
			o := newOrigin(5 * time.Millisecond)
			c, otherCache := newCache(t, g, o.load, herdgate.Policy{TTL: time.Hour}), newCache(t, other, newOrigin(0).load, herdgate.Policy{TTL: time.Hour})
			get(t, c, "before")

			tr.begin(t, server, direct)
			probe := server.Client(t, as, func(o *redis.Options) { o.MaxRetries = -1 })
			testutil.Eventually(t, topologyPatience, func() bool {
				err := probe.Get(t.Context(), "test:none").Err()
				if tr.reads {
					err = probe.Set(t.Context(), "test:none", "", time.Second).Err()
				}
				return err != nil && strings.HasPrefix(err.Error(), tr.answer)
			}, "the server answers with "+tr.answer)

			const keys = 20
			calls := func() {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), topologyPatience)
				defer cancel()
				var callers sync.WaitGroup
				for i := range 3 * keys {
					callers.Go(func() {
						key := fmt.Sprint("key", i%keys)
						if v, err := c.Get(ctx, key); err != nil || !strings.HasPrefix(v, key+"#") {
							t.Errorf("%s is %q, %v", key, v, err)
						}
					})
				}
				callers.Wait()
			}
			calls()
			if tr.down {
				findsDown(t, g, c)
			}
			calls()
			if v := get(t, c, "before"); v != "before#1" {
				t.Errorf("what was there before is %q", v)
			}
			switch err := c.Delete(t.Context(), "gone"); {
			case errors.Is(err, herdgate.ErrJournaled) != tr.down:
				t.Errorf("a delete: %v", err)
			case name == "NOPERM" && err == nil, name == "OOM" && err != nil:
				t.Errorf("a delete: %v", err)
			}
			if n := o.loads.Load(); n != 1+keys {
				t.Errorf("%d loads of %d keys", n, 1+keys)
			}
			if n := o.most.Load(); n > most {
				t.Errorf("%d loads at once", n)
			}
			if g.RedisUp() == tr.down {
				t.Errorf("up: %v", g.RedisUp())
			}

			tr.end(t, server, direct)
			untilShared(t, c, otherCache)
			testutil.Eventually(t, topologyPatience, func() bool {
				s := c.Stats()
				return g.RedisUp() && g.Connected() && s.Replayed >= s.Journaled
			}, "all is well, and the delete is made")
		})
	}
}

// Two masters each say that the other one has a slot.
func TestASlotThatNobodyHasIsOutAndTheOthersAreNot(t *testing.T) { // I6
	t.Parallel()
	cluster := testutil.StartCluster(t)
	slot, err := cluster.Nodes[0].Client(t).ClusterKeySlot(t.Context(), entryKey).Result()
	if err != nil {
		t.Fatal(err)
	}
	var owner, other *redis.Client
	for _, node := range cluster.Nodes {
		client := node.Client(t)
		if moved := client.Get(t.Context(), entryKey).Err(); errors.Is(moved, redis.Nil) {
			owner = client
		} else {
			other = client
		}
	}
	assign := func(to *redis.Client) {
		t.Helper()
		id, err := to.ClusterMyID(t.Context()).Result()
		if err == nil {
			err = owner.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", id).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	o := newOrigin(time.Millisecond)
	g := openGate(t, herdgate.Options{Redis: cluster.Client(t), Namespace: "test"})
	c := newCache(t, g, o.load, herdgate.Policy{TTL: time.Hour, LocalTTL: herdgate.Off})
	get(t, c, "elsewhere")
	assign(other)
	for _, client := range []*redis.Client{owner, other} {
		if err := client.Get(t.Context(), entryKey).Err(); err == nil || !strings.HasPrefix(err.Error(), "MOVED") {
			t.Fatalf("%v is answered", err)
		}
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), topologyPatience)
		if v, err := c.Get(ctx, "k"); err != nil || !strings.HasPrefix(v, "k#") {
			t.Errorf("got %q, %v", v, err)
		}
		cancel()
		if r, err := c.Lookup(t.Context(), "elsewhere"); err != nil || r.Outcome != herdgate.OutcomeRemote {
			t.Errorf("in a slot that is well: %+v, %v", r, err)
		}
	}
	if n := o.loads.Load(); n != 2 {
		t.Errorf("%d loads of two keys", n)
	}
	assign(owner)
	testutil.Eventually(t, topologyPatience, func() bool {
		r, err := c.Lookup(t.Context(), "k")
		return err == nil && r.Outcome == herdgate.OutcomeRemote
	}, "the slot is used again")
}
