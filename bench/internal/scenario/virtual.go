package scenario

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/rig"
	"github.com/herdgate/herdgate/internal/testutil"
)

// virtualFleet is instances of a service in one bubble: the real code of a peer, of
// go-redis and of miniredis with its Lua, over pipes, on a clock that moves when all of
// them wait.
type virtualFleet struct {
	link    *rig.Link
	peers   []peer.Peer
	loading time.Duration

	mu    sync.Mutex
	loads []time.Time // when each began; protected by mu
}

// openFleet opens n instances one soon after another. They are
// closed when t ends.
func openFleet(t *testing.T, k peer.Kind, n int, link *rig.Link, loading time.Duration, s peer.Setup) *virtualFleet {
	t.Helper()
	f := &virtualFleet{link: link, loading: loading, peers: make([]peer.Peer, n)}
	server, client := testutil.NewBubbleRedis(t)
	stepClock(t, server)
	s.Prefix, s.Hook, s.Load = prefix, link, f.load
	var opening sync.WaitGroup
	for i := range n {
		own := s
		own.Redis = client(link.Options)
		own.Redis.AddHook(link)
		opening.Go(func() {
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
			var err error
			if f.peers[i], err = k.Open(t.Context(), own); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, p := range f.peers {
			closing.Go(func() { _ = p.Close(context.WithoutCancel(t.Context())) })
		}
		closing.Wait()
	})
	return f
}

// stepClock moves a server's clock in steps: at each command that finds it moved, it
// looks at all of its keys.
func stepClock(t *testing.T, server *miniredis.Miniredis) {
	t.Helper()
	const step = 2 * time.Millisecond
	server.SetTime(time.Now())
	quit := make(chan struct{})
	var stepping sync.WaitGroup
	stepping.Go(func() {
		tick := time.NewTicker(step)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				server.SetTime(now)
			case <-quit:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(quit)
		stepping.Wait()
	})
}

func (f *virtualFleet) load(ctx context.Context, _ string) (*peer.Product, error) {
	f.mu.Lock()
	f.loads = append(f.loads, time.Now())
	number := int64(len(f.loads))
	f.mu.Unlock()
	if err := rig.Sleep(ctx, f.loading); err != nil {
		return nil, err
	}
	return peer.NewProduct(number, 1, time.Now()), nil
}

// loadsBegun returns when the loads so far began, in order.
func (f *virtualFleet) loadsBegun() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(slices.Values(f.loads), time.Time.Compare)
}

// peak is the most of sorted moments within a time.
func peak(moments []time.Time, within time.Duration) int {
	most, first := 0, 0
	for i, at := range moments {
		for at.Sub(moments[first]) >= within {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// IsSimulation reports whether this process was started for a scenario in virtual
// time, and has to call Simulate.
func IsSimulation() bool { return rig.IsSimulation() }

// Simulate runs the scenario in virtual time and ends the process.
func Simulate() {
	rig.ServeSimulation(map[string]rig.Simulation{
		"wave":  rig.Simulated(simulateWave),
		"fleet": rig.Simulated(simulateFleet),
	})
}
