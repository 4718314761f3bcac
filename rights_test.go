package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/testutil"
)

// aclRules are all that a gate needs of Redis, as docs/acl.md has them. %[1]s is the
// namespace.
const (
	aclRules        = "~%[1]s:* &%[1]s:* +get +mget +set +del +setrange +pexpire +pttl +time +publish +subscribe +evalsha +eval +script|load +info"
	aclClusterRules = aclRules + " +cluster|slots +command"
)

// restrict adds a user with these rights.
func restrict(t *testing.T, server *testutil.Redis, rules string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", "gate", "reset", "on", ">secret"}
	for rule := range strings.FieldsSeq(strings.ReplaceAll(rules, "%[1]s", "test")) {
		args = append(args, rule)
	}
	if err := server.Client(t).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

func asRestricted(o *redis.Options) { o.Username, o.Password = "gate", "secret" }

func asRestrictedInCluster(o *redis.ClusterOptions) { o.Username, o.Password = "gate", "secret" }

func TestAUserWithTheDocumentedRightsIsEnough(t *testing.T) {
	t.Parallel()
	t.Run("single node", func(t *testing.T) {
		t.Parallel()
		server := testutil.StartRedis(t)
		restrict(t, server, aclRules)
		testRights(t, []*testutil.Redis{server}, func() redis.UniversalClient { return server.Client(t, asRestricted) })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := testutil.StartCluster(t)
		for _, node := range cluster.Nodes {
			restrict(t, node, aclClusterRules)
		}
		testRights(t, cluster.Nodes, func() redis.UniversalClient {
			return cluster.Client(t, asRestrictedInCluster)
		})
	})
}

// testRights does all that a gate can do, also what it does when Redis is in trouble.
func testRights(t *testing.T, servers []*testutil.Redis, connect func() redis.UniversalClient) {
	t.Helper()
	o := newOrigin(time.Millisecond)
	var caches [2]*herdgate.Cache[string]
	var gates [2]*herdgate.Gate
	for i := range caches {
		gates[i] = openGate(t, herdgate.Options{Redis: connect(), Namespace: "test"})
		policy := topologyPolicy()
		policy.Tags = []string{"all"}
		caches[i] = newCache(t, gates[i], o.load, policy)
	}
	untilShared(t, caches[0], caches[1])
	do := func() {
		c := caches[0]
		for what, call := range map[string]func() error{
			"set":             func() error { return c.Set(t.Context(), "k", "v") },
			"expire":          func() error { return c.Expire(t.Context(), "k") },
			"delete":          func() error { return c.Delete(t.Context(), "k", "l") },
			"invalidate tags": func() error { return c.InvalidateTags(t.Context(), "all") },
			"clear":           func() error { return c.Clear(t.Context()) },
			"refresh":         func() error { _, err := c.Refresh(t.Context(), "k"); return err },
			"get many":        func() error { _, err := c.GetMany(t.Context(), []string{"k", "n1", "n2"}); return err },
			"peek":            func() error { _, _, err := c.Peek(t.Context(), "m"); return err },
		} {
			if err := call(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	do()
	for _, server := range servers {
		if err := server.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do()
	tr := startTraffic(t, caches[0], caches[1])
	tr.more(t, 300)
	for _, server := range servers {
		server.Freeze()
	}
	testutil.Eventually(t, topologyPatience, func() bool { return !gates[0].RedisUp() }, "Redis is out")
	for _, server := range servers {
		server.Thaw()
	}
	testutil.Eventually(t, topologyPatience, func() bool { return gates[0].RedisUp() && gates[0].Connected() }, "Redis is back")
	tr.end()
	tr.wantNoErrors(t)
	for _, server := range servers {
		if denied := server.Client(t).Do(t.Context(), "ACL", "LOG").Val(); fmt.Sprint(denied) != "[]" {
			t.Errorf("Redis denied %v", denied)
		}
	}
}

func TestTheDocumentedRightsAreThoseThatAreTested(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/acl.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rules := range []string{aclRules, aclClusterRules} {
		if want := fmt.Sprintf(rules, "shop"); !strings.Contains(string(text), want+"\n") {
			t.Errorf("docs/acl.md does not say %q", want)
		}
	}
}

// lacks reports whether err names just these rights as missing.
func lacks(err error, rights ...string) bool {
	denied, ok := errors.AsType[*remote.DeniedError](err)
	return ok && slices.Equal(denied.Missing, rights) && strings.Contains(err.Error(), strings.Join(rights, " "))
}

// without are rules without one of them.
func without(rules, rule string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(rules), func(r string) bool { return r == rule }), " ")
}

func TestOpenNamesEachRightThatIsMissing(t *testing.T) {
	t.Parallel()
	t.Run("single node", func(t *testing.T) {
		t.Parallel()
		server := testutil.StartRedis(t)
		for rule := range strings.FieldsSeq(aclRules) {
			restrict(t, server, without(aclRules, rule))
			_, err := herdgate.Open(t.Context(), herdgate.Options{Redis: server.Client(t, asRestricted), Namespace: "test"})
			if want := strings.ReplaceAll(rule, "%[1]s", "test"); !lacks(err, want) {
				t.Errorf("without %s: got %v", want, err)
			}
		}
	})
	t.Run("rights that an option needs", func(t *testing.T) {
		t.Parallel()
		server := testutil.StartRedis(t)
		open := func(o herdgate.Options) error {
			o.Redis, o.Namespace = server.Client(t, asRestricted), "test"
			g, err := herdgate.Open(t.Context(), o)
			if err == nil {
				err = g.Close(t.Context())
			}
			return err
		}
		restrict(t, server, without(aclRules, "+info"))
		if err := open(herdgate.Options{ResendWindow: herdgate.Off}); err != nil {
			t.Errorf("without +info, and nothing to be sent again: %v", err)
		}
		restrict(t, server, aclRules)
		if err := open(herdgate.Options{ReplicaWait: 1}); !lacks(err, "+wait") {
			t.Errorf("without +wait: got %v", err)
		}
		restrict(t, server, aclRules+" +wait")
		if err := open(herdgate.Options{ReplicaWait: 1}); err != nil {
			t.Errorf("with +wait: %v", err)
		}
	})
	t.Run("one node of a cluster", func(t *testing.T) {
		t.Parallel()
		cluster := testutil.StartCluster(t)
		for _, node := range cluster.Nodes {
			restrict(t, node, aclClusterRules)
		}
		for rule := range strings.FieldsSeq(aclRules) {
			if rule == "+subscribe" { // which of the nodes is asked for it is up to the client
				continue
			}
			restrict(t, cluster.Nodes[1], without(aclClusterRules, rule))
			_, err := herdgate.Open(t.Context(), herdgate.Options{Redis: cluster.Client(t, asRestrictedInCluster), Namespace: "test"})
			if want := strings.ReplaceAll(rule, "%[1]s", "test"); !lacks(err, want) {
				t.Errorf("without %s: got %v", want, err)
			}
		}
	})
}

// stepping counts the steps of a client, a pipeline as one, but for loading scripts and
// setting connections up.
type stepping struct{ n atomic.Int64 }

func (*stepping) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stepping) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name != "script" && name != "hello" {
			s.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (s *stepping) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "client" {
			s.n.Add(1)
		}
		return next(ctx, cmds)
	}
}

func TestRightsAreCheckedInOneStepThatChangesNothing(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	steps := &stepping{}
	rdb := server.Client(t)
	rdb.AddHook(steps)
	store := remote.NewStore(rdb, "test", "here", time.Second)
	if err := store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	keys := store.Keys("things", "")
	all := []string{keys.V, keys.B(), "test:g:things", "test:t:{things}"}
	for _, key := range all {
		rdb.Set(t.Context(), key, "what stands there", time.Hour)
	}
	changes := func() string {
		_, after, _ := strings.Cut(rdb.Info(t.Context(), "persistence").Val(), "rdb_changes_since_last_save:")
		n, _, _ := strings.Cut(after, "\r\n")
		return n
	}
	before := changes()
	steps.n.Store(0)
	if err := errors.Join(store.CheckRights(t.Context()), store.CheckKeys(t.Context(), "things", true)); err != nil {
		t.Error(err)
	}
	if n := steps.n.Load(); n != 2 {
		t.Errorf("%d steps for two checks", n)
	}
	if after := changes(); before == "" || after != before {
		t.Errorf("%q changes before, %q after", before, after)
	}
	if n := rdb.DBSize(t.Context()).Val(); n != int64(len(all)) {
		t.Errorf("%d keys, want %d", n, len(all))
	}
	if err := store.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNewNamesTheKeysThatAreDenied(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	patterns := "~test:p:* ~test:v:things:* ~test:b:things:* ~test:g:things ~test:t:{things}*"
	rules := patterns + strings.TrimPrefix(fmt.Sprintf(aclRules, "test"), "~test:*")
	open := func() *herdgate.Gate {
		return openGate(t, herdgate.Options{Redis: server.Client(t, asRestricted), Namespace: "test"})
	}
	tagged := herdgate.Policy{Tags: []string{"all"}}
	for pattern := range strings.FieldsSeq(patterns) {
		if pattern == "~test:p:*" {
			continue // Open asks for it
		}
		restrict(t, server, without(rules, pattern))
		g := open()
		if _, err := herdgate.New[string](g, "things", nil, tagged); !lacks(err, pattern) {
			t.Errorf("without %s: got %v", pattern, err)
		}
		restrict(t, server, rules)
		if _, err := herdgate.New[string](g, "things", nil, tagged); err != nil {
			t.Errorf("with all of them: %v", err)
		}
	}
	restrict(t, server, without(rules, "~test:t:{things}*"))
	if _, err := herdgate.New[string](open(), "things", nil, herdgate.Policy{}); err != nil {
		t.Errorf("a cache without tags: %v", err)
	}
}
