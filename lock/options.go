package lock

import (
	"errors"
	"fmt"
	"time"
)

// Off switches an option off. It is the only legal negative value.
const Off = -1

// What the zero values of Options stand for.
const (
	DefaultTTL         = 10 * time.Second
	DefaultCallTimeout = time.Second
	DefaultRetryMin    = 50 * time.Millisecond
	DefaultRetryMax    = time.Second
)

// Options say how an Engine acquires, keeps and gives up locks. The zero value is ready to use.
type Options struct {
	// TTL is how long a lock outlives its last renewal, and so how long the others wait for a holder that died.
	// At least MinTTL; zero is DefaultTTL.
	TTL time.Duration
	// Watchdog is the time between renewals; zero is a third of TTL, Off leaves renewing to Extend. No TTL
	// switches it off.
	Watchdog time.Duration
	// MaxWait bounds Lock beside its ctx. Zero and Off: the ctx alone.
	MaxWait time.Duration
	// MaxHold ends a lease that was held for so long, though it could be renewed: a stuck holder is told, through
	// Done, and the others get the lock when it unlocks or a TTL later. At least TTL. Zero and Off: no bound.
	MaxHold time.Duration
	// RetryMin and RetryMax bound the time between two tries of Lock, which doubles from one to the other, with
	// jitter. A backend that wakes its waiters is asked every RetryMax. Zero is DefaultRetryMin and
	// DefaultRetryMax.
	RetryMin, RetryMax time.Duration
	// Drift is how much earlier than the store the holder counts a lease as ended, for clocks that do not run
	// equally fast. Zero is 1 % of the TTL + 2 ms, at most a quarter of the TTL; Off is none.
	Drift time.Duration
	// CallTimeout bounds an acquire and a release. A renewal gets this or a tenth of the TTL, what is less, so that
	// several fit before the deadline. Zero is DefaultCallTimeout.
	CallTimeout time.Duration
	// Monitor is told what happens. Nil: nobody is.
	Monitor Monitor
}

// HoldOptions say how Hold keeps a lease. TTL is required; the other fields are as in [Options].
type HoldOptions struct {
	// TTL is the one the grant was made with.
	TTL         time.Duration
	Watchdog    time.Duration
	MaxHold     time.Duration
	Drift       time.Duration
	CallTimeout time.Duration
	Monitor     Monitor
}

// Validate tells which option is out of range.
func (o HoldOptions) Validate() error {
	if err := ValidateTTL(o.TTL); err != nil {
		return err
	}
	switch {
	case o.Drift < 0 && o.Drift != Off, o.Drift >= o.TTL:
		return fmt.Errorf("lock: Drift is %v: must be below the TTL of %v, 0 (default) or Off", o.Drift, o.TTL)
	case o.Watchdog < 0 && o.Watchdog != Off, o.Watchdog >= o.TTL-o.drift(o.TTL):
		return fmt.Errorf("lock: Watchdog is %v: must be below TTL - Drift of %v, 0 (a third of the TTL) or Off", o.Watchdog, o.TTL-o.drift(o.TTL))
	case o.MaxHold != 0 && o.MaxHold != Off && o.MaxHold < o.TTL:
		return fmt.Errorf("lock: MaxHold is %v: must be at least the TTL of %v, or 0 or Off for no bound", o.MaxHold, o.TTL)
	case o.CallTimeout < 0:
		return fmt.Errorf("lock: CallTimeout is %v: must be positive, or 0 for the default of %v", o.CallTimeout, DefaultCallTimeout)
	}
	return nil
}

func (o HoldOptions) withDefaults() HoldOptions {
	if o.Watchdog == 0 {
		o.Watchdog = o.TTL / 3
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	return o
}

// drift is what a lease of ttl ends earlier here than at the store.
func (o HoldOptions) drift(ttl time.Duration) time.Duration {
	switch o.Drift {
	case 0:
		return min(ttl/100+2*time.Millisecond, ttl/4)
	case Off:
		return 0
	}
	return o.Drift
}

func (o Options) validate() error {
	if err := o.hold().Validate(); err != nil {
		return err
	}
	switch {
	case o.MaxWait < 0 && o.MaxWait != Off:
		return fmt.Errorf("lock: MaxWait is %v: must be positive, or 0 or Off for no bound", o.MaxWait)
	case o.RetryMin < MinTTL:
		return fmt.Errorf("lock: RetryMin is %v: must be at least %v, or 0 for the default of %v", o.RetryMin, MinTTL, DefaultRetryMin)
	case o.RetryMax < o.RetryMin:
		return fmt.Errorf("lock: RetryMax is %v: must be at least RetryMin, %v, or 0 for the default", o.RetryMax, o.RetryMin)
	}
	return nil
}

// withDefaults leaves Drift as it is, because Extend needs it for other TTLs as well.
func (o Options) withDefaults() Options {
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	if o.RetryMin == 0 {
		o.RetryMin = DefaultRetryMin
	}
	if o.RetryMax == 0 {
		o.RetryMax = max(DefaultRetryMax, o.RetryMin)
	}
	return o
}

func (o Options) hold() HoldOptions {
	return HoldOptions{
		TTL:         o.TTL,
		Watchdog:    o.Watchdog,
		MaxHold:     o.MaxHold,
		Drift:       o.Drift,
		CallTimeout: o.CallTimeout,
		Monitor:     o.Monitor,
	}
}

var errNoBackend = errors.New("lock: the backend is nil: must be a store to lock in")
