package herdgate_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

func TestMain(m *testing.M) {
	os.Exit(testutil.Main(m, map[string]testutil.Role{instanceRole: runInstance, outageRole: runOutage, skewedRole: runSkewed},
		// A client of a server that is gone notices only after a second that it was closed.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")))
}

// world is a Redis and the instances of a service around it.
type world struct {
	*testing.T
	connect func(opts ...func(*redis.Options)) *redis.Client
	virtual bool         // in a synctest bubble: time passes when all wait
	locks   lock.Backend // of the locker that each gate has; nil: they have none
}

// everywhere runs a test in virtual time on an embedded Redis, with and without a
// locker, and in real time on a real one.
func everywhere(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Parallel()
	if realLocks() == "" { // else only what uses them is of interest
		t.Run("virtual", func(t *testing.T) { virtually(t, test) })
		t.Run("virtual with a locker", func(t *testing.T) {
			virtually(t, func(w *world) {
				w.locks = memlock.New()
				test(w)
			})
		})
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		really(t, test)
	})
}

// onEachRedis is everywhere for tests that bring a locker of their own, or whose course a
// locker would change.
func onEachRedis(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Parallel()
	t.Run("virtual", func(t *testing.T) { virtually(t, test) })
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		really(t, test)
	})
}

// realLocks is where the locks are that all gates in real time use as their lockers,
// by openLocks; "" if they have none.
func realLocks() string { return os.Getenv("HERDGATE_TEST_LOCKS") }

func virtually(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, connect := testutil.NewBubbleRedis(t)
		test(&world{T: t, connect: connect, virtual: true})
	})
}

func really(t *testing.T, test func(w *world)) {
	t.Helper()
	server := testutil.StartRedis(t)
	w := &world{T: t, connect: func(opts ...func(*redis.Options)) *redis.Client { return server.Client(t, opts...) }}
	if at := realLocks(); at != "" {
		backend, closeLocks, err := openLocks(at, randomName())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := closeLocks(); err != nil {
				t.Errorf("close the locks: %v", err)
			}
		})
		w.locks = backend
	}
	test(w)
}

// randomName keeps the locks of a test apart from those of all others.
func randomName() string { return rand.Text() }

// gate opens a gate with a client of its own, as another instance would.
func (w *world) gate(change ...func(*herdgate.Options)) *herdgate.Gate {
	w.Helper()
	options := herdgate.Options{Redis: w.connect(), Namespace: "test"}
	if w.locks != nil {
		options.Locker = engine(w.T, w.locks, lock.Options{})
	}
	for _, c := range change {
		c(&options)
	}
	return openGate(w.T, options)
}

func openGate(t *testing.T, options herdgate.Options) *herdgate.Gate {
	t.Helper()
	g, err := herdgate.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return g
}

// engine is a locker over the backend, as another instance has one.
func engine(t *testing.T, b lock.Backend, options lock.Options) *lock.Engine {
	t.Helper()
	e, err := lock.New(b, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close the locker: %v", err)
		}
	})
	return e
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.Context().Done():
	}
}

// until waits for a condition, some seconds at most.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	testutil.Eventually(w, 5*time.Second, cond, what)
}

// origin is a source of values that counts its loads. Each load returns the number
// of its load, as a string after the key.
type origin struct {
	delay   time.Duration
	loads   atomic.Int64
	running atomic.Int64
	most    atomic.Int64  // most at once
	begun   chan struct{} // gets a token as a load begins, if there is room
}

func newOrigin(delay time.Duration) *origin {
	return &origin{delay: delay, begun: make(chan struct{}, 1024)}
}

func (o *origin) load(ctx context.Context, key string) (string, error) {
	n := o.loads.Add(1)
	now := o.running.Add(1)
	defer o.running.Add(-1)
	for {
		most := o.most.Load()
		if now <= most || o.most.CompareAndSwap(most, now) {
			break
		}
	}
	select {
	case o.begun <- struct{}{}:
	default:
	}
	timer := time.NewTimer(o.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return fmt.Sprintf("%s#%d", key, n), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func newCache[V any](t *testing.T, g *herdgate.Gate, load herdgate.LoaderFunc[V], policy herdgate.Policy, options ...herdgate.Option[V]) *herdgate.Cache[V] {
	t.Helper()
	c, err := herdgate.New(g, "things", load, policy, options...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func get[V any](t *testing.T, c *herdgate.Cache[V], key string) V {
	t.Helper()
	v, err := c.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	return v
}

// herd calls n times at once and returns the results.
func herd[V any](t *testing.T, n int, call func() (V, error)) (values []V, errs []error) {
	t.Helper()
	values, errs = make([]V, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { values[i], errs[i] = call() })
	}
	wg.Wait()
	return values, errs
}
