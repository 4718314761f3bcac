package chaos

import (
	"context"
	"crypto/fips140"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/rpc"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

const (
	instanceRole = "instance"
	namespace    = "chaos"

	localTTL = 300 * time.Millisecond
	lockTTL  = time.Second
	tag      = "all"

	flushEvery = 100 * time.Millisecond // of the records: what a kill may lose
	watchEvery = 20 * time.Millisecond  // for stalls of the process
)

// The first half of the keys lives long, so that what was not invalidated shows for long;
// the other half is always about to expire.
const (
	longTTL, longStale   = 20 * time.Second, 10 * time.Second
	shortTTL, shortStale = 400 * time.Millisecond, time.Second
)

// plants are faults of the library that a run must find; none is the empty one.
const (
	plantDeaf      = "deaf"      // does not hear of the changes of others, and believes its copies for long
	plantForgetful = "forgetful" // acknowledges deletes that it does not make
	plantLoner     = "loner"     // does not ask who else is loading
)

// setup is what an instance is started with.
type setup struct {
	Process int
	Start   time.Time // what moments count from
	Seed    uint64
	Redis   string
	Source  string
	Callers int
	Pause   time.Duration // between two calls of a caller, on average
	Plant   string
	FIPS    bool
}

// value is what is cached.
type value struct {
	Key     int
	Version int64
}

// instance is a process that uses the library.
type instance struct {
	setup

	born   time.Time // a reading with a monotonic part
	offset time.Duration
	source *rpc.Client
	caches [2]*herdgate.Cache[value]

	mu      sync.Mutex // protects the fields below
	records []record
	asking  [keys][]moment // since when leases are asked for
	granted [keys][]moment // the same of leases whose load has not begun
	loading [keys]int      // loads under way
	trouble moment         // when the last was noted
	greeted bool           // the bus was confirmed for the first time, which is no trouble
}

// runInstance is the role of an instance.
func runInstance(ctx context.Context, args testutil.Args) (err error) {
	in := &instance{born: time.Now()}
	if err := json.Unmarshal([]byte(args["setup"]), &in.setup); err != nil {
		return err
	}
	if in.FIPS && !fips140.Enforced() {
		return errors.New("no FIPS 140 mode is enforced")
	}
	// Wall clocks are compared once, within one machine.
	in.offset = in.born.Round(0).Sub(in.Start.Round(0))
	if in.source, err = rpc.Dial("tcp", in.Source); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.source.Close()) }()
	rdb := redis.NewClient(&redis.Options{Addr: in.Redis, ContextTimeoutEnabled: in.Process%2 == 0}) // the ways of both
	defer func() { err = errors.Join(err, rdb.Close()) }()
	options := herdgate.Options{Redis: rdb, Namespace: namespace, Observer: tracer{in}}
	if in.Plant == plantLoner {
		options.Namespace = "loner"
	}
	gate, err := herdgate.Open(ctx, options)
	if err != nil {
		return err
	}
	long := herdgate.Policy{TTL: longTTL, Stale: longStale, LocalTTL: localTTL, LockTTL: lockTTL}
	short := herdgate.Policy{TTL: shortTTL, Stale: shortStale, LocalTTL: localTTL, LockTTL: lockTTL, Tags: []string{tag}}
	if in.Plant == plantDeaf {
		long.LocalTTL = longTTL
	}
	for i, policy := range []herdgate.Policy{long, short} {
		if in.caches[i], err = herdgate.New(gate, "cache"+strconv.Itoa(i), in.load, policy); err != nil {
			return errors.Join(err, gate.Close(context.WithoutCancel(ctx)))
		}
	}
	if err := in.source.Call("Source.Begin", in.Process, new(bool)); err != nil {
		return errors.Join(err, gate.Close(context.WithoutCancel(ctx)))
	}
	in.run(ctx)
	// Not all that is left may be made in time if Redis is out.
	if err := gate.Close(context.WithoutCancel(ctx)); err != nil && !errors.Is(err, herdgate.ErrJournaled) {
		return err
	}
	return in.flush()
}

// run makes calls until ctx ends.
func (in *instance) run(ctx context.Context) {
	var callers, helpers sync.WaitGroup
	over := make(chan struct{})
	helpers.Go(func() { in.watch(over) })
	helpers.Go(func() {
		tick := time.NewTicker(flushEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = in.flush() // the parent is gone: so is the run
			case <-over:
				return
			}
		}
	})
	for i := range in.Callers {
		rng := rand.New(rand.NewPCG(in.Seed, uint64(i)))
		call, pause := in.read, in.Pause
		if i%4 == 0 && in.Plant != plantDeaf { // which would know of its own changes
			// Who changes does nothing else: a reader that waits for a load changes nothing meanwhile.
			call, pause = in.write, 2*in.Pause
		}
		callers.Go(func() {
			for wait(ctx, time.Duration(rng.Int64N(int64(2*pause)))) {
				call(context.WithoutCancel(ctx), rng)
			}
		})
	}
	callers.Wait()
	close(over)
	helpers.Wait()
}

// watch notes when this process stood still although nobody has frozen it: what has a
// deadline then happens late.
func (in *instance) watch(over <-chan struct{}) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := in.now(); ; {
		select {
		case <-tick.C:
			now := in.now()
			if now-last > moment(4*watchEvery) {
				in.note(record{Op: opStalled, Key: -1, Begin: last, End: now})
			}
			last = now
		case <-over:
			return
		}
	}
}

// wait reports whether d has passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (in *instance) now() moment { return moment(in.offset + time.Since(in.born)) }

func (in *instance) note(r record) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.records = append(in.records, r)
}

// flush tells the parent what was noted.
func (in *instance) flush() error {
	in.mu.Lock()
	records := in.records
	in.records = nil
	in.mu.Unlock()
	if len(records) == 0 {
		return nil
	}
	return testutil.Emit(records)
}

func keyName(key int) string { return "k" + strconv.Itoa(key) }

func keyOf(name string) int {
	key, err := strconv.Atoi(name[1:])
	if err != nil {
		return -1
	}
	return key
}

func (in *instance) cacheOf(key int) *herdgate.Cache[value] { return in.caches[key*2/keys] }

// load is the loader. What it returns was read when it began.
func (in *instance) load(ctx context.Context, name string) (value, error) {
	key := keyOf(name)
	r := in.begin(key)
	defer func() { in.end(r) }()
	if err := in.source.Call("Source.Read", key, &r.Version); err != nil {
		return value{}, err
	}
	took := rand.N(20 * time.Millisecond)
	if rand.N(10) == 0 {
		took = rand.N(500 * time.Millisecond)
	}
	if !wait(ctx, took) {
		return value{}, context.Cause(ctx)
	}
	return value{Key: key, Version: r.Version}, nil
}

// begin notes that a load begins: one that is leased, if a lease of its key was granted
// whose load has not begun.
func (in *instance) begin(key int) *record {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.loading[key]++
	r := &record{Op: opLoad, Key: key, Begin: in.now()}
	if granted := in.granted[key]; len(granted) > 0 {
		r.Leased, r.Asked = true, granted[0]
		in.granted[key] = granted[1:]
	}
	return r
}

func (in *instance) end(r *record) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.loading[r.Key]--
	r.End = in.now()
	in.records = append(in.records, *r)
}

// tracer sees when leases are asked for.
type tracer struct{ *instance }

// Observe implements herdgate.Observer.
func (t tracer) Observe(e herdgate.Event) { t.observe(e) }

// Begin implements herdgate.Tracer.
func (t tracer) Begin(ctx context.Context, step herdgate.Step, _, name string) (context.Context, func(error)) {
	if step != herdgate.StepAcquire {
		return ctx, func(error) {}
	}
	key, asked := keyOf(name), t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asking[key] = append(t.asking[key], asked)
	return ctx, func(error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		i := slices.Index(t.asking[key], asked)
		t.asking[key] = slices.Delete(t.asking[key], i, i+1)
	}
}

// Join implements herdgate.Tracer.
func (tracer) Join(context.Context, context.Context, string, string) func(error) {
	return func(error) {}
}

// observe notes what the rules want to know.
func (in *instance) observe(e herdgate.Event) {
	now := in.now()
	switch e.Kind {
	case herdgate.EventLeaseWon:
		in.mu.Lock()
		key := keyOf(e.Key)
		in.granted[key] = append(in.granted[key], in.asking[key][0]) // the oldest, if several ask at once
		in.mu.Unlock()
	case herdgate.EventLeaseLost, herdgate.EventLeaseRevoked:
		key := keyOf(e.Key)
		in.mu.Lock()
		defer in.mu.Unlock()
		in.records = append(in.records, record{Op: opLost, Key: key, Begin: now, End: now})
		if in.loading[key] == 0 && len(in.granted[key]) > 0 { // it was gone before its load began
			in.granted[key] = in.granted[key][1:]
		}
	case herdgate.EventReplayed:
		r := record{Op: opReplayed, Key: -1, Begin: now, End: now}
		if e.Key != "" {
			r.Key = keyOf(e.Key)
		}
		in.note(r)
	case herdgate.EventDegraded, herdgate.EventRedisDown, herdgate.EventRedisUp, herdgate.EventBusLost, herdgate.EventBusConfirmed:
		in.mu.Lock()
		defer in.mu.Unlock()
		if e.Kind == herdgate.EventBusConfirmed && !in.greeted {
			in.greeted = true
			return
		}
		if now-in.trouble > moment(flushEvery) {
			in.trouble = now
			in.records = append(in.records, record{Op: opTrouble, Key: -1, Begin: now, End: now})
		}
	default:
	}
}

// someKey is more often than not the hottest of a cache.
func someKey(rng *rand.Rand) int {
	if rng.IntN(2) == 0 {
		return rng.IntN(2) * (keys / 2)
	}
	return rng.IntN(keys)
}

func (in *instance) read(ctx context.Context, rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		in.get(ctx, someKey(rng), in.lookup)
	} else {
		in.get(ctx, someKey(rng), in.plainGet)
	}
}

func (in *instance) write(ctx context.Context, rng *rand.Rand) {
	key := someKey(rng)
	switch n := rng.IntN(1000); {
	case n < 500:
		in.change(ctx, opDelete, key)
	case n < 750:
		in.change(ctx, opExpire, key)
	case n < 999:
		in.change(ctx, opSet, key|1)
	default:
		in.change(ctx, opWhole, key)
	}
}

func (in *instance) lookup(ctx context.Context, key int) (v value, stale bool, err error) {
	got, err := in.cacheOf(key).Lookup(ctx, keyName(key))
	return got.Value, got.Stale, err
}

// plainGet is told of no stale values, so that any may be one.
func (in *instance) plainGet(ctx context.Context, key int) (v value, stale bool, err error) {
	v, err = in.cacheOf(key).Get(ctx, keyName(key))
	return v, true, err
}

func (in *instance) get(ctx context.Context, key int, by func(context.Context, int) (value, bool, error)) {
	r := record{Op: opGet, Key: key, Begin: in.now()}
	v, stale, err := by(ctx, key)
	r.End = in.now()
	r.Version, r.Stale = v.Version, stale
	switch {
	case err != nil:
		r.Err = err.Error()
	case v.Key != key:
		r.Err = fmt.Sprintf("the value is of key %d", v.Key)
	}
	in.note(r)
}

func (in *instance) change(ctx context.Context, o op, key int) {
	i := Intent{Process: in.Process, Op: o, Key: key}
	if err := in.source.Call("Source.Change", i, &i); err != nil {
		in.note(record{Op: o, Key: key, Err: err.Error()})
		return
	}
	c := in.cacheOf(key)
	r := record{Op: o, Key: key, Intent: i.ID, Version: i.Versions[key], Begin: in.now()}
	var err error
	switch {
	case o == opDelete && in.Plant == plantForgetful:
	case o == opDelete:
		err = c.Delete(ctx, keyName(key))
	case o == opExpire:
		err = c.Expire(ctx, keyName(key))
	case o == opSet:
		err = c.Set(ctx, keyName(key), value{Key: key, Version: r.Version})
	case c == in.caches[0]:
		err = c.Clear(ctx)
	default:
		err = c.InvalidateTags(ctx, tag)
	}
	r.End = in.now()
	switch {
	case errors.Is(err, herdgate.ErrJournaled):
		r.Err = journaled
	case err != nil:
		r.Err = err.Error()
	}
	in.note(r)
}
