package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
)

// stampede: all callers of all processes ask for one cold key at the same moment.
func stampede() Scenario {
	return Scenario{
		Name:     "stampede",
		About:    "8 processes with 200 callers each ask at once for one key that is nowhere; the figures are medians over several such keys",
		Variants: fixed("200ms", "2s", "5s"),
		Unfit:    anyRedis,
		Limit:    time.Minute,
		Run:      runStampede,
	}
}

func runStampede(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	load, err := time.ParseDuration(variant)
	if err != nil {
		return result.Measured{}, err
	}
	times := map[string]int{"200ms": 7, "2s": 3, "5s": 1}[variant]
	if e.Small {
		load, times = load/20, 1
	}
	s, err := startService(ctx, e, k, pick(e.Options, 8, 2), workerSetup{
		TTL: time.Minute, Memory: k.Tiers.Memory, Keys: 1, Load: load,
	})
	if err != nil {
		return result.Measured{}, err
	}
	cell := result.Cell{}
	callers := pick(e.Options, 200, 20)
	// The key is cold, but not the service: it has connected, and its code has run.
	if _, err := s.stampede(ctx, warmUpKey, callers); err != nil {
		return result.Measured{}, joinClose(err, s)
	}
	for i := range times {
		m, err := s.stampede(ctx, strconv.Itoa(i), callers)
		if err != nil {
			return result.Measured{}, joinClose(err, s)
		}
		cell.Runs = append(cell.Runs, m)
	}
	return result.Measured{Figures: cell.Median(), Curve: cell.Runs[0].Curve}, s.close()
}

func (s *service) stampede(ctx context.Context, key string, callers int) (result.Measured, error) {
	s.origin.Reset()
	sentBefore, err := s.counts(ctx)
	if err != nil {
		return result.Measured{}, err
	}
	ranBefore, err := s.redis.Commands(ctx)
	if err != nil {
		return result.Measured{}, err
	}
	start := time.Now().Add(lead)
	tallies, err := everywhere[*tally](ctx, s, "crowd", crowdArgs{Key: key, Callers: callers, At: start})
	if err != nil {
		return result.Measured{}, err
	}
	ran, err := s.redis.Commands(ctx)
	if err != nil {
		return result.Measured{}, err
	}
	sent, err := s.counts(ctx)
	if err != nil {
		return result.Measured{}, err
	}
	sent = sent.Sub(sentBefore)
	all := sum(tallies)
	if all.Errors > 0 {
		return result.Measured{}, fmt.Errorf("%d of %d calls failed, the first with: %s", all.Errors, all.Requests, all.FirstError)
	}
	return result.Measured{
		Figures: result.Figures{
			"loads":    float64(len(s.origin.Loads())),
			"wall_ms":  millis(all.Last.Sub(start)),
			"p50_ms":   millis(all.Latency.Quantile(0.5)),
			"p99_ms":   millis(all.Latency.Quantile(0.99)),
			"max_ms":   millis(all.Latency.Max()),
			"calls":    float64(sent.Calls),
			"commands": float64(ran - ranBefore - sent.Heartbeats),
		},
		Curve: curve(all.Latency),
	}, nil
}

// joinClose closes the service after an error, or without one.
func joinClose(err error, s *service) error { return errors.Join(err, s.close()) }
