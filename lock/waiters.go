package lock

import "sync"

// Waiters are those who wait for the release of locks, for backends that are a [Notifier]. The zero value has none. Its
// methods may be called concurrently and never block.
type Waiters struct {
	mu     sync.Mutex
	byName map[string]map[chan struct{}]struct{} // protected by mu
}

// Add registers a waiter for name. stop ends the registration.
func (w *Waiters) Add(name string) (released <-chan struct{}, stop func()) {
	wake := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byName == nil {
		w.byName = make(map[string]map[chan struct{}]struct{})
	}
	if w.byName[name] == nil {
		w.byName[name] = make(map[chan struct{}]struct{})
	}
	w.byName[name][wake] = struct{}{}
	return wake, func() { w.remove(name, wake) }
}

func (w *Waiters) remove(name string, wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byName[name], wake)
	if len(w.byName[name]) == 0 {
		delete(w.byName, name)
	}
}

// Wake wakes those who wait for name.
func (w *Waiters) Wake(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wakeEach(w.byName[name])
}

// WakeAll wakes everybody, when it is not known which releases were missed.
func (w *Waiters) WakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, wakes := range w.byName {
		wakeEach(wakes)
	}
}

func wakeEach(wakes map[chan struct{}]struct{}) {
	for wake := range wakes {
		select {
		case wake <- struct{}{}:
		default: // it has one to come
		}
	}
}
