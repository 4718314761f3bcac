package singleflight_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate/singleflight"
)

// stressState tells a flight apart and whether somebody has asked to detach it.
type stressState struct {
	serial  atomic.Int64
	leaving atomic.Bool // set before Detach is called
}

type (
	stressGroup  = singleflight.Group[int, stressState, int64]
	stressFlight = singleflight.Flight[int, stressState, int64]
)

var errStress = errors.New("stress")

// Random actions from several goroutines. What must hold: a flight only starts
// beside older ones that are being detached, every waiter gets the result of the
// very flight it joined or its own ctx's end, and nothing stays behind.
// STRESS_DURATION (a Go duration) replaces the fixed number of actions.
func TestStressRandomActionsKeepTheInvariants(t *testing.T) {
	const keys, workers, actions = 3, 8, 4_000
	var deadline time.Time
	if s := os.Getenv("STRESS_DURATION"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("STRESS_DURATION is %q; want a Go duration such as 10m", s)
		}
		deadline = time.Now().Add(d)
	}

	var g stressGroup
	var serials atomic.Int64
	work := func(f *stressFlight) (int64, error) {
		serial := serials.Add(1)
		f.State.serial.Store(serial)
		older := false
		g.Each(f.Key(), func(other *stressFlight) {
			switch {
			case other == f:
				older = true
			case older && !other.State.leaving.Load():
				t.Error("a flight started beside an older one that could be joined")
			}
		})
		switch rand.IntN(4) {
		case 0:
			return serial, errStress
		case 1:
			panic(serial)
		case 2:
			<-f.Context().Done()
		}
		return serial, nil
	}
	detach := func(f *stressFlight) {
		f.State.leaving.Store(true)
		f.Detach()
	}
	wait := func(ctx context.Context, f *stressFlight) {
		v, err := f.Wait(ctx)
		var p *singleflight.PanicError
		switch {
		case ctx.Err() != nil:
		case errors.As(err, &p):
			v = p.Value.(int64)
			fallthrough
		default:
			if want := f.State.serial.Load(); v != want {
				t.Errorf("a waiter of flight %d got the result of %d", want, v)
			}
		}
	}
	act := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		key := rand.IntN(keys)
		switch rand.IntN(8) {
		case 0:
			g.Each(key, detach)
		case 1:
			g.Each(key, func(f *stressFlight) { f.Cancel(nil) })
		case 2:
			g.All(func(f *stressFlight) { f.Cancel(errStress) })
		case 3:
			cancel()
			fallthrough
		case 4:
			f, _ := g.Join(ctx, key, work)
			wait(ctx, f)
		default:
			f, _ := g.Join(ctx, key, work)
			f.Cancel(nil)
			wait(ctx, f)
		}
	}

	// Whoever waits for a flight that waits to be cancelled needs somebody who
	// cancels: the sweeper, until all workers are through.
	var workersWG, sweeper sync.WaitGroup
	stop := make(chan struct{})
	sweeper.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				g.All(func(f *stressFlight) { f.Cancel(nil) })
			}
		}
	})
	for range workers {
		workersWG.Go(func() {
			for i := 0; deadline.IsZero() && i < actions || time.Now().Before(deadline); i++ {
				act()
			}
		})
	}
	workersWG.Wait()
	g.All(func(f *stressFlight) { f.Cancel(nil) })
	if err := g.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	close(stop)
	sweeper.Wait()
	g.All(func(f *stressFlight) { t.Error("a flight is left of key " + strconv.Itoa(f.Key())) })
}
