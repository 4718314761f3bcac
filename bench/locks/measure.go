package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdgate/herdgate/bench/internal/rig"
)

// A measure is a way in which contenders come.
type measure struct {
	name   string
	rounds int // into which the time is divided
	// take lets the contenders of a side come for a time, or until each has had the
	// lock once if that takes longer.
	take func(ctx context.Context, s *side, d, hold time.Duration) (round, error)
}

// measures are those for a number of contenders.
func measures(contenders int) []measure {
	if contenders == 1 {
		return []measure{{"alone", 30, alone}}
	}
	return []measure{{"wave", 6, wave}, {"greedy", 3, greedy}}
}

// A round is how many locks were had in a time.
type round struct {
	locks int
	took  time.Duration
}

func (r round) rate() float64 { return float64(r.locks) / r.took.Seconds() }

// A side is a kind that is measured beside others.
type side struct {
	kind

	contenders []contender
	inside     atomic.Int32 // who holds the lock

	latency *rig.Latency
	got     []atomic.Int64 // locks, by contender
	rounds  []round
	err     error // why it is measured no more
}

// begin forgets what was measured before.
func (s *side) begin() {
	s.latency, s.rounds = rig.NewLatency(), nil
	s.got = make([]atomic.Int64, len(s.contenders))
}

// turn is one lock by a contender: how long it waited, and how long all of it took.
func (s *side) turn(ctx context.Context, i int, hold time.Duration) (waited, took time.Duration, err error) {
	asked := time.Now()
	unlock, err := s.contenders[i](ctx)
	if err != nil {
		return 0, 0, err
	}
	waited = time.Since(asked)
	if s.inside.Add(1) != 1 {
		err = errors.New("two held the lock at a time")
	}
	if hold > 0 {
		err = errors.Join(err, rig.Sleep(ctx, hold))
	}
	s.inside.Add(-1)
	err = errors.Join(err, unlock(context.WithoutCancel(ctx)))
	return waited, time.Since(asked), err
}

// alone is one contender who comes again and again.
func alone(ctx context.Context, s *side, d, _ time.Duration) (round, error) {
	var r round
	for began := time.Now(); r.took < d; r.took = time.Since(began) {
		_, took, err := s.turn(ctx, 0, 0)
		if err != nil {
			return r, err
		}
		s.latency.Record(took)
		r.locks++
	}
	return r, nil
}

// wave is all contenders at once, each of whom wants the lock once: requests of a service
// do not come back. The next wave begins when all have had it.
func wave(ctx context.Context, s *side, d, hold time.Duration) (round, error) {
	var r round
	for began := time.Now(); r.took < d; r.took = time.Since(began) {
		crowd, ctx := errgroup.WithContext(ctx)
		for i := range s.contenders {
			crowd.Go(func() error {
				waited, _, err := s.turn(ctx, i, hold)
				s.latency.Record(waited)
				return err
			})
		}
		if err := crowd.Wait(); err != nil {
			return r, err
		}
		r.locks += len(s.contenders)
	}
	return r, nil
}

// greedy is all contenders, each of whom asks again at once. It shows who starves.
func greedy(ctx context.Context, s *side, d, hold time.Duration) (round, error) {
	var total atomic.Int64
	end := time.Now().Add(d)
	crowd, ctx := errgroup.WithContext(ctx)
	for i := range s.contenders {
		crowd.Go(func() error {
			for {
				waited, _, err := s.turn(ctx, i, hold)
				if err != nil || !time.Now().Before(end) {
					return err
				}
				s.latency.Record(waited)
				s.got[i].Add(1)
				total.Add(1)
			}
		})
	}
	err := crowd.Wait()
	return round{int(total.Load()), d}, err
}

// interleave lets the sides take turns, round by round: whatever disturbs the machine
// disturbs them alike. The first round warms up. A side that fails is left out from
// then on; the error is ctx's.
func (m measure) interleave(ctx context.Context, sides []*side, d, hold time.Duration) error {
	for n := range m.rounds + 1 {
		if n <= 1 {
			for _, s := range sides {
				s.begin()
			}
		}
		for i := range sides {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s := sides[(n+i)%len(sides)]
			if s.err != nil {
				continue
			}
			var r round
			if r, s.err = m.take(ctx, s, d/time.Duration(m.rounds), hold); s.err == nil {
				s.rounds = append(s.rounds, r)
			}
		}
	}
	return nil
}

// measureAt measures kinds that are kept at a place. There are no rows, and stderr says why, if
// the place cannot be had. The error tells of each lock that failed; the others have their
// rows.
func (c config) measureAt(ctx context.Context, p place, here []kind, stderr io.Writer) (rows []row, err error) {
	h := rig.NewHost(context.WithoutCancel(ctx))
	defer func() { err = errors.Join(err, h.Close()) }()
	var addrs []string
	if err := h.Try(func() { addrs = p.start(h) }); err != nil {
		_, _ = fmt.Fprintf(stderr, "locks: %s is left out: %v\n", p.name, err)
		return nil, nil
	}
	for _, n := range c.contenders {
		var sides []*side
		for _, k := range here {
			s := &side{kind: k}
			s.contenders, s.err = k.open(ctx, h, addrs, n)
			sides = append(sides, s)
		}
		for _, m := range measures(n) {
			_, _ = fmt.Fprintf(stderr, "locks: %s, %d contenders, %s\n", p.name, n, m.name)
			if ctxErr := m.interleave(ctx, sides, c.duration, c.hold); ctxErr != nil {
				return nil, ctxErr
			}
			var good []*side
			for _, s := range sides {
				if s.err != nil {
					err = errors.Join(err, fmt.Errorf("%s is left out, from %d contenders, %s, on: %w", s.name, n, m.name, s.err))
					continue
				}
				good = append(good, s)
			}
			sides = good
			for _, s := range sides {
				rows = append(rows, s.row(m, sides))
			}
		}
	}
	return rows, err
}

// row is what was measured of s, beside the peers among all.
func (s *side) row(m measure, all []*side) row {
	rates := make([]float64, len(s.rounds))
	for i, r := range s.rounds {
		rates[i] = r.rate()
	}
	r := row{
		Lock: s.name, Place: s.place, Contenders: len(s.contenders), Measure: m.name,
		PerSecond: median(rates),
		P50:       micros(s.latency.Quantile(0.5)),
		P99:       micros(s.latency.Quantile(0.99)),
		Ratios:    make(map[string]float64),
	}
	if m.name == "greedy" {
		r.Luckiest, r.Unluckiest = s.got[0].Load(), s.got[0].Load()
		for i := range s.got {
			r.Luckiest, r.Unluckiest = max(r.Luckiest, s.got[i].Load()), min(r.Unluckiest, s.got[i].Load())
		}
	}
	for _, other := range all {
		if !other.peer || s.peer {
			continue
		}
		ratios := make([]float64, len(s.rounds))
		for i := range ratios {
			ratios[i] = s.rounds[i].rate() / other.rounds[i].rate()
		}
		// A slice of the time in which nobody had a lock is only ever seen in tests.
		if x := median(ratios); !math.IsNaN(x) && !math.IsInf(x, 0) {
			r.Ratios[other.name] = x
		}
	}
	return r
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// median sorts values, of which there is at least one.
func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
