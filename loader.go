package herdgate

import "context"

// LoaderFunc loads the value of a key from its source.
//
// It runs in a goroutine of its own, for all callers that want the key, in the
// whole fleet: ctx carries the values of the call that started it, but not its
// cancellation. ctx ends after Policy.LoadTimeout, when a change of the key makes
// the load worthless (cause [ErrRevoked]), when the lease was lost (cause
// lock.ErrLost), and when the gate closes (cause [ErrClosed]); but the third load in
// a row that changes overtake runs to its end, for whoever waits since. A loader that
// does not return then is abandoned: its callers go on without it and its load slot is
// given back.
//
// [ErrNotFound], wrapped or not, says that the key does not exist, and is
// remembered. Any other error, a panic or a runtime.Goexit is a failed load: the
// callers get it as a *[LoadError], and nobody in the fleet tries again before the
// back-off has passed.
//
// A loader may call Get on this or another cache with its ctx; it then needs no
// second load slot. It must not Get the key that it loads.
type LoaderFunc[V any] func(ctx context.Context, key string) (V, error)
