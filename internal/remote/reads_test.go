package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// gets is a client that holds reads back while it is told to, and counts them.
type gets struct {
	hold    atomic.Pointer[chan struct{}] // nil: it does not
	along   atomic.Int64                  // GETs by their own callers
	refuse  error                         // what becomes of pipelines, if not nil
	alone   atomic.Int64
	batches atomic.Int64 // MGETs and pipelines
	batched atomic.Int64 // keys in them
}

func (g *gets) block() (release func()) {
	held := make(chan struct{})
	g.hold.Store(&held)
	return func() {
		g.hold.Store(nil)
		close(held)
	}
}

func (g *gets) wait() {
	if held := g.hold.Load(); held != nil {
		<-*held
	}
}

func (*gets) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gets) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch cmd.Name() {
		case "get":
			g.alone.Add(1)
			if _, ofLane := ctx.(lent); !ofLane {
				g.along.Add(1)
			}
			g.wait()
		case "mget":
			g.batches.Add(1)
			g.batched.Add(int64(len(cmd.Args()) - 1))
			g.wait()
		}
		return next(ctx, cmd)
	}
}

func (g *gets) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.batches.Add(1)
		g.batched.Add(int64(len(cmds)))
		if g.refuse != nil {
			return g.refuse
		}
		g.wait()
		return next(ctx, cmds)
	}
}

// ownClient is a client of which nothing is known, so that it gets pipelines.
type ownClient struct{ redis.UniversalClient }

// heldReads runs a test in virtual time whose client holds reads back as it is told, one
// that gets MGETs and one that gets pipelines. Key n has the entry n.
func heldReads(t *testing.T, test func(t *testing.T, s *Store, g *gets)) {
	t.Helper()
	for name, of := range map[string]func(*redis.Client) redis.UniversalClient{
		"MGET":      func(client *redis.Client) redis.UniversalClient { return client },
		"pipelines": func(client *redis.Client) redis.UniversalClient { return ownClient{client} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, client := testutil.NewBubbleRedis(t)
				rdb := client()
				s := newStore(of(rdb))
				for n := range 200 {
					must(t, rdb.Set(t.Context(), s.Keys("c", strconv.Itoa(n)).V, entryOf(n), 0).Err())
				}
				g := &gets{}
				rdb.AddHook(g)
				test(t, s, g)
				must(t, s.Wait(t.Context()))
			})
		})
	}
}

func entryOf(n int) string { return "entry of " + strconv.Itoa(n) }

// ask reads key n and says what is wrong with what it gets.
func ask(ctx context.Context, s *Store, n int) error {
	key := s.Keys("c", strconv.Itoa(n)).V
	entry, _, err := s.route(ctx, key).reads.get(ctx, key, s.mono()) // whatever the breaker thinks of the server
	if err == nil && string(entry) != entryOf(n) {
		err = fmt.Errorf("key %d has %q", n, entry)
	}
	return err
}

// askedTogether reads the keys from 0 on at the same time, and returns when all are done or wait.
func askedTogether(t *testing.T, s *Store, n int) (outcomes []error, wg *sync.WaitGroup) {
	t.Helper()
	wg = &sync.WaitGroup{}
	outcomes = make([]error, n)
	for i := range n {
		wg.Go(func() { outcomes[i] = ask(t.Context(), s, i) })
	}
	synctest.Wait()
	return outcomes, wg
}

func TestReadsThatComeWhileAllLanesAreOutGoTogether(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		release := g.block()
		outcomes, wg := askedTogether(t, s, maxLanes+50)
		if g.alone.Load() != maxLanes || g.batches.Load() != 0 {
			t.Errorf("%d GETs and %d batches are out, want %d and none", g.alone.Load(), g.batches.Load(), maxLanes)
		}
		release()
		wg.Wait()
		must(t, errors.Join(outcomes...))
		if g.alone.Load() != maxLanes || g.batches.Load() != 1 || g.batched.Load() != 50 {
			t.Errorf("%d GETs and %d batches of %d were sent, want %d and one of 50", g.alone.Load(), g.batches.Load(), g.batched.Load(), maxLanes)
		}
	})
}

func TestNotMoreThanSoManyReadsGoTogether(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		release := g.block()
		outcomes, wg := askedTogether(t, s, maxLanes+maxTogether+10)
		release()
		wg.Wait()
		must(t, errors.Join(outcomes...))
		if g.batches.Load() != 2 {
			t.Errorf("%d batches of %d reads in all", g.batches.Load(), g.batched.Load())
		}
	})
}

// Of reads that wait for a lane, too: the lanes hang, and so would those after them.
func TestEveryReadEndsAtTheTimeoutThoughTheClientHangs(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		release := g.block()
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * s.timeout / 7)
				begin := time.Now()
				if err := ask(t.Context(), s, i); !errors.Is(err, ErrNoAnswer) || time.Since(begin) != s.timeout {
					t.Errorf("a read that began after %v ended after %v with %v", begin.Sub(start), time.Since(begin), err)
				}
			})
		}
		wg.Wait()
		release()
	})
}

func TestLanesThatStallAreJoinedByOthers(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		release := g.block()
		_, hung := askedTogether(t, s, maxLanes)
		g.hold.Store(nil) // those that are out hang on
		start := time.Now()
		outcomes, wg := askedTogether(t, s, 5)
		wg.Wait()
		must(t, errors.Join(outcomes...))
		if d := time.Since(start); d != s.timeout/stallPart {
			t.Errorf("reads waited %v for lanes that stall", d)
		}
		hung.Wait()
		release()
	})
}

// What comes late of a read that was given up on must not reach those after it.
func TestALateAnswerIsNobodysElse(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		release := g.block()
		_, late := askedTogether(t, s, maxLanes)
		late.Wait()
		releaseOthers := g.block()
		others := make([]error, 10)
		var wg sync.WaitGroup
		for i := range others {
			wg.Go(func() { others[i] = ask(t.Context(), s, 100+i) })
		}
		synctest.Wait()
		release()
		synctest.Wait()
		releaseOthers()
		wg.Wait()
		must(t, errors.Join(others...))
	})
}

func TestAReadEndsWithItsOwnCaller(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		release := g.block()
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		gone := errors.New("gone")
		for i := range maxLanes + 1 { // one waits for a lane
			wg.Go(func() {
				if err := ask(ctx, s, i); !errors.Is(err, gone) {
					t.Errorf("a read of a caller that has gone: %v", err)
				}
			})
		}
		outcomes, others := askedTogether(t, s, 3)
		cancel(gone)
		wg.Wait()
		release()
		others.Wait()
		must(t, errors.Join(outcomes...))
	})
}

func TestAReadWhoseCallerHasLeftIsNotSent(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		release := g.block()
		outcomes, wg := askedTogether(t, s, maxLanes)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 5 {
			wg.Go(func() { _ = ask(ctx, s, i) })
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		release()
		wg.Wait()
		must(t, errors.Join(outcomes...))
		if n := g.alone.Load() + g.batched.Load(); n != maxLanes {
			t.Errorf("%d GETs were sent, want %d", n, maxLanes)
		}
	})
}

func TestAClientThatCannotPipelineReadsOneByOne(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		g.refuse = errors.New("no pipelines here")
		release := g.block()
		outcomes, wg := askedTogether(t, s, maxLanes+10)
		release()
		wg.Wait()
		must(t, errors.Join(outcomes...))
	})
}

func TestOneBadKeyDoesNotSpoilTheReadsBesideIt(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, g *gets) {
		list := s.Keys("c", "list")
		must(t, s.rdb.RPush(t.Context(), list.V, "x").Err())
		release := g.block()
		outcomes, wg := askedTogether(t, s, maxLanes+5)
		var wrong, absent error
		var entry []byte
		wg.Go(func() { _, _, wrong = s.Get(t.Context(), list) })
		wg.Go(func() { entry, _, absent = s.Get(t.Context(), s.Keys("c", "absent")) })
		synctest.Wait()
		release()
		wg.Wait()
		must(t, errors.Join(outcomes...))
		_, single := s.rdb.(*redis.Client) // an MGET says of a list that there is nothing
		if single && wrong != nil || !single && !errors.Is(wrong, ErrWrongType) || entry != nil || absent != nil || g.batches.Load() != 1 {
			t.Errorf("a list: %v; an absent key: %q, %v; %d batches", wrong, entry, absent, g.batches.Load())
		}
	})
}

func TestKeysOfSeveralSlotsAreReadFromAClusterOfOneNode(t *testing.T) {
	t.Parallel()
	rdb := testutil.StartClusterOfOne(t).Client(t)
	g := &gets{}
	rdb.AddHook(g)
	read := map[string]func(*Store, int) error{
		"by calls that come together": func(s *Store, n int) error {
			release := g.block()
			outcomes := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { outcomes[i] = ask(t.Context(), s, i) })
			}
			testutil.Eventually(t, 5*time.Second, func() bool {
				rs := &s.server.reads
				rs.mu.Lock()
				defer rs.mu.Unlock()
				sent := 0
				for _, l := range rs.lanes {
					sent += len(l.batch)
				}
				return sent+len(rs.waiting) == n
			}, "all are there")
			release()
			wg.Wait()
			return errors.Join(outcomes...)
		},
		"by one call": func(s *Store, n int) error {
			keys := make([]Keys, n)
			for i := range keys {
				keys[i] = s.Keys("c", strconv.Itoa(i))
			}
			for i, a := range s.ReadMany(t.Context(), keys) {
				if a.Err != nil || string(a.Value) != entryOf(i) {
					return fmt.Errorf("key %d: %q, %w", i, a.Value, a.Err)
				}
			}
			return nil
		},
	}
	const n = 20
	for i := range n {
		must(t, rdb.Set(t.Context(), newStore(rdb).Keys("c", strconv.Itoa(i)).V, entryOf(i), 0).Err())
	}
	for how, all := range read {
		s := NewStore(rdb, "test", "here", time.Minute) // the reads are held back
		for range 2 {
			if err := all(s, n); err != nil {
				t.Errorf("%s: %v", how, err)
			}
		}
		must(t, s.Wait(t.Context()))
	}
}

type valueKey struct{}

func TestAReadLendsItsValuesToTheCommand(t *testing.T) {
	heldReads(t, func(t *testing.T, s *Store, _ *gets) {
		var seen any
		var ended error
		s.rdb.AddHook(spying(func(ctx context.Context) { seen, ended = ctx.Value(valueKey{}), ctx.Err() }))
		must(t, ask(context.WithValue(t.Context(), valueKey{}, "span"), s, 1))
		if seen != "span" || ended != nil {
			t.Errorf("the client was given a context with %v that had ended with %v", seen, ended)
		}
	})
}

// spying looks at the context of commands.
type spying func(context.Context)

func (spying) DialHook(next redis.DialHook) redis.DialHook { return next }

func (spy spying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		spy(ctx)
		return next(ctx, cmd)
	}
}

func (spying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestACutConnectionEndsAllReadsOfItsBatchAndNoneIsLostOrCrossed(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		const keys, readers = 50, 64
		for n := range keys {
			must(t, t.direct.Set(t.Context(), t.store.Keys("c", strconv.Itoa(n)).V, entryOf(n), 0).Err())
		}
		var wg sync.WaitGroup
		var failed, done atomic.Int64
		for reader := range readers {
			wg.Go(func() {
				for i := range 100 {
					n := (reader + i) % keys
					entry, _, err := t.store.Get(t.Context(), t.store.Keys("c", strconv.Itoa(n)))
					switch {
					case err != nil:
						failed.Add(1)
					case string(entry) != entryOf(n):
						t.Errorf("key %d has %q", n, entry)
					}
					if done.Add(1) == readers*50 {
						t.proxy.Cut()
						t.proxy.Resume()
					}
				}
			})
		}
		wg.Wait()
		if n := failed.Load(); n > readers*100/2 {
			t.Errorf("%d of %d reads failed for one cut", n, readers*100)
		}
	})
}

func TestReadsOfAClusterAreNotCrossed(t *testing.T) {
	t.Parallel()
	rdb := testutil.StartCluster(t).Client(t)
	s := NewStore(rdb, "test", "here", 10*time.Second)
	const keys = 200
	for n := range keys {
		must(t, rdb.Set(t.Context(), s.Keys("c", strconv.Itoa(n)).V, entryOf(n), 0).Err())
	}
	if _, _, err := s.Get(t.Context(), s.Keys("c", "0")); err != nil { // learns the masters
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for reader := range 50 {
		wg.Go(func() {
			for i := range 40 {
				if err := ask(t.Context(), s, (reader*37+i)%keys); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(s.masters); n != 3 {
		t.Errorf("the reads went by %d masters, want 3", n)
	}
}

// trustedReads is heldReads with a client that heeds deadlines and a server that has
// answered in time so often that callers go along. stall makes the server answer nothing
// until resume.
func trustedReads(t *testing.T, test func(t *testing.T, s *Store, g *gets, stall, resume func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, client := testutil.NewBubbleRedis(t)
		rdb := client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
		s := newStore(rdb)
		for n := range 200 {
			must(t, rdb.Set(t.Context(), s.Keys("c", strconv.Itoa(n)).V, entryOf(n), 0).Err())
		}
		g := &gets{}
		rdb.AddHook(g)
		for range trust {
			must(t, ask(t.Context(), s, 0))
			synctest.Wait() // the lane is back
		}
		if n := g.along.Load(); n != 0 {
			t.Fatalf("%d of the first callers went along", n)
		}
		var stalled atomic.Pointer[chan struct{}]
		m.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
			if resumed := stalled.Load(); resumed != nil {
				<-*resumed
			}
			return false
		})
		test(t, s, g, func() {
			resumed := make(chan struct{})
			stalled.Store(&resumed)
		}, func() { close(*stalled.Swap(nil)) })
		must(t, s.Wait(t.Context()))
	})
}

func TestACallerReadsItselfFromAServerThatAnswersInTime(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, _, _ func()) {
		must(t, ask(t.Context(), s, 1))
		if g.along.Load() != 1 {
			t.Error("a goroutine was started for it")
		}
		release := g.block()
		outcomes, others := askedTogether(t, s, 20)
		if g.along.Load() != 2 || g.alone.Load() != trust+3 {
			t.Errorf("of %d GETs %d are by callers, want one caller and one lane out", g.alone.Load()-trust-1, g.along.Load()-1)
		}
		release()
		others.Wait()
		must(t, errors.Join(outcomes...))
	})
}

// The one who reads itself must not serve the others before it returns.
func TestWhatComesMeanwhileDoesNotKeepTheCallerThatReadsItself(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, _, _ func()) {
		var wg sync.WaitGroup
		g.block()
		first := *g.hold.Load()
		wg.Go(func() {
			if err := ask(t.Context(), s, 0); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		outcomes, others := askedTogether(t, s, maxLanes+5) // one has a lane, the rest waits
		release := g.block()                                // what is sent from now on
		close(first)
		wg.Wait()
		release()
		others.Wait()
		must(t, errors.Join(outcomes...))
	})
}

// endsAtItsDeadline reads with a deadline that comes before the timeout, from a server that does not answer.
func endsAtItsDeadline(t *testing.T, s *Store) {
	t.Helper()
	over := errors.New("over")
	ctx, cancel := context.WithTimeoutCause(t.Context(), s.timeout/2, over)
	defer cancel()
	start := time.Now()
	_, _, err := s.Get(ctx, s.Keys("c", "1"))
	if took := time.Since(start); !errors.Is(err, over) || took != s.timeout/2 {
		t.Errorf("a call with a deadline ended after %v with %v", took, err)
	}
}

func TestACallerThatReadsItselfHeedsItsDeadlineAndTheTimeout(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, stall, resume func()) {
		stall()
		endsAtItsDeadline(t, s)
		if g.along.Load() != 1 {
			t.Fatal("it did not read itself")
		}
		if s.server.suspected.Load() {
			t.Error("the caller's deadline counts as a failure of Redis")
		}
		resume()
		for range trust { // the stall has cost the trust
			must(t, ask(t.Context(), s, 0))
			synctest.Wait()
		}
		if g.along.Load() != 1 {
			t.Error("callers go along right after a stall")
		}
		stall()
		start := time.Now()
		_, _, err := s.Get(t.Context(), s.Keys("c", "1"))
		if took := time.Since(start); !errors.Is(err, ErrNoAnswer) || took != s.timeout {
			t.Errorf("a call without a deadline ended after %v with %v", took, err)
		}
		if g.along.Load() != 2 {
			t.Error("it did not read itself")
		}
		if !s.server.suspected.Load() {
			t.Error("silence counts as no failure of Redis")
		}
		resume()
		must(t, ask(t.Context(), s, 1))
		if g.along.Load() != 2 {
			t.Error("callers go along right after a lane was given up on")
		}
	})
}

func TestASlowAnswerCostsTrust(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, stall, resume func()) {
		stall()
		time.AfterFunc(s.timeout/stallPart, resume)
		must(t, ask(t.Context(), s, 1))
		must(t, ask(t.Context(), s, 1))
		if g.along.Load() != 1 {
			t.Errorf("%d callers went along, want the one that found the server slow", g.along.Load())
		}
	})
}

func TestAnAnswerThatComesAfterTheTimeoutIsNone(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, _, _ func()) {
		m := &moody{}
		s.rdb.AddHook(m)
		m.be(func(context.Context, redis.Cmder) error { // an answer, by a hook that heeds no deadline
			time.Sleep(2 * s.timeout)
			return nil
		})
		if err := ask(t.Context(), s, 0); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("got %v", err)
		}
		if g.along.Load() != 1 || s.server.hung.Load() != 0 {
			t.Errorf("%d callers went along, want 1; %d reads hang", g.along.Load(), s.server.hung.Load())
		}
		m.beWell()
		must(t, ask(t.Context(), s, 0))
	})
}

func TestAReadWhoseHookPanicsHasNoAnswer(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, _, _ func()) {
		m := &moody{}
		s.rdb.AddHook(m)
		m.be(func(context.Context, redis.Cmder) error { panic("hook") })
		for range 2 { // by its caller, and by a lane
			if err := ask(t.Context(), s, 0); err == nil || judge(err) != verdictSilence {
				t.Errorf("got %v", err)
			}
			synctest.Wait()
		}
		if g.along.Load() != 1 {
			t.Errorf("%d callers went along, want the first", g.along.Load())
		}
		m.beWell()
		must(t, ask(t.Context(), s, 0))
	})
}

func TestReadsThatFailEarnNoTrust(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, _, _ func()) {
		s.server.reads.trusted = 0
		m := &moody{}
		s.rdb.AddHook(m)
		m.be(refuse)
		for range 2 * trust {
			if err := ask(t.Context(), s, 0); err == nil {
				t.Fatal("a command of a dead server succeeds")
			}
			synctest.Wait()
		}
		m.beWell()
		must(t, ask(t.Context(), s, 0))
		if g.along.Load() != 0 {
			t.Error("a caller went along to a server that has answered nothing")
		}
	})
}

// A ReadTimeout of -2 is for connections that have no deadlines: go-redis then sets none, whatever the context says.
func TestACallerIsNotKeptByAClientThatSetsNoDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, client := testutil.NewBubbleRedis(t)
		s := newStore(client(func(o *redis.Options) { o.ContextTimeoutEnabled, o.ReadTimeout = true, -2 }))
		for range trust {
			must(t, s.rdb.Set(t.Context(), s.Keys("c", "0").V, entryOf(0), 0).Err())
			must(t, ask(t.Context(), s, 0))
			synctest.Wait()
		}
		resumed := make(chan struct{})
		m.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
			<-resumed
			return false
		})
		time.AfterFunc(10*s.timeout, func() { close(resumed) })
		start := time.Now()
		_, _, err := s.Get(t.Context(), s.Keys("c", "0"))
		if took := time.Since(start); !errors.Is(err, ErrNoAnswer) || took > s.timeout {
			t.Errorf("ended after %v with %v, want ErrNoAnswer after %v", took, err, s.timeout)
		}
		must(t, s.Wait(t.Context()))
	})
}

// Its lane has answered it in time, and has not yet put the batch down.
func TestTheWatchLeavesAReadingAloneThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := testutil.NewBubbleRedis(t)
		s := newStore(client())
		rs := &s.server.reads
		r := &reading{done: make(chan struct{}, 1)}
		time.Sleep(2 * s.timeout)
		rs.mu.Lock()
		r.since = s.mono() - s.timeout + time.Millisecond
		l := rs.lane()
		l.since, l.batch = s.mono(), append(l.batch[:0], r)
		rs.lanes = append(rs.lanes, l)
		rs.mu.Unlock()
		r.end([]byte("answer"), nil)
		<-r.done
		rs.put(r)
		time.Sleep(2 * time.Millisecond)
		rs.watch()
		if len(r.done) > 0 || r.err != nil {
			t.Errorf("who gets the reading next has %d tokens of before, and %v", len(r.done), r.err)
		}
		if _, _, err := rs.get(t.Context(), "nothing", s.mono()); !errors.Is(err, redis.Nil) {
			t.Errorf("the next reading ends with %v, want redis.Nil", err)
		}
		rs.next(l, s.mono(), nil, nil)
		time.Sleep(time.Second)
		must(t, s.Wait(t.Context()))
	})
}
