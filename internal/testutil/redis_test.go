package testutil_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// patience bounds waits for things that take milliseconds; a test that reaches it
// fails.
const patience = 20 * time.Second

func TestAStartedRedisCountsTheCommandsThatMatter(t *testing.T) {
	r := testutil.StartRedis(t)
	rdb := r.Client(t)
	before := r.Calls()
	must(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	must(t, rdb.Get(t.Context(), "k").Err())
	must(t, rdb.Publish(t.Context(), "heartbeat", "").Err())
	must(t, rdb.ScriptLoad(t.Context(), "return 1").Err())
	if got := r.Calls() - before; got != 2 {
		t.Errorf("SET and GET beside uncounted commands are %d calls, want 2: %v", got, r.CommandStats())
	}
	must(t, rdb.Eval(t.Context(), "return redis.call('GET', KEYS[1])", []string{"k"}).Err())
	if stats := r.CommandStats(); stats["get"] != 2 || stats["eval"] != 1 {
		t.Errorf("a GET run by a script is not told apart from EVAL: %v", stats)
	}
}

func TestARestartedRedisIsEmptyAndAtItsOldAddress(t *testing.T) {
	r := testutil.StartRedis(t)
	addr := r.Addr()
	rdb := r.Client(t)
	must(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	r.Kill()
	if err := r.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }).Ping(t.Context()).Err(); err == nil {
		t.Error("a killed server answers")
	}
	r.Restart()
	if r.Addr() != addr {
		t.Errorf("the server moved from %s to %s", addr, r.Addr())
	}
	if n, err := rdb.Exists(t.Context(), "k").Result(); err != nil || n != 0 {
		t.Errorf("EXISTS after the restart: %d, %v, want 0", n, err)
	}
}

func TestServersStartedTogetherDoNotMix(t *testing.T) {
	a, b := testutil.StartRedis(t), testutil.StartRedis(t)
	must(t, a.Client(t).Set(t.Context(), "k", "v", 0).Err())
	if n := b.Client(t).Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("a key written to one server is on the other")
	}
}

func TestAFrozenRedisAnswersWhenThawed(t *testing.T) {
	r := testutil.StartRedis(t)
	impatient := r.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, 50*time.Millisecond })
	r.Freeze()
	if err := impatient.Ping(t.Context()).Err(); err == nil {
		t.Error("a frozen server answers")
	}
	r.Thaw()
	must(t, r.Client(t).Ping(t.Context()).Err())
}

func TestAClusterServesAllSlots(t *testing.T) {
	c := testutil.StartCluster(t)
	rdb := c.Client(t)
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		must(t, rdb.Set(t.Context(), key, key, 0).Err())
		if got := rdb.Get(t.Context(), key).Val(); got != key {
			t.Errorf("GET %s returns %q", key, got)
		}
	}
	for _, n := range c.Nodes {
		if n.Calls() == 0 {
			t.Errorf("node %s got none of six keys", n.Addr())
		}
	}
}
