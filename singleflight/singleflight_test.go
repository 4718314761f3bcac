package singleflight_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/herdgate/herdgate/singleflight"
)

type (
	group  = singleflight.Group[string, struct{}, int]
	flight = singleflight.Flight[string, struct{}, int]
)

// hold returns a function for a flight that returns v once release is closed.
func hold(release <-chan struct{}, v int) func(*flight) (int, error) {
	return func(*flight) (int, error) {
		<-release
		return v, nil
	}
}

// forbidden is the function of a caller who must join and not start.
func forbidden(t *testing.T) func(*flight) (int, error) {
	t.Helper()
	return func(*flight) (int, error) {
		t.Error("a second flight was started")
		return 0, nil
	}
}

// running lists what Each visits, in its order.
func running(g *group, key string) []*flight {
	var all []*flight
	g.Each(key, func(f *flight) { all = append(all, f) })
	return all
}

func TestCallersOfOneKeyShareOneExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		release := make(chan struct{})
		runs := 0
		var callers sync.WaitGroup
		var mu sync.Mutex
		joins := 0
		for range 100 {
			callers.Go(func() {
				v, joined, err := g.Do(t.Context(), "key", func(*flight) (int, error) {
					runs++
					<-release
					return 42, nil
				})
				if v != 42 || err != nil {
					t.Errorf("Do = %d, %v; want 42, nil", v, err)
				}
				if joined {
					mu.Lock()
					joins++
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		close(release)
		callers.Wait()
		if runs != 1 || joins != 99 {
			t.Errorf("%d runs and %d joins, want 1 and 99", runs, joins)
		}
	})
}

func TestKeysDoNotShareFlights(t *testing.T) {
	var g group
	release := make(chan struct{})
	a, _ := g.Join(t.Context(), "a", hold(release, 1))
	b, joined := g.Join(t.Context(), "b", hold(release, 2))
	if joined {
		t.Error("b joined the flight of a")
	}
	close(release)
	for f, want := range map[*flight]int{a: 1, b: 2} {
		if v, err := f.Wait(t.Context()); v != want || err != nil {
			t.Errorf("%s = %d, %v; want %d, nil", f.Key(), v, err, want)
		}
	}
}

func TestErrorOfTheFunctionReachesEveryCaller(t *testing.T) {
	var g group
	release := make(chan struct{})
	boom := errors.New("boom")
	f, _ := g.Join(t.Context(), "key", func(*flight) (int, error) { <-release; return 7, boom })
	again, joined := g.Join(t.Context(), "key", forbidden(t))
	if !joined || again != f {
		t.Fatal("the second caller did not join")
	}
	close(release)
	for range 2 {
		if v, err := f.Wait(t.Context()); v != 7 || !errors.Is(err, boom) {
			t.Errorf("Wait = %d, %v; want 7, boom", v, err)
		}
	}
}

// With many waiters the first ones run while the rest are still being woken.
func TestCallerWhoSawAResultNeverGetsItASecondTime(t *testing.T) {
	for range 60 {
		var g group
		release := make(chan struct{})
		f, _ := g.Join(t.Context(), "key", hold(release, 1))
		var started, callers sync.WaitGroup
		started.Add(300)
		for range 300 {
			callers.Go(func() {
				started.Done()
				_, err := f.Wait(t.Context())
				again, _ := g.Join(t.Context(), "key", hold(release, 2))
				if err != nil || again == f {
					t.Errorf("after the result (error %v) the caller joined its flight again: %t", err, again == f)
				}
			})
		}
		started.Wait()
		close(release)
		callers.Wait()
		if err := g.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPanicReachesEveryWaiterAndTheNextCallRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		release := make(chan struct{})
		boom := errors.New("boom")
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				v, _, err := g.Do(t.Context(), "key", func(*flight) (int, error) {
					<-release
					panicWith(boom)
					return 1, nil
				})
				var p *singleflight.PanicError
				if v != 0 || !errors.As(err, &p) {
					t.Errorf("Do = %d, %v; want 0 and a *PanicError", v, err)
					return
				}
				if !errors.Is(err, boom) {
					t.Errorf("Value = %v, want boom, and unwrapped", p.Value)
				}
				if !strings.Contains(string(p.Stack), "panicWith") {
					t.Errorf("the stack does not name the function that panicked:\n%s", p.Stack)
				}
			})
		}
		synctest.Wait()
		close(release)
		callers.Wait()

		v, joined, err := g.Do(t.Context(), "key", func(*flight) (int, error) { return 2, nil })
		if v != 2 || joined || err != nil {
			t.Errorf("the next Do = %d, %t, %v; want 2, false, nil", v, joined, err)
		}
	})
}

func panicWith(err error) { panic(err) }

func TestGoexitReachesEveryWaiterBeforeItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		release := make(chan struct{})
		var callers sync.WaitGroup
		for range 5 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, _, err := g.Do(ctx, "key", func(*flight) (int, error) {
					<-release
					runtime.Goexit()
					return 1, nil
				})
				if !errors.Is(err, singleflight.ErrGoexit) {
					t.Errorf("err = %v, want ErrGoexit", err)
				}
			})
		}
		synctest.Wait()
		close(release)
		callers.Wait()
		if left := running(&g, "key"); len(left) != 0 {
			t.Errorf("%d flights left", len(left))
		}
	})
}

func TestPanicDoesNotEndTheProcess(t *testing.T) {
	const child = "HERDGATE_PANIC_CHILD"
	if os.Getenv(child) != "" {
		var g group
		f, _ := g.Join(t.Context(), "key", func(*flight) (int, error) { panic("nobody waits for this") })
		if err := g.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := f.Wait(t.Context())
		t.Log("survived:", err)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "survived: panic: nobody waits for this") {
		t.Errorf("the child process: %v\n%s", err, out)
	}
}

func TestFirstCallersCancelLeavesTheOthersTheirResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		runs := 0
		load := func(f *flight) (int, error) {
			runs++
			select {
			case <-time.After(200 * time.Millisecond):
				return 42, nil
			case <-f.Context().Done():
				return 0, f.Context().Err()
			}
		}
		var callers sync.WaitGroup
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if _, joined, err := g.Do(ctx, "key", load); joined || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first caller: joined %t, %v; want false and its own deadline", joined, err)
			}
		})
		synctest.Wait()
		for range 10 {
			callers.Go(func() {
				if v, joined, err := g.Do(t.Context(), "key", load); v != 42 || !joined || err != nil {
					t.Errorf("Do = %d, %t, %v; want 42, true, nil", v, joined, err)
				}
			})
		}
		callers.Wait()
		if runs != 1 {
			t.Errorf("%d runs, want 1", runs)
		}
	})
}

func TestFlightFinishesWhenAllItsWaitersHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		release := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		f, _ := g.Join(ctx, "key", func(f *flight) (int, error) {
			<-release
			return 42, f.Context().Err()
		})
		cancel()
		for range 3 {
			if _, err := f.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v, want the caller's own", err)
			}
		}
		close(release)
		if v, err := f.Wait(t.Context()); v != 42 || err != nil {
			t.Errorf("Wait = %d, %v; want 42, nil", v, err)
		}
	})
}

func TestEndedContextWinsOverAReadyValue(t *testing.T) {
	var g group
	f, _ := g.Join(t.Context(), "key", func(*flight) (int, error) { return 42, nil })
	if _, err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the cause stays with context.Cause"))
	for range 1_000 { // both are ready: a choice left to select would show
		if v, err := f.Wait(ctx); v != 0 || err != context.Canceled { //nolint:errorlint // Wait promises ctx.Err() itself
			t.Fatalf("Wait = %d, %v; want 0, context.Canceled", v, err)
		}
	}
}

func TestContextKeepsValuesButNotTheEnd(t *testing.T) {
	type traceKey struct{}
	var g group
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), traceKey{}, "trace"), time.Hour)
	cancel()
	f, _ := g.Join(ctx, "key", func(f *flight) (int, error) {
		if got := f.Context().Value(traceKey{}); got != "trace" {
			t.Errorf("the value is %v, want trace", got)
		}
		if deadline, ok := f.Context().Deadline(); ok {
			t.Errorf("there is a deadline, %v", deadline)
		}
		return 0, f.Context().Err()
	})
	if _, err := f.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := f.Context().Err(); err != nil {
		t.Errorf("after the finish the context is ended: %v", err)
	}
}

func TestCancelTellsTheFunctionWhy(t *testing.T) {
	var g group
	revoked := errors.New("revoked")
	f, _ := g.Join(t.Context(), "key", func(f *flight) (int, error) {
		<-f.Context().Done()
		return 0, context.Cause(f.Context())
	})
	f.Cancel(revoked)
	f.Cancel(errors.New("too late to be the cause"))
	if _, err := f.Wait(t.Context()); !errors.Is(err, revoked) {
		t.Errorf("err = %v, want revoked", err)
	}
}

func TestCancelAloneKeepsTheFlightJoinable(t *testing.T) {
	var g group
	release := make(chan struct{})
	f, _ := g.Join(t.Context(), "key", hold(release, 1))
	f.Cancel(nil)
	if again, joined := g.Join(t.Context(), "key", forbidden(t)); !joined || again != f {
		t.Error("the cancelled flight could not be joined")
	}
	close(release)
	if v, err := f.Wait(t.Context()); v != 1 || err != nil {
		t.Errorf("Wait = %d, %v; want 1, nil", v, err)
	}
}

// Load A runs, the key changes (A is detached), load B starts, and A finishes
// first: B must stay the flight to join, and A must reach only its own waiters.
func TestDetachedFlightThatFinishesFirstLeavesTheNewerOneAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		releaseA, releaseB := make(chan struct{}), make(chan struct{})
		a, _ := g.Join(t.Context(), "key", hold(releaseA, 1))
		joinedA, _ := g.Join(t.Context(), "key", forbidden(t))
		a.Detach()
		a.Detach()
		b, joined := g.Join(t.Context(), "key", hold(releaseB, 2))
		if joined || b == a {
			t.Fatal("a caller joined the detached flight")
		}
		if got := running(&g, "key"); !slices.Equal(got, []*flight{b, a}) {
			t.Errorf("Each visits %v, want b, a", got)
		}

		close(releaseA)
		if v, err := joinedA.Wait(t.Context()); v != 1 || err != nil {
			t.Errorf("who joined A before gets %d, %v; want 1, nil", v, err)
		}
		if later, joined := g.Join(t.Context(), "key", forbidden(t)); !joined || later != b {
			t.Error("a caller after B's start did not join B")
		}
		a.Detach() // after its finish: no concern of B's
		if _, joined := g.Join(t.Context(), "key", forbidden(t)); !joined {
			t.Error("detaching a finished flight detached the running one")
		}

		close(releaseB)
		if v, err := b.Wait(t.Context()); v != 2 || err != nil {
			t.Errorf("B = %d, %v; want 2, nil", v, err)
		}
		if left := running(&g, "key"); len(left) != 0 {
			t.Errorf("%d flights left", len(left))
		}
	})
}

func TestFlightsOfOneKeyMayFinishInAnyOrder(t *testing.T) {
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, order := range orders {
		var g group
		var releases [3]chan struct{}
		var flights [3]*flight
		for i := range flights {
			releases[i] = make(chan struct{})
			flights[i], _ = g.Join(t.Context(), "key", hold(releases[i], i))
			flights[i].Detach()
		}
		want := []*flight{flights[2], flights[1], flights[0]}
		for _, i := range order {
			close(releases[i])
			if v, err := flights[i].Wait(t.Context()); v != i || err != nil {
				t.Errorf("order %v: flight %d = %d, %v", order, i, v, err)
			}
			want = slices.DeleteFunc(want, func(f *flight) bool { return f == flights[i] })
			if got := running(&g, "key"); !slices.Equal(got, want) {
				t.Errorf("order %v: after the finish of %d Each visits %d flights, want %d", order, i, len(got), len(want))
			}
		}
	}
}

func TestFlightIsVisibleToEachBeforeItsFunctionStarts(t *testing.T) {
	var g group
	for range 1_000 {
		f, _ := g.Join(t.Context(), "key", func(f *flight) (int, error) {
			if got := running(&g, "key"); !slices.Contains(got, f) {
				t.Error("the function runs and Each does not know its flight")
			}
			return 0, nil
		})
		if _, err := f.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEachSeesAFlightWhoseJoinHasReturned(t *testing.T) {
	var g group
	release := make(chan struct{})
	defer close(release)
	f, _ := g.Join(t.Context(), "key", hold(release, 0))
	if got := running(&g, "key"); !slices.Equal(got, []*flight{f}) {
		t.Errorf("Each visits %v, want the flight", got)
	}
	if got := running(&g, "another"); len(got) != 0 {
		t.Errorf("Each of another key visits %v", got)
	}
}

func TestVisitMayUseTheGroup(t *testing.T) {
	var g group
	release := make(chan struct{})
	f, _ := g.Join(t.Context(), "key", hold(release, 1))
	var newer *flight
	g.Each("key", func(f *flight) {
		f.Detach()
		f.Cancel(nil)
		newer, _ = g.Join(t.Context(), "key", hold(release, 2))
	})
	g.All(func(f *flight) { f.Detach() })
	close(release)
	for i, f := range []*flight{f, newer} {
		if v, err := f.Wait(t.Context()); v != i+1 || err != nil {
			t.Errorf("Wait = %d, %v; want %d, nil", v, err, i+1)
		}
	}
}

func TestAllVisitsEveryRunningFlightOnce(t *testing.T) {
	var g group
	release := make(chan struct{})
	want := make(map[*flight]int)
	for _, key := range []string{"a", "b", "b", "b", "c"} {
		f, _ := g.Join(t.Context(), key, hold(release, 0))
		f.Detach()
		want[f] = 1
	}
	got := make(map[*flight]int)
	g.All(func(f *flight) { got[f]++ })
	if len(got) != 5 {
		t.Errorf("All visits %d flights, want 5", len(got))
	}
	for f, n := range got {
		if n != want[f] {
			t.Errorf("the flight of %s was visited %d times", f.Key(), n)
		}
	}
	close(release)
	if err := g.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.All(func(f *flight) { t.Errorf("the flight of %s is left", f.Key()) })
}

func TestGroupWaitWaitsForDetachedFlightsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		if err := g.Wait(t.Context()); err != nil {
			t.Errorf("Wait of an idle group: %v", err)
		}
		release := make(chan struct{})
		f, _ := g.Join(t.Context(), "key", hold(release, 1))
		f.Detach()
		if _, _, err := g.Do(t.Context(), "key", func(*flight) (int, error) { return 2, nil }); err != nil {
			t.Error(err)
		}

		var waiters sync.WaitGroup
		for range 2 {
			waiters.Go(func() {
				if err := g.Wait(t.Context()); err != nil {
					t.Errorf("Wait = %v, want nil", err)
				}
				select {
				case <-release:
				default:
					t.Error("Wait returned while a detached flight ran")
				}
			})
		}
		synctest.Wait()
		close(release)
		waiters.Wait()
	})
}

func TestGroupWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		release := make(chan struct{})
		f, _ := g.Join(t.Context(), "key", hold(release, 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait = %v, want its deadline", err)
		}
		close(release)
		if v, err := f.Wait(t.Context()); v != 1 || err != nil {
			t.Errorf("Wait = %d, %v; want 1, nil", v, err)
		}
	})
}

func TestGroupCanBeWaitedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		for range 3 {
			release := make(chan struct{})
			g.Join(t.Context(), "key", hold(release, 1))
			var waiter sync.WaitGroup
			waiter.Go(func() {
				if err := g.Wait(t.Context()); err != nil {
					t.Errorf("Wait = %v, want nil", err)
				}
			})
			synctest.Wait()
			close(release)
			waiter.Wait()
		}
	})
}

func TestFinishedFlightDoesNotKeepOlderOnesInMemory(t *testing.T) {
	var g group
	release := make(chan struct{})
	older, _ := g.Join(t.Context(), "key", hold(release, 1))
	older.Detach()
	newer, _ := g.Join(t.Context(), "key", func(*flight) (int, error) { return 2, nil })
	if _, err := newer.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(release)
	if err := g.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := weak.Make(older)
	for range 100 { // the flight's goroutine may need a moment to be gone
		if runtime.GC(); left.Value() == nil {
			break
		}
	}
	if left.Value() != nil {
		t.Error("the newer flight keeps the older one alive")
	}
	runtime.KeepAlive(newer)
}

func TestStateIsTheOwnersAndStartsZero(t *testing.T) {
	type state struct {
		mu    sync.Mutex
		notes []string
	}
	var g singleflight.Group[int, state, string]
	release := make(chan struct{})
	f, _ := g.Join(t.Context(), 1, func(f *singleflight.Flight[int, state, string]) (string, error) {
		<-release
		f.State.mu.Lock()
		defer f.State.mu.Unlock()
		return strings.Join(f.State.notes, " "), nil
	})
	g.Each(1, func(f *singleflight.Flight[int, state, string]) {
		f.State.mu.Lock()
		f.State.notes = append(f.State.notes, "seen", "by", "each")
		f.State.mu.Unlock()
	})
	close(release)
	if v, err := f.Wait(t.Context()); v != "seen by each" || err != nil {
		t.Errorf("Wait = %q, %v", v, err)
	}
	v, _, err := g.Do(t.Context(), 1, func(f *singleflight.Flight[int, state, string]) (string, error) {
		return strings.Join(f.State.notes, " "), nil
	})
	if v != "" || err != nil {
		t.Errorf("the next flight starts with %q, %v", v, err)
	}
}

func TestProtectTurnsAPanicIntoAnError(t *testing.T) {
	boom := errors.New("boom")
	tests := map[string]struct {
		value any
		text  string
		is    error
	}{
		"error":  {boom, "panic: boom", boom},
		"string": {"boom", "panic: boom", nil},
		"nil":    {nil, "panic: panic called with nil argument", nil},
		"struct": {struct{ a, b int }{1, 2}, "panic: {1 2}", nil},
	}
	for name, test := range tests {
		v, err := singleflight.Protect(func() (int, error) { panic(test.value) })
		var p *singleflight.PanicError
		if v != 0 || !errors.As(err, &p) || err.Error() != test.text || len(p.Stack) == 0 {
			t.Errorf("%s: Protect = %d, %q; want 0, %q", name, v, err, test.text)
		}
		if test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: the error does not unwrap to the panic's value", name)
		}
	}
	if v, err := singleflight.Protect(func() (int, error) { return 1, boom }); v != 1 || !errors.Is(err, boom) {
		t.Errorf("without a panic Protect = %d, %v; want 1, boom", v, err)
	}
}

func TestAnOpenedFlightWaitsForWhoeverFinishesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		f, joined := g.Open(t.Context(), "k")
		if joined {
			t.Error("an empty group had a flight to join")
		}
		got := make(chan int, 1)
		go func() {
			v, joined, err := g.Do(t.Context(), "k", func(*flight) (int, error) { return 2, nil })
			if !joined || err != nil {
				t.Errorf("Do started a flight of its own (%v) or failed: %v", !joined, err)
			}
			got <- v
		}()
		synctest.Wait()
		f.Finish(1, nil)
		if v := <-got; v != 1 {
			t.Errorf("who joined got %d", v)
		}
		if err := g.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAnOpenedFlightMayBeRunAfterAll(t *testing.T) {
	var g group
	f, _ := g.Open(t.Context(), "k")
	f.Run(func(*flight) (int, error) { panic("boom") })
	if _, err := f.Wait(t.Context()); err == nil || err.Error() != "panic: boom" {
		t.Errorf("got %v", err)
	}
}

func TestCancelReachesAContextThatIsAskedForLater(t *testing.T) {
	var g group
	f, _ := g.Open(t.Context(), "k")
	defer f.Finish(0, nil)
	cause := errors.New("why")
	f.Cancel(cause)
	if got := context.Cause(f.Context()); !errors.Is(got, cause) {
		t.Errorf("the context ended with %v", got)
	}
}
