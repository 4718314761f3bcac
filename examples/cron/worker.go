//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/herdgate/herdgate/examples/internal/stores"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/redislock"
)

// workerEnv tells this program, run again, that it is a process of the service, and which.
const workerEnv = "HERDGATE_CRON_WORKER"

// worker is a process of the service.
type worker struct {
	job     job
	db      *stores.DB
	locks   *lock.Engine
	renewed atomic.Int64 // leases, by the watchdog
	out     *json.Encoder
}

// startWorker works until the last tick, or until in ends, as it does when the parent has.
func startWorker(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	j, err := decode[job](text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, (ticks+1)*j.Every+time.Minute)
	defer cancel()
	began := make(chan begin, 1)
	go func() { // the process is its owner: nothing can interrupt the read
		defer cancel()
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			if b, err := decode[begin](lines.Text()); err == nil {
				began <- b
			}
		}
	}()

	world, err := j.Stores.Open(ctx, 2)
	if err != nil {
		return err
	}
	defer world.Close()
	w := &worker{job: j, db: world.DB, out: json.NewEncoder(out)}
	backend, err := redislock.New(world.Redis, redislock.Options{Namespace: "cron", Fence: true})
	if err != nil {
		return err
	}
	defer backend.Close()
	w.locks, err = lock.New(backend, lock.Options{TTL: j.TTL, Monitor: func(e lock.Event) {
		if e.Kind == lock.Renewed {
			w.renewed.Add(1)
		}
	}})
	if err != nil {
		return err
	}
	if err := w.say(ready, 0, ""); err != nil {
		return err
	}
	select {
	case b := <-began:
		return w.work(ctx, time.Unix(0, b.First))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// work is what a scheduler in each process does.
func (w *worker) work(ctx context.Context, first time.Time) error {
	for tick := 1; tick <= ticks; tick++ {
		at := first.Add(time.Duration(tick-1) * w.job.Every)
		if err := sleep(ctx, time.Until(at)); err != nil {
			return err
		}
		if err := w.tick(ctx, tick); err != nil {
			return fmt.Errorf("tick %d: %w", tick, err)
		}
	}
	return nil
}

// tick sees to it that the job of a tick is done, here or elsewhere. All processes wait for the lock, instead of trying
// once: if its holder dies, one of them takes over. Who gets it later finds the job done.
func (w *worker) tick(ctx context.Context, tick int) error {
	lease, err := w.locks.Lock(ctx, w.lockName())
	if err != nil {
		return err
	}
	err = w.holding(lease.Context(ctx), lease, tick)
	switch {
	case errors.Is(err, errRefused): // whoever has been at the row does the job
		err = w.say(refused, tick, "writes: refused, the row has a higher token")
	case err != nil && errors.Is(lease.Err(), lock.ErrLost): // a driver may say only that its context was cancelled
		err = w.late(ctx, lease, tick)
	}
	_ = lease.Unlock(ctx) // the row has decided; a lock that stays behind is free when its TTL has passed
	return err
}

func (w *worker) lockName() string { return fmt.Sprintf("report/%d", w.job.Run) }

// errRefused says that a later holder of the lock has been at the row.
var errRefused = errors.New("the write was refused")

// holding runs the job, unless this tick's is done. It begins with its token in the job's row: from then on no former
// holder can write there, not even between what is read here and what is written.
func (w *worker) holding(ctx context.Context, lease *lock.Lease, tick int) error {
	token := int64(lease.Token())
	claimed, err := w.db.Exec(ctx, `UPDATE cron_jobs SET fence = ? WHERE run = ? AND fence < ?`, token, w.job.Run, token)
	if err == nil && claimed == 0 {
		err = errRefused
	}
	var last int
	if err == nil {
		err = w.db.Row(ctx, `SELECT last_tick FROM cron_jobs WHERE run = ?`, w.job.Run).Scan(&last)
	}
	switch {
	case err != nil:
		return err
	case last >= tick:
		return nil
	}
	if err := w.say(runs, tick, fmt.Sprintf("has the lock, and runs the job of tick %d", tick)); err != nil {
		return err
	}
	renewed := w.renewed.Load()
	if err := sleep(ctx, w.job.Work); err != nil { // the job
		return err
	}
	// In a process that was frozen this is right at once, where the context may have yet to be cancelled.
	if err := lease.Err(); err != nil {
		return err
	}
	if err := w.write(ctx, lease, tick); err != nil {
		return err
	}
	return w.say(ran, tick, fmt.Sprintf("has done it, in %v: its lease of %v was renewed %d times", w.job.Work, w.job.TTL, w.renewed.Load()-renewed))
}

// write keeps the result of the job, if no later holder of the lock has been at the row.
func (w *worker) write(ctx context.Context, lease *lock.Lease, tick int) error {
	return w.db.InTx(ctx, func(tx stores.Conn) error {
		found, err := tx.Exec(ctx, `UPDATE cron_jobs SET last_tick = ? WHERE run = ? AND fence = ?`, tick, w.job.Run, int64(lease.Token()))
		switch {
		case err != nil:
			return err
		case found == 0:
			return errRefused
		}
		_, err = tx.Exec(ctx, `INSERT INTO cron_results (run, tick, process) VALUES (?, ?, ?)`, w.job.Run, tick, w.job.Process)
		return err
	})
}

// late tells of the loss, and then does what a process does that was frozen after its last look at the lease: it writes
// all the same, with a context that no lease ends.
func (w *worker) late(ctx context.Context, lease *lock.Lease, tick int) error {
	if err := w.say(lost, tick, fmt.Sprintf("goes on, and its context was cancelled: %v", lease.Err())); err != nil {
		return err
	}
	err := w.write(ctx, lease, tick)
	switch {
	case errors.Is(err, errRefused):
		return w.say(refused, tick, "writes its result all the same: refused, the row has a higher token")
	case err != nil:
		return err
	}
	return w.say(ran, tick, "writes its result all the same: accepted, as nobody has taken over yet, and who does will find it")
}

func (w *worker) say(what what, tick int, text string) error {
	return w.out.Encode(event{Process: w.job.Process, What: what, Tick: tick, Text: text})
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return context.Cause(ctx) // both may be over, after a freeze
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
