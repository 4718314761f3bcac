package herdgate

import (
	"errors"
	"fmt"
	"time"

	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/singleflight"
)

// Sentinels, for errors.Is.
var (
	// ErrNotFound is what a loader returns, wrapped or not, for a key that does not
	// exist at its source. It is remembered for Policy.NegativeTTL, and callers get
	// an error that matches it.
	ErrNotFound = errors.New("herdgate: not found")

	// ErrNoLoader means that a value had to be loaded and the cache has no loader.
	ErrNoLoader = errors.New("herdgate: no loader")

	// ErrWaitTimeout means that nobody produced the value within Policy.WaitTimeout:
	// another caller was loading it, or all load slots were taken.
	ErrWaitTimeout = errors.New("herdgate: waited too long for the value")

	// ErrBackoff means that the key's last load failed, somewhere in the fleet, and
	// its back-off still runs. See [BackoffError].
	ErrBackoff = errors.New("herdgate: backing off after a failed load")

	// ErrLoadTimeout means that a loader took longer than Policy.LoadTimeout. It is
	// also the cause of the loader's context then.
	ErrLoadTimeout = errors.New("herdgate: load timeout")

	// ErrRevoked is the cause of a loader's context when a change of its key took
	// the lease away: what it loads may be from before the change.
	ErrRevoked = errors.New("herdgate: lease revoked by a change")

	// ErrNotStored means that Redis could not store the value of a Set (out of
	// memory). The entry that stood there is deleted.
	ErrNotStored = errors.New("herdgate: not stored")

	// ErrTooLarge means that a value is not stored, since it is larger than
	// Policy.MaxSize or than its codec allows. It is codec.ErrTooLarge.
	ErrTooLarge = codec.ErrTooLarge

	// ErrRedisTimeout means that Redis did not answer a change within
	// Options.RedisTimeout. Reads go on without Redis instead.
	ErrRedisTimeout = remote.ErrNoAnswer

	// ErrJournaled means that a change has not, or perhaps not, reached Redis. This process
	// acts as if it had: it uses no value of the key from before, and does not ask Redis
	// for the key until the change is made there, which it sees to. Other processes may
	// serve the old value until then. What is not made when the gate is closed is lost.
	ErrJournaled = errors.New("herdgate: Redis is out, the change is made when it is back")

	// ErrNotReplicated means that a change took effect, and that fewer replicas than
	// Options.ReplicaWait have confirmed it in time: a failover may lose it. Its text says
	// how many of how many have. If Redis fails over, the change is made once more, see
	// Options.ResendWindow.
	ErrNotReplicated = remote.ErrNotReplicated

	// ErrClosed means that the gate was closed.
	ErrClosed = errors.New("herdgate: gate is closed")
)

// errRestart ends a flight whose load was cancelled by a change, or whose lease was
// lost: its callers start again.
var errRestart = errors.New("herdgate: start again")

// LoadError is a loader's error, panic or Goexit, with the key it was called for.
// It wraps the loader's own error; a panic is a *[singleflight.PanicError], a
// Goexit [singleflight.ErrGoexit].
type LoadError struct {
	Cache string
	Key   string
	Err   error
}

// Error implements error.
func (e *LoadError) Error() string {
	return fmt.Sprintf("herdgate: load %s %q: %v", e.Cache, e.Key, e.Err)
}

// Unwrap returns the loader's error.
func (e *LoadError) Unwrap() error { return e.Err }

// ManyError says for which keys of a GetMany or Warm there is no value although they
// may exist. It matches every error of its keys.
type ManyError struct {
	Cache string
	// Failed are the keys: those of a GetMany in the order in which they were asked for.
	Failed []FailedKey
	// Asked is how many keys were asked for, each counted once.
	Asked int
}

// FailedKey is a key with the error that Get would have returned.
type FailedKey struct {
	Key string
	Err error
}

// Error implements error.
func (e *ManyError) Error() string {
	return fmt.Sprintf("herdgate: %d of %d keys of %s failed, the first %q: %v", len(e.Failed), e.Asked, e.Cache, e.Failed[0].Key, e.Failed[0].Err)
}

// Unwrap returns the errors of the keys.
func (e *ManyError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
}

// BackoffError says that a key is not loaded now, since its last load failed. It
// matches [ErrBackoff].
type BackoffError struct {
	Cache string
	Key   string
	// Failures counts the failed loads in a row.
	Failures int
	// RetryAfter is the time until the next load may begin.
	RetryAfter time.Duration
	// Reason is how the last load failed: "error", "panic" or "timeout".
	Reason string
}

// Error implements error.
func (e *BackoffError) Error() string {
	return fmt.Sprintf("herdgate: load %s %q failed %d× (%s), next try in %v", e.Cache, e.Key, e.Failures, e.Reason, e.RetryAfter)
}

// Is reports whether target is ErrBackoff.
func (*BackoffError) Is(target error) bool { return target == ErrBackoff }

// lostChangesError is what Close returns if Redis has not got some changes. It matches
// ErrJournaled, whose text would promise that they are still made.
type lostChangesError struct{ n int }

// Error implements error.
func (e *lostChangesError) Error() string {
	return fmt.Sprintf("herdgate: closed with %d changes that Redis has not got: they are lost", e.n)
}

// Is reports whether target is ErrJournaled.
func (*lostChangesError) Is(target error) bool { return target == ErrJournaled }

// ChangeError says that a change, of one key but for a Clear or tags, failed. One that
// matches [ErrJournaled] will be made once Redis answers; one that matches
// [ErrNotReplicated] was made, and could be lost; any other was not made, and
// the old value can be served, also by this process, until a change succeeds: call again.
type ChangeError struct {
	Op    string // "set", "delete", "expire", "clear" or "invalidate tags"
	Cache string
	Key   string // with "invalidate tags" these, with "clear" nothing
	Err   error
}

// Error implements error.
func (e *ChangeError) Error() string {
	if e.Op == string(opClear) {
		return fmt.Sprintf("herdgate: clear %s: %v", e.Cache, e.Err)
	}
	return fmt.Sprintf("herdgate: %s %s %q: %v", e.Op, e.Cache, e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *ChangeError) Unwrap() error { return e.Err }

// ConfigError names a field of Options or Policy that cannot be used.
type ConfigError struct {
	Field string // as in "Policy.TTL"
	Value any
	Want  string // what would be right
}

// Error implements error.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("herdgate: %s is %s, want %s", e.Field, e.value(), e.Want)
}

func (e *ConfigError) value() string {
	switch v := e.Value.(type) {
	case time.Duration:
		if v == Off {
			return "Off"
		}
	case int64:
		if v == Off {
			return "Off"
		}
	}
	return fmt.Sprint(e.Value)
}

// saysNotFound reports whether an error means that there is no value, and not that a
// loader panicked with one that does.
func saysNotFound(err error) bool { return errors.Is(err, ErrNotFound) && !isPanic(err) }

func isPanic(err error) bool {
	_, ok := errors.AsType[*singleflight.PanicError](err)
	return ok
}

// failureReason names how a load failed, in the letters that the failure mark holds.
func failureReason(err error) string {
	if _, ok := errors.AsType[*singleflight.PanicError](err); ok || errors.Is(err, singleflight.ErrGoexit) {
		return "panic"
	}
	if errors.Is(err, ErrLoadTimeout) {
		return "timeout"
	}
	return "error"
}
