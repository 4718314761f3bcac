package scenario

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// deleteRace: a process loads a value, the origin changes, another process deletes
// the key, and then the load ends.
func deleteRace() Scenario {
	return Scenario{
		Name:     "delrace",
		About:    "process A loads for 500 ms; after 200 ms the origin changes and B deletes the key; A, B and C read 0.3 s and 2 s after the load; TTL 1 min; five keys, medians, stale_reads their sum",
		Variants: fixed("l1", "remote"),
		Unfit:    tiers,
		Limit:    time.Minute,
		Run:      runDeleteRace,
	}
}

func runDeleteRace(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	const load = 500 * time.Millisecond
	s, err := startService(ctx, e, k, 3, workerSetup{TTL: time.Minute, Memory: variant == "l1", Keys: 1, Load: load})
	if err != nil {
		return result.Measured{}, err
	}
	cell := result.Cell{}
	stale := 0.0
	for i := range pick(e.Options, 5, 1) {
		m, err := s.deleteRace(ctx, strconv.Itoa(i), load, pick(e.Options, 2*time.Second, 400*time.Millisecond))
		if err != nil {
			return result.Measured{}, joinClose(err, s)
		}
		stale += m.Figures["stale_reads"]
		cell.Runs = append(cell.Runs, m)
	}
	figures := cell.Median()
	figures["stale_reads"] = stale // one in any of them is one too many
	return result.Measured{Figures: figures}, s.close()
}

func (s *service) deleteRace(ctx context.Context, key string, load, long time.Duration) (result.Measured, error) {
	s.origin.Reset()
	racing := rig.Begin[read](s.workers[0], "get", key)
	if err := s.awaitLoads(ctx, 1); err != nil {
		return result.Measured{}, err
	}
	began := s.origin.Loads()[0].At
	if err := rig.SleepUntil(ctx, began.Add(load*2/5)); err != nil {
		return result.Measured{}, err
	}
	s.origin.Change(2)
	if _, err := rig.Call[none](ctx, s.workers[1], "delete", key); err != nil {
		return result.Measured{}, err
	}
	if _, err := racing.Wait(ctx); err != nil {
		return result.Measured{}, err
	}
	figures := result.Figures{"stale_reads": 0}
	for _, at := range []time.Duration{300 * time.Millisecond, long} {
		if err := rig.SleepUntil(ctx, began.Add(load+at)); err != nil {
			return result.Measured{}, err
		}
		for i, w := range s.workers {
			r, err := rig.Call[read](ctx, w, "get", key)
			if err != nil {
				return result.Measured{}, err
			}
			if r.Err != "" {
				return result.Measured{}, errors.New(r.Err)
			}
			if r.Stock == 1 {
				figures["stale_reads"]++
			}
			figures["value_"+string(rune('a'+i))] = float64(r.Stock)
		}
	}
	figures["loads"] = float64(len(s.origin.Loads()))
	return result.Measured{Figures: figures}, nil
}

// awaitLoads waits until n loads have begun.
func (s *service) awaitLoads(ctx context.Context, n int) error {
	for len(s.origin.Loads()) < n {
		if err := rig.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
