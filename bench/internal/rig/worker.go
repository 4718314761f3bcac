package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"syscall"

	"github.com/herdgate/herdgate/internal/child"
)

// workerEnv tells this program, run again, that it is a worker.
const workerEnv = "HERDGATE_BENCH_WORKER"

// IsWorker reports whether this process was started by Spawn and has to call Serve.
func IsWorker() bool { return os.Getenv(workerEnv) != "" }

// Op is something that a worker can be asked to do.
type Op func(ctx context.Context, args json.RawMessage) (any, error)

// Handle makes an Op of a func with arguments of its own type.
func Handle[A, R any](f func(ctx context.Context, args A) (R, error)) Op {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var args A
		if err := json.Unmarshal(raw, &args); err != nil {
			return nil, err
		}
		return f(ctx, args)
	}
}

// Serve does what the parent asks, several things at once, until the parent closes
// in or dies.
func Serve(ctx context.Context, in io.Reader, out io.WriteCloser, ops map[string]Op) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := rpc.NewServer()
	if err := server.RegisterName("Worker", &Service{ctx: ctx, ops: ops}); err != nil {
		return err
	}
	server.ServeConn(pipes{in, out})
	return nil
}

// Request is what a parent sends.
type Request struct {
	Op   string
	Args []byte // JSON
}

// Reply is what the worker answers.
type Reply struct{ Result []byte }

// Service is the worker as net/rpc wants it.
type Service struct {
	ctx context.Context //nolint:containedctx // net/rpc hands none to its methods; this one is the process's
	ops map[string]Op
}

// Do is the one method that the parent calls.
func (s *Service) Do(r Request, reply *Reply) error {
	op, ok := s.ops[r.Op]
	if !ok {
		return fmt.Errorf("a worker has no operation %q", r.Op)
	}
	result, err := op(s.ctx, r.Args)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Op, err)
	}
	reply.Result, err = json.Marshal(result)
	return err
}

// pipes is a connection made of two pipes.
type pipes struct {
	io.Reader
	io.WriteCloser
}

// Worker is a worker process, seen from its parent.
type Worker struct {
	process *child.Process
	stdin   io.Closer
	conn    *rpc.Client
}

// Spawn runs this program again as a worker, whose standard error goes to stderr.
func Spawn(ctx context.Context, stderr io.Writer) (*Worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	cmd.Stderr = stderr
	// The ends of these pipes belong to the connection: StdoutPipe's would be closed
	// by Wait, before the last answer is read.
	fromChild, childOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	childIn, toChild, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, fromChild.Close(), childOut.Close())
	}
	cmd.Stdin, cmd.Stdout = childIn, childOut
	p, err := child.Start(cmd)
	if err = errors.Join(err, childIn.Close(), childOut.Close()); err != nil {
		return nil, errors.Join(err, fromChild.Close(), toChild.Close())
	}
	return &Worker{process: p, stdin: toChild, conn: rpc.NewClient(parentEnd{fromChild, toChild})}, nil
}

// parentEnd closes both pipes: the reader too, on which the client waits.
type parentEnd struct {
	io.ReadCloser
	io.WriteCloser
}

// Close implements io.Closer.
func (p parentEnd) Close() error { return errors.Join(p.WriteCloser.Close(), p.ReadCloser.Close()) }

// Call lets a worker do op.
func Call[R any](ctx context.Context, w *Worker, op string, args any) (R, error) {
	return Begin[R](w, op, args).Wait(ctx)
}

// Pending is a call that has been sent.
type Pending[R any] struct {
	call *rpc.Call
	err  error
}

// Begin sends a call and does not wait for its answer.
func Begin[R any](w *Worker, op string, args any) Pending[R] {
	encoded, err := json.Marshal(args)
	if err != nil {
		return Pending[R]{err: err}
	}
	return Pending[R]{call: w.conn.Go("Worker.Do", Request{Op: op, Args: encoded}, new(Reply), make(chan *rpc.Call, 1))}
}

// Wait waits for the answer.
func (p Pending[R]) Wait(ctx context.Context) (result R, err error) {
	if p.err != nil {
		return result, p.err
	}
	select {
	case done := <-p.call.Done:
		if done.Error != nil {
			return result, done.Error
		}
		return result, json.Unmarshal(done.Reply.(*Reply).Result, &result)
	case <-ctx.Done():
		return result, context.Cause(ctx)
	}
}

// Kill kills the worker with SIGKILL.
func (w *Worker) Kill() { w.process.Kill() }

// Freeze stops the worker with SIGSTOP.
func (w *Worker) Freeze() error { return w.process.Signal(syscall.SIGSTOP) }

// Thaw lets it go on.
func (w *Worker) Thaw() error { return w.process.Signal(syscall.SIGCONT) }

// Close ends the worker, which nothing is asked of any more.
func (w *Worker) Close() {
	w.Kill()
	_ = w.conn.Close()
}
