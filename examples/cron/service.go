//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/herdgate/herdgate/examples/internal/stores"
	"github.com/herdgate/herdgate/internal/child"
)

// service is all processes, seen from the parent. events has room for all that they ever say, so that nobody waits.
type service struct {
	config  config
	out     io.Writer
	run     int64
	events  chan event
	workers []*process
	began   time.Time // at the first tick

	frozen *process // the one that was, or is
	thawed bool
}

type process struct {
	*child.Process

	stdin io.WriteCloser
}

// run tells the story on stdout, a line for each thing that happens.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	world, err := c.stores.Open(ctx, 2)
	if err != nil {
		return err
	}
	defer world.Close()
	s := &service{config: c, out: stdout, run: rand.Int64(), events: make(chan event, 32*ticks*c.processes)}
	if err := s.makeTables(ctx, world.DB); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx), world.DB)) }()

	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx) // kills the processes, frozen or not
	defer cancel()
	for number := range c.processes {
		p, err := s.start(ctx, world.Config, number+1, stderr)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, p)
		watching.Go(func() {
			<-p.Done
			s.events <- event{Process: number + 1, What: ended}
		})
	}
	if err := s.tell(ctx); err != nil {
		return err
	}
	return s.conclude(ctx, world.DB)
}

// start runs this program again, as a process of the service.
func (s *service) start(ctx context.Context, where stores.Config, number int, stderr io.Writer) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job{Process: number, Run: s.run, Stores: where, TTL: s.config.ttl(), Work: s.config.work(), Every: s.config.every})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = &listener{events: s.events}, stderr
	p := &process{}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.Process, err = child.Start(cmd)
	return p, err
}

// listener takes events out of what a process writes.
type listener struct {
	events  chan<- event
	partial []byte
}

func (l *listener) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		line, rest, whole := bytes.Cut(l.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		e, err := decode[event](string(line))
		if err != nil {
			return 0, err
		}
		l.events <- e
		l.partial = rest
	}
}

// tell tells what the processes say, until all have ended, and freezes one of them meanwhile.
func (s *service) tell(ctx context.Context) error {
	are := 0
	for left := len(s.workers); left > 0; {
		var e event
		select {
		case e = <-s.events:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch e.What {
		case ready:
			if are++; are == len(s.workers) {
				if err := s.begin(); err != nil {
					return err
				}
			}
			continue
		case ended:
			left--
			if err := s.workers[e.Process-1].Err; err != nil {
				return fmt.Errorf("process %d: %w", e.Process, err)
			}
			continue
		}
		s.line(e.Process, e.Text)
		if err := s.meddle(e); err != nil {
			return err
		}
	}
	return nil
}

// begin lets all processes begin with the first tick, soon enough from now for all of them to know.
func (s *service) begin() error {
	s.began = time.Now().Add(100 * time.Millisecond)
	_, _ = fmt.Fprintf(s.out, "%d processes, a job every %v that takes %v, and a lock that lasts %v unless it is renewed\n",
		len(s.workers), s.config.every, s.config.work(), s.config.ttl())
	for _, p := range s.workers {
		if err := json.NewEncoder(p.stdin).Encode(begin{First: s.began.UnixNano()}); err != nil {
			return err
		}
	}
	return nil
}

// meddle freezes the process that runs the job of one tick, until another has done it.
func (s *service) meddle(e event) error {
	switch {
	case e.Tick != frozenTick:
		return nil
	case e.What == runs && s.frozen == nil:
		s.frozen = s.workers[e.Process-1]
		s.line(e.Process, "is frozen")
		return s.frozen.Signal(syscall.SIGSTOP)
	case e.What == ran && !s.thawed:
		s.thawed = true
		return s.frozen.Signal(syscall.SIGCONT)
	}
	return nil
}

func (s *service) line(process int, text string) {
	_, _ = fmt.Fprintf(s.out, "%6.2f s  process %d  %s\n", time.Since(s.began).Seconds(), process, text)
}

// conclude looks whether each tick has one result.
func (s *service) conclude(ctx context.Context, db *stores.DB) error {
	for tick := 1; tick <= ticks; tick++ {
		var results int
		if err := db.Row(ctx, `SELECT COUNT(*) FROM cron_results WHERE run = ? AND tick = ?`, s.run, tick).Scan(&results); err != nil {
			return err
		}
		if results != 1 {
			return fmt.Errorf("tick %d has %d results, want 1", tick, results)
		}
	}
	_, err := fmt.Fprintf(s.out, "%d ticks, one result of each\n", ticks)
	return err
}

func (s *service) makeTables(ctx context.Context, db *stores.DB) error {
	for _, table := range []string{
		`CREATE TABLE IF NOT EXISTS cron_jobs (run BIGINT PRIMARY KEY, last_tick BIGINT NOT NULL, fence BIGINT NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS cron_results (run BIGINT NOT NULL, tick BIGINT NOT NULL, process BIGINT NOT NULL)`, // no key: it is to show what is done twice
	} {
		if _, err := db.Exec(ctx, table); err != nil {
			return err
		}
	}
	_, err := db.Exec(ctx, `INSERT INTO cron_jobs (run, last_tick, fence) VALUES (?, 0, 0)`, s.run)
	return err
}

func (s *service) remove(ctx context.Context, db *stores.DB) error {
	_, results := db.Exec(ctx, `DELETE FROM cron_results WHERE run = ?`, s.run)
	_, jobs := db.Exec(ctx, `DELETE FROM cron_jobs WHERE run = ?`, s.run)
	return errors.Join(results, jobs)
}
