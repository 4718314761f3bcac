package herdgate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

const (
	outageRole = "outage"

	outageKeys   = 200
	outageTTL    = 2 * time.Second
	outageLoader = 20 * time.Millisecond
	// outageSlice is how finely an instance takes down what happens.
	outageSlice = 100 * time.Millisecond
)

// outageSetup is what an instance that lives through an outage is started with.
type outageSetup struct {
	Redis      string
	LocalTTL   time.Duration
	LocalBytes int64
	Callers    int
	Start      time.Time // when the first slice begins
	For        time.Duration
}

// slice is what an instance did in a part of its time.
type slice struct {
	Calls    int
	Errors   map[string]int
	Outcomes [8]int
	Took     map[int]int // calls by the time they took, in steps of tookStep
	Slowest  time.Duration
	Loads    map[int]int // by key
}

// tookStep is the width of a step of durations: a step up is so much longer.
const tookStep = 1.1

func (s *slice) add(r herdgate.Result[string], err error, took time.Duration) {
	s.Calls++
	s.Outcomes[r.Outcome]++
	if err != nil {
		s.Errors[errorKind(err)]++
	}
	s.Took[int(math.Log(float64(max(took, 1)))/math.Log(tookStep))]++
	s.Slowest = max(s.Slowest, took)
}

func newSlice() *slice {
	return &slice{Errors: map[string]int{}, Took: map[int]int{}, Loads: map[int]int{}}
}

func (s *slice) merge(other *slice) {
	s.Calls += other.Calls
	s.Slowest = max(s.Slowest, other.Slowest)
	addCounts(s.Errors, other.Errors)
	for i, n := range other.Outcomes {
		s.Outcomes[i] += n
	}
	for i, n := range other.Took {
		s.Took[i] += n
	}
	for i, n := range other.Loads {
		s.Loads[i] += n
	}
}

// quantile is a duration that a share of the calls took less than, to a tenth.
func (s *slice) quantile(share float64) time.Duration {
	rest := int(share * float64(s.Calls))
	for step := range 400 {
		if rest -= s.Took[step]; rest < 0 {
			return time.Duration(math.Pow(tookStep, float64(step+1)))
		}
	}
	return s.Slowest
}

// runOutage is the role of an instance that lives through an outage.
func runOutage(ctx context.Context, args testutil.Args) (err error) {
	var setup outageSetup
	if err := json.Unmarshal([]byte(args["setup"]), &setup); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: setup.Redis})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: fleetNamespace, LocalBytes: setup.LocalBytes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close(context.WithoutCancel(ctx))) }()

	n := int(setup.For / outageSlice)
	at := func() int { return int(time.Since(setup.Start) / outageSlice) }
	loads := make([]atomic.Int64, n*outageKeys)
	cache, err := herdgate.New(gate, "things", func(ctx context.Context, key string) (string, error) {
		if i := at(); i >= 0 && i < n {
			k, _ := strconv.Atoi(key)
			loads[i*outageKeys+k].Add(1)
		}
		timer := time.NewTimer(outageLoader)
		defer timer.Stop()
		select {
		case <-timer.C:
			return "value of " + key, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}, herdgate.Policy{TTL: outageTTL, LocalTTL: setup.LocalTTL})
	if err != nil {
		return err
	}
	slices := make([]*slice, n)
	for i := range slices {
		slices[i] = newSlice()
	}
	var mu sync.Mutex // protects slices
	var callers sync.WaitGroup
	for range setup.Callers {
		callers.Go(func() {
			mine, in := newSlice(), -1
			for i := at(); i < n && ctx.Err() == nil; i = at() {
				if i != in {
					mu.Lock()
					if in >= 0 {
						slices[in].merge(mine)
					}
					mu.Unlock()
					mine, in = newSlice(), i
				}
				key := strconv.Itoa(rand.N(outageKeys))
				began := time.Now()
				r, err := cache.Lookup(ctx, key)
				mine.add(r, err, time.Since(began))
			}
		})
	}
	callers.Wait()
	for i := range slices {
		for k := range outageKeys {
			if got := loads[i*outageKeys+k].Load(); got > 0 {
				slices[i].Loads[k] = int(got)
			}
		}
	}
	return testutil.Emit(slices)
}

func TestAFleetOutlivesItsRedis(t *testing.T) { // I6
	const instances, callers = 4, 16
	before, outage, after := time.Second, 2500*time.Millisecond, 3*time.Second
	if longRun() {
		before, outage, after = 4*time.Second, 10*time.Second, 5*time.Second
	}
	for _, tier := range []struct {
		name       string
		localTTL   time.Duration
		localBytes int64
	}{{"with local tier", 0, 0}, {"without local tier", herdgate.Off, 0}, {"without local memory", 0, herdgate.Off}} {
		t.Run(tier.name, func(t *testing.T) {
			server := testutil.StartRedis(t)
			start := time.Now().Add(2 * time.Second) // when all of them run warm
			setup, err := json.Marshal(outageSetup{
				Redis: server.Addr(), LocalTTL: tier.localTTL, LocalBytes: tier.localBytes,
				Callers: callers, Start: start, For: before + outage + after,
			})
			if err != nil {
				t.Fatal(err)
			}
			var children []*testutil.Child
			for range instances {
				children = append(children, testutil.Spawn(t, outageRole, testutil.Args{"setup": string(setup)}))
			}
			pause(t, time.Until(start.Add(before)))
			server.Kill()
			pause(t, time.Until(start.Add(before+outage)))
			server.Restart()
			back := int(time.Since(start)/outageSlice) + 1

			all := make([]*slice, int((before+outage+after)/outageSlice))
			for i := range all {
				all[i] = newSlice()
			}
			most := 0 // loads of one key in one process during the outage
			down := int(before / outageSlice)
			for _, child := range children {
				var slices []*slice
				child.Next(fleetPatience, &slices)
				perKey := map[int]int{}
				for i, s := range slices {
					all[i].merge(s)
					if i >= down && i < back {
						for k, n := range s.Loads {
							perKey[k] += n
						}
					}
				}
				for _, n := range perKey {
					most = max(most, n)
				}
				if err := child.Wait(fleetPatience); err != nil {
					t.Error(err)
				}
			}
			sum := func(from, to int) *slice {
				s := newSlice()
				for _, one := range all[from:to] {
					s.merge(one)
				}
				return s
			}
			rate := func(s *slice, slices int) float64 {
				return float64(s.Calls) / (float64(slices) * outageSlice.Seconds())
			}
			up, out := sum(0, down), sum(down, back)
			normal := len(all) // the first slice from which on nobody goes without Redis
			for normal > back && all[normal-1].Outcomes[herdgate.OutcomeUnlocked] == 0 && all[normal-1].Outcomes[herdgate.OutcomeStale] == 0 {
				normal--
			}
			rest := sum(normal, len(all))
			for phase, s := range map[string]*slice{"before": up, "outage": out, "after": sum(back, len(all))} {
				if len(s.Errors) > 0 {
					t.Errorf("%s: errors %v", phase, s.Errors)
				}
			}
			ttls := float64(back-down) * float64(outageSlice) / float64(outageTTL)
			if float64(most) > ttls+2 { // the parts of a TTL at both ends
				t.Errorf("a process loaded one key %d times in %.1f TTLs", most, ttls)
			}
			t.Logf("before   %9.0f calls/s, p50 %v p99 %v", rate(up, down), up.quantile(0.5), up.quantile(0.99))
			t.Logf("outage   %9.0f calls/s = %.2f (goal 0.9), p50 %v p99 %v (goal %v) p99.9 %v slowest %v; most loads of a key and process %d in %.1f TTLs; outcomes %v",
				rate(out, back-down), rate(out, back-down)/rate(up, down), out.quantile(0.5), out.quantile(0.99), outageLoader+15*time.Millisecond,
				out.quantile(0.999), out.Slowest, most, ttls, out.outcomes())
			t.Logf("after    %9.0f calls/s from %v after the restart on (goal 2s)", rate(rest, len(all)-normal), time.Duration(normal-back)*outageSlice)
			for i, s := range all {
				if i >= down-2 {
					t.Logf("%6v %9d calls p99 %v slowest %v %v", time.Duration(i-down)*outageSlice, s.Calls, s.quantile(0.99), s.Slowest, s.outcomes())
				}
			}
		})
	}
}

func (s *slice) outcomes() string {
	var text string
	for i, n := range s.Outcomes {
		if n > 0 {
			text += fmt.Sprintf("%v %d ", herdgate.Outcome(i), n)
		}
	}
	return text
}
