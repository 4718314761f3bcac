package herdgate_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/singleflight"
)

// The first caller of a flight takes its read itself.

func TestWhoLeavesDuringTheReadLeavesTheFlightToTheOthers(t *testing.T) { // I3, C5
	virtually(t, func(w *world) {
		h := newHolding("get")
		o := newOrigin(0)
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Redis.AddHook(h) }), o.load, herdgate.Policy{})
		h.arm()
		ctx, cancel := context.WithCancel(w.Context())
		first, others := make(chan error, 1), make(chan string, 2)
		go func() {
			_, err := c.Get(ctx, "k")
			first <- err
		}()
		synctest.Wait()
		for range cap(others) {
			go func() { others <- get(w.T, c, "k") }()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-first:
			if !errors.Is(err, context.Canceled) {
				w.Errorf("who left got %v", err)
			}
		default:
			w.Error("a caller that is cancelled waits for its read")
		}
		h.disarm()
		h.release()
		for range cap(others) {
			if v := <-others; v != "k#1" {
				w.Errorf("who stayed got %q", v)
			}
		}
		if s := c.Stats(); s.Loads != 1 || s.Coalesced != 2 {
			w.Errorf("stats %+v", s)
		}
	})
}

// quitter is a codec that ends the goroutine that decodes, as testing's FailNow does.
type quitter struct{ codec.Codec }

func (quitter) Unmarshal([]byte, any) error {
	runtime.Goexit()
	return nil
}

func TestACallerThatEndsInsideItsReadLeavesTheFlightToTheOthers(t *testing.T) { // I4
	virtually(t, func(w *world) {
		h := newHolding("get")
		writer := newCache(w.T, w.gate(), newOrigin(0).load, herdgate.Policy{})
		get(w.T, writer, "k")
		c := newCache(w.T, w.gate(func(o *herdgate.Options) { o.Redis.AddHook(h) }), newOrigin(0).load,
			herdgate.Policy{Codec: quitter{codec.Msgpack()}})
		h.arm()
		ended, other := make(chan struct{}), make(chan error, 1)
		go func() {
			defer close(ended)
			_, _ = c.Get(w.Context(), "k")
		}()
		synctest.Wait()
		go func() {
			_, err := c.Get(w.Context(), "k")
			other <- err
		}()
		synctest.Wait()
		h.disarm()
		h.release()
		<-ended
		if err := <-other; !errors.Is(err, singleflight.ErrGoexit) {
			w.Errorf("who had joined got %v", err)
		}
	})
}

func TestWhoLeavesDoesNotEndTheOthersPatienceForARefresh(t *testing.T) {
	virtually(t, func(w *world) {
		o := newOrigin(100 * time.Millisecond)
		c := newCache(w.T, w.gate(), o.load, herdgate.Policy{
			TTL: time.Second, Stale: time.Minute, SoftTimeout: time.Second, LocalTTL: herdgate.Off, EarlyBeta: herdgate.Off,
		})
		get(w.T, c, "k")
		w.pass(2 * time.Second)
		ctx, cancel := context.WithCancel(w.Context())
		first, other := make(chan error, 1), make(chan string, 1)
		go func() {
			_, err := c.Get(ctx, "k")
			first <- err
		}()
		synctest.Wait()
		go func() { other <- get(w.T, c, "k") }()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			w.Errorf("who left got %v", err)
		}
		if v := <-other; v != "k#2" {
			w.Errorf("who stayed got %q, want what the refresh loads", v)
		}
	})
}
