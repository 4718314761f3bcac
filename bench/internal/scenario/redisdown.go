package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// redisDown: Redis is killed while it is used, and comes back empty.
func redisDown() Scenario {
	return Scenario{
		Name:     "redisdown",
		About:    "4 processes with 16 callers each read 200 keys and pause 20 ms, with 1 s for a call; TTL 2 s, stale for up to 10 s; loader 20 ms; Redis is killed (SIGKILL) for 5 s",
		Variants: fixed("l1", "remote"),
		Unfit:    tiers,
		Limit:    time.Minute,
		Run:      runRedisDown,
	}
}

// outage is the course of redisdown.
type outage struct {
	warmUp, before, down, settle, after time.Duration
}

func runRedisDown(ctx context.Context, e Env, k peer.Kind, variant string) (result.Measured, error) {
	course := outage{3 * time.Second, 4 * time.Second, 5 * time.Second, 2 * time.Second, 4 * time.Second}
	if e.Small {
		const short = 300 * time.Millisecond
		course = outage{short, short, short, short, short}
	}
	s, err := startService(ctx, e, k, pick(e.Options, 4, 2), workerSetup{
		TTL: 2 * time.Second, Stale: 10 * time.Second, Memory: variant == "l1",
		Keys: pick(e.Options, 200, 20), Load: 20 * time.Millisecond, Timeout: time.Second,
	})
	if err != nil {
		return result.Measured{}, err
	}
	m, err := s.redisDown(ctx, course, pick(e.Options, 16, 4))
	return m, joinClose(err, s)
}

func (s *service) redisDown(ctx context.Context, course outage, callers int) (result.Measured, error) {
	start := time.Now().Add(lead)
	looping := make(chan error, 1)
	var phases []*tally
	go func() {
		var err error
		phases, err = s.loop(ctx, loopArgs{
			Callers: callers, Pause: 20 * time.Millisecond, Start: start,
			Phases: []time.Duration{course.warmUp, course.before, course.down, course.settle, course.after},
		})
		looping <- err
	}()
	killed := start.Add(course.warmUp + course.before)
	back, err := s.outage(ctx, killed, killed.Add(course.down))
	if loopErr := <-looping; loopErr != nil || err != nil {
		return result.Measured{}, fmt.Errorf("outage: %w, loop: %w", err, loopErr)
	}
	wells, err := everywhere[time.Time](ctx, s, "well", none{})
	if err != nil {
		return result.Measured{}, err
	}
	before, down, settle, after := phases[1], phases[2], phases[3], phases[4]
	failed, asked := down.Errors+settle.Errors+after.Errors, down.Requests+settle.Requests+after.Requests
	rate := func(t *tally, d time.Duration) float64 { return float64(t.Requests) / d.Seconds() }
	return result.Measured{
		Figures: result.Figures{
			"error_pct":        100 * float64(failed) / float64(asked),
			"loads_s":          float64(loadsBetween(s.origin.Loads(), killed, killed.Add(course.down))) / course.down.Seconds(),
			"throughput_ratio": rate(down, course.down) / rate(before, course.before),
			"recover_ms":       recovery(back, wells, after),
			"before_p50_ms":    millis(before.Latency.Quantile(0.5)),
			"before_p99_ms":    millis(before.Latency.Quantile(0.99)),
			"p50_ms":           millis(down.Latency.Quantile(0.5)),
			"p99_ms":           millis(down.Latency.Quantile(0.99)),
			"after_p50_ms":     millis(after.Latency.Quantile(0.5)),
			"after_p99_ms":     millis(after.Latency.Quantile(0.99)),
		},
		Curve: curve(down.Latency),
	}, nil
}

// outage kills Redis and brings it back; it returns when it answered again.
func (s *service) outage(ctx context.Context, killed, restarted time.Time) (back time.Time, err error) {
	if err := rig.SleepUntil(ctx, killed); err != nil {
		return back, err
	}
	s.redis.Kill()
	if err := rig.SleepUntil(ctx, restarted); err != nil {
		return back, err
	}
	err = s.redis.Restart(ctx)
	return time.Now(), err
}

// recovery is how long after its return the slowest process has used Redis again
// without a failure. One that never did counts until the end of what was measured.
func recovery(back time.Time, wells []time.Time, last *tally) float64 {
	var longest time.Duration
	for _, well := range wells {
		if well.Before(back.Add(-time.Minute)) { // the zero time: its last command failed
			well = last.Last
		}
		longest = max(longest, well.Sub(back))
	}
	return millis(longest)
}
