package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// versions is a source whose value is the number of its load.
type versions struct{ loads atomic.Int64 }

func (v *versions) load(_ context.Context, key string) (product, error) {
	return product{ID: key, Price: v.loads.Add(1)}, nil
}

// price is what a cache has for key without loading it, 0 for nothing.
func price(t *testing.T, cache *herdgate.Cache[product], key string) (p int64, stale bool) {
	t.Helper()
	r, _, err := cache.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return r.Value.Price, r.Stale
}

func TestADeleteReachesRedisAndEveryRunningService(t *testing.T) {
	s := newShop(t)
	var source versions
	policy := steady()
	policy.LocalTTL = time.Hour
	a, b := newCache(t, s.gate(), source.load, policy), newCache(t, s.gate(), source.load, policy)
	for _, key := range []string{"1", "{user1}cart", ""} {
		for _, cache := range []*herdgate.Cache[product]{a, b} {
			_, err := cache.Get(t.Context(), key)
			s.must(err)
		}
	}
	answer := s.tool("delete", "1", "{user1}cart", "", "none")
	answer.expect(t, exitDone, "")
	if want := "deleted product \"1\"\ndeleted product \"{user1}cart\"\ndeleted product \"\"\ndeleted product \"none\"; Redis had nothing stored for it\n"; answer.out != want {
		t.Errorf("got %s", answer.out)
	}
	for _, key := range []string{"1", "{user1}cart", ""} {
		for _, cache := range []*herdgate.Cache[product]{a, b} {
			testutil.Eventually(t, 10*time.Second, func() bool {
				found, _ := price(t, cache, key)
				return found == 0
			}, "no service has a copy of "+key)
		}
	}
}

func TestAnExpireMakesEveryServiceRefreshBehindTheOldValue(t *testing.T) {
	s := newShop(t)
	var source versions
	policy := steady()
	policy.LocalTTL = time.Hour
	a, b := newCache(t, s.gate(), source.load, policy), newCache(t, s.gate(), source.load, policy)
	for _, cache := range []*herdgate.Cache[product]{a, b} {
		_, err := cache.Get(t.Context(), "1")
		s.must(err)
	}
	answer := s.tool("expire", "-json", "1")
	answer.expect(t, exitDone, "")
	if want := `{"cache":"product","key":"1","done":"expired","stored":true,"held":false}` + "\n"; answer.out != want {
		t.Errorf("got %s", answer.out)
	}
	for _, cache := range []*herdgate.Cache[product]{a, b} {
		testutil.Eventually(t, 10*time.Second, func() bool {
			found, stale := price(t, cache, "1")
			return found == 1 && stale
		}, "the old value is stale, and still there")
	}
	s.awaitRest("1")
	golden(t, "expired.golden", s.tool("inspect", "1").out)
	r, err := a.Lookup(t.Context(), "1")
	if err != nil || r.Value.Price != 1 || r.Outcome != herdgate.OutcomeStale {
		t.Errorf("got %+v, %v", r, err)
	}
	testutil.Eventually(t, 10*time.Second, func() bool {
		_, err := a.Get(t.Context(), "1") // the first may come before MinRebuildInterval has passed
		found, _ := price(t, b, "1")
		return err == nil && found == 2
	}, "one service has refreshed it, the other has the new value")
}

// I2: what began to load before the delete is not stored after it.
func TestALoadThatBeganBeforeADeleteIsNotStored(t *testing.T) {
	s := newShop(t)
	begun := make(chan struct{}, 2)
	var source versions
	load := func(ctx context.Context, key string) (product, error) {
		p, err := source.load(ctx, key)
		begun <- struct{}{}
		if p.Price == 1 {
			<-ctx.Done() // the service has heard of the delete; what was loaded is returned all the same
		}
		return p, err
	}
	cache := newCache(t, s.gate(), load, steady())
	got := make(chan int64, 1)
	go func() {
		p, _ := cache.Get(context.WithoutCancel(t.Context()), "1")
		got <- p.Price
	}()
	<-begun
	answer := s.tool("delete", "1")
	answer.expect(t, exitDone, "")
	if want := "deleted product \"1\"; Redis had nothing stored for it; somebody was loading it, and that load will not be stored\n"; answer.out != want {
		t.Errorf("got %s", answer.out)
	}
	<-got // its call began before the delete, too: it may have either
	if p, err := cache.Get(t.Context(), "1"); err != nil || p.Price != 2 {
		t.Errorf("a call after the delete got load %d (%v)", p.Price, err)
	}
	if out := s.tool("inspect", "1").out; !strings.Contains(out, `"Price": 2`) {
		t.Errorf("stored is\n%s", out)
	}
}

func TestAChangeThatFailsNamesItsKeyAndTheOthersAreMade(t *testing.T) {
	s := newShop(t)
	proxy := testutil.NewProxy(t, s.server.Addr())
	proxy.SwallowReplies(testutil.Command("eval", "evalsha"), 2) // also of what is sent again
	a := tool(t, "delete", "-redis", proxy.Addr(), "-namespace", "shop", "-cache", "product", "-timeout", "300ms", "1", "2")
	a.expect(t, exitFailed, `delete product "1": the Redis at `+proxy.Addr()+" does not answer within 300ms; it may still have happened: run it again")
	if a.out != "deleted product \"2\"; Redis had nothing stored for it\n" {
		t.Errorf("got %s", a.out)
	}
}
