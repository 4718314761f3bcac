package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate/lock"
)

func TestTheWatchdogRenewsAtAThirdOfTheTTL(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		var renewals []time.Duration
		w.faults.OnRenew(func(_ context.Context, pass func() error) error {
			renewals = append(renewals, time.Since(w.began))
			return pass()
		})
		lease := w.hold()
		time.Sleep(ttl)
		w.must(lease.Unlock(w.Context()))
		if len(renewals) != 3 || renewals[0] != ttl/3 || renewals[1] != 2*(ttl/3) || renewals[2] != 3*(ttl/3) {
			w.Errorf("renewed at %v, want at every third of %v", renewals, ttl)
		}
		w.happened(lock.Acquired, lock.Renewed, lock.Renewed, lock.Renewed, lock.Released)
	})
}

func TestALoadShorterThanAThirdOfTheTTLCostsNoRenewal(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		lease := w.hold()
		time.Sleep(ttl/3 - 1)
		w.must(lease.Unlock(w.Context()))
		w.happened(lock.Acquired, lock.Released)
	})
}

func TestALeaseOutlivesTheContextOfItsAcquisition(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		lease, err := w.engine.TryLock(ctx, "job")
		w.must(err)
		cancel()
		time.Sleep(3 * ttl)
		w.must(lease.Err())
		w.must(lease.Unlock(w.Context()))
	})
}

func TestFailedRenewalsAreTriedAgainUntilTheDeadline(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		lease := w.hold()
		time.Sleep(ttl/3 - 1)
		w.faults.OnRenew(down)
		time.Sleep(ttl / 2)
		w.must(lease.Err())
		w.faults.OnRenew(nil)
		time.Sleep(ttl)
		w.must(lease.Err())
		if w.count(lock.RenewRetried) == 0 {
			w.Error("no renewal failed")
		}
		w.must(lease.Unlock(w.Context()))
	})
}

func TestAHungRenewalIsLeftForAnother(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl, CallTimeout: time.Hour}, func(w *world) {
		hung, end := hang()
		defer end()
		w.faults.OnRenew(hung)
		lease := w.hold()
		time.Sleep(ttl/3 + ttl/2)
		w.faults.OnRenew(nil)
		time.Sleep(ttl)
		w.must(lease.Err())
		w.must(lease.Unlock(w.Context()))
	})
}

func TestAHolderThatIsCutOffIsToldBeforeTheStoreGivesTheLockAway(t *testing.T) {
	for name, cutOff := range map[string]func(w *world) (end func()){
		"no connection": func(w *world) func() {
			w.faults.OnRenew(down)
			return func() {}
		},
		"no answer": func(w *world) func() {
			hung, end := hang()
			w.faults.OnRenew(hung)
			return end
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
				defer cutOff(w)()
				lease := w.hold()
				ctx := lease.Context(w.Context())
				<-lease.Done()
				w.at(ttl - drift)
				w.wants(lease.Err(), lock.ErrLost)
				<-ctx.Done()
				w.wants(context.Cause(ctx), lock.ErrLost)
				synctest.Wait() // the monitor is told after Done and ctx
				if w.count(lock.Lost) != 1 {
					w.Error("the monitor was not told once that the lease was lost")
				}
				w.wants(lease.Stop(), lock.ErrLost)
			})
		})
	}
}

func TestTheReasonOfALossIsTheLastRenewal(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		w.faults.OnRenew(down)
		lease := w.hold()
		<-lease.Done()
		w.wants(lease.Err(), lock.ErrLost, errDown)
		if !strings.Contains(lease.Err().Error(), `"job"`) {
			w.Errorf("%v: does not name the lock", lease.Err())
		}
		w.must(lease.Unlock(w.Context())) // the store held it to the end: nobody else had it
	})
}

func TestANotHeldEndsTheLeaseAtOnceAndForGood(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		var renewals atomic.Int32
		w.faults.OnRenew(func(context.Context, func() error) error {
			renewals.Add(1)
			return lock.ErrNotHeld
		})
		lease := w.hold()
		<-lease.Done()
		w.at(ttl / 3)
		w.wants(lease.Err(), lock.ErrLost, lock.ErrNotHeld)
		time.Sleep(ttl)
		if n := renewals.Load(); n != 1 {
			w.Errorf("renewed %d times, want once", n)
		}
		w.happened(lock.Acquired, lock.Lost)
		_ = lease.Stop()
	})
}

func TestMaxHoldEndsALeaseThatCouldBeRenewed(t *testing.T) {
	const maxHold = 25 * time.Second
	inBubble(t, lock.Options{TTL: ttl, MaxHold: maxHold}, func(w *world) {
		lease := w.hold()
		<-lease.Done()
		w.at(maxHold)
		w.wants(lease.Err(), lock.ErrLost, lock.ErrMaxHold)
		w.must(lease.Unlock(w.Context()))
		w.isFree()
	})
}

func TestWithoutAWatchdogExtendMovesTheDeadline(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl, Watchdog: lock.Off, Drift: lock.Off}, func(w *world) {
		lease := w.hold()
		time.Sleep(ttl / 2)
		w.must(lease.Extend(w.Context(), 2*ttl))
		w.must(lease.Extend(w.Context(), ttl)) // does not shorten
		if left := time.Until(lease.Deadline()); left != 2*ttl {
			w.Errorf("the deadline is in %v, want %v", left, 2*ttl)
		}
		<-lease.Done()
		w.at(ttl/2 + 2*ttl)
		w.happened(lock.Acquired, lock.Renewed, lock.Renewed, lock.Lost)
		w.isFree()
		w.wants(lease.Extend(w.Context(), ttl), lock.ErrLost)
	})
}

func TestExtendRefusesATTLThatEndsAtOnce(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl, Drift: time.Second}, func(w *world) {
		lease := w.hold()
		for _, bad := range []time.Duration{-1, 0, 400 * time.Microsecond, time.Second} {
			if err := lease.Extend(w.Context(), bad); err == nil || !strings.Contains(err.Error(), bad.String()) {
				w.Errorf("got error %v, want one that names %v", err, bad)
			}
		}
		w.must(lease.Err())
		w.must(lease.Unlock(w.Context()))
	})
}

func TestAnExtensionThatFailsLeavesTheLeaseAsItWas(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		lease := w.hold()
		deadline := lease.Deadline()
		w.faults.OnRenew(down)
		w.wants(lease.Extend(w.Context(), ttl), errDown)
		w.must(lease.Err())
		if !lease.Deadline().Equal(deadline) {
			w.Error("the deadline has moved")
		}
		w.must(lease.Unlock(w.Context()))
	})
}

// A process that thaws after the deadline may read a reply before its watchdog has looked at the clock.
func TestARenewalThatIsAnsweredAfterTheDeadlineIsNotBelieved(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		thawed := make(chan struct{})
		lease := lock.Hold(w.Context(), w.faults, w.occupy(time.Hour), time.Now(), lock.HoldOptions{
			TTL:         ttl,
			CallTimeout: time.Hour,
			Monitor: func(e lock.Event) {
				if e.Kind == lock.RenewRetried {
					<-thawed // it holds up the watchdog
				}
			},
		})
		w.faults.OnRenew(down)
		time.Sleep(ttl/3 + time.Millisecond)
		w.faults.OnRenew(func(_ context.Context, pass func() error) error {
			err := pass()
			time.Sleep(ttl)
			return err
		})
		w.wants(lease.Extend(w.Context(), time.Hour), lock.ErrLost)
		close(thawed)
		w.wants(lease.Stop(), lock.ErrLost)
	})
}

func TestAGrantThatIsAdoptedAfterItsDeadlineIsLostFromTheStart(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		var renewals atomic.Int32
		w.faults.OnRenew(func(_ context.Context, pass func() error) error {
			renewals.Add(1)
			return pass()
		})
		claim := w.occupy(time.Hour)
		lease := lock.Hold(w.Context(), w.faults, claim, time.Now().Add(-ttl), lock.HoldOptions{TTL: ttl})
		w.wants(lease.Err(), lock.ErrLost) // no goroutine has run yet
		w.wants(context.Cause(lease.Context(w.Context())), lock.ErrLost)
		w.wants(lease.Stop(), lock.ErrLost)
		if renewals.Load() != 0 {
			w.Error("it was renewed")
		}
	})
}

func TestOptionsThatValidateRefusesMakeALostLease(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		lease := lock.Hold(w.Context(), w.faults, w.occupy(ttl), time.Now(), lock.HoldOptions{})
		<-lease.Done()
		w.wants(lease.Err(), lock.ErrLost)
		if !strings.Contains(lease.Err().Error(), "TTL is 0s") {
			w.Errorf("%v: does not name the TTL", lease.Err())
		}
		w.wants(lease.Stop(), lock.ErrLost)
	})
}

func TestStopKeepsTheLockAndSendsNoMoreRenewals(t *testing.T) {
	inBubble(t, lock.Options{}, func(w *world) {
		claim := w.occupy(ttl)
		lease := lock.Hold(w.Context(), w.faults, claim, time.Now(), lock.HoldOptions{TTL: ttl, Monitor: w.record})
		time.Sleep(ttl / 2)
		w.must(lease.Stop())
		w.must(lease.Stop()) // again
		w.wants(lease.Err(), lock.ErrReleased)
		time.Sleep(ttl / 2)
		w.happened(lock.Renewed)
		w.must(w.store.Release(w.Context(), claim))
	})
}

func TestARenewalUnderWayIsOverBeforeTheReleaseIsSent(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		var renewing atomic.Bool
		w.faults.OnRenew(func(_ context.Context, pass func() error) error {
			renewing.Store(true)
			time.Sleep(time.Second / 2) // less than what a renewal gets
			err := pass()
			renewing.Store(false)
			return err
		})
		w.faults.OnRelease(func(_ context.Context, pass func() error) error {
			if renewing.Load() {
				w.Error("released during a renewal")
			}
			return pass()
		})
		lease := w.hold()
		time.Sleep(ttl/3 + time.Millisecond)
		if !renewing.Load() {
			w.Error("no renewal is under way")
		}
		w.must(lease.Unlock(w.Context()))
		w.isFree()
	})
}

func TestUnlockTriesAgainWhenTheStoreIsNotReached(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		lease := w.hold()
		var sent atomic.Int32
		w.faults.OnRelease(func(_ context.Context, pass func() error) error {
			if sent.Add(1) < 3 {
				return errDown
			}
			return pass()
		})
		w.must(lease.Unlock(w.Context()))
		w.isFree()
		w.happened(lock.Acquired, lock.Released)
	})
}

func TestUnlockGivesUpAfterCallTimeoutAndCanBeCalledAgain(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl, CallTimeout: time.Second}, func(w *world) {
		lease := w.hold()
		hung, end := hang()
		w.faults.OnRelease(hung)
		w.wants(lease.Unlock(w.Context()), context.DeadlineExceeded)
		w.at(time.Second)
		end()
		w.faults.OnRelease(nil)
		w.must(lease.Unlock(w.Context()))
		w.happened(lock.Acquired, lock.ReleaseUnknown, lock.Released)
		w.isFree()
	})
}

func TestANotHeldAfterAReleaseWithoutAnswerIsAnUnknownOutcome(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		lease := w.hold()
		w.faults.OnRelease(func(_ context.Context, pass func() error) error {
			w.faults.OnRelease(nil)
			w.must(pass())
			return errDown
		})
		for range 2 { // the second asks nobody
			err := lease.Unlock(w.Context())
			if err == nil || errors.Is(err, lock.ErrNotHeld) || !strings.Contains(err.Error(), "earlier release") {
				w.Errorf("got error %v, want one that mentions the earlier release and is not ErrNotHeld", err)
			}
		}
		w.happened(lock.Acquired, lock.ReleaseUnknown)
		w.isFree()
	})
}

func TestAnUnlockEndsDoneAndEveryContext(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		lease := w.hold()
		ctx := lease.Context(w.Context())
		w.must(ctx.Err())
		w.must(lease.Unlock(w.Context()))
		<-lease.Done()
		w.wants(context.Cause(ctx), lock.ErrReleased)
		w.wants(context.Cause(lease.Context(w.Context())), lock.ErrReleased)
	})
}

func TestManyMayUnlockAtOnce(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		w.faults.OnRelease(func(_ context.Context, pass func() error) error {
			time.Sleep(time.Millisecond)
			return pass()
		})
		lease := w.hold()
		for range 8 {
			go func() {
				if err := lease.Unlock(w.Context()); err != nil {
					w.Error(err)
				}
			}()
		}
		time.Sleep(time.Second)
		w.happened(lock.Acquired, lock.Released)
	})
}

func TestTheTokenIsTheFence(t *testing.T) {
	inBubble(t, lock.Options{TTL: ttl}, func(w *world) {
		first := w.hold()
		w.must(first.Unlock(w.Context()))
		second := w.hold()
		w.must(second.Unlock(w.Context()))
		if first.Token() == 0 || second.Token() <= first.Token() {
			w.Errorf("the tokens are %d, then %d", first.Token(), second.Token())
		}
		if second.Name() != "job" {
			w.Errorf("the name is %q, want job", second.Name())
		}
	})
}
