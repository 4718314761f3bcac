package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// soakOps is how many calls a soak makes, from the environment. The short form is part of
// all tests.
func soakOps(t *testing.T, short int) int {
	t.Helper()
	text := os.Getenv("SOAK")
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("SOAK is %q, want a number of calls like 1000000", text)
	}
	return n
}

// usage is what a process holds when it has nothing to do.
type usage struct {
	heap       uint64
	goroutines int
	redisKeys  int64
}

func (u usage) String() string {
	return fmt.Sprintf("heap %.1f MB, %d goroutines, %d Redis keys", float64(u.heap)/1e6, u.goroutines, u.redisKeys)
}

func TestNothingGrowsWithTheNumberOfCalls(t *testing.T) { // I10
	const (
		rounds   = 4
		callers  = 16
		lifetime = 300 * time.Millisecond
	)
	calls := soakOps(t, 12_000)
	population := min(calls/20, 100_000)
	server := testutil.StartRedis(t)
	admin := server.Client(t)
	gate, err := herdgate.Open(t.Context(), herdgate.Options{
		Redis: server.Client(t), Namespace: namespace, LocalBytes: 2 << 20, RedisTimeout: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	cache, err := herdgate.New(gate, "soak", func(context.Context, string) (string, error) {
		if rand.N(100) == 0 {
			return "", errors.New("bad luck")
		}
		return strings.Repeat("x", rand.N(200)), nil
	}, herdgate.Policy{
		TTL: lifetime, Stale: lifetime, LocalTTL: lifetime / 3, FailureBackoff: 10 * time.Millisecond, MaxFailureBackoff: 50 * time.Millisecond,
		MinRebuildInterval: 10 * time.Millisecond, Tags: []string{tag},
	})
	if err != nil {
		t.Fatal(err)
	}
	var after [rounds]usage
	for round := range rounds {
		var left atomic.Int64
		left.Store(int64(calls / rounds))
		var herd sync.WaitGroup
		for range callers {
			herd.Go(func() {
				for left.Add(-1) >= 0 {
					soakCall(t, cache, strconv.Itoa(rand.N(population)))
				}
			})
		}
		herd.Go(func() { // a connection that breaks, now and then
			for left.Load() > 0 {
				admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", []string{"normal", "pubsub"}[rand.N(2)], "SKIPME", "yes")
				wait(t.Context(), 500*time.Millisecond)
			}
		})
		herd.Wait()
		after[round] = settled(t, gate, admin, lifetime)
		t.Logf("after %d calls: %v", calls/rounds*(round+1), after[round])
	}
	// In the first round the local tier and the pools fill up.
	first, last := after[1], after[rounds-1]
	if last.heap > first.heap+first.heap/4+(2<<20) || last.goroutines > first.goroutines+callers || last.redisKeys > first.redisKeys+2 {
		t.Errorf("what is held grows: %v, and %v later", first, last)
	}
	if s := gate.Stats(); s.Loads == 0 || s.Refreshes == 0 || s.LoadFailures == 0 || s.BusLost == 0 || s.Local == 0 || s.Remote == 0 {
		t.Errorf("not all that was meant to happen did: %+v", s)
	}
	if err := gate.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func soakCall(t *testing.T, cache *herdgate.Cache[string], key string) {
	t.Helper()
	var err error
	switch n := rand.N(1000); {
	case n < 800:
		_, err = cache.Get(t.Context(), key)
	case n < 850:
		_, err = cache.Refresh(t.Context(), key)
	case n < 900:
		err = cache.Delete(t.Context(), key)
	case n < 950:
		err = cache.Expire(t.Context(), key)
	case n < 999:
		err = cache.Set(t.Context(), key, "set")
	default:
		err = cache.InvalidateTags(t.Context(), tag)
	}
	_, failed := errors.AsType[*herdgate.LoadError](err)
	if err != nil && !failed && !errors.Is(err, herdgate.ErrBackoff) && !errors.Is(err, herdgate.ErrJournaled) {
		t.Errorf("key %s: %v", key, err)
	}
}

// settled waits until all entries are gone and nothing runs, and measures.
func settled(t *testing.T, gate *herdgate.Gate, admin *redis.Client, lifetime time.Duration) usage {
	t.Helper()
	var u usage
	testutil.Eventually(t, patience, func() bool {
		wait(t.Context(), 2*lifetime)
		n := admin.DBSize(t.Context()).Val()
		stable := n == u.redisKeys && gate.RedisUp() && gate.Connected()
		u.redisKeys = n
		return stable
	}, "Redis holds only what does not expire")
	runtime.GC()
	runtime.GC() // what a pool held goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.heap, u.goroutines = m.HeapAlloc, runtime.NumGoroutine()
	return u
}

func TestCloseUnderLoadLeavesNothing(t *testing.T) { // I10
	times := soakOps(t, 40)
	if os.Getenv("SOAK") != "" {
		times = 1000
	}
	server := testutil.StartRedis(t)
	admin := server.Client(t)
	for range times {
		closeUnderLoad(t, server)
	}
	keys, err := admin.Keys(t.Context(), namespace+":b:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if b := admin.Get(t.Context(), key).Val(); strings.HasPrefix(b, "L") {
			t.Errorf("a lease is left: %s is %q", key, b)
		}
	}
}

func closeUnderLoad(t *testing.T, server *testutil.Redis) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	}()
	gate, err := herdgate.Open(t.Context(), herdgate.Options{Redis: rdb, Namespace: namespace, RedisTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cache, err := herdgate.New(gate, "closing", func(ctx context.Context, _ string) (string, error) {
		wait(ctx, rand.N(10*time.Millisecond))
		return "v", nil
	}, herdgate.Policy{TTL: 20 * time.Millisecond, Stale: time.Second, MinRebuildInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var herd sync.WaitGroup
	for range 8 {
		herd.Go(func() {
			for err := error(nil); !errors.Is(err, herdgate.ErrClosed); {
				key := strconv.Itoa(rand.N(50))
				switch rand.N(5) {
				case 0:
					err = cache.Delete(t.Context(), key)
				case 1:
					err = cache.Set(t.Context(), key, "s")
				case 2:
					_, err = cache.Refresh(t.Context(), key)
				default:
					_, err = cache.Get(t.Context(), key)
				}
				if err != nil && !errors.Is(err, herdgate.ErrClosed) {
					t.Errorf("key %s: %v", key, err)
					return
				}
			}
		})
	}
	wait(t.Context(), rand.N(20*time.Millisecond))
	if err := gate.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	herd.Wait()
}
