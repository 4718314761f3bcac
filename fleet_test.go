package herdgate_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/rpc"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/testutil"
)

// The tests of this file run a fleet: instances in processes of their own, on a real
// redis-server. They log figures beside the goals for an idle machine; they assert
// counts, and bounds that a busy one keeps too.

func TestAFleetLoadsAColdKeyOnce(t *testing.T) {
	for _, stampede := range []struct {
		delay              time.Duration
		maxCalls, maxInner int
		long               bool
	}{
		{delay: 200 * time.Millisecond, maxCalls: 30, maxInner: 72},
		{delay: 2 * time.Second, maxCalls: 45, maxInner: 120},
		{delay: 5 * time.Second, maxCalls: 45 + 3*10, maxInner: 120 + 3*30, long: true},
	} {
		if stampede.long && !longRun() {
			continue
		}
		t.Run(stampede.delay.String(), func(t *testing.T) {
			const callers = 200
			f := startFleet(t, newSource(t, stampede.delay), herdgate.Policy{}, "a", "b", "c", "d", "e", "f", "g", "h")
			sentBefore, ranBefore := f.sent(), int(f.redis.Calls())

			got := f.get(callers)

			sent := f.sent() - sentBefore
			ran := int(f.redis.Calls()) - ranBefore + 1 // its sum leaves out every PUBLISH, so also the one wake-up
			f.source.wantLoads(t, 1)
			only := f.source.load(1)
			if want := len(f.instances) * callers; got.Values[only.Item] != want || len(got.Errors) > 0 {
				t.Errorf("got %v, errors %v, want %d times the one value that was loaded", got.Values, got.Errors, want)
			}
			// With a locker it depends on its pace how often who waits looks at Redis.
			if realLocks() == "" && (sent > stampede.maxCalls || ran > stampede.maxInner) {
				t.Errorf("%d commands sent and %d run, want at most %d and %d", sent, ran, stampede.maxCalls, stampede.maxInner)
			}
			t.Logf("%d commands sent, %d run with those inside scripts; the slowest call took the loader's time + %v, and returned %v after the load ended (goal 30ms)",
				sent, ran, got.Slowest-stampede.delay, got.Last.Sub(time.UnixMicro(only.At)))
		})
	}
}

func TestNobodyInAFleetWaitsForAHotKey(t *testing.T) {
	const (
		ttl   = time.Second
		delay = 100 * time.Millisecond
	)
	loop := Loop{Callers: 20, Pause: 20 * time.Millisecond, For: 5 * time.Second}
	if longRun() {
		loop.For = 15 * time.Second
	}
	for name, localTTL := range localTiers() {
		t.Run(name, func(t *testing.T) {
			policy := herdgate.Policy{TTL: ttl, Stale: 10 * time.Second, LocalTTL: localTTL}
			f := startFleet(t, newSource(t, delay), policy, "a", "b", "c", "d", "e", "f", "g", "h")
			f.instances[0].get(t, 1)
			start := time.Now()

			got := f.run(loop)

			ttls := float64(time.Since(start)) / float64(ttl)
			loads := f.source.count() - 1
			f.storePlain()
			plainLoop := loop
			plainLoop.Plain, plainLoop.For = true, 2*time.Second
			plain := f.run(plainLoop)

			if n := float64(loads); n < 0.8*ttls-1 || n > 1.1*ttls+1 {
				t.Errorf("%d loads in %.1f TTLs, want 0.8 to 1.1 each", loads, ttls)
			}
			for _, outcome := range []string{"loaded", "waited", "unlocked", "failed"} {
				if n := got.Outcomes[outcome]; n > 0 {
					t.Errorf("%d calls with the outcome %q: %v", n, outcome, got.Errors)
				}
			}
			const oldest = ttl*11/10 + delay
			if got.Oldest > oldest+500*time.Millisecond {
				t.Errorf("a value served was %v old, want at most %v and the machine's delays", got.Oldest, oldest)
			}
			t.Logf("%d loads in %.2f TTLs; oldest value served %v (goal %v); outcomes %v", loads, ttls, got.Oldest, oldest+100*time.Millisecond, got.Outcomes)
			t.Logf("through the library  %v; %d took half a load or longer (goal 0)", got, got.longer(delay/2))
			t.Logf("plain GET and decode %v; %d took half a load or longer", plain, plain.longer(delay/2))
		})
	}
}

func TestAFleetServesTheOldValueForAsLongAsARefreshTakes(t *testing.T) {
	t.Parallel()
	const (
		ttl     = 300 * time.Millisecond
		callers = 20
	)
	for name, localTTL := range localTiers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := newHeldSource(t)
			policy := herdgate.Policy{TTL: ttl, Stale: time.Hour, LocalTTL: localTTL, EarlyBeta: herdgate.Off}
			f := startFleet(t, source, policy, "a", "b", "c", "d", "e", "f", "g", "h")
			begun := f.begin(1)
			first := source.next(t)
			first.answer()
			begun.wait()
			pause(t, 2*ttl)
			f.get(callers)
			second := source.next(t)

			// The load goes on until all of these calls have returned.
			const rounds = 3
			for range rounds {
				if got := f.get(callers); got.Values[first.Item] != 8*callers {
					t.Errorf("while the refresh runs the fleet got %v, errors %v, want %d times the old value", got.Values, got.Errors, 8*callers)
				}
			}
			source.wantLoads(t, 2)
			second.answer()
			source.free()
			for _, in := range f.instances {
				testutil.Eventually(t, fleetPatience, func() bool { return in.get(t, 1).Values[first.Item] == 0 }, "instance "+in.name+" has a new value")
			}
		})
	}
}

func localTiers() map[string]time.Duration {
	return map[string]time.Duration{"with local tier": 0, "without local tier": herdgate.Off}
}

func TestAValueFromBeforeAChangeComesBackNowhere(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"delete", "set", "expire"} {
		for _, stubborn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, loader ignores its context %v", change, stubborn), func(t *testing.T) {
				t.Parallel()
				source := newHeldSource(t)
				f := newFleet(t, source)
				policy := herdgate.Policy{LockTTL: time.Minute}
				f.start(instanceSetup{Name: "loading", Policy: policy, Stubborn: stubborn})
				f.start(instanceSetup{Name: "changing", Policy: policy})
				f.start(instanceSetup{Name: "waiting", Policy: policy})
				policy.LocalTTL = herdgate.Off
				f.start(instanceSetup{Name: "reading Redis", Policy: policy})
				loading, changing, waiting := f.instances[0], f.instances[1], f.instances[2]

				early := loading.begin(t, 1)
				before := source.next(t)
				waited := waiting.begin(t, 1)
				waiting.until(t, "it waits", func(s herdgate.Stats) bool { return s.LeasesHeld == 1 })
				source.update(2)
				changing.change(t, Change{Op: change, Version: 2})
				loading.until(t, "it hears of the change", func(s herdgate.Stats) bool { return s.LeasesRevoked == 1 })
				before.answer()

				wantLoads := 1
				if change != "set" {
					wantLoads = 2
					source.next(t).answer()
				}
				wantVersion(t, waiting, waited.wait(t), 2)
				if got := early.wait(t); !stubborn {
					wantVersion(t, loading, got, 2)
				}
				f.wantVersionToStay(2)
				source.wantLoads(t, wantLoads)
			})
		}
	}
}

func TestARefreshFromBeforeAChangeComesBackNowhere(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"delete", "set", "expire"} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			source := newHeldSource(t)
			f := newFleet(t, source)
			policy := herdgate.Policy{LockTTL: time.Minute, Stale: time.Minute}
			f.start(instanceSetup{Name: "refreshing", Policy: policy, Stubborn: true})
			f.start(instanceSetup{Name: "changing", Policy: policy})
			f.start(instanceSetup{Name: "idle", Policy: policy})
			policy.LocalTTL = herdgate.Off
			f.start(instanceSetup{Name: "reading Redis", Policy: policy})
			refreshing, changing := f.instances[0], f.instances[1]

			first := f.begin(1)
			source.next(t).answer()
			first.wait() // all but the last have a copy of version 1 now
			changing.change(t, Change{Op: "expire"})
			testutil.Eventually(t, fleetPatience, func() bool {
				refreshing.get(t, 1)
				return source.count() == 2
			}, "it refreshes what was marked stale")
			before := source.next(t)
			source.update(2)
			changing.change(t, Change{Op: change, Version: 2})
			refreshing.until(t, "it hears of the change", func(s herdgate.Stats) bool { return s.LeasesRevoked == 1 })
			source.free()
			before.answer()

			for _, in := range f.instances {
				testutil.Eventually(t, fleetPatience, func() bool { return in.get(t, 1).hasVersion(2) }, "instance "+in.name+" reads version 2")
			}
			f.wantVersionToStay(2)
		})
	}
}

func TestAnotherProcessLoadsWhenTheLoadingOneIsKilled(t *testing.T) {
	t.Parallel()
	const leaseTTL = 2 * time.Second // the default
	most := leaseTTL * 5 / 2
	if realLocks() != "" {
		most = 2*minLockTTL + 2*time.Second // what may be left of the lock's TTL, the store's rounding, and a poll
	}
	source := newHeldSource(t)
	f := startFleet(t, source, herdgate.Policy{}, "killed", "b", "c")
	killed, b, c := f.instances[0], f.instances[1], f.instances[2]
	killed.begin(t, 1)
	source.next(t)
	atB, atC := b.begin(t, 10), c.begin(t, 10)
	for _, in := range []*instance{b, c} {
		in.until(t, "it waits", func(s herdgate.Stats) bool { return s.LeasesHeld > 0 })
	}
	// Just renewed is the worst moment: all of LockTTL is still to pass.
	testutil.Eventually(t, fleetPatience, func() bool { return f.leaseLeft() < leaseTTL*3/4 }, "the lease grows old")
	testutil.Eventually(t, fleetPatience, func() bool { return f.leaseLeft() > leaseTTL*9/10 }, "the lease is renewed")

	start := time.Now()
	killed.kill()

	next := source.next(t)
	took := next.began.Sub(start)
	t.Logf("from the kill to the next load %v (goal %v)", took, leaseTTL+100*time.Millisecond)
	if took > most {
		t.Errorf("the next load began %v after the kill, want at most %v", took, most)
	}
	next.answer()
	for _, got := range []Answers{atB.wait(t), atC.wait(t)} {
		if got.Values[next.Item] != 10 {
			t.Errorf("got %v, errors %v, want 10 times the value of the second load", got.Values, got.Errors)
		}
	}
	source.wantLoads(t, 2)
	f.wantNoBuildKey()
}

func TestAThawedProcessCannotCommitWhatItsSuccessorHasLoaded(t *testing.T) {
	t.Parallel()
	lockTTL := 500 * time.Millisecond
	if longRun() {
		lockTTL = 2 * time.Second
	}
	for _, stubborn := range []bool{false, true} {
		t.Run(fmt.Sprintf("loader ignores its context %v", stubborn), func(t *testing.T) {
			t.Parallel()
			source := newHeldSource(t)
			f := newFleet(t, source)
			policy := herdgate.Policy{LockTTL: lockTTL}
			f.start(instanceSetup{Name: "frozen", Policy: policy, Stubborn: stubborn})
			f.start(instanceSetup{Name: "b", Policy: policy})
			f.start(instanceSetup{Name: "c", Policy: policy})
			frozen, b, c := f.instances[0], f.instances[1], f.instances[2]
			early := frozen.begin(t, 1)
			first := source.next(t)
			atB, atC := b.begin(t, 10), c.begin(t, 10)

			start := time.Now()
			frozen.Freeze()
			second := source.next(t)
			t.Logf("from the freeze to the next load %v", second.began.Sub(start))
			second.answer()
			for _, got := range []Answers{atB.wait(t), atC.wait(t)} {
				if got.Values[second.Item] != 10 {
					t.Errorf("got %v, errors %v, want 10 times the successor's value", got.Values, got.Errors)
				}
			}
			pause(t, 2*lockTTL-time.Since(start))
			if stubborn {
				first.answer() // it waits in the socket of the frozen process
			}
			frozen.Thaw()

			got := early.wait(t)
			if stubborn {
				// A loader that does not return soon after its lease is lost has nothing to commit.
				frozen.until(t, "its commit is refused", func(s herdgate.Stats) bool { return s.CommitsRefused+s.Abandoned == 1 })
				t.Logf("%d commits refused", frozen.stats(t).CommitsRefused)
			} else {
				frozen.until(t, "its lease is lost", func(s herdgate.Stats) bool { return s.LeasesLost == 1 })
				if got.Values[second.Item] != 1 {
					t.Errorf("the call from before the freeze got %v, errors %v, want the successor's value", got.Values, got.Errors)
				}
			}
			if got := frozen.get(t, 10); got.Values[second.Item] != 10 {
				t.Errorf("the thawed process serves %v, errors %v, want the successor's value", got.Values, got.Errors)
			}
			if n := frozen.stats(t).CommitsStored; n != 0 {
				t.Errorf("the thawed process has stored %d values", n)
			}
			source.wantLoads(t, 2)
		})
	}
}

// A locker that gives one lock to each who asks changes nothing: the lease is one, and it
// alone is the right to commit.
func TestALockThatAllProcessesAreGivenLetsOneOfThemLoadAndCommit(t *testing.T) { // I1, I2
	t.Parallel()
	const lockTTL = 500 * time.Millisecond
	source := newHeldSource(t)
	f := newFleet(t, source)
	for _, name := range []string{"frozen", "b", "c"} {
		f.start(instanceSetup{Name: name, Policy: herdgate.Policy{LockTTL: lockTTL}, Generous: true, Stubborn: true})
	}
	frozen, b, c := f.instances[0], f.instances[1], f.instances[2]
	early := frozen.begin(t, 1)
	first := source.next(t)
	atB, atC := b.begin(t, 10), c.begin(t, 10)
	for _, in := range []*instance{b, c} {
		in.until(t, "it has the lock, and waits for who has the lease", func(s herdgate.Stats) bool { return s.LeasesHeld > 0 })
	}
	source.wantLoads(t, 1)

	start := time.Now()
	frozen.Freeze()
	second := source.next(t)
	second.answer()
	for _, got := range []Answers{atB.wait(t), atC.wait(t)} {
		if got.Values[second.Item] != 10 {
			t.Errorf("got %v, errors %v, want 10 times the successor's value", got.Values, got.Errors)
		}
	}
	pause(t, 2*lockTTL-time.Since(start))
	first.answer()
	frozen.Thaw()
	early.wait(t)
	frozen.until(t, "its commit is refused", func(s herdgate.Stats) bool { return s.CommitsRefused+s.Abandoned == 1 })
	stored := int64(0)
	for _, in := range f.instances {
		if got := in.get(t, 10); got.Values[second.Item] != 10 {
			t.Errorf("%s serves %v, errors %v, want the successor's value", in.name, got.Values, got.Errors)
		}
		s := in.stats(t)
		stored += int64(s.CommitsStored)
		if s.LockerFailures > 0 {
			t.Errorf("%s: %d failures of the locker, which gives all that is asked", in.name, s.LockerFailures)
		}
	}
	if stored != 1 {
		t.Errorf("%d values were stored, want the successor's", stored)
	}
	source.wantLoads(t, 2)
}

func TestAFleetSharesAFailedLoad(t *testing.T) {
	t.Parallel()
	const (
		callers = 5
		backoff = 2 * time.Second
	)
	source := newHeldSource(t)
	f := startFleet(t, source, herdgate.Policy{FailureBackoff: backoff}, "a", "b", "c", "d", "e", "f", "g", "h")
	calls := f.begin(callers)
	first := source.next(t)
	for _, in := range f.instances {
		in.until(t, "all its callers wait", func(s herdgate.Stats) bool {
			return s.Coalesced == callers-1 && (s.LeasesHeld > 0 || in.name == first.by)
		})
	}

	failed := time.Now()
	first.fail("no luck today")

	got := calls.wait()
	want := map[string]int{"no luck today": callers, "backoff": 7 * callers}
	if len(got.Values) > 0 || !maps.Equal(got.Errors, want) {
		t.Errorf("got %v, errors %v, want no value and the errors %v", got.Values, got.Errors, want)
	}
	source.wantLoads(t, 1)

	calls = f.begin(callers)
	second := source.next(t)
	rested := second.began.Sub(failed)
	if rested < backoff {
		t.Errorf("the next load began %v after the failure, want not before %v", rested, backoff)
	}
	t.Logf("%v after the failure the next load began, in a back-off of %v", rested, backoff)
	second.answer()
	if got := calls.wait(); got.Values[second.Item] != 8*callers {
		t.Errorf("got %v, errors %v, want %d times the value of the second load", got.Values, got.Errors, 8*callers)
	}
	source.wantLoads(t, 2)
	f.wantNoBuildKey()
}

func TestALoadLongerThanItsLeaseIsTheOnlyOneInAFleet(t *testing.T) {
	t.Parallel()
	const lockTTL = time.Second
	source := newSource(t, 3*lockTTL)
	f := startFleet(t, source, herdgate.Policy{LockTTL: lockTTL}, "a", "b", "c")

	got := f.get(10)

	source.wantLoads(t, 1)
	only := source.load(1)
	if got.Values[only.Item] != 30 {
		t.Errorf("got %v, errors %v, want 30 times the one value that was loaded", got.Values, got.Errors)
	}
	for _, in := range f.instances {
		if s := in.stats(t); in.name == only.by && (s.CommitsStored != 1 || s.LeasesLost != 0) {
			t.Errorf("the loading process counts %+v, want one commit stored and no lease lost", s)
		}
	}
	t.Logf("%d commands sent", f.sent())
	f.wantNoBuildKey()
}

func longRun() bool { return os.Getenv("HERDGATE_LONG") != "" }

// pause lets time pass.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	fires(t.Context(), timer)
}

// fleet is the instances of a service around one Redis and one source.
type fleet struct {
	t         *testing.T
	redis     *testutil.Redis
	rdb       *redis.Client // of the test itself
	source    *source
	locks     string // the namespace of the locks of all instances, "" if they have none
	instances []*instance
}

func newFleet(t *testing.T, s *source) *fleet {
	t.Helper()
	server := testutil.StartRedis(t)
	f := &fleet{t: t, redis: server, rdb: server.Client(t), source: s}
	if realLocks() != "" {
		f.locks = randomName()
	}
	return f
}

// startFleet returns a fleet of instances of one policy, ready to serve.
func startFleet(t *testing.T, s *source, policy herdgate.Policy, names ...string) *fleet {
	t.Helper()
	f := newFleet(t, s)
	for _, name := range names {
		f.start(instanceSetup{Name: name, Policy: policy})
	}
	return f
}

func (f *fleet) start(s instanceSetup) {
	f.t.Helper()
	s.Redis, s.Source, s.Locks = f.redis.Addr(), f.source.addr, f.locks
	encoded, err := json.Marshal(s)
	if err != nil {
		f.t.Fatal(err)
	}
	in := &instance{name: s.Name, Child: testutil.Spawn(f.t, instanceRole, testutil.Args{"setup": string(encoded)})}
	var addr string
	in.Next(fleetPatience, &addr)
	if in.conn, err = rpc.Dial("tcp", addr); err != nil {
		f.t.Fatalf("instance %s: %v", s.Name, err)
	}
	f.t.Cleanup(func() {
		f.hangUp()
		if !in.killed && !f.t.Failed() { // its end tells of a gate that did not close, and of data races
			if err := in.Stop(fleetPatience); err != nil {
				f.t.Error(err)
			}
		}
	})
	f.instances = append(f.instances, in)
}

// hangUp lets all instances end, if they do not yet.
func (f *fleet) hangUp() {
	for _, in := range f.instances {
		_ = in.conn.Close() // it is closed already, or was broken by a kill
	}
}

// calls are calls of Get under way in a whole fleet.
type calls struct {
	t    *testing.T
	each []*pending[Answers]
}

// begin lets so many callers of each instance call Get at once.
func (f *fleet) begin(callers int) *calls {
	f.t.Helper()
	c := &calls{t: f.t}
	for _, in := range f.instances {
		c.each = append(c.each, in.begin(f.t, callers))
	}
	return c
}

func (c *calls) wait() Answers {
	c.t.Helper()
	all := Answers{Values: map[Item]int{}, Errors: map[string]int{}}
	for _, one := range c.each {
		all.merge(one.wait(c.t))
	}
	return all
}

func (f *fleet) get(callers int) Answers {
	f.t.Helper()
	return f.begin(callers).wait()
}

// run runs a loop in each instance.
func (f *fleet) run(l Loop) Looped {
	f.t.Helper()
	var each []*pending[Looped]
	for _, in := range f.instances {
		each = append(each, ask[Looped](f.t, in, "Run", l))
	}
	all := Looped{Outcomes: map[string]int{}, Errors: map[string]int{}}
	for _, one := range each {
		all.merge(one.wait(f.t))
	}
	return all
}

// sent is how many commands the instances have sent that the library's table of
// costs counts: not the setting up of connections and scripts, nor the heartbeats.
func (f *fleet) sent() int {
	f.t.Helper()
	sum := 0
	for _, in := range f.instances {
		for name, n := range ask[map[string]int](f.t, in, "Sent", struct{}{}).wait(f.t) {
			switch name {
			case "hello", "client", "script", "subscribe", "publish", "info":
			default:
				sum += n
			}
		}
	}
	return sum
}

// leaseLeft is the time to live of the only build key, negative without one.
func (f *fleet) leaseLeft() time.Duration {
	f.t.Helper()
	for _, key := range f.buildKeys() {
		return f.rdb.PTTL(f.t.Context(), key).Val()
	}
	return -1
}

func (f *fleet) buildKeys() []string {
	f.t.Helper()
	keys, err := f.rdb.Keys(f.t.Context(), fleetNamespace+":b:*").Result()
	if err != nil {
		f.t.Fatal(err)
	}
	return keys
}

// wantNoBuildKey wants that no lease or mark stays: the rest of the interval
// between two loads is short.
func (f *fleet) wantNoBuildKey() {
	f.t.Helper()
	testutil.Eventually(f.t, fleetPatience, func() bool { return len(f.buildKeys()) == 0 }, "no lease is left")
}

// storePlain stores what a plain Loop reads.
func (f *fleet) storePlain() {
	f.t.Helper()
	b, err := codec.Msgpack().Marshal(f.source.load(1).Item)
	if err == nil {
		err = f.rdb.Set(f.t.Context(), plainKey, b, 0).Err()
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// instance is a service in a process of its own.
type instance struct {
	*testutil.Child

	name   string
	conn   *rpc.Client
	killed bool
}

func (in *instance) kill() {
	in.killed = true
	in.Kill()
}

// pending is a call of an instance's method that is under way.
type pending[R any] struct {
	in    *instance
	call  *rpc.Call
	reply *R
}

func ask[R any](t *testing.T, in *instance, method string, arg any) *pending[R] {
	t.Helper()
	reply := new(R)
	return &pending[R]{in: in, reply: reply, call: in.conn.Go("Instance."+method, arg, reply, make(chan *rpc.Call, 1))}
}

func (p *pending[R]) wait(t *testing.T) R {
	t.Helper()
	timer := time.NewTimer(fleetPatience)
	defer timer.Stop()
	select {
	case <-p.call.Done:
		if p.call.Error != nil {
			t.Fatalf("instance %s, %s: %v", p.in.name, p.call.ServiceMethod, p.call.Error)
		}
	case <-timer.C:
		t.Fatalf("instance %s has not answered to %s for %v", p.in.name, p.call.ServiceMethod, fleetPatience)
	}
	return *p.reply
}

func (in *instance) begin(t *testing.T, callers int) *pending[Answers] {
	t.Helper()
	return ask[Answers](t, in, "Get", callers)
}

func (in *instance) get(t *testing.T, callers int) Answers {
	t.Helper()
	return in.begin(t, callers).wait(t)
}

func (in *instance) change(t *testing.T, c Change) {
	t.Helper()
	ask[struct{}](t, in, "Change", c).wait(t)
}

func (in *instance) stats(t *testing.T) herdgate.Stats {
	t.Helper()
	return ask[herdgate.Stats](t, in, "Stats", struct{}{}).wait(t)
}

func (in *instance) until(t *testing.T, what string, cond func(herdgate.Stats) bool) {
	t.Helper()
	testutil.Eventually(t, fleetPatience, func() bool { return cond(in.stats(t)) }, "instance "+in.name+": "+what)
}

// wantVersionToStay wants that every instance reads that version, now and after a
// while.
func (f *fleet) wantVersionToStay(version int) {
	f.t.Helper()
	const rounds = 5
	for range rounds {
		for _, in := range f.instances {
			wantVersion(f.t, in, in.get(f.t, 1), version)
		}
		pause(f.t, 100*time.Millisecond)
	}
}

// wantVersion wants that a single caller has got that version of the source.
func wantVersion(t *testing.T, in *instance, got Answers, version int) {
	t.Helper()
	if !got.hasVersion(version) {
		t.Errorf("instance %s got %v, errors %v, want version %d", in.name, got.Values, got.Errors, version)
	}
}

func (a Answers) hasVersion(version int) bool {
	for item := range a.Values {
		if item.Version == version {
			return true
		}
	}
	return false
}

func (a *Answers) merge(other Answers) {
	addCounts(a.Values, other.Values)
	addCounts(a.Errors, other.Errors)
	a.Slowest = max(a.Slowest, other.Slowest)
	if other.Last.After(a.Last) {
		a.Last = other.Last
	}
}

func addCounts[K comparable](sum, other map[K]int) {
	for k, n := range other {
		sum[k] += n
	}
}

// longer is how many calls took d or longer.
func (l Looped) longer(d time.Duration) int {
	n := 0
	for _, took := range l.Took {
		if took >= d {
			n++
		}
	}
	return n
}

// String tells how long the calls took.
func (l Looped) String() string {
	slices.SortFunc(l.Took, cmp.Compare[time.Duration])
	at := func(share float64) time.Duration { return l.Took[int(share*float64(len(l.Took)-1))] }
	return fmt.Sprintf("%d calls: p50 %v, p99 %v, p99.9 %v, slowest %v", len(l.Took), at(0.5), at(0.99), at(0.999), at(1))
}
