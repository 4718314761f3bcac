package remote

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
)

// isScript matches requests that run a script.
func isScript() testutil.Match { return testutil.Command("eval", "evalsha") }

// impatient clients give up on a reply and send again by themselves, well before
// the store does; patient ones leave it to the store.
func clients() map[string]func(*redis.Options) {
	return map[string]func(*redis.Options){
		"impatient client": func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond },
		"patient client":   func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 },
	}
}

// wire is a store behind a proxy, and a client of the server itself.
type wire struct {
	*testing.T
	store  *Store
	proxy  *testutil.Proxy
	direct *redis.Client
}

// behindProxy runs a test with each kind of client behind a proxy.
func behindProxy(t *testing.T, f func(w *wire)) {
	t.Helper()
	for name, options := range clients() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testutil.StartRedis(t)
			proxy := testutil.NewProxy(t, server.Addr())
			s := newStore(testutil.NewClient(t, proxy.Addr(), options))
			must(t, s.Load(t.Context()))
			f(&wire{t, s, proxy, server.Client(t)})
			proxy.Reset()
			proxy.Cut() // what still waits for a reply is told that there is none
			must(t, s.Wait(t.Context()))
		})
	}
}

func TestAGrantWhoseReplyWasLostIsKnownAsOurs(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		s, proxy, direct := t.store, t.proxy, t.direct
		keys := s.Keys("c", "k")
		sent := proxy.Count(isScript())
		proxy.SwallowReplies(isScript(), 1)
		claim := acquired(t, s, keys, "a")
		if n := sent.Load(); n != 2 {
			t.Errorf("acquire was sent %d times, want twice", n)
		}
		if b, want := standing(t, direct, keys.B()), "L 0 "+nonce(claim)+" 0 a"; b != want {
			t.Errorf("the lease is %q, want %q", b, want)
		}
		stored, err := s.Commit(t.Context(), keys, commitUnder(claim, anEntry("version1")))
		if stored != Done || err != nil {
			t.Errorf("commit under it: %v, %v, want Done", stored, err)
		}
	})
}

func TestACommitWhoseReplyWasLostIsDone(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		s, proxy, direct := t.store, t.proxy, t.direct
		keys := s.Keys("c", "k")
		claim := acquired(t, s, keys, "a")
		proxy.SwallowReplies(isScript(), 1)
		stored, err := s.Commit(t.Context(), keys, commitUnder(claim, anEntry("version1")))
		if stored != Done || err != nil || kindOf(t, direct, keys) != "C" || versionOf(standing(t, direct, keys.V)) != "version1" {
			t.Errorf("commit: %v, %v, leaves %q and %q", stored, err, standing(t, direct, keys.B()), standing(t, direct, keys.V))
		}
	})
}

func TestAFailureWhoseReplyWasLostCountsOnce(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		s, proxy, direct := t.store, t.proxy, t.direct
		keys := s.Keys("c", "k")
		claim := acquired(t, s, keys, "a")
		proxy.SwallowReplies(isScript(), 1)
		_, err := s.Finish(t.Context(), keys, finishUnder(claim, FinishFailed))
		must(t, err)
		if b, want := standing(t, direct, keys.B()), "F "+nonce(claim)+" 1 "; !strings.HasPrefix(b, want) {
			t.Errorf("finish leaves %q, want %q…", b, want)
		}
	})
}

func TestASetIsSentOnce(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		s, proxy, direct := t.store, t.proxy, t.direct
		keys := s.Keys("c", "k")
		sent := proxy.Count(isScript())
		proxy.SwallowReplies(isScript(), 1)
		if _, err := s.Change(t.Context(), keys, setChange(anEntry("version1"))); err == nil {
			t.Error("a set without a reply says it is done")
		}
		if v := versionOf(standing(t, direct, keys.V)); v != "version1" {
			t.Errorf("version %q is stored; the reply, not the request, was lost", v)
		}
		must(t, direct.Del(t.Context(), keys.V).Err())
		proxy.DropRequests(isScript(), 1)
		if _, err := s.Change(t.Context(), keys, setChange(anEntry("version2"))); err == nil {
			t.Error("a set that never arrived says it is done")
		}
		if v := standing(t, direct, keys.V); v != "" {
			t.Errorf("%q is stored", v)
		}
		if n := sent.Load(); n != 2 {
			t.Errorf("two sets were sent %d times", n)
		}
	})
}

func TestADeleteIsSentUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		s, proxy, direct := t.store, t.proxy, t.direct
		keys := s.Keys("c", "k")
		_, err := s.Change(t.Context(), keys, setChange(anEntry("version1")))
		must(t, err)
		sent := proxy.Count(isScript())
		proxy.DropRequests(isScript(), 1)
		stored, err := s.Change(t.Context(), keys, change(OpDelete))
		if stored != Done || err != nil || standing(t, direct, keys.V) != "" || sent.Load() != 2 {
			t.Errorf("delete: %v, %v, sent %d times, leaves %q", stored, err, sent.Load(), standing(t, direct, keys.V))
		}
	})
}

func TestEveryStepMayArriveTwice(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		s, proxy, direct := t.store, t.proxy, t.direct
		proxy.DuplicateRequests(isScript(), -1)
		keys := s.Keys("c", "k")
		claim := acquired(t, s, keys, "a")
		must(t, s.Leases().Renew(t.Context(), claim, life))
		if stored, err := s.Commit(t.Context(), keys, commitUnder(claim, anEntry("version1"))); stored != Done || err != nil {
			t.Errorf("commit: %v, %v, want Done", stored, err)
		}
		must(t, direct.Del(t.Context(), keys.V, keys.B()).Err())
		claim = acquired(t, s, keys, "b")
		if held, err := s.Finish(t.Context(), keys, finishUnder(claim, FinishPass)); !held || err != nil {
			t.Errorf("finish: %v, %v, want true", held, err)
		}
		if stored, err := s.Change(t.Context(), keys, change(OpDelete)); stored != Done || err != nil || kindOf(t, direct, keys) != "P" {
			t.Errorf("delete: %v, %v, leaves %q", stored, err, standing(t, direct, keys.B()))
		}
	})
}

// A copy that the network kept back must not take a lease for a caller that has
// long gone, nor undo what was stored since.
func TestACopyThatArrivesAfterItsTimeDoesNothing(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	s := NewStore(testutil.NewClient(t, proxy.Addr(), clients()["patient client"]), "test", "here", 200*time.Millisecond)
	direct := server.Client(t)
	must(t, s.Load(t.Context()))
	_, err := s.ServerNow(t.Context(), Keys{})
	must(t, err)
	late := map[string]func(keys Keys){
		"acquire": func(keys Keys) { acquired(t, s, keys, "a") },
		"delete": func(keys Keys) {
			_, err := s.Change(t.Context(), keys, change(OpDelete))
			must(t, err)
		},
	}
	for name, call := range late {
		keys := s.Keys("c", name)
		ran := server.CommandStats()["evalsha"]
		release := proxy.HoldRequests(isScript(), 1)
		call(keys)
		// Since then the key was rebuilt by somebody, or deleted and forgotten.
		must(t, direct.Del(t.Context(), keys.B()).Err())
		if name == "delete" {
			must(t, direct.Set(t.Context(), keys.V, anEntry("version2"), life).Err())
		}
		gone := direct.Time(t.Context()).Val().Add(2 * s.timeout)
		testutil.Eventually(t, time.Minute, func() bool { return direct.Time(t.Context()).Val().After(gone) }, "the late copy's time is over")
		release()
		testutil.Eventually(t, time.Minute, func() bool { return server.CommandStats()["evalsha"] == ran+2 }, "the late copy has arrived")
		if b := standing(t, direct, keys.B()); b != "" {
			t.Errorf("a late %s leaves the build key %q", name, b)
		}
		if v := versionOf(standing(t, direct, keys.V)); name == "delete" && v != "version2" {
			t.Errorf("a late delete leaves version %q", v)
		}
	}
	proxy.Cut()
	must(t, s.Wait(t.Context()))
}

func TestEveryStepWorksAfterTheScriptsWereFlushed(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		must(t, s.Load(t.Context()))
		flush := func() {
			t.Helper()
			must(t, rdb.ScriptFlush(t.Context()).Err())
		}
		keys := s.Keys("c", "k")
		flush()
		claim := acquired(t, s, keys, "a")
		flush()
		must(t, s.Leases().Renew(t.Context(), claim, life))
		flush()
		if stored, err := s.Commit(t.Context(), keys, commitUnder(claim, anEntry("version1"))); stored != Done || err != nil {
			t.Errorf("commit: %v, %v", stored, err)
		}
		for _, op := range []Op{OpExpire, OpDelete, OpSet} {
			c := setChange(anEntry("version2"))
			c.Op = op
			flush()
			if stored, err := s.Change(t.Context(), keys, c); stored != Done || err != nil {
				t.Errorf("%s: %v, %v", op, stored, err)
			}
		}
		must(t, rdb.Del(t.Context(), keys.V, keys.B()).Err())
		flush()
		claim = acquired(t, s, keys, "b")
		flush()
		if held, err := s.Finish(t.Context(), keys, finishUnder(claim, FinishNothing)); !held || err != nil {
			t.Errorf("finish: %v, %v", held, err)
		}
	})
}

// calls are all calls of a store, each with the tries it has.
func calls(s *Store, keys Keys) map[string]struct {
	tries int
	call  func(ctx context.Context) error
} {
	claim := lock.Claim{Name: keys.B(), Owner: "a", Token: 1}
	type tried = struct {
		tries int
		call  func(ctx context.Context) error
	}
	return map[string]tried{
		"load": {1, s.Load},
		"time": {1, func(ctx context.Context) error { _, err := s.ServerNow(ctx, Keys{}); return err }},
		"get":  {1, func(ctx context.Context) error { _, _, err := s.Get(ctx, keys); return err }},
		"acquire": {2, func(ctx context.Context) error {
			_, err := s.Acquire(ctx, keys, Acquire{Owner: "a", TTL: life})
			return err
		}},
		"renew":  {1, func(ctx context.Context) error { return s.Leases().Renew(ctx, claim, life) }},
		"commit": {2, func(ctx context.Context) error { _, err := s.Commit(ctx, keys, commitUnder(claim, nil)); return err }},
		"finish": {2, func(ctx context.Context) error {
			_, err := s.Finish(ctx, keys, finishUnder(claim, FinishFailed))
			return err
		}},
		"delete":    {2, func(ctx context.Context) error { _, err := s.Change(ctx, keys, change(OpDelete)); return err }},
		"read many": {1, func(ctx context.Context) error { return s.ReadMany(ctx, []Keys{keys})[0].Err }},
		"acquire many": {2, func(ctx context.Context) error {
			return s.AcquireMany(ctx, []Keys{keys}, []Acquire{{Owner: "a", TTL: life}})[0].Err
		}},
		"commit many": {2, func(ctx context.Context) error {
			return s.CommitMany(ctx, []Keys{keys}, []Commit{commitUnder(claim, nil)})[0].Err
		}},
		"finish many": {2, func(ctx context.Context) error {
			return s.FinishMany(ctx, []Keys{keys}, []Finish{finishUnder(claim, FinishFailed)})[0].Err
		}},
		"set": {1, func(ctx context.Context) error { _, err := s.Change(ctx, keys, setChange(nil)); return err }},
	}
}

// mute returns a client without timeouts of a server that takes what it is sent
// and never answers. stop ends its connections.
func mute(t *testing.T) (rdb *redis.Client, stop func()) {
	t.Helper()
	var mu sync.Mutex
	var conns []net.Conn
	_, client := testutil.NewBubbleRedis(t)
	rdb = client(func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = -1, -1, false
		o.Dialer = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				for buf := make([]byte, 1024); ; {
					if _, err := theirs.Read(buf); err != nil {
						return
					}
				}
			}()
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, theirs)
			return ours, nil
		}
	})
	return rdb, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

func TestEachTryEndsAtTheTimeoutThoughTheServerIsMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, stop := mute(t)
		var stores []*Store
		for name := range calls(newStore(rdb), Keys{}) {
			s := newStore(rdb) // which does not know yet what the server is like
			stores = append(stores, s)
			c := calls(s, s.Keys("c", "k"))[name]
			start := time.Now()
			err := c.call(t.Context())
			if d, want := time.Since(start), time.Duration(c.tries)*s.timeout; err == nil || d != want {
				t.Errorf("%s ended after %v with %v, want an error after %v", name, d, err, want)
			}
			s.revive()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			start = time.Now()
			if err := c.call(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Millisecond {
				t.Errorf("%s of a caller with a millisecond ended after %v with %v", name, time.Since(start), err)
			}
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
			if err := s.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait says %v while commands are in flight", err)
			}
			cancel()
		}
		stop()
		for _, s := range stores {
			must(t, s.Wait(t.Context()))
		}
	})
}

func TestCallsReturnWhileTheServerIsFrozen(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 })
	s := NewStore(rdb, "test", "here", 50*time.Millisecond)
	must(t, s.Load(t.Context()))
	server.Freeze()
	for name, c := range calls(s, s.Keys("c", "k")) {
		s.revive()
		if err := c.call(t.Context()); err == nil {
			t.Errorf("%s of a frozen server succeeds", name)
		}
	}
	server.Thaw()
	must(t, s.Wait(t.Context()))
}

func TestAnErrorOfTheServerIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := testutil.NewBubbleRedis(t)
		rdb := client()
		s := newStore(rdb)
		must(t, s.Load(t.Context()))
		var sent int
		rdb.AddHook(refusing{&sent})
		for name, c := range calls(s, s.Keys("c", "k")) {
			sent = 0
			if err := c.call(t.Context()); err == nil || sent != 1 {
				t.Errorf("%s: %v, sent %d times, want an error after one", name, err, sent)
			}
		}
	})
}

// refusing is a server that answers everything with an error.
type refusing struct{ sent *int }

// refusal is an error of the kind that a server's reply carries.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

func (refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r refusing) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		*r.sent++
		cmd.SetErr(refusal("ERR no"))
		return cmd.Err()
	}
}

func (r refusing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		*r.sent++
		for _, cmd := range cmds {
			cmd.SetErr(refusal("READONLY"))
		}
		return cmds[0].Err()
	}
}
