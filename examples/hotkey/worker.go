package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
)

const (
	hotKey = "1"
	pause  = 20 * time.Millisecond // of a caller between two reads

	// zipf is the exponent of the mix: 61 % of the reads want the hot key, 15 % the
	// next, and one in 160 a key beyond the first hundred. A flatter mix only adds
	// queries for cold keys, the same in both phases, and work for a small machine.
	zipf = 2.0

	progressEvery = 200 * time.Millisecond
)

// worker is one instance of the service.
type worker struct {
	job    job
	meter  meter
	reader reader
	told   *telemetry // nil: nobody asks for it

	mu  sync.Mutex // protects out
	out *json.Encoder
}

// work runs an instance from its job to its result.
func work(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	lines := json.NewDecoder(in)
	w := &worker{out: json.NewEncoder(out)}
	if err := lines.Decode(&w.job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, w.job.limit())
	defer cancel()
	db, err := openDatabase(w.job, &w.meter)
	if err != nil {
		return err
	}
	defer func() { _ = db.pool.Close() }()
	// A connection for each caller: nobody waits for one.
	rdb := redis.NewClient(&redis.Options{Addr: w.job.Redis, PoolSize: w.job.Callers})
	defer func() { _ = rdb.Close() }()
	rdb.AddHook(redisHook{meter: &w.meter, namespace: w.job.Namespace})
	var end func(context.Context) error
	var observer herdgate.Observer
	if w.job.Metrics {
		if w.told, err = newTelemetry(w.job.Instance); err != nil {
			return err
		}
		observer = w.told.observer
	}
	if w.reader, end, err = newReader(ctx, w.job, rdb, db, observer); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	if err := w.say(message{Ready: true}); err != nil {
		return err
	}
	// The parent writes one more line; then its end of the pipe closes only to stop
	// this process. Nothing interrupts that read but the end of the process, so
	// nobody waits for this goroutine.
	go func() {
		var o order
		if lines.Decode(&o) == nil {
			now := time.Now()
			w.meter.start(now.Add(time.Duration(o.StartAt-now.UnixNano())), w.job.Duration)
			_ = lines.Decode(&o)
		}
		cancel()
	}()
	measured := w.measure(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.told != nil {
		// The loads that still run are counted, and their commits.
		if err := end(ctx); err != nil {
			return err
		}
		if measured.Metrics, err = w.told.page(); err != nil {
			return err
		}
		if measured.Counts, err = w.told.counts(ctx); err != nil {
			return err
		}
	}
	return w.say(message{Result: &measured})
}

// limit is the longest an instance may live: it ends also if nobody ends it.
func (j job) limit() time.Duration { return j.warmUp() + j.Duration + 30*time.Second }

// warmUp is how long instances read before the measured time begins.
func (j job) warmUp() time.Duration { return 2*j.TTL + 2*j.Load + 500*time.Millisecond }

// measure lets all callers read until the measured time is over.
func (w *worker) measure(ctx context.Context) result {
	var (
		callers sync.WaitGroup
		tallies = make([]tally, w.job.Callers)
	)
	for i := range tallies {
		callers.Go(func() { w.call(ctx, &tallies[i]) })
	}
	quit := make(chan struct{})
	var reports sync.WaitGroup
	reports.Go(func() { w.reportProgress(quit) })
	callers.Wait()
	close(quit)
	reports.Wait()

	sum := result{RedisCalls: w.meter.redisCalls.Load()}
	for _, t := range tallies {
		sum.Tally.add(t)
	}
	sum.Queries, sum.HotQueries = w.meter.queries()
	return sum
}

// call is one caller: it reads, pauses, and reads again.
func (w *worker) call(ctx context.Context, t *tally) {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	keys := rand.NewZipf(random, zipf, 1, products-1)
	pauses := time.NewTimer(rand.N(pause)) // callers do not march in step
	defer pauses.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pauses.C:
		}
		if w.meter.over() {
			return
		}
		key := strconv.FormatUint(keys.Uint64()+1, 10)
		start := time.Now()
		p, err := w.reader.Get(ctx, key)
		end := time.Now()
		if w.meter.open(start) != nil {
			w.meter.requests.Add(1)
			w.record(t, key, end.Sub(start), time.Duration(end.UnixNano()-p.LoadedAt), err)
		}
		pauses.Reset(pause)
	}
}

func (w *worker) record(t *tally, key string, took, age time.Duration, err error) {
	t.Requests++
	if err != nil {
		t.Errors++
	}
	if key != hotKey {
		return
	}
	t.Hot.Requests++
	t.Hot.Latency.record(took)
	if took >= w.job.Load/2 {
		t.Hot.Waited++
	}
	if err != nil {
		return // no value, no age
	}
	t.Hot.MaxAge = max(t.Hot.MaxAge, age)
	if age > w.job.TTL {
		t.Hot.Stale++
	}
}

func (w *worker) reportProgress(quit <-chan struct{}) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
		}
		all, hot := w.meter.queries()
		var page string
		if w.told != nil {
			page, _ = w.told.page() // if it fails, so does the last, and ends this instance
		}
		// A parent that does not read any more is dead, and the input ends.
		_ = w.say(message{Progress: &progress{Requests: w.meter.requests.Load(), Queries: total(all), HotQueries: total(hot), Metrics: page}})
	}
}

func (w *worker) say(m message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Encode(m)
}
