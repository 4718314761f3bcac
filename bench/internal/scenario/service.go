package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// service is what a scenario measures: worker processes around one Redis and one
// origin.
type service struct {
	redis   *rig.Server
	cluster rig.Cluster // in the place of redis, where one is asked for
	origin  *rig.Origin
	workers []*rig.Worker
	setup   workerSetup
	env     Env
}

// lead is how long before a common start the workers are told of it.
const lead = 300 * time.Millisecond

// startService starts n workers that have opened the peer.
func startService(ctx context.Context, e Env, k peer.Kind, n int, setup workerSetup) (_ *service, err error) {
	s := &service{env: e, setup: setup}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if setup.Cluster {
		s.cluster, err = rig.StartCluster(ctx)
		s.setup.Redis = strings.Join(s.cluster.Addrs(), ",")
	} else if s.redis, err = rig.StartServer(ctx); err == nil {
		s.setup.Redis = s.redis.Addr()
	}
	if err != nil {
		return nil, err
	}
	if s.origin, err = rig.StartOrigin(ctx); err != nil {
		return nil, err
	}
	s.setup.Peer, s.setup.Origin = k.Name, s.origin.Addr()
	s.setup.Keys = max(1, setup.Keys)
	s.setup.Calm = setup.Calm || e.Small // what is tried there is the suite, not a machine's patience
	for range n {
		w, err := rig.Spawn(ctx, e.Stderr)
		if err != nil {
			return nil, err
		}
		s.workers = append(s.workers, w)
	}
	return s, s.openWorkers(ctx, s.workers)
}

// openWorkers lets workers open their peers, at once.
func (s *service) openWorkers(ctx context.Context, workers []*rig.Worker) error {
	var opening []rig.Pending[none]
	for i, w := range workers {
		setup := s.setup
		setup.Name = string(rune('a' + i))
		opening = append(opening, rig.Begin[none](w, "open", setup))
	}
	return waitAll(ctx, opening)
}

// close ends all that was started.
func (s *service) close() error {
	for _, w := range s.workers {
		w.Close()
	}
	if s.origin != nil {
		s.origin.Close()
	}
	err := s.cluster.Close()
	if s.redis != nil {
		err = errors.Join(err, s.redis.Close())
	}
	return err
}

func waitAll[R any](ctx context.Context, pending []rig.Pending[R]) error {
	_, err := gather(ctx, pending)
	return err
}

func gather[R any](ctx context.Context, pending []rig.Pending[R]) ([]R, error) {
	all := make([]R, len(pending))
	for i, p := range pending {
		var err error
		if all[i], err = p.Wait(ctx); err != nil {
			return nil, fmt.Errorf("worker %c: %w", 'a'+i, err)
		}
	}
	return all, nil
}

// everywhere lets all workers do op at once.
func everywhere[R any](ctx context.Context, s *service, op string, args any) ([]R, error) {
	var pending []rig.Pending[R]
	for _, w := range s.workers {
		pending = append(pending, rig.Begin[R](w, op, args))
	}
	return gather(ctx, pending)
}

// counts are the commands of all clients so far.
func (s *service) counts(ctx context.Context) (rig.Counts, error) {
	all, err := everywhere[rig.Counts](ctx, s, "counts", none{})
	var total rig.Counts
	for _, c := range all {
		total.Calls += c.Calls
		total.Heartbeats += c.Heartbeats
	}
	return total, err
}

// loop lets all workers loop and adds up their phases.
func (s *service) loop(ctx context.Context, a loopArgs) ([]*tally, error) {
	all, err := everywhere[[]*tally](ctx, s, "loop", a)
	if err != nil {
		return nil, err
	}
	phases := make([]*tally, len(a.Phases))
	for i := range phases {
		phases[i] = newTally()
		for _, of := range all {
			phases[i].add(of[i])
		}
	}
	return phases, nil
}

// loadsBetween counts the loads that began in a time.
func loadsBetween(loads []rig.Load, from, to time.Time) int {
	n := 0
	for _, l := range loads {
		if !l.At.Before(from) && l.At.Before(to) {
			n++
		}
	}
	return n
}

// curve is the latencies as points for a chart.
func curve(l *rig.Latency) []result.Point {
	var points []result.Point
	for _, q := range []float64{0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1} {
		points = append(points, result.Point{Q: q, US: micros(l.Quantile(q))})
	}
	return points
}
