package lock

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Engine is a Locker over a Backend. Its methods may be called concurrently.
type Engine struct {
	backend Backend
	opts    Options
	slow    atomic.Bool // the last answer to an acquire came late, or not at all

	mu     sync.Mutex // protects the fields below
	closed bool
	calls  int           // TryLock and Lock under way, and acquires that were left behind
	idle   chan struct{} // closed when closed and calls is 0
}

var _ RWLocker = (*Engine)(nil)

// New makes an engine that locks in backend. The error names the option that is out of range.
func New(backend Backend, opts Options) (*Engine, error) {
	if backend == nil {
		return nil, errNoBackend
	}
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if most := backend.Capabilities().MaxTTL; most > 0 && opts.TTL > most {
		return nil, fmt.Errorf("lock: TTL is %v: must be at most %v, the longest that the backend can keep", opts.TTL, most)
	}
	return &Engine{backend: backend, opts: opts, idle: make(chan struct{})}, nil
}

// TryLock asks for the lock once and does not wait for it. ctx bounds the asking; the lease outlives it.
//
// The error matches ErrNotAcquired if somebody else holds the lock, or if ctx was done before anything was sent; then
// it matches ctx.Err() as well. Any other error says that the store could not be asked; if the request did arrive,
// the lock is free again when the TTL has passed. ErrClosed: the engine is closed. ErrLost: ctx carries a lease of this
// lock, by WithLease, that was lost.
func (e *Engine) TryLock(ctx context.Context, name string) (*Lease, error) {
	return e.acquire(ctx, Request{Name: name}, (*acquisition).try)
}

// TryRLock is TryLock for a lock that is shared. The error matches errors.ErrUnsupported if the backend has none.
func (e *Engine) TryRLock(ctx context.Context, name string) (*Lease, error) {
	return e.acquire(ctx, Request{Name: name, Shared: true}, (*acquisition).try)
}

// Lock waits for the lock, as long as ctx and MaxWait allow; the lease outlives ctx.
//
// The error matches ErrNotAcquired if the wait ended first, and ctx.Err() as well if it was ctx that ended it. Any
// other error, never waited out, is as in TryLock. Waiters stand in a queue where the backend's Capabilities say Fair;
// elsewhere who asks first after the release gets the lock.
func (e *Engine) Lock(ctx context.Context, name string) (*Lease, error) {
	return e.acquire(ctx, Request{Name: name}, (*acquisition).wait)
}

// RLock is Lock for a lock that is shared. The error matches errors.ErrUnsupported if the backend has none.
func (e *Engine) RLock(ctx context.Context, name string) (*Lease, error) {
	return e.acquire(ctx, Request{Name: name, Shared: true}, (*acquisition).wait)
}

// Close refuses further acquisitions and waits, as long as ctx allows, for those under way and for what callers that
// gave up have left behind. It does not touch leases: unlock them before. It may be called again. The error is ctx's.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		if e.calls == 0 {
			close(e.idle)
		}
	}
	e.mu.Unlock()
	select {
	case <-e.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("lock: close: %w", ctx.Err())
	}
}

// begin counts a call in, unless the engine is closed. Each one is counted out by finish.
func (e *Engine) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.calls++
	return true
}

func (e *Engine) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls--
	if e.closed && e.calls == 0 {
		close(e.idle)
	}
}

// acquisition is one TryLock or Lock. All its requests carry one owner, so that the store knows them as one.
type acquisition struct {
	engine  *Engine
	req     Request
	started time.Time
	sends   sync.WaitGroup // requests under way, those left behind included
	unsure  bool           // a request got no answer, so it may have been granted, or has a place in the queue
}

func (e *Engine) acquire(ctx context.Context, req Request, get func(*acquisition, context.Context) (*Lease, error)) (*Lease, error) {
	if req.Shared && !e.backend.Capabilities().Shared {
		return nil, fmt.Errorf("lock: acquire %q: this backend has no shared locks: %w", req.Name, errors.ErrUnsupported)
	}
	if !e.begin() {
		return nil, ErrClosed
	}
	left := false // behind, for Close to wait for
	defer func() {
		if !left { // also if the backend panics
			e.finish()
		}
	}()
	if lease, err := e.enter(ctx, req); lease != nil || err != nil {
		return lease, err
	}
	req.Owner, req.TTL = newOwner(), e.opts.TTL
	a := &acquisition{engine: e, req: req, started: time.Now()}
	lease, err := get(a, ctx)
	a.tell(err)
	if lease != nil || !a.unsure {
		return lease, err
	}
	left = true
	go func() {
		defer e.finish()
		a.undo(context.WithoutCancel(ctx))
	}()
	return nil, err
}

// undo frees what a request without an answer may have got, once none is under way that could get it afterwards.
func (a *acquisition) undo(ctx context.Context) {
	a.sends.Wait()
	ctx, cancel := context.WithTimeout(ctx, a.engine.opts.CallTimeout)
	defer cancel()
	_ = a.engine.backend.Release(ctx, Claim{Name: a.req.Name, Owner: a.req.Owner}) // best effort: the TTL does the rest
}

// newOwner is 16 random bytes in hex.
func newOwner() string {
	var b [16]byte
	_, _ = crand.Read(b[:]) // never fails: it ends the program instead
	return hex.EncodeToString(b[:])
}

// try asks the store. When the answer is missing it asks once more: if the first request was granted and only its
// reply lost, the second gets the same grant.
func (a *acquisition) try(ctx context.Context) (*Lease, error) {
	if err := a.req.Validate(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, a.gaveUp(ctx)
	}
	send := a.send
	if a.engine.backend.Capabilities().Prompt && !a.engine.slow.Load() {
		send = a.sendDirectly
	}
	lease, err := send(ctx)
	if err == nil || errors.Is(err, ErrNotAcquired) || ctx.Err() != nil {
		return lease, err
	}
	return a.send(ctx)
}

// promptPart is the part of CallTimeout that a caller may be kept by a request that it makes itself.
const promptPart = 10

// sendDirectly sends a request in this goroutine, and gives it no long time, since a cancel may not be heeded.
func (a *acquisition) sendDirectly(ctx context.Context) (*Lease, error) {
	sentAt := time.Now()
	grant, err := direct(ctx, a.engine.opts.CallTimeout/promptPart, func(ctx context.Context) (Grant, error) {
		return a.engine.backend.Acquire(ctx, a.req)
	})
	return a.answered(ctx, sentAt, grant, err)
}

func (a *acquisition) send(ctx context.Context) (*Lease, error) {
	sentAt := time.Now()
	a.sends.Add(1)
	grant, err := call(ctx, a.engine.opts.CallTimeout, func(ctx context.Context) (Grant, error) {
		defer a.sends.Done()
		return a.engine.backend.Acquire(ctx, a.req)
	})
	return a.answered(ctx, sentAt, grant, err)
}

// answered makes a lease of the answer to a request.
func (a *acquisition) answered(ctx context.Context, sentAt time.Time, grant Grant, err error) (*Lease, error) {
	e := a.engine
	answered := err == nil || errors.Is(err, ErrNotAcquired)
	if slow := !answered || time.Since(sentAt) >= e.opts.CallTimeout/promptPart; slow != e.slow.Load() {
		e.slow.Store(slow)
	}
	switch {
	case errors.Is(err, ErrNotAcquired):
		contended := &ContendedError{Name: a.req.Name}
		if hint := (*ContendedError)(nil); errors.As(err, &hint) {
			contended.RetryAfter = hint.RetryAfter
		}
		return nil, contended
	case err != nil:
		a.unsure = true
		return nil, fmt.Errorf("lock: acquire %q: %w", a.req.Name, err)
	}
	lease := Hold(ctx, e.backend, Claim{Name: a.req.Name, Owner: a.req.Owner, Token: grant.Token}, sentAt, e.opts.hold())
	lease.held.engine, lease.held.shared = e, a.req.Shared
	if err := lease.Err(); err != nil {
		_ = lease.Unlock(ctx) // best effort: it is lost already
		return nil, fmt.Errorf("lock: acquire: the grant came too late: %w", err)
	}
	return lease, nil
}

// wait tries until it has the lock, the store fails, or the wait ends.
func (a *acquisition) wait(ctx context.Context) (*Lease, error) {
	waiting := ctx
	if limit := a.engine.opts.MaxWait; limit > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	lease, err := a.try(waiting)
	if !errors.Is(err, ErrNotAcquired) {
		return lease, err
	}
	if waiting.Err() == nil {
		a.event(Contended, err)
	}
	if queuer, ok := a.engine.backend.(Queuer); ok {
		return a.queue(ctx, waiting, queuer)
	}
	released, stop := a.listen(waiting)
	defer stop()
	for n := 0; waiting.Err() == nil; n++ {
		// A release before listen was not heard, so the first try with a wake-up comes at once.
		if n > 0 || released == nil {
			if !pause(waiting, a.nextTry(n, err, released), released) {
				break
			}
		}
		lease, err = a.try(waiting)
		switch {
		case err == nil:
			return lease, nil
		case !errors.Is(err, ErrNotAcquired) && waiting.Err() == nil:
			return nil, err
		}
	}
	return nil, a.gaveUp(ctx)
}

// queue waits in the store's queue until the lock is ours, and then takes it by one more request, from which the lease
// counts its time. A place that was lost, say because this process was frozen, is taken anew, at the end.
func (a *acquisition) queue(ctx, waiting context.Context, queuer Queuer) (*Lease, error) {
	for waiting.Err() == nil {
		err := a.stand(waiting, queuer)
		var lease *Lease
		if err == nil {
			lease, err = a.try(waiting)
		}
		switch {
		case err == nil:
			return lease, nil
		case waiting.Err() != nil:
		case !errors.Is(err, ErrNotAcquired):
			return nil, err
		default:
			pause(waiting, jitter(a.engine.opts.RetryMin), nil)
		}
	}
	return nil, a.gaveUp(ctx)
}

// stand takes a place in the queue and waits there until the lock is ours.
func (a *acquisition) stand(ctx context.Context, queuer Queuer) error {
	a.unsure = true // until then there is a place to give up
	a.sends.Add(1)
	turn, err := call(ctx, a.engine.opts.CallTimeout, func(ctx context.Context) (func(context.Context) error, error) {
		defer a.sends.Done()
		return queuer.Queue(ctx, a.req)
	})
	if err == nil {
		a.sends.Add(1)
		_, err = call(ctx, math.MaxInt64, func(ctx context.Context) (struct{}, error) {
			defer a.sends.Done()
			return struct{}{}, turn(ctx)
		})
	}
	if err != nil {
		return fmt.Errorf("lock: queue for %q: %w", a.req.Name, err)
	}
	return nil
}

// listen registers for wake-ups. The channel is nil, and polling has to do, if there are none.
func (a *acquisition) listen(ctx context.Context) (released <-chan struct{}, stop func()) {
	notifier, ok := a.engine.backend.(Notifier)
	if !ok || ctx.Err() != nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, a.engine.opts.CallTimeout)
	defer cancel()
	released, stop, err := notifier.Notify(ctx, a.req.Name)
	if err != nil {
		return nil, func() {}
	}
	return released, stop
}

// nextTry is the time until try n: sooner if the hold is known to end sooner, RetryMax as a net under wake-ups.
func (a *acquisition) nextTry(n int, err error, released <-chan struct{}) time.Duration {
	opts := a.engine.opts
	delay := jitter(opts.RetryMax)
	if released == nil {
		delay = backoff(n, opts.RetryMin, opts.RetryMax)
	}
	if held := (*ContendedError)(nil); errors.As(err, &held) && held.RetryAfter > 0 && held.RetryAfter < delay {
		delay = min(delay, held.RetryAfter+rand.N(opts.RetryMin)) // which does not overflow, as a hold for ever would
	}
	return delay
}

// gaveUp is the error of an acquisition that was not answered with the lock before its time was over.
func (a *acquisition) gaveUp(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return fmt.Errorf("%w: %q is still held after MaxWait, %v", ErrNotAcquired, a.req.Name, a.engine.opts.MaxWait)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("%w: %q: gave up after %v: %w", ErrNotAcquired, a.req.Name, time.Since(a.started), err)
}

// tell reports how the acquisition ended.
func (a *acquisition) tell(err error) {
	contended := (*ContendedError)(nil)
	switch {
	case err == nil:
		a.event(Acquired, nil)
	case errors.As(err, &contended):
		a.event(Contended, err)
	case errors.Is(err, ErrNotAcquired):
		a.event(TimedOut, err)
	default:
		a.event(AcquireFailed, err)
	}
}

func (a *acquisition) event(kind EventKind, err error) {
	if a.engine.opts.Monitor == nil {
		return
	}
	a.engine.opts.Monitor(Event{Kind: kind, Name: a.req.Name, Waited: time.Since(a.started), Err: err})
}
