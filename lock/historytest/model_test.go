package historytest

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
)

// state is the one lock that a history has to be explained by.
type state struct {
	writer  int // the hold that has it exclusively, 0: none
	readers int
}

// step is what happened to the lock at some moment between the beginning and the end of a call.
type step struct {
	kind   kind
	hold   int // number of the hold, from 1
	shared bool
}

type kind int

const (
	acquired      kind = iota
	refused            // somebody held it
	released           //
	maybeAcquired      // the call failed
	maybeReleased      // what a failed call may have got
)

// next are the states that a step can lead to; none if it cannot happen.
func (s state) next(do step) []any {
	free := s.writer == 0 && (do.shared || s.readers == 0)
	taken, given := s, s
	if do.shared {
		taken.readers++
		given.readers--
	} else {
		taken.writer = do.hold
		given.writer = 0
	}
	held := !do.shared && s.writer == do.hold || do.shared && s.readers > 0
	switch {
	case do.kind == acquired && free:
		return []any{taken}
	case do.kind == refused && s != (state{}):
		return []any{s}
	case do.kind == released && held:
		return []any{given}
	case do.kind == maybeAcquired && free:
		return []any{s, taken}
	case do.kind == maybeReleased && held:
		return []any{s, given}
	case do.kind == maybeAcquired || do.kind == maybeReleased:
		return []any{s}
	}
	return nil
}

func model() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, do, _ any) []any { return s.(state).next(do.(step)) },
	}
	return nondeterministic.ToModel()
}

// operations are the steps of a history, each with the time in which it happened.
func operations(history []locktest.Hold) []porcupine.Operation {
	const never = math.MaxInt64
	var ops []porcupine.Operation
	for i, h := range history {
		add := func(k kind, from, to time.Duration) {
			ops = append(ops, porcupine.Operation{ClientId: h.Client, Input: step{k, i + 1, h.Shared}, Call: int64(from), Return: int64(to)})
		}
		switch {
		case errors.Is(h.Err, lock.ErrNotAcquired):
			add(refused, h.Asked, h.Got)
			continue
		case h.Err != nil:
			add(maybeAcquired, h.Asked, never)
			add(maybeReleased, h.Asked, never)
			continue
		}
		add(acquired, h.Asked, h.Got)
		switch {
		case h.Lost == nil && h.UnlockErr == nil:
			add(released, h.Unlocked, h.Gone)
		case h.UnlockErr == nil, errors.Is(h.UnlockErr, lock.ErrNotHeld):
			add(released, h.Valid, h.Gone) // expired, or freed by a release without a reply
		default:
			add(released, h.Valid, never)
		}
	}
	return ops
}

// isOfOneLock fails the test unless there is an order of all steps that one lock allows.
func isOfOneLock(t *testing.T, history []locktest.Hold) {
	t.Helper()
	if err := locktest.CheckHolds(history); err != nil {
		t.Error(err)
	}
	// Each call that failed may have got the lock, at any time from then on, or not: too many ways to go through them all
	// where an outage makes dozens. As a rule none is needed as an explanation.
	answered := slices.DeleteFunc(slices.Clone(history), func(h locktest.Hold) bool {
		return h.Err != nil && !errors.Is(h.Err, lock.ErrNotAcquired)
	})
	result := porcupine.CheckOperationsTimeout(model(), operations(answered), time.Minute)
	if result != porcupine.Ok {
		result = porcupine.CheckOperationsTimeout(model(), operations(history), time.Minute)
	}
	if result != porcupine.Ok {
		t.Errorf("the history is %s, as that of one lock:", result)
		for _, h := range history {
			t.Logf("%+v", h)
		}
	}
	got := 0
	for _, h := range history {
		if h.Err == nil {
			got++
		}
	}
	t.Logf("%d of %d got the lock", got, len(history))
	if got == 0 {
		t.Error("nobody ever got the lock")
	}
}

// withoutRefusals is what is left of a history if a refusal need not say that somebody held the lock during the call.
func withoutRefusals(history []locktest.Hold) []locktest.Hold {
	return slices.DeleteFunc(history, func(h locktest.Hold) bool { return errors.Is(h.Err, lock.ErrNotAcquired) })
}

func TestTheModelRefusesWhatNoLockDoes(t *testing.T) {
	hold := func(client int, from, to time.Duration) locktest.Hold {
		return locktest.Hold{Client: client, Asked: from, Got: from + 1, Valid: to - 1, Unlocked: to - 1, Gone: to}
	}
	refusal := locktest.Hold{Client: 3, Asked: 25, Got: 26, Err: lock.ErrNotAcquired}
	reader, other := hold(1, 0, 20), hold(2, 10, 30)
	reader.Shared, other.Shared = true, true
	for name, history := range map[string][]locktest.Hold{
		"two holders":          {hold(1, 0, 20), hold(2, 10, 30)},
		"a reader by a writer": {reader, hold(2, 10, 30)},
		"refused by nobody":    {hold(1, 0, 20), refusal},
	} {
		if porcupine.CheckOperations(model(), operations(history)) {
			t.Errorf("%s: passes for one lock", name)
		}
	}
	for name, history := range map[string][]locktest.Hold{
		"one after the other": {hold(1, 0, 20), hold(2, 19, 30), refusal},
		"two readers":         {reader, other, refusal},
	} {
		if !porcupine.CheckOperations(model(), operations(history)) {
			t.Errorf("%s: does not pass for one lock", name)
		}
	}
}
