package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// The kinds of windows that the rules know by name.
const (
	kindFreeze = "freeze" // of a process
	kindLoss   = "loss"   // of Redis's data
)

// patience is how long the run waits for what must come.
const patience = 30 * time.Second

// oldAge is when a process is replaced, as in a rolling deploy: they do not live forever.
const oldAge = 75 * time.Second

// place is where one instance runs after another, with its own way to Redis.
type place struct {
	proxy   *testutil.Proxy
	child   *testutil.Child
	process int // its number
	born    time.Time
	busy    bool // a fault is under way
}

// fleet is the processes, the faults, and what they tell.
type fleet struct {
	t      *testing.T
	config config
	source *source
	redis  *testutil.Redis
	admin  *redis.Client
	rng    *rand.Rand
	places []*place
	busy   bool // a fault of Redis is under way
	undone []undo
	faults int
	kinds  map[string]int

	history history
}

// undo ends a fault.
type undo struct {
	at time.Time
	do func()
}

// config is how a run goes.
type config struct {
	For       time.Duration
	Seed      uint64
	Processes int
	Callers   int
	Pause     time.Duration
	Every     time.Duration // between two faults, on average; 0: none
	Plant     string        // of the first process
	FIPS      bool          // the processes must be under GODEBUG=fips140=only
}

func startFleet(t *testing.T, c config) *fleet {
	t.Helper()
	f := &fleet{
		t: t, config: c, source: startSource(t), redis: testutil.StartRedis(t),
		rng: rand.New(rand.NewPCG(c.Seed, 0)), kinds: map[string]int{},
	}
	f.admin = f.redis.Client(t, func(o *redis.Options) {
		o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	})
	for range c.Processes {
		p := &place{proxy: testutil.NewProxy(t, f.redis.Addr())}
		f.places = append(f.places, p)
		f.spawn(p)
	}
	testutil.Eventually(t, patience, func() bool { return f.source.beginners() == c.Processes }, "all processes have begun")
	return f
}

// spawn starts an instance at a place.
func (f *fleet) spawn(p *place) {
	f.t.Helper()
	s := setup{
		Process: len(f.history.processes), Start: f.source.start, Seed: f.rng.Uint64(),
		Redis: p.proxy.Addr(), Source: f.source.addr, Callers: f.config.Callers, Pause: f.config.Pause,
		FIPS: f.config.FIPS,
	}
	if p == f.places[0] {
		s.Plant = f.config.Plant
	}
	if s.Plant == plantDeaf {
		p.proxy.DropMessages(testutil.Containing("\r\nI "), -1) // invalidations
	}
	arg, err := json.Marshal(s)
	if err != nil {
		f.t.Fatal(err)
	}
	f.history.processes = append(f.history.processes, nil)
	p.process, p.born = s.Process, time.Now()
	p.child = testutil.Spawn(f.t, instanceRole, testutil.Args{"setup": string(arg)})
}

// collect takes the records of an instance that has ended.
func (f *fleet) collect(p *place) {
	f.t.Helper()
	for _, line := range p.child.Drain(patience) {
		var records []record
		if err := json.Unmarshal(line, &records); err != nil {
			f.t.Fatalf("process %d said %q: %v", p.process, line, err)
		}
		f.history.processes[p.process] = append(f.history.processes[p.process], records...)
	}
}

// stop ends an instance as a deploy does.
func (f *fleet) stop(p *place) {
	f.t.Helper()
	if err := p.child.Stop(patience); err != nil {
		f.t.Errorf("process %d: %v", p.process, err)
	}
	f.collect(p)
}

// run lets the fleet work, with faults, until it is over.
func (f *fleet) run() {
	f.t.Helper()
	over := time.Now().Add(f.config.For)
	next := over
	if f.config.Every > 0 {
		next = time.Now().Add(f.config.Every)
	}
	for time.Now().Before(over) {
		slices.SortFunc(f.undone, func(a, b undo) int { return a.at.Compare(b.at) })
		switch {
		case len(f.undone) > 0 && f.undone[0].at.Before(next):
			u := f.undone[0]
			f.undone = f.undone[1:]
			f.until(u.at)
			u.do()
		case next.Before(over):
			f.until(next)
			f.fault()
			next = time.Now().Add(f.config.Every/4 + f.duration(f.config.Every*3/2))
		default:
			f.until(over)
		}
	}
	for len(f.undone) > 0 { // what is undone may be undone in its turn
		u := f.undone[0]
		f.undone = f.undone[1:]
		u.do()
	}
	for _, p := range f.places {
		f.stop(p)
	}
	f.history.intents = f.source.noted()
}

func (f *fleet) until(at time.Time) { wait(f.t.Context(), time.Until(at)) }

// later has something done after d, as the end of a fault of the kind that began now.
func (f *fleet) later(p *place, kind string, d time.Duration, do func()) {
	from := f.source.now()
	f.undone = append(f.undone, undo{time.Now().Add(d), func() {
		do()
		w := window{Process: -1, Kind: kind, From: from, To: f.source.now()}
		if p != nil {
			p.busy = false
			w.Process = p.process
		} else {
			f.busy = false
		}
		f.history.windows = append(f.history.windows, w)
	}})
	if p != nil {
		p.busy = true
	} else {
		f.busy = true
	}
}

// within is a duration up to most, more often a short one.
func (f *fleet) within(most time.Duration) time.Duration {
	return min(f.duration(most), f.duration(most)) + 20*time.Millisecond
}

// fault makes one.
func (f *fleet) fault() {
	f.t.Helper()
	kind := ""
	if f.rng.IntN(4) == 0 {
		if !f.busy {
			kind = f.faultOfRedis()
		}
	} else if p := f.places[f.rng.IntN(len(f.places))]; !p.busy {
		kind = f.faultOf(p)
	}
	if kind != "" { // else all is broken already
		f.faults++
		f.kinds[kind]++
	}
}

// faultOfRedis makes one that all processes see.
func (f *fleet) faultOfRedis() (kind string) {
	f.t.Helper()
	switch f.rng.IntN(4) {
	case 0:
		f.redis.Freeze()
		f.later(nil, "redis frozen", f.within(3*time.Second), f.redis.Thaw)
		return "redis frozen"
	case 1:
		f.redis.Kill()
		f.later(nil, kindLoss, f.within(2*time.Second), f.redis.Restart)
		return "redis killed"
	case 2:
		if f.order("CLIENT", "KILL", "TYPE", "pubsub") {
			f.later(nil, "subscribers killed", 0, func() {})
			return "subscribers killed"
		}
	default:
		if f.order("SCRIPT", "FLUSH") {
			f.later(nil, "scripts flushed", 0, func() {})
			return "scripts flushed"
		}
	}
	return ""
}

// order sends Redis a command.
func (f *fleet) order(args ...any) (done bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
	defer cancel()
	return f.admin.Do(ctx, args...).Err() == nil
}

// script matches the calls of scripts.
func script(request []byte) bool {
	return testutil.Command("evalsha", "eval")(request)
}

// ending matches the calls that end a lease: they bring a wake-up.
func ending(request []byte) bool {
	return script(request) && bytes.Contains(request, []byte("\r\nW cache"))
}

// repeatable matches the calls of scripts that a client may send twice: not a Set.
func repeatable(request []byte) bool {
	return script(request) && !bytes.Contains(request, []byte("\r\nset\r\n"))
}

// faultOf makes one that one process sees.
func (f *fleet) faultOf(p *place) (kind string) {
	f.t.Helper()
	if time.Since(p.born) > oldAge && !f.busy {
		f.stop(p)
		f.spawn(p)
		return "restarted"
	}
	few := 1 + f.rng.IntN(3)
	match := testutil.Match(script)
	if f.rng.IntN(4) == 0 {
		match = nil
	}
	matched := func(kind string, set func(), undo func()) string {
		set()
		f.later(p, kind, f.within(2*time.Second), func() {
			p.proxy.Reset()
			undo()
		})
		return kind
	}
	nothing := func() {}
	switch f.rng.IntN(12) {
	case 0:
		p.child.Kill()
		f.collect(p)
		f.later(p, "killed", f.within(300*time.Millisecond), func() { f.spawn(p) })
		return "killed"
	case 1, 2:
		p.child.Freeze()
		f.later(p, kindFreeze, f.within(3*lockTTL), p.child.Thaw)
		return kindFreeze
	case 3:
		p.proxy.Cut()
		f.later(p, "cut", f.within(2*time.Second), p.proxy.Resume)
		return "cut"
	case 4:
		p.proxy.Freeze()
		f.later(p, "hung", f.within(2*time.Second), p.proxy.Thaw)
		return "hung"
	case 5:
		d := f.duration(400 * time.Millisecond)
		return matched("replies delayed", func() { p.proxy.DelayReplies(match, d) }, nothing)
	case 6:
		return matched("replies lost", func() { p.proxy.SwallowReplies(match, few) }, nothing)
	case 7:
		return matched("requests duplicated", func() { p.proxy.DuplicateRequests(repeatable, 10*few) }, nothing)
	case 8:
		var release func()
		return matched("requests held", func() { release = p.proxy.HoldRequests(match, few) }, func() { release() })
	case 9:
		var release func()
		return matched("commits held", func() { release = p.proxy.HoldRequests(ending, 5*few) }, func() { release() })
	case 10:
		return matched("requests lost", func() { p.proxy.DropRequests(match, few) }, nothing)
	default:
		return matched("messages lost", func() { p.proxy.DropMessages(testutil.Containing(namespace+":bus"), 5*few) }, nothing)
	}
}

// duration is a random one below most.
func (f *fleet) duration(most time.Duration) time.Duration {
	return time.Duration(f.rng.Int64N(int64(most)))
}
