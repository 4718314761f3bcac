package herdgatetest

import (
	"context"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/herdgate/herdgate"
)

// Stampede lets a herd loose on a cold cache and fails the test unless every key
// was loaded exactly once. It opens as many gates on one Redis as there are
// instances, makes a cache on each with newCache, which may be a type of the service
// around one or several, and has callers goroutines of each instance call get at
// once. It also fails the test if a call returned an error, if not all values are
// equal (reflect.DeepEqual, so that what the codec does not keep is found as well),
// and if nothing was loaded at all.
//
// Stampede makes a bubble of testing/synctest: call it outside of one, and let
// newCache make what the loader needs, since channels and connections from outside
// stop the clock of a bubble. An [Origin] may come from outside.
func Stampede[C, V any](
	t *testing.T, instances, callers int,
	newCache func(gate *herdgate.Gate) (C, error),
	get func(ctx context.Context, cache C) (V, error),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		stampede(t, NewRedis(t), instances, callers, newCache, get)
	})
}

func stampede[C, V any](
	tb testing.TB, r *Redis, instances, callers int,
	newCache func(gate *herdgate.Gate) (C, error),
	get func(ctx context.Context, cache C) (V, error),
) {
	tb.Helper()
	if instances < 1 || callers < 1 {
		tb.Fatalf("herdgatetest: Stampede of %d instances with %d callers each: want at least 1 of both", instances, callers)
	}
	seen := loadCounts{loads: map[cacheKey]int{}}
	var gates []*herdgate.Gate
	var herd []func() (V, error)
	for range instances {
		gate := r.Open(func(o *herdgate.Options) { o.Observer = &seen })
		cache, err := newCache(gate)
		if err != nil {
			tb.Fatalf("making the cache: %v", err)
		}
		gates = append(gates, gate)
		for range callers {
			herd = append(herd, func() (V, error) { return get(tb.Context(), cache) })
		}
	}
	values, errs := atOnce(herd)
	for _, gate := range gates {
		// A load that nobody waits for is one too many all the same. The gate's cleanup
		// reports the error.
		_ = gate.Close(tb.Context())
	}
	seen.judge(tb)
	judge(tb, callers, values, errs)
}

// atOnce makes all calls at the same time: none begins before the last is ready, as
// the value of a quick loader would be there before most of the herd is.
func atOnce[V any](calls []func() (V, error)) (values []V, errs []error) {
	values, errs = make([]V, len(calls)), make([]error, len(calls))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(func() {
			<-start
			values[i], errs[i] = call()
		})
	}
	synctest.Wait()
	close(start)
	wg.Wait()
	return values, errs
}

// judge looks at what the calls returned, those of each instance together.
func judge[V any](tb testing.TB, callers int, values []V, errs []error) {
	tb.Helper()
	failed, first := 0, -1 // first call without an error
	var sample error
	for i, err := range errs {
		switch {
		case err != nil && failed == 0:
			failed, sample = 1, err
		case err != nil:
			failed++
		case first < 0:
			first = i
		}
	}
	if failed > 0 {
		tb.Errorf("%d of %d calls failed, the first with: %v", failed, len(errs), sample)
	}
	for i, err := range errs {
		if err == nil && !reflect.DeepEqual(values[i], values[first]) {
			tb.Errorf("values differ: instance %d got %+v, instance %d got %+v", first/callers, values[first], i/callers, values[i])
			return
		}
	}
}

type cacheKey struct{ cache, key string }

// loadCounts is an observer that counts the loads of each key.
type loadCounts struct {
	mu    sync.Mutex // protects loads
	loads map[cacheKey]int
}

// Observe implements herdgate.Observer.
func (c *loadCounts) Observe(e herdgate.Event) {
	if e.Kind != herdgate.EventLoad {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads[cacheKey{e.Cache, e.Key}]++
}

func (c *loadCounts) judge(tb testing.TB) {
	tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.loads) == 0 {
		tb.Error("nothing was loaded: the herd never reached a loader of this gate")
	}
	for k, n := range c.loads {
		if n > 1 {
			tb.Errorf("cache %q loaded key %q %d times, want once", k.cache, k.key, n)
		}
	}
}
