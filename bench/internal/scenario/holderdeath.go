package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// holderDeath: the process that loads is killed, or frozen and thawed later.
func holderDeath() Scenario {
	return Scenario{
		Name:     "holderdeath",
		About:    "three processes want one key, A loads for 1 s and is killed, or stopped until a successor has the value, after 700 ms: just after a renewal of herdgate's lease; medians over three times",
		Variants: fixed("sigkill", "sigstop"),
		Unfit:    anyRedis,
		Limit:    time.Minute,
		Run:      runHolderDeath,
	}
}

const (
	deadLoad  = time.Second
	deadAfter = 700 * time.Millisecond
)

func runHolderDeath(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	cell := result.Cell{}
	stale := 0.0
	for range pick(e.Options, 3, 1) {
		// A process is lost each time: all is new.
		s, err := startService(ctx, e, k, 3, workerSetup{TTL: time.Minute, Memory: k.Tiers.Memory, Keys: 1, Load: deadLoad})
		if err != nil {
			return result.Measured{}, err
		}
		m, err := s.holderDeath(ctx, variant == "sigstop")
		if err := joinClose(err, s); err != nil {
			return result.Measured{}, err
		}
		stale += m.Figures["stale_reads"]
		cell.Runs = append(cell.Runs, m)
	}
	figures := cell.Median()
	if _, ok := figures["stale_reads"]; ok {
		figures["stale_reads"] = stale
	}
	return result.Measured{Figures: figures}, nil
}

//revive:disable-next-line:flag-parameter It is the variant.
func (s *service) holderDeath(ctx context.Context, freeze bool) (result.Measured, error) {
	const key = "0"
	holder, others := s.workers[0], s.workers[1:]
	early := rig.Begin[read](holder, "get", key)
	if err := s.awaitLoads(ctx, 1); err != nil {
		return result.Measured{}, err
	}
	first := s.origin.Loads()[0]
	if err := rig.SleepUntil(ctx, first.At.Add(deadAfter/2)); err != nil {
		return result.Measured{}, err
	}
	var waiting []rig.Pending[read]
	for _, w := range others {
		waiting = append(waiting, rig.Begin[read](w, "get", key))
	}
	if err := rig.SleepUntil(ctx, first.At.Add(deadAfter)); err != nil {
		return result.Measured{}, err
	}
	signalled := time.Now()
	if freeze {
		if err := holder.Freeze(); err != nil {
			return result.Measured{}, err
		}
	} else {
		holder.Kill()
	}
	reads, err := gather(ctx, waiting)
	if err != nil {
		return result.Measured{}, err
	}
	figures := result.Figures{"takeover_ms": s.takeover(signalled)}
	soonest := time.Time{}
	for _, r := range reads {
		if r.Err != "" {
			return result.Measured{}, errors.New(r.Err)
		}
		if soonest.IsZero() || r.At.Before(soonest) {
			soonest = r.At
		}
	}
	figures["value_ms"] = millis(soonest.Sub(signalled))
	if freeze {
		if err := s.thawed(ctx, key, early, figures); err != nil {
			return result.Measured{}, err
		}
	}
	figures["loads"] = float64(len(s.origin.Loads()))
	return result.Measured{Figures: figures}, nil
}

// takeover is how long after the signal another process's loader started.
func (s *service) takeover(signalled time.Time) float64 {
	loads := s.origin.Loads()
	if len(loads) < 2 {
		return 0 // the value was there in time
	}
	return max(0, millis(loads[1].At.Sub(signalled)))
}

// thawed lets the frozen holder go on, whose load is over by now, and looks for its
// value after that: the successor's must stay.
func (s *service) thawed(ctx context.Context, key string, early rig.Pending[read], figures result.Figures) error {
	if err := s.workers[0].Thaw(); err != nil {
		return err
	}
	if _, err := early.Wait(ctx); err != nil { // whatever it gets: the call began before
		return err
	}
	if err := rig.Sleep(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	stale := 0.0
	for i, w := range s.workers {
		r, err := rig.Call[read](ctx, w, "get", key)
		if err != nil {
			return err
		}
		if r.Err != "" {
			return fmt.Errorf("worker %c: %s", 'a'+i, r.Err)
		}
		if r.Load == 1 {
			stale++
		}
	}
	figures["stale_reads"] = stale
	return nil
}
