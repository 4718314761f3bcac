package singleflight

import "context"

// A Flight is one execution of a function and everybody who waits for it. Flights
// come from [Group.Join]; the zero Flight is of no use. All methods may be called
// concurrently, before and after the flight has finished.
type Flight[K comparable, S, V any] struct {
	// State is the owner's, zero when the flight starts. The group never touches
	// it: the owner guards it against concurrent use.
	State S

	group *Group[K, S, V]
	key   K

	// The flight is the one owner of this context: it must outlive the call that
	// started the flight, and Cancel must reach it from any goroutine. It is made from that
	// call's when it is first asked for: work that is soon done does without. While cancel
	// is nil, ctx is the call's.
	ctx    context.Context         //nolint:containedctx // see above; protected by group.mu
	cancel context.CancelCauseFunc // protected by group.mu

	older *Flight[K, S, V] // the next older flight of this key; protected by group.mu
	newer *Flight[K, S, V] // the other way; protected by group.mu

	// value and err are written by the flight's own goroutine before it sets
	// finished, and read only after that.
	value V
	err   error

	done     chan struct{} // nil while nobody has asked for it; protected by group.mu
	finished bool          // protected by group.mu
	detached bool          // protected by group.mu
}

func newFlight[K comparable, S, V any](ctx context.Context, g *Group[K, S, V], key K) *Flight[K, S, V] {
	return &Flight[K, S, V]{group: g, key: key, ctx: ctx}
}

// Key returns the key the flight was started for.
func (f *Flight[K, S, V]) Key() K { return f.key }

// Context returns the context of the flight's work. It carries the values of the
// starter's context but not its deadline or cancellation, and ends only by
// [Flight.Cancel]: not when waiters leave, and not when the flight finishes.
func (f *Flight[K, S, V]) Context() context.Context {
	ctx, _ := f.cancellable()
	return ctx
}

func (f *Flight[K, S, V]) cancellable() (context.Context, context.CancelCauseFunc) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.cancel == nil {
		f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(f.ctx))
	}
	return f.ctx, f.cancel
}

// Cancel ends the flight's context; [context.Cause] then tells cause, or
// [context.Canceled] if cause is nil. The first cause stays. Cancel only asks:
// the waiters get whatever the function returns, and the key can still be joined
// until then unless the flight is detached too.
func (f *Flight[K, S, V]) Cancel(cause error) {
	_, cancel := f.cancellable()
	cancel(cause)
}

// Detach closes the flight to newcomers: from its return on, callers of the key
// start a flight of their own. Those who joined before still get this flight's
// result, and its finish leaves a newer flight of the key alone. Detaching twice,
// or after the finish, changes nothing.
func (f *Flight[K, S, V]) Detach() {
	f.group.mu.Lock()
	f.detached = true
	f.group.mu.Unlock()
}

// Run starts fn in a goroutine of its own, whose result ends a flight that was
// opened with [Group.Open].
func (f *Flight[K, S, V]) Run(fn func(*Flight[K, S, V]) (V, error)) { go f.group.run(f, fn) }

// Finish ends a flight that was opened with [Group.Open].
func (f *Flight[K, S, V]) Finish(value V, err error) {
	f.value, f.err = value, err
	f.group.finish(f)
}

// Done is closed when the flight has finished.
func (f *Flight[K, S, V]) Done() <-chan struct{} {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.finished {
			close(f.done)
		}
	}
	return f.done
}

// pending is closed when the flight finishes; nil if it has.
func (f *Flight[K, S, V]) pending() <-chan struct{} {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.finished {
		return nil
	}
	if f.done == nil {
		f.done = make(chan struct{})
	}
	return f.done
}

// Wait returns the flight's result, or the zero V and ctx.Err() if ctx ends first.
// An ended ctx wins even when the result is there, so the outcome never depends
// on which of the two was noticed first. Leaving does not end the flight.
//
// The error is the function's own, a [*PanicError] if it panicked, or [ErrGoexit]
// if it called [runtime.Goexit].
func (f *Flight[K, S, V]) Wait(ctx context.Context) (V, error) {
	if done := f.pending(); done != nil { // else who has opened the flight waits: no channel is made for that
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		var zero V
		return zero, err
	}
	return f.value, f.err
}
