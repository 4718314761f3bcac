package herdgate

import (
	"sync"
	"time"
)

// work is the state of a flight that others may touch while it runs.
type work struct {
	patience time.Duration // how long the flight may wait, or what is left of it when it has ended; its own goroutine's alone until then
	early    time.Duration // early point of the entry that the flight has found or made; likewise

	mu     sync.Mutex    // protects the fields below
	idle   bool          // no request is out, no loader runs, and no value is held
	behind bool          // a change has come since the last request was sent
	stands bool          // changes do not cancel the loader
	lent   bool          // a caller that holds a load slot waits for this flight
	woken  chan struct{} // holds one wake-up; made by the first who needs it
	revoke func()        // cancels the loader; set while it runs
	onLent func()        // ends the wait for a slot; set while there is one
}

// depart says that a request is about to be sent, and takes the ticket of its
// reply. An invalidation sees either the flight as reading, and detaches it, or is
// already counted in the ticket's epoch.
func (w *work) depart(take func() ticket) ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle, w.behind = false, false
	return take()
}

// doubt reports whether a change has come since the request that got the lease was sent.
// It is told once, and never of a flight that changes do not cancel.
func (w *work) doubt() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	doubt := w.behind && !w.stands
	w.behind = false
	return doubt
}

// load says that the loader runs, until the returned function is called.
func (w *work) load(revoke func()) (done func()) {
	w.mu.Lock()
	w.revoke = revoke
	late := w.behind && !w.stands
	w.mu.Unlock()
	if late {
		revoke()
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.revoke = nil
	}
}

// wait says that nothing is out any more and no value is held.
func (w *work) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = true
}

// outdate is told of a change of the flight's key. It reports whether the flight is
// to be detached: what it reads or loads may be from before the change. One that
// waits has nothing from before, and is woken: the lease it waits for is gone.
func (w *work) outdate() (detach bool) {
	w.wake()
	w.mu.Lock()
	detach, revoke := !w.idle, w.revoke
	w.behind = true
	if w.stands {
		revoke = nil
	}
	w.mu.Unlock()
	if revoke != nil {
		revoke()
	}
	return detach
}

// busy reports whether the flight reads or loads: what it has may be from before now.
func (w *work) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.idle
}

// stand makes the loader of this flight run to its end whatever changes.
func (w *work) stand() {
	w.mu.Lock()
	w.stands = true
	w.mu.Unlock()
}

func (w *work) standing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stands
}

// wake lets the flight look again, now or when it comes to wait.
func (w *work) wake() {
	select {
	case w.wakeUps() <- struct{}{}:
	default:
	}
}

// wakeUps is where wake-ups arrive.
func (w *work) wakeUps() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.woken == nil {
		w.woken = make(chan struct{}, 1)
	}
	return w.woken
}

// lend lets the flight load without a slot of its own: a caller who holds one waits
// for it, and could otherwise wait for itself (I4).
func (w *work) lend() {
	w.mu.Lock()
	w.lent = true
	end := w.onLent
	w.mu.Unlock()
	if end != nil {
		end()
	}
}

// borrow calls end once a slot is lent, or at once if one was, until the returned
// function is called; that reports whether one was.
func (w *work) borrow(end func()) (stop func() (lent bool)) {
	w.mu.Lock()
	w.onLent = end
	lent := w.lent
	w.mu.Unlock()
	if lent {
		end()
	}
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.onLent = nil
		return w.lent
	}
}
