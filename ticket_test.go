package herdgate_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
)

// holding keeps back the replies of a client's commands of one name that are sent
// between arm and disarm, until release: the server has done them.
type holding struct {
	name  string
	armed atomic.Bool
	held  chan struct{} // closed by release
}

func newHolding(name string) *holding {
	return &holding{name: name, held: make(chan struct{})}
}

func (h *holding) arm()     { h.armed.Store(true) }
func (h *holding) disarm()  { h.armed.Store(false) }
func (h *holding) release() { close(h.held) }

func (*holding) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *holding) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		holds := cmd.Name() == h.name && h.armed.Load()
		err := next(ctx, cmd)
		if holds {
			<-h.held
		}
		return err
	}
}

func (*holding) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// held runs a test in which a Get of instance a has read "old" from Redis, or been
// granted the lease, and does not know it yet. changer changes the key to "new" in
// the meantime: the same instance, or another one.
func held(t *testing.T, command string, test func(w *world, a, changer *herdgate.Cache[string], first <-chan string, release func())) {
	t.Helper()
	for _, who := range []string{"the same instance", "another instance"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			virtually(t, func(w *world) {
				h := newHolding(command)
				patient := func(o *herdgate.Options) {
					o.Redis.AddHook(h)
					o.RedisTimeout = time.Minute
				}
				source := "old"
				load := func(context.Context, string) (string, error) { return source, nil }
				policy := herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour}
				a := newCache(w.T, w.gate(patient), load, policy)
				b := newCache(w.T, w.gate(), load, policy)
				if command == "get" {
					get(w.T, b, "k")
				}
				for _, c := range []*herdgate.Cache[string]{a, b} {
					if _, _, err := c.Peek(w.Context(), "nothing"); err != nil { // the generation is known
						w.Fatal(err)
					}
				}
				h.arm()
				first := make(chan string, 1)
				go func() { first <- get(w.T, a, "k") }()
				synctest.Wait()
				source = "new"
				changer := b
				if who == "the same instance" {
					changer = a
					if command != "get" { // its own change would be held, too
						changer = newCache(w.T, w.gate(), load, policy)
					}
				}
				if err := changer.Delete(w.Context(), "k"); err != nil {
					w.Fatal(err)
				}
				synctest.Wait() // the message has arrived
				test(w, a, changer, first, h.release)
			})
		})
	}
}

func TestAValueReadBeforeAChangeIsNotKept(t *testing.T) { // I2: the ticket
	t.Parallel()
	held(t, "get", func(w *world, a, _ *herdgate.Cache[string], first <-chan string, release func()) {
		release()
		if v := <-first; v != "old" {
			w.Errorf("who asked before the change got %q", v)
		}
		if v := get(w.T, a, "k"); v != "new" {
			w.Errorf("who asked after the change got %q", v)
		}
	})
}

func TestACallAfterAChangeDoesNotJoinAFlightFromBeforeIt(t *testing.T) { // I2: detached flights
	t.Parallel()
	held(t, "get", func(w *world, a, _ *herdgate.Cache[string], first <-chan string, release func()) {
		second := make(chan string, 1)
		go func() { second <- get(w.T, a, "k") }()
		synctest.Wait()
		release()
		if v := <-second; v != "new" {
			w.Errorf("who asked after the change got %q", v)
		}
		<-first
	})
}

func TestALeaseThatAChangeTookBeforeItsGrantWasKnownIsAskedForAgain(t *testing.T) { // I1, I2
	t.Parallel()
	held(t, "evalsha", func(w *world, a, b *herdgate.Cache[string], first <-chan string, release func()) {
		release()
		<-first
		if s := a.Stats(); s.LeasesRevoked != 1 || s.Loads != 1 || s.CommitsRefused != 0 || s.CommitsStored != 1 {
			w.Errorf("stats %+v", s)
		}
		for _, c := range []*herdgate.Cache[string]{b, a} {
			if v := get(w.T, c, "k"); v != "new" {
				w.Errorf("afterwards %q", v)
			}
		}
	})
}

func TestASetDoesNotKeepItsValueIfAnotherChangeCameBetween(t *testing.T) { // I2
	t.Parallel()
	virtually(t, func(w *world) {
		h := newHolding("evalsha")
		a := newCache[string](w.T, w.gate(func(o *herdgate.Options) {
			o.Redis.AddHook(h)
			o.RedisTimeout = time.Minute
		}), nil, herdgate.Policy{})
		b := newCache[string](w.T, w.gate(), nil, herdgate.Policy{})
		synctest.Wait() // the generation is known
		h.arm()
		done := make(chan error, 1)
		go func() { done <- a.Set(w.Context(), "k", "first") }()
		synctest.Wait() // Redis has it, a does not know yet
		if err := b.Set(w.Context(), "k", "second"); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		h.release()
		if err := <-done; err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, a, "k"); v != "second" {
			w.Errorf("got %q", v)
		}
	})
}
