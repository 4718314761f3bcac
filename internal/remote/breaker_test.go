package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// revive makes the store forget that its server was found down, for tests of what
// happens to commands that are sent all the same.
func (s *Store) revive() {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.failures = 0
	if s.server.down.Swap(nil) != nil {
		s.downs.Add(-1)
	}
}

// moody is a hook that does with a client's commands what the test says.
type moody struct {
	do    atomic.Pointer[func(ctx context.Context, cmd redis.Cmder) error] // nil: they are sent
	asked sync.Map                                                         // *atomic.Int64 by name
}

func (m *moody) be(do func(ctx context.Context, cmd redis.Cmder) error) { m.do.Store(&do) }
func (m *moody) beWell()                                                { m.do.Store(nil) }

func (m *moody) count(name string) *atomic.Int64 {
	n, _ := m.asked.LoadOrStore(name, new(atomic.Int64))
	return n.(*atomic.Int64)
}

func (*moody) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *moody) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.count(cmd.Name()).Add(1)
		if do := m.do.Load(); do != nil {
			err := (*do)(ctx, cmd)
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (*moody) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// silence gives a command up when its ctx ends.
func silence(ctx context.Context, _ redis.Cmder) error {
	<-ctx.Done()
	return ctx.Err()
}

func refuse(context.Context, redis.Cmder) error { return io.EOF }

// tried is a store in a bubble whose server is moody.
type tried struct {
	*testing.T
	*Store

	server *moody
	keys   Keys
	health []error // as told
	mu     sync.Mutex
}

func moodily(t *testing.T, f func(t *tried)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, client := testutil.NewBubbleRedis(t)
		rdb := client()
		m := &moody{}
		rdb.AddHook(m)
		s := newStore(rdb)
		tr := &tried{T: t, Store: s, server: m, keys: s.Keys("c", "k")}
		s.OnHealth(func(down error) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.health = append(tr.health, down)
		})
		f(tr)
		m.beWell()
		must(t, s.Wait(t.Context()))
	})
}

func (t *tried) get() error {
	_, _, err := t.Get(t.Context(), t.keys)
	return err
}

// told is how often a server was said to be down, and to be back.
func (t *tried) told() (down, up int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.health {
		if h == nil {
			up++
		} else {
			down++
		}
	}
	return down, up
}

func TestAServerThatAnswersNothingIsLeftAloneUntilItAnswersAProbe(t *testing.T) {
	for name, mood := range map[string]func(context.Context, redis.Cmder) error{"silent": silence, "refusing connections": refuse} {
		t.Run(name, func(t *testing.T) {
			moodily(t, func(t *tried) {
				must(t, t.get())
				t.server.be(mood)
				start := time.Now()
				for t.Down(t.Context(), t.keys) == nil {
					if err := t.get(); err == nil {
						t.Fatal("a command of a dead server succeeds")
					}
					time.Sleep(10 * time.Millisecond)
				}
				if took := time.Since(start); took > 2*t.timeout+20*time.Millisecond {
					t.Errorf("found down after %v, want about two timeouts at most", took)
				}
				before, start := t.server.count("get").Load(), time.Now()
				for range 1000 {
					if err := t.get(); !errors.Is(err, ErrDown) {
						t.Fatalf("got %v", err)
					}
				}
				if n := t.server.count("get").Load() - before; n > 0 || time.Since(start) > 0 {
					t.Errorf("%d commands were sent in %v, want none", n, time.Since(start))
				}
				t.server.beWell()
				start = time.Now()
				for t.get() != nil {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(start); took > probeCap+t.timeout {
					t.Errorf("found back after %v", took)
				}
				if down, up := t.told(); down != 1 || up != 1 || !t.Healthy() {
					t.Errorf("told %d times that it is down and %d that it is back", down, up)
				}
			})
		})
	}
}

func TestAHerdOfSilentCommandsIsEnoughOnce(t *testing.T) {
	moodily(t, func(t *tried) {
		t.server.be(silence)
		start := time.Now()
		var herd sync.WaitGroup
		for range 10 {
			herd.Go(func() { _ = t.get() })
		}
		herd.Wait()
		if took := time.Since(start); took != t.timeout || !t.Out() {
			t.Errorf("after %v the server is down %v, want so after one timeout", took, t.Out())
		}
	})
}

func TestProbesComeOneAtATimeAndNotAtOnce(t *testing.T) {
	moodily(t, func(t *tried) {
		var running, most, n atomic.Int64
		t.server.be(func(ctx context.Context, cmd redis.Cmder) error {
			if cmd.Name() == "del" {
				n.Add(1)
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
			}
			return refuse(ctx, cmd)
		})
		for !t.Out() {
			_ = t.get()
			time.Sleep(10 * time.Millisecond)
		}
		n.Store(0)
		for range 100 {
			_ = t.get()
			time.Sleep(100 * time.Millisecond)
		}
		if got := n.Load(); most.Load() != 1 || got < 10 || got > 60 {
			t.Errorf("%d probes in 10 s, %d at once", got, most.Load())
		}
	})
}

func TestAFewFailuresBetweenAnswersOpenNothing(t *testing.T) {
	moodily(t, func(t *tried) {
		for range 10 {
			t.server.be(refuse)
			_, _ = t.get(), t.get()
			t.server.beWell()
			must(t, t.get())
			time.Sleep(time.Second)
		}
		if down, _ := t.told(); down > 0 {
			t.Error("the server was found down")
		}
	})
}

func TestAServerThatAnswersCommandsIsNotDownForItsProbes(t *testing.T) {
	moodily(t, func(t *tried) {
		var well atomic.Bool
		t.server.be(func(ctx context.Context, cmd redis.Cmder) error {
			if cmd.Name() == "get" && well.Load() {
				return nil
			}
			return refuse(ctx, cmd)
		})
		_ = t.get()
		well.Store(true)
		for range 200 {
			time.Sleep(10 * time.Millisecond)
			must(t, t.get())
		}
	})
}

func TestSomeStalledConnectionsAreNoServerThatIsDown(t *testing.T) {
	moodily(t, func(t *tried) {
		stalled := t.Keys("c", "stalled")
		t.server.be(func(ctx context.Context, cmd redis.Cmder) error {
			if cmd.Args()[1] == stalled.V {
				return silence(ctx, cmd)
			}
			return nil
		})
		var calls sync.WaitGroup
		for range 5 {
			calls.Go(func() { _, _, _ = t.Get(t.Context(), stalled) })
		}
		time.Sleep(t.timeout / 2)
		must(t, t.get())
		calls.Wait()
		synctest.Wait()
		if t.server.count("del").Load() > 0 {
			t.Error("the server is suspected though it answers others")
		}
	})
}

// As during CLIENT PAUSE WRITE: a probe is a write, too.
func TestAServerThatAnswersReadsAloneIsDown(t *testing.T) {
	moodily(t, func(t *tried) {
		t.server.be(func(ctx context.Context, cmd redis.Cmder) error {
			if cmd.Name() == "get" {
				return redis.Nil
			}
			return silence(ctx, cmd)
		})
		var reads sync.WaitGroup
		defer reads.Wait()
		var enough atomic.Bool
		defer enough.Store(true)
		reads.Go(func() {
			for tick := time.NewTicker(2 * time.Millisecond); !enough.Load(); <-tick.C {
				_ = t.get()
			}
		})
		start := time.Now()
		for !t.Out() && time.Since(start) < 10*t.timeout {
			if _, err := t.Acquire(t.Context(), t.keys, Acquire{Owner: "a", TTL: life}); err == nil {
				t.Error("a silent server grants a lease")
			}
		}
		if took := time.Since(start); took > 4*t.timeout {
			t.Errorf("found down after %v", took)
		}
		t.server.beWell()
		start = time.Now()
		for t.Out() {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(start); took > time.Second+probeCap {
			t.Errorf("found back after %v", took)
		}
	})
}

func TestSomeStalledScriptsAreNoServerThatIsDown(t *testing.T) {
	for _, others := range []bool{false, true} {
		t.Run(fmt.Sprintf("others are answered %v", others), func(t *testing.T) {
			moodily(t, func(t *tried) {
				stalled := t.Keys("c", "stalled")
				t.server.be(func(ctx context.Context, cmd redis.Cmder) error {
					if cmd.Name() == "eval" && cmd.Args()[3] == stalled.V {
						return silence(ctx, cmd)
					}
					return redis.Nil
				})
				for range 3 {
					var calls sync.WaitGroup
					for range 5 {
						calls.Go(func() { _, _ = t.Acquire(t.Context(), stalled, Acquire{Owner: "a", TTL: life}) })
					}
					for range 40 {
						time.Sleep(t.timeout / 20)
						must(t, t.get())
						if others {
							_, _ = t.Acquire(t.Context(), t.keys, Acquire{Owner: "b", TTL: life})
						}
					}
					calls.Wait()
				}
				if n := t.server.count("del").Load(); others && n > 0 {
					t.Errorf("probed %d times though it answers other scripts", n)
				}
				if down, _ := t.told(); down > 0 {
					t.Errorf("found down %d times, though it answers reads and probes", down)
				}
			})
		})
	}
}

func TestACallersCancelIsNoFailureOfTheServer(t *testing.T) {
	moodily(t, func(t *tried) {
		t.server.be(silence)
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), t.timeout/2)
			if _, _, err := t.Get(ctx, t.keys); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			cancel()
		}
		if t.server.count("del").Load() > 0 || t.Out() {
			t.Error("the server is suspected")
		}
	})
}

func TestAProcessThatStoodStillSuspectsNobody(t *testing.T) {
	moodily(t, func(t *tried) {
		time.Sleep(time.Minute)
		for range 10 { // all commands of a process that was frozen end at once, long after their time
			t.route(t.Context(), t.keys.V).done(t.Context(), t.mono()-10*t.timeout, t.mono(), ErrNoAnswer)
		}
		synctest.Wait()
		if t.server.count("del").Load() > 0 || t.Out() {
			t.Error("the server is suspected")
		}
	})
}

func TestWhatEndsOrKeepsALeaseIsSentToAServerThatIsDown(t *testing.T) {
	moodily(t, func(t *tried) {
		claim := acquired(t, t.Store, t.keys, "a")
		t.server.be(refuse)
		for !t.Out() {
			_ = t.get()
			time.Sleep(10 * time.Millisecond)
		}
		// Only the probe is to fail from now on.
		t.server.be(func(_ context.Context, cmd redis.Cmder) error {
			if cmd.Name() == "del" {
				return io.EOF
			}
			return nil
		})
		sent := t.server.count("eval")
		_ = t.Leases().Renew(t.Context(), claim, life)
		_, _ = t.Commit(t.Context(), t.keys, commitUnder(claim, anEntry("version1")))
		_, _ = t.Finish(t.Context(), t.keys, finishUnder(claim, FinishNothing))
		if n := sent.Load(); n < 4 { // the acquire, too
			t.Errorf("%d of three were sent", n-1)
		}
		if !t.Out() {
			t.Error("the server is back, though no probe was answered")
		}
	})
}

func TestOnlyAWriteShowsThatAServerIsBack(t *testing.T) {
	moodily(t, func(t *tried) {
		t.server.be(func(_ context.Context, cmd redis.Cmder) error {
			if cmd.Name() == "get" {
				return redis.Nil
			}
			return refusal("READONLY You can't write against a read only replica.")
		})
		if _, err := t.Acquire(t.Context(), t.keys, Acquire{Owner: "a", TTL: life}); err == nil {
			t.Error("a replica grants a lease")
		}
		for range 20 {
			if err := t.get(); !errors.Is(err, ErrDown) {
				t.Fatalf("a replica is read: %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

func TestErrorsAreJudgedByWhatTheySayOfTheServer(t *testing.T) {
	for text, want := range map[string]verdict{
		"READONLY You can't write against a read only replica.":                              verdictRefusal,
		"ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write ": verdictRefusal,
		"LOADING Redis is loading the dataset in memory":                                     verdictRefusal,
		"BUSY Redis is busy running a script.":                                               verdictRefusal,
		"MASTERDOWN Link with MASTER is down":                                                verdictRefusal,
		"CLUSTERDOWN The cluster is down":                                                    verdictRefusal,
		"NOAUTH Authentication required.":                                                    verdictRefusal,
		"WRONGPASS invalid username-password pair":                                           verdictRefusal,
		"ERR max number of clients reached":                                                  verdictRefusal,
		"MOVED 1 127.0.0.1:7000":                                                             verdictMoving,
		"ASK 1 127.0.0.1:7000":                                                               verdictMoving,
		"TRYAGAIN Multiple keys request during rehashing of slot":                            verdictMoving,
		"OOM command not allowed when used memory > 'maxmemory'.":                            verdictAnswer,
		"NOPERM this user has no permissions":                                                verdictAnswer,
		"NOSCRIPT No matching script.":                                                       verdictAnswer,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                  verdictAnswer,
		"BUSYGROUP Consumer Group name already exists":                                       verdictAnswer,
		"MISCONF Redis is configured to save RDB snapshots":                                  verdictRefusal,
		"NOREPLICAS Not enough good replicas to write.":                                      verdictRefusal,
	} {
		if got := judge(refusal(text)); got != want {
			t.Errorf("%q is judged %d, want %d", text, got, want)
		}
	}
	for _, err := range []error{nil, redis.Nil, ErrWrongType} {
		if judge(err) != verdictAnswer {
			t.Errorf("%v is no answer", err)
		}
	}
	for _, err := range []error{io.EOF, ErrNoAnswer, redis.ErrPoolTimeout, redis.ErrClosed, context.DeadlineExceeded} {
		if judge(err) != verdictSilence {
			t.Errorf("%v is an answer", err)
		}
	}
}

func TestCommandsThatHangInTheClientAreBounded(t *testing.T) {
	moodily(t, func(t *tried) {
		hold := make(chan struct{})
		var hanging atomic.Int64
		t.server.be(func(_ context.Context, cmd redis.Cmder) error {
			if !strings.HasPrefix(cmd.Name(), "eval") {
				return nil
			}
			hanging.Add(1)
			defer hanging.Add(-1)
			<-hold // whatever its ctx says
			return io.EOF
		})
		// Callers with little patience, so that no timeout opens the breaker.
		for range 3 * maxHung {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = t.Acquire(ctx, t.keys, Acquire{Owner: "a", TTL: time.Second})
			cancel()
		}
		if n := hanging.Load(); n != maxHung {
			t.Errorf("%d commands hang, want %d and no more", n, maxHung)
		}
		if err := t.get(); !errors.Is(err, ErrDown) {
			t.Errorf("one more: %v", err)
		}
		close(hold)
		synctest.Wait()
		t.server.beWell()
		must(t, t.get())
	})
}

func TestABrokenClusterMasterTakesTheOthersNotDown(t *testing.T) {
	t.Parallel()
	cluster := testutil.StartCluster(t)
	for _, n := range cluster.Nodes { // or else they all stop to serve
		must(t, n.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	s := NewStore(cluster.Client(t), "test", "here", 200*time.Millisecond)
	must(t, s.Load(t.Context()))
	defer func() { must(t, s.Wait(t.Context())) }()
	// Keys of each master, by its address.
	keys := map[string]Keys{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		k := s.Keys("c", name)
		if _, _, err := s.Get(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		keys[s.route(t.Context(), k.V).name] = k
	}
	if len(keys) != 3 {
		t.Fatalf("the keys are on %d masters", len(keys))
	}
	dead := cluster.Addrs()[0]
	cluster.Nodes[0].Kill()
	testutil.Eventually(t, 10*time.Second, func() bool {
		_, _, err := s.Get(t.Context(), keys[dead])
		return errors.Is(err, ErrDown)
	}, "the dead master is found down")
	if s.Healthy() || s.Out() {
		t.Errorf("healthy %v, out for all keys %v", s.Healthy(), s.Out())
	}
	for addr, k := range keys {
		if down := s.Down(t.Context(), k); (down != nil) != (addr == dead) {
			t.Errorf("master %s: %v", addr, down)
		}
	}
}

func TestAServerIsFoundBackSoonHoweverLongItWasAway(t *testing.T) {
	for _, outage := range []time.Duration{10 * time.Second, 20250 * time.Millisecond, 30500 * time.Millisecond, 40750 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			_, client := testutil.NewBubbleRedis(t)
			var away atomic.Bool
			var mu sync.Mutex
			var conns []net.Conn // protected by mu
			rdb := client(func(o *redis.Options) {
				o.PoolSize = 20 // so many dials may fail before the client dials once a second
				dial := o.Dialer
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if away.Load() {
						return nil, syscall.ECONNREFUSED
					}
					c, err := dial(ctx, network, addr)
					mu.Lock()
					defer mu.Unlock()
					if err == nil && away.Load() { // meanwhile: those there were are closed already
						_ = c.Close()
						return nil, syscall.ECONNREFUSED
					}
					conns = append(conns, c)
					return c, err
				}
			})
			s := NewStore(rdb, "test", "here", 250*time.Millisecond)
			bus := s.Listen(t.Context(), make(heard, 1000))
			keys := s.Keys("c", "k")
			_, _, err := s.Get(t.Context(), keys)
			must(t, err)
			away.Store(true)
			mu.Lock()
			for _, c := range conns {
				_ = c.Close()
			}
			mu.Unlock()
			for s.Down(t.Context(), keys) == nil {
				_, _, _ = s.Get(t.Context(), keys)
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(outage)
			away.Store(false)
			back := time.Now()
			for s.Down(t.Context(), keys) != nil {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(back); took > probeCap {
				t.Errorf("away for %v, it is found back after %v", outage, took)
			}
			bus.Close()
			must(t, s.Wait(t.Context()))
		})
	}
}

func TestAProbeMayTakeLongToConnectButNotToAnswer(t *testing.T) {
	for name, always := range map[string]bool{"to connect": false, "to answer": true} {
		t.Run(name, func(t *testing.T) {
			moodily(t, func(t *tried) {
				s := NewStore(t.rdb, "test", "here", 200*time.Millisecond)
				defer s.Stop()
				t.server.be(silence)
				for s.Down(t.Context(), t.keys) == nil {
					_, _, _ = s.Get(t.Context(), t.keys)
				}
				var connected atomic.Bool // by a command that was not given up on
				t.server.be(func(ctx context.Context, _ redis.Cmder) error {
					if connected.Load() && !always {
						return nil
					}
					pause := time.NewTimer(3 * s.timeout)
					defer pause.Stop()
					select {
					case <-pause.C:
						connected.Store(true)
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				time.Sleep(5 * time.Second)
				if down := s.Down(t.Context(), t.keys) != nil; down != always {
					t.Errorf("is it down: %v", down)
				}
				t.server.beWell()
				must(t, s.Wait(t.Context()))
			})
		})
	}
}

func TestDialsThatNeverEndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := testutil.NewBubbleRedis(t)
		release := make(chan struct{})
		var hang atomic.Int64
		var d dialer
		stuck := dial(func(context.Context, string, string) (net.Conn, error) {
			hang.Add(1)
			defer hang.Add(-1)
			<-release // whatever its ctx says
			return nil, net.ErrClosed
		})
		d.instead.Store(&stuck)
		s := newStore(client(d.options))
		for range failuresToOpen {
			_ = s.Load(t.Context())
		}
		time.Sleep(time.Hour)
		n := hang.Load()
		if n < 4*maxHung || n > 5*maxHung {
			t.Errorf("%d dials hang", n)
		}
		time.Sleep(time.Hour)
		if after := hang.Load(); after != n {
			t.Errorf("%d dials more", after-n)
		}
		d.instead.Store(nil)
		close(release)
		must(t, s.Wait(t.Context()))
		if hung := s.server.hung.Load(); hung != 0 {
			t.Errorf("%d count as hung", hung)
		}
	})
}

func TestAClientThatPanicsHasNotAnswered(t *testing.T) {
	moodily(t, func(t *tried) {
		t.server.be(func(context.Context, redis.Cmder) error { panic("a hook of the user") })
		for range failuresToOpen {
			if _, err := t.Acquire(t.Context(), t.keys, Acquire{Owner: "a", TTL: time.Second}); err == nil || errors.Is(err, ErrNoAnswer) {
				t.Errorf("got %v", err)
			}
			time.Sleep(t.timeout / 5)
		}
		if down, _ := t.told(); down != 1 {
			t.Errorf("told of %d servers that are down", down)
		}
		t.server.beWell()
		time.Sleep(2 * probeCap)
		must(t, t.get())
	})
}

func TestADialerThatPanicsIsALossAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := testutil.NewBubbleRedis(t)
		var d dialer
		panics := dial(func(context.Context, string, string) (net.Conn, error) { panic("a dialer of the user") })
		d.instead.Store(&panics)
		s := newStore(client(d.options))
		h, bus := listen(t, s)
		h.expect(t, "lost: panic: a dialer of the user")
		_ = s.Load(t.Context())
		time.Sleep(time.Minute) // probes, and knocks
		d.instead.Store(nil)
		h.eventually(t, "confirmed")
		time.Sleep(time.Minute)
		must(t, s.Load(t.Context()))
		bus.Close()
		must(t, s.Wait(t.Context()))
	})
}
