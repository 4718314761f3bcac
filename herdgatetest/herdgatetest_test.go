package herdgatetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/singleflight"
)

// fakeTB is a test that may fail.
type fakeTB struct {
	testing.TB
	mu       sync.Mutex // protects failures
	failures []string
	cleanups []func()
}

func (*fakeTB) Helper()             {}
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) Error(args ...any) { f.fail(fmt.Sprint(args...)) }

func (f *fakeTB) Errorf(format string, args ...any) { f.fail(fmt.Sprintf(format, args...)) }

func (f *fakeTB) Fatal(args ...any) {
	f.fail(fmt.Sprint(args...))
	runtime.Goexit()
}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (f *fakeTB) fail(failure string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, failure)
}

// failures runs test and returns how it failed.
func failures(t *testing.T, test func(tb *fakeTB)) string {
	t.Helper()
	tb := &fakeTB{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			for _, f := range tb.cleanups {
				f()
			}
		}()
		test(tb)
	})
	wg.Wait()
	return strings.Join(tb.failures, "\n")
}

func wantFailure(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("the test fails with %q, want %q", got, want)
	}
}

func newCache[V any](t *testing.T, gate *herdgate.Gate, o *Origin[V], policy herdgate.Policy) *herdgate.Cache[V] {
	t.Helper()
	c, err := herdgate.New(gate, "things", o.Load, policy)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantValue(t *testing.T, c *herdgate.Cache[string], want string) {
	t.Helper()
	if v, err := c.Get(t.Context(), "k"); v != want || err != nil {
		t.Errorf("Get returns %q, %v, want %q", v, err, want)
	}
}

func TestASetWorldServesWhatItsOriginHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Origin[string]
		o.Set("k", "v")
		cache := newCache(t, Open(t), &o, herdgate.Policy{})
		wantValue(t, cache, "v")
		wantValue(t, cache, "v")
		AssertOneLoad(t, &o, "k")
		if _, err := cache.Get(t.Context(), "other"); !errors.Is(err, herdgate.ErrNotFound) {
			t.Errorf("a key the origin does not have: %v", err)
		}
		if o.Loads() != 2 {
			t.Errorf("%d loads in all, want 2", o.Loads())
		}
	})
}

func TestOptionsOfAGateCanBeChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		var o Origin[string]
		o.Set("k", "v")
		wantValue(t, newCache(t, r.Open(func(o *herdgate.Options) { o.Namespace = "mine" }), &o, herdgate.Policy{}), "v")
		keys, err := r.Client().Keys(t.Context(), "mine:v:*").Result()
		if err != nil || len(keys) != 1 {
			t.Errorf("the entries in the namespace are %q, %v", keys, err)
		}
	})
}

func TestAGateThatDoesNotCloseFailsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Origin[string]
		got := failures(t, func(tb *fakeTB) {
			gate := open(tb, herdgate.Options{})
			cache := newCache(t, gate, &o, herdgate.Policy{LoadTimeout: time.Second})
			o.Freeze()
			if _, err := cache.Get(t.Context(), "k"); !errors.Is(err, herdgate.ErrLoadTimeout) {
				t.Errorf("Get of a frozen load: %v", err)
			}
		})
		wantFailure(t, got, "closing the gate: ")
		o.Release()
	})
}

func TestOptionsThatCannotBeUsedEndTheTest(t *testing.T) {
	got := failures(t, func(tb *fakeTB) { open(tb, herdgate.Options{MaxLoads: -2}) })
	wantFailure(t, got, "Options.MaxLoads")
}

func TestAnOriginAnswersAsTold(t *testing.T) {
	var o Origin[int]
	load := func() (v int, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		return o.Load(t.Context(), "k")
	}
	want := func(value int, err string) {
		t.Helper()
		if v, got := load(); v != value || fmt.Sprint(got) != err {
			t.Errorf("Load returns %d, %v, want %d, %s", v, got, value, err)
		}
	}
	want(0, herdgate.ErrNotFound.Error())
	o.Set("k", 1)
	want(1, "<nil>")
	o.Fail("k", io.ErrUnexpectedEOF)
	want(0, "unexpected EOF")
	o.Panic("k", "at the disco")
	want(0, "panic: at the disco")
	o.Set("k", 2)
	o.FailAll(io.ErrNoProgress)
	want(0, io.ErrNoProgress.Error())
	o.FailAll(nil)
	want(2, "<nil>")
	o.Delete("k")
	want(0, herdgate.ErrNotFound.Error())
	if o.Loads() != 7 || o.LoadsOf("k") != 7 || o.LoadsOf("other") != 0 || o.Running() != 0 {
		t.Errorf("counted %d loads, %d of the key, %d of another, %d running", o.Loads(), o.LoadsOf("k"), o.LoadsOf("other"), o.Running())
	}
}

func TestAFailureNeedsAnError(t *testing.T) {
	defer func() {
		if p := fmt.Sprint(recover()); !strings.Contains(p, `Fail("k", nil): want an error`) {
			t.Errorf("panic: %s", p)
		}
	}()
	new(Origin[int]).Fail("k", nil)
}

func TestAPanickingOriginIsALoadError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Origin[string]
		o.Panic("k", "at the disco")
		_, err := newCache(t, Open(t), &o, herdgate.Policy{}).Get(t.Context(), "k")
		if p, ok := errors.AsType[*singleflight.PanicError](err); !ok || p.Value != "at the disco" {
			t.Errorf("Get returns %v, want the panic", err)
		}
	})
}

func TestALoadTakesItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Origin[string]
		o.SetDelay(time.Second)
		start := time.Now()
		if _, err := o.Load(t.Context(), "k"); !errors.Is(err, herdgate.ErrNotFound) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, herdgate.ErrLoadTimeout)
		defer cancel()
		if _, err := o.Load(ctx, "k"); !errors.Is(err, herdgate.ErrLoadTimeout) {
			t.Errorf("a load whose context ends returns %v, want its cause", err)
		}
	})
}

func TestHeldLoadsEndWithTheirContextAndFrozenOnesDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Origin[string]
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 2)
		load := func() {
			_, err := o.Load(ctx, "k")
			ended <- err
		}
		o.Hold()
		go load()
		o.WaitRunning(t, 1)
		o.Freeze()
		go load()
		o.WaitRunning(t, 2)

		cancel(herdgate.ErrRevoked)
		if err := <-ended; !errors.Is(err, herdgate.ErrRevoked) {
			t.Errorf("the held load returns %v", err)
		}
		synctest.Wait()
		if o.Running() != 1 {
			t.Fatalf("%d loads run, want the frozen one", o.Running())
		}
		o.Release()
		if err := <-ended; !errors.Is(err, herdgate.ErrNotFound) {
			t.Errorf("the frozen load returns %v", err)
		}
		if _, err := o.Load(t.Context(), "k"); !errors.Is(err, herdgate.ErrNotFound) {
			t.Errorf("a load after Release returns %v", err)
		}
	})
}

func TestALoadReturnsWhatTheOriginHeldWhenItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Origin[string]
		o.Set("k", "old")
		o.Hold()
		value := make(chan string, 1)
		go func() {
			v, _ := o.Load(t.Context(), "k")
			value <- v
		}()
		o.WaitRunning(t, 1)
		o.Set("k", "new")
		o.Release()
		if v := <-value; v != "old" {
			t.Errorf("the load returns %q", v)
		}
	})
}

func TestWaitingForLoadsThatDoNotRunFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Origin[string]
		wantFailure(t, failures(t, func(tb *fakeTB) { o.WaitRunning(tb, 1) }), "0 loads run after 10s, want 1")
	})
}

func TestAssertionsOfLoadsFail(t *testing.T) {
	var o Origin[string]
	wantFailure(t, failures(t, func(tb *fakeTB) { AssertOneLoad(tb, &o, "k") }), `key "k" was loaded 0 times, want 1`)
	for range 3 {
		_, _ = o.Load(t.Context(), "k")
	}
	wantFailure(t, failures(t, func(tb *fakeTB) { AssertLoads(tb, &o, "k", 2) }), `key "k" was loaded 3 times, want 2`)
	if got := failures(t, func(tb *fakeTB) { AssertLoads(tb, &o, "k", 3) }); got != "" {
		t.Errorf("a true assertion fails: %s", got)
	}
}

func TestARedisThatIsDownRefusesAndComesBackWithItsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		rdb := r.Client()
		sub := rdb.Subscribe(t.Context(), "news")
		defer func() { _ = sub.Close() }()
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
		r.Down()
		if err := rdb.Get(t.Context(), "k").Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Get with Redis down: %v", err)
		}
		if _, err := sub.Receive(t.Context()); err == nil {
			t.Error("the subscription was not cut")
		}
		r.Up()
		if v, err := rdb.Get(t.Context(), "k").Result(); v != "v" || err != nil {
			t.Errorf("Get with Redis up: %q, %v", v, err)
		}
	})
}

func TestAGateLosesADownRedisAndFindsItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		gate := r.Open()
		r.Down()
		synctest.Wait()
		if gate.Connected() {
			t.Error("the gate is connected to a Redis that is down")
		}
		r.Up()
		time.Sleep(5 * time.Second)
		if !gate.Connected() {
			t.Error("the gate is not connected to a Redis that is back")
		}
		r.Down() // to be closed so
	})
}

func TestASlowRedisAnswersLateAndOnTimeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		rdb := r.Client(func(o *redis.Options) { o.MaxRetries = -1; o.ReadTimeout = time.Second })
		takes := func(want time.Duration) error {
			t.Helper()
			start := time.Now()
			err := rdb.Incr(t.Context(), "k").Err()
			if took := time.Since(start); took != want {
				t.Errorf("a command took %v, want %v", took, want)
			}
			return err
		}
		for _, d := range []time.Duration{0, 300 * time.Millisecond, 0} {
			r.Slow(d)
			if err := takes(d); err != nil {
				t.Errorf("a command with a delay of %v: %v", d, err)
			}
		}
		r.Slow(time.Minute)
		if err := takes(time.Second); !isTimeout(err) {
			t.Errorf("a command that takes longer than the client's timeout: %v", err)
		}
		r.Slow(0)
		if n, err := rdb.Get(t.Context(), "k").Int(); n != 4 || err != nil {
			t.Errorf("%d commands were done (%v), want also the one whose answer was too late", n, err)
		}
	})
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

func TestAGateOnARedisSlowerThanItsTimeoutServesFromTheOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		var o Origin[string]
		o.Set("k", "v")
		gate := r.Open()
		cache := newCache(t, gate, &o, herdgate.Policy{})
		r.Slow(time.Minute)
		wantValue(t, cache, "v")
		if gate.Stats().Degraded == 0 {
			t.Error("the call did not find Redis slow")
		}
	})
}

func TestClosingASlowConnectionEndsItsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		r.Slow(time.Hour)
		rdb := r.Client(func(o *redis.Options) { o.MaxRetries = -1; o.ReadTimeout = -1 })
		ended := make(chan error, 1)
		go func() { ended <- rdb.Ping(t.Context()).Err() }()
		synctest.Wait()
		start := time.Now()
		r.Down()
		if err := <-ended; err == nil || time.Since(start) > time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestALostInvalidationLeavesTheOtherInstanceWithTheOldValueForLocalTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		var o Origin[string]
		o.Set("k", "old")
		policy := herdgate.Policy{LocalTTL: time.Second}
		here, there := newCache(t, r.Open(), &o, policy), newCache(t, r.Open(), &o, policy)
		change := func(value string) {
			t.Helper()
			o.Set("k", value)
			if err := here.Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		wantValue(t, there, "old")
		r.LoseInvalidations(1)
		change("new")
		wantValue(t, there, "old")
		wantValue(t, here, "new")
		time.Sleep(time.Second)
		wantValue(t, there, "new")
		change("newest")
		wantValue(t, there, "newest")
	})
}

func TestAFrozenHolderIsSucceededAndStoresNothingWhenItThaws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		rdb := r.Client()
		var frozen, healthy Origin[string]
		frozen.Set("k", "of the frozen")
		healthy.Set("k", "of the healthy")
		policy := herdgate.Policy{LocalTTL: herdgate.Off}
		a := newCache(t, r.Open(func(o *herdgate.Options) { o.Redis = rdb }), &frozen, policy)
		gate := r.Open()
		b := newCache(t, gate, &healthy, policy)

		frozen.Freeze()
		var called sync.WaitGroup
		called.Go(func() { _, _ = a.Get(t.Context(), "k") }) // it may get its value, or that the lease was lost
		frozen.WaitRunning(t, 1)
		r.Isolate(rdb)
		synctest.Wait()
		if !gate.Connected() {
			t.Error("the other instance lost Redis, too")
		}
		wantValue(t, b, "of the healthy")
		AssertOneLoad(t, &healthy, "k")

		r.Rejoin(rdb)
		frozen.Release()
		called.Wait()
		time.Sleep(5 * time.Second) // for a to find Redis again
		wantValue(t, a, "of the healthy")
		wantValue(t, b, "of the healthy")
	})
}

func TestIsolatingAStrangerEndsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, other := NewRedis(t), NewRedis(t)
		stranger := other.Client()
		got := failures(t, func(tb *fakeTB) {
			r.t = tb
			r.Isolate(stranger)
		})
		wantFailure(t, got, "Isolate of a client that is not of this Redis")
		r.Rejoin(stranger)
	})
}

// stampedeOf is how Stampede fails for a herd of 2 × 3 callers.
func stampedeOf(t *testing.T, load herdgate.LoaderFunc[string], get func(context.Context, *herdgate.Cache[string]) (string, error)) (got string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		got = failures(t, func(tb *fakeTB) {
			stampede(tb, r, 2, 3, func(gate *herdgate.Gate) (*herdgate.Cache[string], error) {
				return herdgate.New(gate, "things", load, herdgate.Policy{LocalTTL: herdgate.Off})
			}, get)
		})
	})
	return got
}

func getK(ctx context.Context, c *herdgate.Cache[string]) (string, error) { return c.Get(ctx, "k") }

func TestAHerdOfAGoodServicePasses(t *testing.T) {
	var o Origin[string]
	o.Set("k", "v")
	o.SetDelay(time.Second)
	if got := stampedeOf(t, o.Load, getK); got != "" {
		t.Errorf("Stampede fails: %s", got)
	}
	AssertOneLoad(t, &o, "k")
}

func TestAHerdThatLoadsTwiceFails(t *testing.T) {
	var o Origin[string]
	o.Set("k", "v")
	o.SetDelay(time.Second)
	got := stampedeOf(t, o.Load, func(ctx context.Context, c *herdgate.Cache[string]) (string, error) {
		v, err := c.Get(ctx, "k")
		time.Sleep(time.Minute + 10*time.Second) // the value expires meanwhile
		_, _ = c.Get(ctx, "k")
		return v, err
	})
	wantFailure(t, got, `cache "things" loaded key "k" 2 times, want once`)
}

func TestAHerdThatGetsDifferentValuesFails(t *testing.T) {
	var o Origin[string]
	o.Set("k", "v")
	var calls atomic.Int64
	got := stampedeOf(t, o.Load, func(ctx context.Context, c *herdgate.Cache[string]) (string, error) {
		v, err := c.Get(ctx, "k")
		return v + fmt.Sprint(calls.Add(1)/6), err // of the last caller: 1
	})
	wantFailure(t, got, "values differ: instance ")
}

func TestAHerdThatGetsErrorsFails(t *testing.T) {
	var o Origin[string]
	wantFailure(t, stampedeOf(t, o.Load, getK), "6 of 6 calls failed, the first with: herdgate: ")
}

func TestAHerdThatLoadsNothingFails(t *testing.T) {
	got := stampedeOf(t, nil, func(context.Context, *herdgate.Cache[string]) (string, error) { return "cheat", nil })
	wantFailure(t, got, "nothing was loaded")
}

func TestALoadThatItsCallersDidNotWaitForCounts(t *testing.T) {
	var o Origin[string]
	o.Set("k", "v")
	o.SetDelay(time.Second)
	got := stampedeOf(t, o.Load, func(ctx context.Context, c *herdgate.Cache[string]) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, _ = c.Get(ctx, "k")
		return "gone", nil
	})
	if got != "" {
		t.Errorf("Stampede fails: %s", got)
	}
	AssertOneLoad(t, &o, "k")
}

func TestAHerdOfNobodyOrWithoutACacheEndsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRedis(t)
		get := func(context.Context, int) (int, error) { return 0, nil }
		broken := func(*herdgate.Gate) (int, error) { return 0, io.ErrUnexpectedEOF }
		got := failures(t, func(tb *fakeTB) { stampede(tb, r, 0, 3, broken, get) })
		wantFailure(t, got, "Stampede of 0 instances with 3 callers each: want at least 1 of both")
		got = failures(t, func(tb *fakeTB) { stampede(tb, r, 1, 1, broken, get) })
		wantFailure(t, got, "making the cache: unexpected EOF")
	})
}

func TestTheCodeOfThePackageCommentIsThatOfTheExamples(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(doc)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok && !strings.Contains(string(examples), "\n"+code) {
			t.Errorf("example_test.go has no line %q", code)
		}
	}
}
