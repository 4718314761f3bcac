package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// workerEnv tells this program, run again, that it is an instance.
const workerEnv = "HERDGATE_HOTKEY_WORKER"

// endPatience is how long an instance may take to end when it is told to.
const endPatience = 5 * time.Second

// fleet is the instances of one phase, seen from the parent process.
type fleet struct {
	instances []*instance
	stderr    io.Writer
}

// instance is one worker process. What it says arrives on said, which is closed
// when it has ended; err is how, and valid then.
type instance struct {
	stdin    io.WriteCloser
	said     chan message
	err      error
	mu       sync.Mutex
	progress progress // the last; protected by mu
	board    *board   // where its metrics are shown; nil for nowhere
}

// runPhase runs the instances of j and adds up what they measured. However it
// ends, no instance is left. Their metrics are shown on board, unless it is nil.
func runPhase(ctx context.Context, j job, board *board, stderr io.Writer) (result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, j.limit(), fmt.Errorf("the phase %s took longer than %v", j.Phase, j.limit()))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	f := &fleet{stderr: stderr}
	for j.Instance = range j.Instances {
		i, err := startInstance(ctx, j, board, stderr, &running)
		if err != nil {
			return result{}, err
		}
		f.instances = append(f.instances, i)
	}
	for _, i := range f.instances {
		if m, err := i.next(ctx); err != nil {
			return result{}, err
		} else if !m.Ready {
			return result{}, errors.New("an instance did not begin with being ready")
		}
	}
	_, _ = fmt.Fprintf(stderr, "%-11s  %d instances × %d callers warm up for %v\n", j.Phase, j.Instances, j.Callers, j.warmUp())
	if err := sleep(ctx, j.warmUp()); err != nil {
		return result{}, err
	}
	if err := f.start(); err != nil {
		return result{}, err
	}
	return f.collect(ctx, j)
}

// start lets all instances begin to measure at the same moment, soon enough from
// now for all of them to know.
func (f *fleet) start() error {
	at := order{StartAt: time.Now().Add(200 * time.Millisecond).UnixNano()}
	for _, i := range f.instances {
		if err := json.NewEncoder(i.stdin).Encode(at); err != nil {
			return err
		}
	}
	return nil
}

// collect waits for the results and shows the progress meanwhile.
func (f *fleet) collect(ctx context.Context, j job) (result, error) {
	quit := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() { f.showProgress(j, quit) })
	defer showing.Wait()
	defer close(quit)
	var sum result
	for _, i := range f.instances {
		m, err := i.next(ctx)
		if err != nil {
			return result{}, err
		}
		if m.Result == nil {
			return result{}, errors.New("an instance ended without a result")
		}
		sum.add(*m.Result)
	}
	return sum, nil
}

func (f *fleet) showProgress(j job, quit <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var before progress
	for second := 1; ; second++ {
		select {
		case <-quit:
			return
		case <-tick.C:
		}
		var now progress
		for _, i := range f.instances {
			i.mu.Lock()
			now.Requests += i.progress.Requests
			now.Queries += i.progress.Queries
			now.HotQueries += i.progress.HotQueries
			i.mu.Unlock()
		}
		_, _ = fmt.Fprintf(f.stderr, "%-11s  %3ds of %v  %6d reads/s  %5d queries/s, of them %4d for the hot key\n", j.Phase, second, j.Duration,
			now.Requests-before.Requests, now.Queries-before.Queries, now.HotQueries-before.HotQueries)
		before = now
	}
}

// startInstance runs this program again as an instance, and keeps reading what it
// says until it ends, in a goroutine of running.
func startInstance(ctx context.Context, j job, board *board, stderr io.Writer, running *sync.WaitGroup) (*instance, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	cmd.Stderr = stderr
	i := &instance{said: make(chan message, 2), board: board} // all it ever says: ready, and its result
	if i.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// The end of its input is the order to end; who does not obey is killed.
	cmd.Cancel, cmd.WaitDelay = i.stdin.Close, endPatience
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	running.Go(func() {
		defer close(i.said)
		readErr := i.listen(j.Instance, stdout)
		i.err = errors.Join(readErr, cmd.Wait())
	})
	return i, json.NewEncoder(i.stdin).Encode(j)
}

func (i *instance) listen(number int, stdout io.Reader) error {
	for lines := json.NewDecoder(stdout); ; {
		var m message
		if err := lines.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if m.Result != nil {
			i.board.show(number, m.Result.Metrics)
		}
		if m.Progress == nil {
			i.said <- m
			continue
		}
		i.board.show(number, m.Progress.Metrics)
		i.mu.Lock()
		i.progress = *m.Progress
		i.mu.Unlock()
	}
}

// next waits for what the instance says next, other than progress.
func (i *instance) next(ctx context.Context) (message, error) {
	select {
	case m, ok := <-i.said:
		if ok {
			return m, nil
		}
		return message{}, fmt.Errorf("an instance ended early: %w", errors.Join(i.err, context.Cause(ctx)))
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
