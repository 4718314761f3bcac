package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// expiry: a hot key that expires again and again while everybody reads it, and then
// a key that never expires, read in the same way without a library.
func expiry() Scenario {
	return Scenario{
		Name:     "expiry",
		About:    "8 processes with 20 callers each read one key and pause 20 ms; TTL 1 s, served stale for up to 10 s by peers that can; loader 100 ms; 15 s after a warm-up of 2 s",
		Variants: fixed("l1", "remote"),
		Unfit:    tiers,
		Limit:    time.Minute,
		Run:      runExpiry,
	}
}

func runExpiry(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	const ttl, load, pause = time.Second, 100 * time.Millisecond, 20 * time.Millisecond
	warmUp, long, plain := 2*time.Second, 15*time.Second, 3*time.Second
	if e.Small {
		warmUp, long, plain = ttl, 2*ttl, ttl/4
	}
	s, err := startService(ctx, e, k, pick(e.Options, 8, 2), workerSetup{
		TTL: ttl, Stale: 10 * time.Second, Memory: variant == "l1", Keys: 1, Load: load,
	})
	if err != nil {
		return result.Measured{}, err
	}
	m, err := s.expiry(ctx, ttl, loopArgs{
		Callers: pick(e.Options, 20, 5), Pause: pause, Slow: load / 2,
		Phases: []time.Duration{warmUp, long},
	}, plain)
	return m, joinClose(err, s)
}

func (s *service) expiry(ctx context.Context, ttl time.Duration, a loopArgs, plain time.Duration) (result.Measured, error) {
	// As on a service that has long been running: not all find nothing at first.
	if _, err := rig.Call[read](ctx, s.workers[0], "get", "0"); err != nil {
		return result.Measured{}, err
	}
	a.Start = time.Now().Add(lead)
	phases, err := s.loop(ctx, a)
	if err != nil {
		return result.Measured{}, err
	}
	from := a.Start.Add(a.Phases[0])
	long := a.Phases[1]
	loads := loadsBetween(s.origin.Loads(), from, from.Add(long))
	got := phases[1]
	if got.Errors > 0 {
		return result.Measured{}, fmt.Errorf("%d of %d calls failed, the first with: %s", got.Errors, got.Requests, got.FirstError)
	}

	rdb := s.redis.Client()
	defer func() { _ = rdb.Close() }()
	if err := plainSet(ctx, rdb, plainKey); err != nil {
		return result.Measured{}, err
	}
	a.Plain, a.Start, a.Phases = true, time.Now().Add(lead), []time.Duration{plain / 3, plain}
	raw, err := s.loop(ctx, a)
	if err != nil {
		return result.Measured{}, err
	}
	return result.Measured{
		Figures: result.Figures{
			"loads_per_expiry":  float64(loads) / (float64(long) / float64(ttl)),
			"p50_ms":            millis(got.Latency.Quantile(0.5)),
			"p99_ms":            millis(got.Latency.Quantile(0.99)),
			"p999_ms":           millis(got.Latency.Quantile(0.999)),
			"max_ms":            millis(got.Latency.Max()),
			"waited_pct":        100 * float64(got.Waited) / float64(got.Requests),
			"calls_per_request": float64(got.Counts.Calls) / float64(got.Requests),
			"max_age_ms":        millis(got.MaxAge),
			"plain_waited_pct":  100 * float64(raw[1].Waited) / float64(raw[1].Requests),
			"plain_p99_ms":      millis(raw[1].Latency.Quantile(0.99)),
			"plain_p999_ms":     millis(raw[1].Latency.Quantile(0.999)),
		},
		Curve: curve(got.Latency),
	}, nil
}
