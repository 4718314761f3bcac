package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

// worker is one process of a service: a peer over a client of its own, whose
// commands are counted, and the origin that it loads from.
type worker struct {
	setup    workerSetup
	peer     peer.Peer
	rdb      redis.UniversalClient // the peer's
	plain    redis.UniversalClient // for what is read without the peer
	origin   *rig.OriginClient
	commands rig.Commands
}

// workerSetup is how a worker is to open its peer.
type workerSetup struct {
	Name, Peer    string
	Redis, Origin string
	Cluster       bool // of three masters, and not one server
	TTL, Stale    time.Duration
	Memory        bool
	Keys          int
	Load          time.Duration // how long a load takes
	Timeout       time.Duration // of a call; 0: none
	Calm          bool          // see peer.Setup
}

const prefix = "bench"

// Work runs a worker process until its parent ends it.
func Work(ctx context.Context, in io.Reader, out io.WriteCloser) error {
	w := &worker{}
	return rig.Serve(ctx, in, out, map[string]rig.Op{
		"open":   rig.Handle(w.open),
		"get":    rig.Handle(w.get),
		"set":    rig.Handle(w.set),
		"delete": rig.Handle(w.delete),
		"counts": rig.Handle(w.counts),
		"well":   rig.Handle(w.well),
		"crowd":  rig.Handle(w.crowd),
		"loop":   rig.Handle(w.loop),
		"local":  rig.Handle(w.local),
		"remote": rig.Handle(w.remote),
		"batch":  rig.Handle(w.batch),
	})
}

type none struct{}

func (w *worker) open(ctx context.Context, s workerSetup) (none, error) {
	kinds, err := peer.Choose(s.Peer)
	if err != nil {
		return none{}, err
	}
	w.setup = s
	addrs := strings.Split(s.Redis, ",") // of several, a Cluster
	// As herdgate's guide says; to its peers it makes no difference.
	w.rdb = redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs, ContextTimeoutEnabled: true})
	w.plain = redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
	w.rdb.AddHook(&w.commands)
	if w.origin, err = rig.DialOrigin(s.Origin, s.Name); err != nil {
		return none{}, err
	}
	w.peer, err = kinds[0].Open(ctx, w.peerSetup())
	return none{}, err
}

func (w *worker) peerSetup() peer.Setup {
	return peer.Setup{
		Redis: w.rdb, Addr: w.setup.Redis, Hook: &w.commands, Prefix: prefix,
		TTL: w.setup.TTL, Stale: w.setup.Stale, Memory: w.setup.Memory, Keys: w.setup.Keys, Spread: true, Calm: w.setup.Calm, Load: w.load,
	}
}

// warmUpKey is one that loads at once.
const warmUpKey = "warm-up"

// load is the loader of all peers. What it returns was true when it began, as from a
// database under a snapshot.
func (w *worker) load(ctx context.Context, key string) (*peer.Product, error) {
	l, err := w.origin.Begin(ctx, key)
	if err != nil {
		return nil, err
	}
	if key != warmUpKey {
		if err := rig.SleepUntil(ctx, l.At.Add(w.setup.Load)); err != nil {
			return nil, err
		}
	}
	return peer.NewProduct(l.Number, l.Stock, time.Now()), nil
}

// read is what a Get returned.
type read struct {
	Load  int64     // the number of the load that made the value
	Stock int32     // what the origin held then
	At    time.Time // when Get returned
	Err   string
}

func (w *worker) get(ctx context.Context, key string) (read, error) {
	p, err := w.peer.Get(ctx, key)
	r := read{At: time.Now()}
	if err != nil {
		r.Err = err.Error()
	} else {
		r.Load, r.Stock = p.ID, p.Stock
	}
	return r, nil
}

func (w *worker) set(ctx context.Context, key string) (none, error) {
	return none{}, w.peer.Set(ctx, key, peer.NewProduct(0, 1, time.Now()))
}

func (w *worker) delete(ctx context.Context, key string) (none, error) {
	return none{}, w.peer.Delete(ctx, key)
}

func (w *worker) counts(context.Context, none) (rig.Counts, error) { return w.commands.Counts(), nil }

func (w *worker) well(context.Context, none) (time.Time, error) { return w.commands.WellSince(), nil }

// crowdArgs ask for one call of each of many callers, at once.
type crowdArgs struct {
	Key     string
	Callers int
	At      time.Time
}

// tally is what callers have met.
type tally struct {
	Requests, Errors, Waited int64
	FirstError               string
	Latency                  *rig.Latency
	MaxAge                   time.Duration
	Last                     time.Time // when the last call returned
	Counts                   rig.Counts
}

func newTally() *tally { return &tally{Latency: rig.NewLatency()} }

func (t *tally) add(o *tally) {
	t.Requests += o.Requests
	t.Errors += o.Errors
	t.Waited += o.Waited
	if t.FirstError == "" {
		t.FirstError = o.FirstError
	}
	t.Latency.Add(o.Latency)
	t.MaxAge = max(t.MaxAge, o.MaxAge)
	if o.Last.After(t.Last) {
		t.Last = o.Last
	}
	t.Counts.Calls += o.Counts.Calls
	t.Counts.Heartbeats += o.Counts.Heartbeats
}

// record counts a call.
func (t *tally) record(start, end time.Time, slow time.Duration, p *peer.Product, err error) {
	took := end.Sub(start)
	t.Requests++
	t.Latency.Record(took)
	if slow > 0 && took >= slow {
		t.Waited++
	}
	if end.After(t.Last) {
		t.Last = end
	}
	switch {
	case err == nil:
		// By the wall clock: the value comes from another process.
		t.MaxAge = max(t.MaxAge, time.Duration(end.UnixNano()-p.Updated.UnixNano()))
	case t.FirstError == "":
		t.FirstError = err.Error()
		fallthrough
	default:
		t.Errors++
	}
}

// crowdRest is how long a process whose callers are back waits for those of the others.
const crowdRest = 100 * time.Millisecond

// crowd lets all callers call at the same moment. They are counted when all are back, most
// likely those of other processes, too: to make and write histograms takes longer than the
// calls, and who is first would keep the processors from who is last.
func (w *worker) crowd(ctx context.Context, a crowdArgs) (*tally, error) {
	type call struct {
		start, end time.Time
		product    *peer.Product
		err        error
	}
	calls := make([]call, a.Callers)
	begin := make(chan struct{})
	var callers sync.WaitGroup
	for i := range calls {
		callers.Go(func() {
			<-begin
			c := &calls[i]
			c.start = time.Now()
			c.product, c.err = w.peer.Get(ctx, a.Key)
			c.end = time.Now()
		})
	}
	err := rig.SleepUntil(ctx, a.At)
	close(begin)
	callers.Wait()
	if err != nil {
		return nil, err
	}
	if err := rig.Sleep(ctx, crowdRest); err != nil {
		return nil, err
	}
	all := newTally()
	for _, c := range calls {
		all.record(c.start, c.end, 0, c.product, c.err)
	}
	return all, nil
}

func sum(tallies []*tally) *tally {
	all := newTally()
	for _, t := range tallies {
		all.add(t)
	}
	return all
}

// loopArgs ask for callers that call, pause, and call again.
type loopArgs struct {
	Callers int
	Pause   time.Duration
	Plain   bool          // GET and decode of the plain key, without the peer
	Slow    time.Duration // a call that takes as long has waited
	Start   time.Time
	Phases  []time.Duration // how long each lasts; they follow on each other
}

// loop returns a tally of each phase; a call belongs to the phase that it began in.
func (w *worker) loop(ctx context.Context, a loopArgs) ([]*tally, error) {
	ends := make([]time.Time, len(a.Phases))
	at := a.Start
	for i, d := range a.Phases {
		at = at.Add(d)
		ends[i] = at
	}
	var running sync.WaitGroup
	perCaller := make([][]*tally, a.Callers)
	for i := range perCaller {
		perCaller[i] = make([]*tally, len(ends))
		for phase := range ends {
			perCaller[i][phase] = newTally()
		}
		running.Go(func() { w.call(ctx, a, ends, perCaller[i]) })
	}
	sent := make([]rig.Counts, len(ends)+1)
	running.Go(func() {
		_ = rig.SleepUntil(ctx, a.Start)
		sent[0] = w.commands.Counts()
		for phase, end := range ends {
			_ = rig.SleepUntil(ctx, end)
			sent[phase+1] = w.commands.Counts()
		}
	})
	running.Wait()
	phases := make([]*tally, len(ends))
	for phase := range ends {
		phases[phase] = newTally()
		for i := range perCaller {
			phases[phase].add(perCaller[i][phase])
		}
		phases[phase].Counts = sent[phase+1].Sub(sent[phase])
	}
	return phases, ctx.Err()
}

// call is one caller of a loop.
func (w *worker) call(ctx context.Context, a loopArgs, ends []time.Time, tallies []*tally) {
	get := w.peer.Get
	if a.Plain {
		get = func(ctx context.Context, _ string) (*peer.Product, error) { return plainGet(ctx, w.plain, plainKey) }
	}
	// Callers do not march in step.
	next := a.Start.Add(rand.N(a.Pause))
	for phase := 0; ; {
		if rig.SleepUntil(ctx, next) != nil {
			return
		}
		start := time.Now()
		for phase < len(ends) && !start.Before(ends[phase]) {
			phase++
		}
		if phase == len(ends) {
			return
		}
		p, err := w.bounded(ctx, get, strconv.Itoa(rand.N(w.setup.Keys)))
		tallies[phase].record(start, time.Now(), a.Slow, p, err)
		next = time.Now().Add(a.Pause)
	}
}

func (w *worker) bounded(ctx context.Context, get func(context.Context, string) (*peer.Product, error), key string) (*peer.Product, error) {
	if w.setup.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.setup.Timeout)
		defer cancel()
	}
	return get(ctx, key)
}

// plainKey holds a product for what is read without a peer.
const plainKey = "raw:0"

// plainGet is what a service does for a remote hit without a library.
func plainGet(ctx context.Context, rdb redis.UniversalClient, key string) (*peer.Product, error) {
	data, err := rdb.Get(ctx, key).Bytes()
	if err != nil {
		return nil, err
	}
	p := new(peer.Product)
	return p, msgpack.Unmarshal(data, p)
}

// plainSet stores a product as plainGet reads it.
func plainSet(ctx context.Context, rdb redis.UniversalClient, key string) error {
	data, err := msgpack.Marshal(peer.NewProduct(0, 1, time.Unix(1_800_000_000, 0)))
	if err == nil && len(data) != peer.PayloadSize {
		err = fmt.Errorf("a product takes %d bytes, not %d", len(data), peer.PayloadSize)
	}
	return errors.Join(err, rdb.Set(ctx, key, data, time.Hour).Err())
}
