package remote

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

func TestABuildKeyIsReadAsTheScriptsWriteIt(t *testing.T) {
	everywhere(t, func(t *world) {
		s := newStore(t.rdb)
		keys := s.Keys("c", "k")
		var nonce uint64
		finish := func(state FinishState) func() error {
			return func() error {
				claim := acquired(t, s, keys, "a1")
				nonce = claim.Token
				_, err := s.Finish(t.Context(), keys, finishUnder(claim, state))
				return err
			}
		}
		for name, step := range map[string]struct {
			do   func() error
			want Build
		}{
			"lease": {func() error { nonce = acquired(t, s, keys, "a1").Token; return nil }, Build{State: Held, Owner: "a1"}},
			"lease with a waiter": {func() error {
				nonce = acquired(t, s, keys, "a1").Token
				_, err := s.Acquire(t.Context(), keys, Acquire{Owner: "b2", TTL: life, Wait: true})
				return err
			}, Build{State: Held, Owner: "a1", Waited: true}},
			"failed":  {finish(FinishFailed), Build{State: Failed, Failures: 1, Code: "error"}},
			"cooling": {finish(FinishNothing), Build{State: Cooling}},
			"pass":    {finish(FinishPass), Build{State: Pass}},
		} {
			must(t, t.rdb.Del(t.Context(), keys.V, keys.B()).Err())
			must(t, step.do())
			in, err := s.Inspect(t.Context(), "c", "k")
			must(t, err)
			got, ok := ParseBuild(in.Build.Value)
			if rest := got.RetryAt - in.Now; got.State == Failed && (rest <= 0 || rest > life) {
				t.Errorf("%s: the next load may begin in %v", name, rest)
			}
			got.RetryAt = 0
			step.want.Nonce = nonce
			if !ok || got != step.want || in.Build.TTL <= 0 {
				t.Errorf("%s: %q is read as %+v %v, want %+v", name, in.Build.Value, got, ok, step.want)
			}
		}
	})
}

func TestWhatNoScriptWroteIsNoBuildState(t *testing.T) {
	for _, text := range []string{
		"", " ", "L", "X 1 2", "L 0 1 2", "L 0 1 2 a b", "L 0 one 2 a", "F 1 2 3", "F 1 2 3 error more", "F 1 -2 3 error", "C 1", "C 1 2 3", "P 1 ",
		"C 1 99999999999999999999", "hello", "\xff\xfe",
	} {
		if b, ok := ParseBuild([]byte(text)); ok {
			t.Errorf("%q is read as %+v", text, b)
		}
	}
}

func TestInspectTellsWhateverStandsAtTheKeys(t *testing.T) {
	everywhere(t, func(t *world) {
		s := newStore(t.rdb)
		keys := s.Keys("c", "k")
		expect := func(what string, entry, build Raw) {
			t.Helper()
			from := t.rdb.Time(t.Context()).Val()
			in, err := s.Inspect(t.Context(), "c", "k")
			must(t, err)
			round := func(r Raw) string { return fmt.Sprintf("%s %q %v", r.Type, r.Value, r.TTL.Round(time.Minute)) }
			if round(in.Entry) != round(entry) || round(in.Build) != round(build) {
				t.Errorf("%s: got %+v", what, in)
			}
			if d := in.Now - time.Duration(from.UnixNano()); d.Abs() > time.Minute {
				t.Errorf("%s: the server's time is %v off", what, d)
			}
		}
		expect("nothing", Raw{}, Raw{})
		must(t, t.rdb.Set(t.Context(), keys.V, "text", time.Hour).Err())
		must(t, t.rdb.Set(t.Context(), keys.B(), "", 0).Err())
		expect("strings", Raw{"string", []byte("text"), time.Hour}, Raw{"string", nil, -1})
		must(t, t.rdb.Del(t.Context(), keys.V, keys.B()).Err())
		must(t, t.rdb.LPush(t.Context(), keys.V, "x").Err())
		must(t, t.rdb.HSet(t.Context(), keys.B(), "f", "v").Err())
		expect("other types", Raw{"list", nil, -1}, Raw{"hash", nil, -1})
	})
}

func TestInspectReadsNumbersAndBeginsNone(t *testing.T) {
	everywhere(t, func(t *world) {
		s := newStore(t.rdb)
		in, err := s.Inspect(t.Context(), "c", "k")
		must(t, err)
		tags, err := s.TagNumbers(t.Context(), "c", []string{"a", "b"})
		must(t, err)
		if in.Generation != 0 || tags[0] != math.MaxUint64 || tags[1] != tags[0] {
			t.Errorf("where there is nothing: generation %d, tags %v", in.Generation, tags)
		}
		if n := t.rdb.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("it wrote %d keys", n)
		}
		generation, err := s.Clear(t.Context(), "c", "1", 0)
		must(t, err)
		raised, err := s.RaiseTags(t.Context(), "c", "1", []string{"b"}, life, 0)
		must(t, err)
		in, err = s.Inspect(t.Context(), "c", "k")
		must(t, err)
		tags, err = s.TagNumbers(t.Context(), "c", []string{"a", "b"})
		must(t, err)
		if in.Generation != generation || in.Keys != s.Keys("c", "k") || tags[0] != raised || tags[1] != raised {
			t.Errorf("got %+v, tags %v; want generation %d and tags %d", in, tags, generation, raised)
		}
	})
}

// watched is a Watcher that keeps what it is told, in order.
type watched struct{ heard }

func (w watched) Beat(instance string)   { w.heard <- "beat " + instance }
func (w watched) Unknown(message string) { w.heard <- "unknown " + message }

func watching(tb testing.TB, s *Store, beats bool) watched {
	tb.Helper()
	w := watched{make(heard, 1000)}
	ctx, stop := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx, w, beats) }()
	tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			tb.Errorf("the watch ended with %v", err)
		}
	})
	w.expect(tb, "confirmed")
	return w
}

func TestAWatchHearsWhatComesOverTheBus(t *testing.T) {
	for _, beats := range []bool{false, true} {
		t.Run(fmt.Sprintf("beats %v", beats), func(t *testing.T) {
			rdb := testutil.StartRedis(t).Client(t)
			s := newStore(rdb)
			w := watching(t, s, beats)
			c := change(OpDelete)
			c.Key = "a key\nwith anything"
			_, err := s.Change(t.Context(), s.Keys(c.Cache, c.Key), c)
			must(t, err)
			w.expect(t, fmt.Sprintf("invalidated %q", Invalidation{Instance: "here", ID: c.ID, Op: c.Op, Cache: c.Cache, Key: c.Key}))
			must(t, rdb.Publish(t.Context(), s.channel, wakeUp("c", "k")).Err())
			w.expect(t, `woken "c" "k"`)
			generation, err := s.Clear(t.Context(), "c", "1", 0)
			must(t, err)
			w.expect(t, fmt.Sprintf("%+v", Cleared{"here", "1", "c", generation}))
			number, err := s.RaiseTags(t.Context(), "c", "1", []string{"a b"}, life, 0)
			must(t, err)
			w.expect(t, fmt.Sprintf("%+v", TagsRaised{"here", "1", "c", []string{"a b"}, number}))
			must(t, rdb.Publish(t.Context(), s.channel, "Z new").Err())
			w.expect(t, "unknown Z new")
			// Of another namespace, and no heartbeat.
			must(t, rdb.Publish(t.Context(), "other:bus", wakeUp("c", "k")).Err())
			must(t, rdb.Publish(t.Context(), s.namespace+":mine", "?").Err())
			must(t, rdb.Publish(t.Context(), s.namespace+":there", heartbeat).Err())
			must(t, rdb.Publish(t.Context(), s.channel, wakeUp("c", "end")).Err())
			if beats {
				w.expect(t, "beat there")
			}
			w.expect(t, `woken "c" "end"`)
		})
	}
}

// A subscription to which nothing comes is asked whether it is alive, and lives on.
func TestAWatchOutlivesSilence(t *testing.T) {
	virtually(t, func(t *world) {
		s := newStore(t.rdb)
		w := watching(t.T, s, false)
		time.Sleep(time.Hour)
		synctest.Wait()
		must(t, t.rdb.Publish(t.Context(), s.channel, wakeUp("c", "k")).Err())
		w.expect(t, `woken "c" "k"`)
	})
}

func TestAWatchTellsOfALossAndGoesOn(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testutil.Proxy){
		"cut":    (*testutil.Proxy).Cut,
		"frozen": (*testutil.Proxy).Freeze, // nobody says that the connection is gone
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testutil.StartRedis(t)
			proxy := testutil.NewProxy(t, server.Addr())
			s := newStore(testutil.NewClient(t, proxy.Addr(), func(o *redis.Options) { o.MaxRetries = -1 }))
			w := watching(t, s, false)
			lose(proxy)
			w.expect(t, "lost")
			proxy.Resume()
			proxy.Thaw()
			w.expect(t, "confirmed")
			must(t, server.Client(t).Publish(t.Context(), s.channel, wakeUp("c", "k")).Err())
			w.expect(t, `woken "c" "k"`)
		})
	}
}

func TestAWatchWithoutAServerEndsAtOnce(t *testing.T) {
	server := testutil.StartRedis(t)
	s := newStore(server.Client(t))
	server.Kill()
	if err := s.Watch(t.Context(), watched{}, false); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}
