package remote

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/singleflight"
)

const (
	// maxLanes is how many GETs, or batches of them, are out at a time for one server.
	maxLanes = 2
	// maxTogether is how many GETs go in one batch.
	maxTogether = 128
	// stallPart is the part of the timeout after which a lane that is not back counts as
	// stalled: another one is opened beside it.
	stallPart = 10
	// trust is how many lanes have to be back in time, in a row, before callers go along.
	trust = 16
)

// reads sends GETs to one server. As many as there are lanes go at once and alone; what
// comes while all lanes are out waits for the first that is back, and goes in one MGET, or
// pipeline in a Cluster. So a single caller pays one GET, and each of a crowd a small part
// of one.
//
// A read that has no answer at the store's timeout is given up on, whatever the client
// does, and so is a lane that is not back by then. Long before, lanes that stall, of a
// connection that lost a packet, have been joined by others: at most maxLanes in each
// tenth of the timeout.
//
// A lane is a goroutine, and to switch to it and back takes as long as the GET. So where
// the client heeds deadlines, and the server has answered in time of late, a caller who
// finds no lane out goes along: it is the lane for its own GET. A cancel of its context is
// then noticed only when the GET ends, by the answer, its deadline or the timeout. Where
// one follows the other, they hand on a [line].
type reads struct {
	server *breaker
	used   sync.Pool // of *reading

	mu      sync.Mutex // protects the fields below, and the fields of others that say so
	waiting []*reading
	lanes   []*lane // those under way
	idle    []*lane
	watched bool  // the watch is set
	trusted int   // lanes in a row that were back in time with an answer
	along   int   // callers that went along since the watch has looked last
	line    *line // for the next of them, while no lane is out; nil for none
}

// reading is one GET.
type reading struct {
	ctx   context.Context //nolint:containedctx // lends its values to the command
	key   string
	since time.Duration // when it was asked for, by the store's clock; protected by reads.mu

	// over is set by who ends the reading: its lane or the watch, which then write the
	// outcome, and the token into done, which has room for it; or a caller who leaves.
	over  atomic.Bool
	done  chan struct{}
	entry []byte
	err   error
}

// lane sends one batch after the other while there is something to send. That of a caller
// who goes along is empty.
type lane struct {
	batch []*reading    // protected by reads.mu
	since time.Duration // when the batch was sent; protected by reads.mu
	lost  chan struct{} // closed when the lane is given up on
}

// lent is the context of a batch: that of its lane, with the values of a call. A
// client heeds it while it waits for a connection, dials, or is about to try again.
type lent struct {
	*lane

	values context.Context //nolint:containedctx // it is one itself
}

// Deadline implements context.Context.
func (lent) Deadline() (deadline time.Time, ok bool) { return deadline, false }

// Done implements context.Context.
func (l lent) Done() <-chan struct{} { return l.lost }

// Err implements context.Context.
func (l lent) Err() error {
	select {
	case <-l.lost:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (l lent) Value(key any) any { return l.values.Value(key) }

// limited is the context of a lane that is a caller, with the end of its time.
type limited struct {
	lent

	until time.Time
}

// Deadline implements context.Context.
func (l limited) Deadline() (deadline time.Time, ok bool) { return l.until, true }

// heedful reports whether a command of client ends at the deadline of its context also
// while the server does not answer, which go-redis sees to where ContextTimeoutEnabled is
// set, unless it is told, by timeouts below 0, to set no deadlines at all, or has to ask
// somebody for credentials who knows of none. No client notices a cancel while it reads.
func heedful(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 &&
			o.CredentialsProvider == nil && o.StreamingCredentialsProvider == nil
	case *redis.ClusterClient:
		o := c.Options()
		return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 &&
			o.CredentialsProvider == nil && o.StreamingCredentialsProvider == nil
	}
	return false // a Ring asks another shard, and of a wrapper nothing is known
}

// get reads a key; redis.Nil if it is not there. It is asked for at the time now of the
// store's clock, and over at the time end.
func (rs *reads) get(ctx context.Context, key string, now time.Duration) (entry []byte, end time.Duration, err error) {
	l, kept, r := rs.send(ctx, key, now)
	if l != nil {
		return rs.ride(ctx, l, kept, key, now)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		r.over.Store(true) // if it waits, it need not be sent
		return nil, rs.server.store.mono(), context.Cause(ctx)
	}
	entry, err = r.entry, r.err
	if !errors.Is(err, rs.server.store.silent) { // else its lane still knows it
		rs.put(r)
	}
	return entry, rs.server.store.mono(), err
}

// put keeps a reading that nobody knows any more for others.
func (rs *reads) put(r *reading) {
	r.ctx, r.entry, r.err = nil, nil, nil // it stays over: the watch may still find it in the batch of its lane
	rs.used.Put(r)
}

// send has a lane send a reading, or returns the one that is its caller, and its line.
func (rs *reads) send(ctx context.Context, key string, now time.Duration) (l *lane, kept *line, r *reading) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !rs.watched {
		rs.watched = true
		time.AfterFunc(rs.stall(), rs.watch)
	}
	if rs.trusted >= trust && len(rs.lanes) == 0 && len(rs.waiting) == 0 {
		l = rs.lane()
		l.since, l.batch = now, l.batch[:0]
		rs.begin(l)
		kept, rs.line = rs.line, nil
		if rs.along++; kept == nil && rs.along > lineAfter && rs.server.store.lender != nil {
			kept = new(line)
		}
		return l, kept, nil
	}
	r, _ = rs.used.Get().(*reading)
	if r == nil {
		r = &reading{done: make(chan struct{}, 1)}
	}
	r.ctx, r.key, r.since = ctx, key, now
	r.over.Store(false)
	rs.waiting = append(rs.waiting, r)
	rs.start(rs.open(now)) //nolint:contextcheck // a lane has its own, with the values of the calls
	return nil, nil, r
}

// open returns a lane for what waits, nil for none. The caller holds mu.
func (rs *reads) open(now time.Duration) *lane {
	if len(rs.waiting) == 0 || len(rs.lanes) >= maxLanes && rs.moving(now) >= maxLanes {
		return nil
	}
	l := rs.lane()
	if rs.fill(l, now); len(l.batch) == 0 { // the callers of all that waited have left
		rs.idle = append(rs.idle, l)
		return nil
	}
	rs.begin(l)
	return l
}

// lane is one that is not under way. The caller holds mu.
func (rs *reads) lane() (l *lane) {
	if n := len(rs.idle); n > 0 {
		l, rs.idle = rs.idle[n-1], rs.idle[:n-1]
		return l
	}
	return &lane{lost: make(chan struct{})}
}

// begin says that a lane is under way. The caller holds mu.
func (rs *reads) begin(l *lane) {
	rs.lanes = append(rs.lanes, l)
	rs.server.store.calls.Add(1)
}

// start lets a lane run, if there is one.
func (rs *reads) start(l *lane) {
	if l != nil {
		go rs.run(l)
	}
}

// moving is the number of lanes that do not stall. The caller holds mu.
func (rs *reads) moving(now time.Duration) (n int) {
	for _, l := range rs.lanes {
		if now-l.since < rs.stall() {
			n++
		}
	}
	return n
}

// retire gives the line back.
func (rs *reads) retire() {
	rs.mu.Lock()
	rest := rs.line
	rs.line = nil
	rs.mu.Unlock()
	rest.close()
}

func (rs *reads) stall() time.Duration { return rs.server.store.timeout / stallPart }

// ride is the way of a lane that is its caller. What has come meanwhile gets a goroutine.
func (rs *reads) ride(ctx context.Context, l *lane, kept *line, key string, now time.Duration) (v []byte, end time.Duration, err error) {
	store := rs.server.store
	err = singleflight.ErrGoexit // if a hook calls it
	defer func() {
		end = store.mono()
		more, rest := rs.next(l, end, err, kept)
		rest.close()
		if more {
			rs.start(l)
		} else {
			store.calls.Done()
		}
	}()
	until := store.start.Add(now + store.timeout)
	within := ctx //nolint:contextcheck // see lent
	if sooner, ok := ctx.Deadline(); !ok || until.Before(sooner) {
		within = limited{lent{l, ctx}, until}
	}
	v, err = rs.lone(within, kept, key, now)
	if (lent{lane: l}).Err() != nil { // the watch has given up on it
		return nil, end, store.silent
	}
	if err != nil && judge(err) == verdictSilence {
		switch err = timely(ctx, err); {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case store.mono()-now >= store.timeout:
			err = store.silent
		}
	}
	return v, end, err
}

func (rs *reads) run(l *lane) {
	defer rs.server.store.calls.Done()
	var err error
	for more := true; more; more, _ = rs.next(l, rs.server.store.mono(), err, nil) {
		err = rs.ask(l)
		runtime.Gosched() // who has got an answer may have another question: it goes along
	}
}

// next gives a lane that is back, with the error of what it has sent last, another batch.
// more is false if there is none, or if the lane was given up on. Its line is kept for the
// next caller; rest is one that nobody will use.
func (rs *reads) next(l *lane, now time.Duration, err error, kept *line) (more bool, rest *line) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	i := slices.Index(rs.lanes, l)
	if i < 0 {
		rs.server.hung.Add(-1)
		return false, kept
	}
	if kept != nil {
		if judge(err) == verdictAnswer {
			kept.used = now
			rs.line = kept
		} else {
			rest = kept
		}
	}
	switch {
	case judge(err) != verdictAnswer || now-l.since >= rs.stall():
		rs.trusted = 0
	case rs.server.store.heedful:
		rs.trusted++
	}
	if len(rs.lanes) <= maxLanes { // else others have taken its place
		if rs.fill(l, now); len(l.batch) > 0 {
			return true, rest
		}
	}
	rs.lanes = slices.Delete(rs.lanes, i, i+1)
	rs.idle = append(rs.idle, l)
	return false, rest
}

// fill gives a lane a batch out of what waits. The caller holds mu.
func (rs *reads) fill(l *lane, now time.Duration) {
	l.since, l.batch = now, l.batch[:0]
	n := 0
	for _, r := range rs.waiting {
		if len(l.batch) == maxTogether {
			break
		}
		if n++; !r.over.Load() {
			l.batch = append(l.batch, r)
		}
	}
	rs.waiting = slices.Delete(rs.waiting, 0, n)
}

// watch gives up on what is overdue, and on a line that nobody uses. It is called again
// when the next may be.
func (rs *reads) watch() {
	var unused *line
	defer func() { unused.close() }() // not under the lock: the pool may take its time
	rs.mu.Lock()
	defer rs.mu.Unlock()
	now, rest := rs.server.store.mono(), rs.stall()
	overdue := func(since time.Duration) bool {
		left := rs.server.store.timeout - (now - since)
		if left > 0 {
			rest = min(rest, left)
		}
		return left <= 0
	}
	end := func(r *reading) bool {
		if !r.over.Load() && overdue(r.since) {
			r.end(nil, rs.server.store.silent)
		}
		return r.over.Load()
	}
	rs.waiting = slices.DeleteFunc(rs.waiting, end)
	rs.lanes = slices.DeleteFunc(rs.lanes, func(l *lane) bool {
		for _, r := range l.batch {
			end(r)
		}
		late := overdue(l.since)
		if late {
			rs.trusted = 0
			close(l.lost)
			rs.server.hung.Add(1)
		}
		return late
	})
	rs.start(rs.open(now))
	if rs.along = 0; rs.line != nil && now-rs.line.used >= rs.stall() {
		unused, rs.line = rs.line, nil
	}
	if rs.watched = len(rs.lanes) > 0 || rs.line != nil; rs.watched {
		time.AfterFunc(rest, rs.watch)
	}
}

// ask sends a lane's batch and hands out the answers. It returns the error of the last.
func (rs *reads) ask(l *lane) (err error) {
	batch := l.batch // only its own goroutine gives it another
	var ctx context.Context = lent{l, batch[0].ctx}
	if len(batch) == 1 {
		return rs.alone(ctx, batch[0])
	}
	if rs.server.store.mgets() {
		return rs.together(ctx, batch)
	}
	pipe := rs.server.store.rdb.Pipeline()
	gets := make([]*redis.StringCmd, len(batch))
	for i, r := range batch {
		gets[i] = pipe.Get(ctx, r.key)
	}
	_, failed := singleflight.Protect(func() ([]redis.Cmder, error) { return pipe.Exec(ctx) })
	for i, r := range batch {
		var v []byte
		if v, err = gets[i].Bytes(); failed != nil && err == nil && len(v) == 0 {
			err = rs.alone(ctx, r) // the client has not sent it: it cannot pipeline
			continue
		}
		r.end(v, err)
	}
	return err
}

// together sends a batch as one MGET, which costs Redis and the client less than as many
// GETs. See [Store.ReadMany] for an entry of a wrong type.
func (rs *reads) together(ctx context.Context, batch []*reading) error {
	names := make([]string, len(batch))
	for i, r := range batch {
		names[i] = r.key
	}
	answers, err := singleflight.Protect(func() ([]Answer[[]byte], error) { return rs.server.store.mget(ctx, names) })
	for i, r := range batch {
		switch {
		case err != nil:
			r.end(nil, err)
		case answers[i].Value == nil && answers[i].Err == nil:
			r.end(nil, redis.Nil)
		default:
			r.end(answers[i].Value, answers[i].Err)
		}
	}
	return err
}

func (rs *reads) alone(ctx context.Context, r *reading) error {
	v, err := command(ctx, rs.server.store.rdb, r.key)
	r.end(v, err)
	return err
}

// lone sends the GET of a caller who goes along, over its line if it has one.
func (rs *reads) lone(ctx context.Context, kept *line, key string, now time.Duration) ([]byte, error) {
	store := rs.server.store
	if kept == nil {
		return command(ctx, store.rdb, key)
	}
	if kept.conn == nil || now-kept.taken >= lineAge {
		kept.close()
		kept.conn, kept.taken = store.lender.Conn(), now
	}
	v, err := kept.get(ctx, key)
	if end, ok := ctx.Deadline(); judge(err) == verdictAnswer || ok && !time.Now().Before(end) {
		return v, err
	}
	// The connection was cut, or is one to a server that has been replaced. The pool would
	// have noticed, or has others.
	kept.close()
	kept.conn = nil
	return command(ctx, store.rdb, key)
}

// command sends one GET. A hook of the client that panics has not answered.
func command(ctx context.Context, rdb redis.UniversalClient, key string) ([]byte, error) {
	return singleflight.Protect(func() ([]byte, error) { return rdb.Get(ctx, key).Bytes() })
}

// end ends the reading, if it has not ended.
func (r *reading) end(entry []byte, err error) {
	if r.over.CompareAndSwap(false, true) {
		r.entry, r.err = entry, err
		r.done <- struct{}{}
	}
}
