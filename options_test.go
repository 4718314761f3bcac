package herdgate_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
)

func TestAPolicyThatCannotBeIsRefusedByName(t *testing.T) { // C12, C33
	g := openGate(t, herdgate.Options{})
	for _, c := range []struct {
		field  string
		policy herdgate.Policy
	}{
		{"Policy.TTL", herdgate.Policy{TTL: 400 * time.Microsecond}},
		{"Policy.TTL", herdgate.Policy{TTL: 1500 * time.Microsecond}},
		{"Policy.TTL", herdgate.Policy{TTL: -time.Second}},
		{"Policy.TTL", herdgate.Policy{TTL: herdgate.Off}},
		{"Policy.TTL", herdgate.Policy{TTL: 100 * 24 * time.Hour}},
		{"Policy.TTL", herdgate.Policy{TTL: 28 * 24 * time.Hour, Stale: 7 * 24 * time.Hour, Jitter: 1}},
		{"Policy.NegativeTTL", herdgate.Policy{NegativeTTL: 60 * 24 * time.Hour}},
		{"Policy.LockTTL", herdgate.Policy{LockTTL: time.Millisecond, MinRebuildInterval: time.Millisecond}},
		{"Policy.Stale", herdgate.Policy{Stale: -2}},
		{"Policy.Stale", herdgate.Policy{Stale: time.Nanosecond}},
		{"Policy.Jitter", herdgate.Policy{Jitter: 1.1}},
		{"Policy.Jitter", herdgate.Policy{Jitter: -0.1}},
		{"Policy.Jitter", herdgate.Policy{Jitter: math.NaN()}},
		{"Policy.EarlyBeta", herdgate.Policy{EarlyBeta: math.Inf(1)}},
		{"Policy.NegativeTTL", herdgate.Policy{NegativeTTL: time.Microsecond}},
		{"Policy.LocalTTL", herdgate.Policy{LocalTTL: -time.Hour}},
		{"Policy.LoadTimeout", herdgate.Policy{LoadTimeout: herdgate.Off}},
		{"Policy.WaitTimeout", herdgate.Policy{WaitTimeout: -5}},
		{"Policy.LockTTL", herdgate.Policy{LockTTL: time.Microsecond}},
		{"Policy.MinRebuildInterval", herdgate.Policy{LockTTL: time.Second, MinRebuildInterval: 2 * time.Second}},
		{"Policy.MaxFailureBackoff", herdgate.Policy{FailureBackoff: time.Second, MaxFailureBackoff: time.Millisecond}},
		{"Policy.AfterWait", herdgate.Policy{AfterWait: 7}},
		{"Policy.Compression", herdgate.Policy{Compression: 3}},
		{"Policy.CompressAbove", herdgate.Policy{Compression: herdgate.S2, CompressAbove: herdgate.Off}},
		{"Policy.CompressAbove", herdgate.Policy{CompressAbove: 100}},
		{"Policy.MaxSize", herdgate.Policy{MaxSize: herdgate.Off}},
		{"Policy.MaxSize", herdgate.Policy{MaxSize: codec.MaxSize + 1}},
	} {
		_, err := herdgate.New[int](g, "c", nil, c.policy)
		e, ok := errors.AsType[*herdgate.ConfigError](err)
		if !ok || e.Field != c.field || e.Want == "" || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%+v: got %v, want an error that names %s", c.policy, err, c.field)
		}
	}
	if _, err := herdgate.New[int](g, "c", nil, herdgate.Policy{
		Stale: herdgate.Off, Jitter: herdgate.Off, EarlyBeta: herdgate.Off, NegativeTTL: herdgate.Off, TTL: time.Millisecond,
	}); err != nil {
		t.Errorf("a policy of the smallest values: %v", err)
	}
}

func TestOptionsThatCannotBeAreRefusedByName(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	caching := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ClientSideCacheConfig: &redis.ClientSideCacheConfig{}})
	t.Cleanup(func() { _ = caching.Close() })
	for _, c := range []struct {
		field   string
		options herdgate.Options
	}{
		{"Options.Namespace", herdgate.Options{Namespace: "a:b"}},
		{"Options.Namespace", herdgate.Options{Namespace: "ä"}},
		{"Options.MaxLoads", herdgate.Options{MaxLoads: -3}},
		{"Options.RedisTimeout", herdgate.Options{RedisTimeout: herdgate.Off}},
		{"Options.ReplicaWait", herdgate.Options{ReplicaWait: herdgate.Off}},
		{"Options.ResendWindow", herdgate.Options{ResendWindow: time.Microsecond}},
		{"Options.LocalBytes", herdgate.Options{LocalBytes: -7}},
		{"Options.Redis", herdgate.Options{Redis: ring}},
		{"Options.Redis", herdgate.Options{Redis: caching}},
	} {
		g, err := herdgate.Open(t.Context(), c.options)
		e, ok := errors.AsType[*herdgate.ConfigError](err)
		if !ok || e.Field != c.field || g != nil {
			t.Errorf("got %v, want an error that names %s", err, c.field)
		}
	}
}

func TestACacheNeedsANameOfItsOwnAndATier(t *testing.T) {
	g := openGate(t, herdgate.Options{})
	if _, err := herdgate.New[int](g, "a", nil, herdgate.Policy{}); err != nil {
		t.Fatal(err)
	}
	none := openGate(t, herdgate.Options{LocalBytes: herdgate.Off})
	for _, c := range []struct {
		g     *herdgate.Gate
		name  string
		field string
		p     herdgate.Policy
	}{
		{g, "a", "name", herdgate.Policy{}},
		{g, "", "name", herdgate.Policy{}},
		{g, "x y", "name", herdgate.Policy{}},
		{g, "b", "Policy.LocalTTL", herdgate.Policy{LocalTTL: herdgate.Off}},
		{none, "c", "Options.LocalBytes", herdgate.Policy{}},
	} {
		_, err := herdgate.New[string](c.g, c.name, nil, c.p)
		if e, ok := errors.AsType[*herdgate.ConfigError](err); !ok || e.Field != c.field {
			t.Errorf("%q: got %v, want an error that names %s", c.name, err, c.field)
		}
	}
}
