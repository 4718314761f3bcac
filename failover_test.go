package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// everyChange are the changes that there are, by name.
func everyChange() map[string]func(context.Context, *herdgate.Cache[string]) error {
	return map[string]func(context.Context, *herdgate.Cache[string]) error{
		"delete": func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Delete(ctx, "k") },
		"set":    func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Set(ctx, "k", "set") },
		"expire": func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Expire(ctx, "k") },
		"clear":  func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Clear(ctx) },
		"tags":   func(ctx context.Context, c *herdgate.Cache[string]) error { return c.InvalidateTags(ctx, "tag") },
	}
}

// cutOff stops a replica and its link to the master: what the master gets from now on it
// has only if it is thawed while the master lives.
func cutOff(t *testing.T, master, replica *testutil.Redis) {
	t.Helper()
	direct := master.Client(t)
	testutil.Eventually(t, topologyPatience, func() bool { return direct.Wait(t.Context(), 1, time.Second).Val() == 1 }, "the replica has all")
	replica.Freeze()
	if err := direct.ClientKillByFilter(t.Context(), "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
}

// testLostChanges makes all changes, each on a cache of its own, where a failover loses
// them, and looks what two gates make of that.
func testLostChanges(t *testing.T, connect func() redis.UniversalClient, lose, failOver func()) {
	t.Helper()
	var version atomic.Int64
	var gates [2]*herdgate.Gate
	var caches [2]map[string]*herdgate.Cache[string]
	for i := range gates {
		gates[i] = openGate(t, herdgate.Options{Redis: connect(), Namespace: "test"})
		caches[i] = map[string]*herdgate.Cache[string]{}
		for name := range everyChange() {
			c, err := herdgate.New(gates[i], name, func(context.Context, string) (string, error) {
				return fmt.Sprint("version ", version.Load()), nil
				// Links between the nodes of a Cluster come back one by one: a message that one
				// lacks is what LocalTTL is for.
			}, herdgate.Policy{TTL: time.Hour, Stale: time.Hour, LocalTTL: time.Second, Tags: []string{"tag"}})
			if err != nil {
				t.Fatal(err)
			}
			caches[i][name] = c
			if v := get(t, c, "k"); v != "version 0" {
				t.Fatalf("got %q", v)
			}
		}
	}
	lose()
	version.Store(1)
	for name, change := range everyChange() {
		if err := change(t.Context(), caches[0][name]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	failOver()
	direct := connect()
	for name := range everyChange() {
		testutil.Eventually(t, topologyPatience, func() bool { return caches[0][name].Stats().Replayed > 0 }, name+" is made once more")
		testutil.Eventually(t, topologyPatience, func() bool {
			v := get(t, caches[0][name], "k")
			return v == "version 1" && strings.Contains(direct.Get(t.Context(), "test:v:"+name+":{k}").Val(), v)
		}, "the new value is stored after "+name)
		testutil.Eventually(t, topologyPatience, func() bool { return get(t, caches[1][name], "k") == "version 1" }, "the other gate sees the new value after "+name)
	}
	if s := gates[0].Stats(); s.Resent < uint64(len(everyChange())) || s.Journaled > 0 {
		t.Errorf("%+v", s)
	}
	if s := gates[1].Stats(); s.Resent > 0 {
		t.Errorf("the gate that has changed nothing: %+v", s)
	}
}

func TestAChangeThatAFailoverLosesIsMadeOnceMore(t *testing.T) {
	t.Parallel()
	sentinel := testutil.StartSentinel(t)
	master, replica := sentinel.Nodes[0], sentinel.Nodes[1]
	connect := func() redis.UniversalClient { return sentinel.Client(t) }
	testLostChanges(t, connect, func() { cutOff(t, master, replica) }, func() {
		master.Kill()
		replica.Thaw()
		if n := replica.Client(t).Exists(t.Context(), "test:v:delete:{k}").Val(); n != 1 {
			t.Error("the failover loses nothing")
		}
		sentinel.AwaitOther(master)
	})
}

func TestAChangeThatAFailoverOfAClusterLosesIsMadeOnceMore(t *testing.T) {
	t.Parallel()
	cluster := testutil.StartClusterWithReplicas(t)
	first, err := cluster.Client(t).MasterForKey(t.Context(), "test:v:delete:{k}")
	if err != nil {
		t.Fatal(err)
	}
	master, replica := cluster.Shard(first.Options().Addr)
	connect := func() redis.UniversalClient { return cluster.Client(t) }
	testLostChanges(t, connect, func() { cutOff(t, master, replica) }, func() {
		master.Kill()
		replica.Thaw()
		direct := replica.Client(t)
		testutil.Eventually(t, topologyPatience, func() bool {
			return strings.Contains(direct.Info(t.Context(), "replication").Val(), "role:master")
		}, "the replica is the master")
	})
}

func TestAChangeThatTooFewReplicasHaveIsAnError(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (connect func() redis.UniversalClient, freeze, thaw func()){
		"single": func(t *testing.T) (func() redis.UniversalClient, func(), func()) {
			t.Helper()
			master := testutil.StartRedis(t)
			replica := testutil.StartRedis(t, "--replicaof", strings.ReplaceAll(master.Addr(), ":", " "))
			return func() redis.UniversalClient { return master.Client(t) }, replica.Freeze, replica.Thaw
		},
		"cluster": func(t *testing.T) (func() redis.UniversalClient, func(), func()) {
			t.Helper()
			cluster := testutil.StartClusterWithReplicas(t)
			each := func(do func(*testutil.Redis)) func() {
				return func() {
					for _, replica := range cluster.Nodes[3:] {
						do(replica)
					}
				}
			}
			return func() redis.UniversalClient { return cluster.Client(t) }, each((*testutil.Redis).Freeze), each((*testutil.Redis).Thaw)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connect, freeze, thaw := start(t)
			g := openGate(t, herdgate.Options{Redis: connect(), Namespace: "test", ReplicaWait: 1, RedisTimeout: 2 * time.Second})
			c := newCache(t, g, newOrigin(0).load, herdgate.Policy{Tags: []string{"tag"}})
			all := func() (err error) {
				for name, change := range everyChange() {
					if changed := change(t.Context(), c); changed != nil {
						err = errors.Join(err, fmt.Errorf("%s: %w", name, changed))
					}
				}
				return err
			}
			testutil.Eventually(t, topologyPatience, func() bool { return all() == nil }, "the replicas have all changes")
			if err := c.Delete(t.Context(), "k"); err != nil { // a Set of what is there is not seen
				t.Fatal(err)
			}
			before := g.Stats()
			if before.ChangesFailed+before.Journaled > 0 {
				t.Errorf("%+v", before)
			}
			freeze()
			for name, change := range everyChange() {
				was := get(t, c, "k")
				err := change(t.Context(), c)
				if !errors.Is(err, herdgate.ErrNotReplicated) || !strings.Contains(err.Error(), "0 of 1") || errors.Is(err, herdgate.ErrJournaled) {
					t.Errorf("%s: %v", name, err)
				}
				if v := get(t, c, "k"); name != "expire" && v == was {
					t.Errorf("%s: it was not made", name)
				}
			}
			if s := g.Stats(); s.NotReplicated != before.NotReplicated+uint64(len(everyChange())) || s.ChangesFailed+s.Journaled > 0 || s.RedisDown > 0 {
				t.Errorf("%+v", s)
			}
			thaw()
			testutil.Eventually(t, topologyPatience, func() bool { return all() == nil }, "the replicas have all changes")
		})
	}
}

// After a failover the old master is often the replica that is missing.
func TestWhatIsMadeUpForAfterAnOutageWaitsForNoReplica(t *testing.T) {
	t.Parallel()
	proxy := testutil.NewProxy(t, testutil.StartRedis(t).Addr())
	g := openGate(t, herdgate.Options{Redis: testutil.NewClient(t, proxy.Addr()), Namespace: "test", ReplicaWait: 1, AcceptJournaled: true})
	c := newCache(t, g, newOrigin(0).load, herdgate.Policy{Tags: []string{"tag"}})
	waits := proxy.Count(testutil.Command("wait"))
	if err := c.Delete(t.Context(), "k"); !errors.Is(err, herdgate.ErrNotReplicated) || waits.Load() == 0 {
		t.Fatalf("without a replica: %v, and %d WAITs", err, waits.Load())
	}
	before := waits.Load()
	for _, changes := range []func() error{
		func() error { return c.InvalidateTags(t.Context(), "tag") },
		func() error { return errors.Join(c.Delete(t.Context(), "k"), c.Clear(t.Context())) },
	} {
		proxy.Cut()
		findsDown(t, g, c)
		s := c.Stats()
		if err := changes(); err != nil || c.Stats().Journaled == s.Journaled {
			t.Fatalf("%v, %+v", err, c.Stats())
		}
		proxy.Resume()
		isUp(t, g, true)
		testutil.Eventually(t, topologyPatience, func() bool { // all of them, and what the cut has made doubtful
			now := c.Stats()
			return now.Replayed-s.Replayed == now.Journaled-s.Journaled
		}, "the changes are made")
	}
	if n := waits.Load() - before; n != 0 {
		t.Errorf("%d WAITs", n)
	}
}

func TestAMasterThatHasStartedAnewGetsTheRecentChanges(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]time.Duration{"by default": 0, "off": herdgate.Off} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testutil.StartRedis(t)
			g := openGate(t, herdgate.Options{Redis: server.Client(t), Namespace: "test", ResendWindow: window})
			c := newCache(t, g, newOrigin(0).load, herdgate.Policy{})
			if err := c.Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			server.Restart()
			isUp(t, g, true)
			heard := func() bool { return server.CommandStats()["publish"] > 3 } // heartbeats, and with them the question
			testutil.Eventually(t, topologyPatience, heard, "the new server is used")
			want := uint64(1)
			if window == herdgate.Off {
				want = 0
			}
			testutil.Eventually(t, topologyPatience, func() bool { return c.Stats().Replayed == want }, "it is made once more")
			if s := c.Stats(); s.Resent != want {
				t.Errorf("%+v", s)
			}
		})
	}
}
