package remote

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// ahead is how far the servers of these tests are from this process's wall clock.
const ahead = 24 * time.Hour

func TestTheServersTimeIsLearnedFromReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := testutil.NewBubbleRedis(t)
		server.SetTime(time.Now().Add(ahead))
		s := newStore(client())
		if _, ok := s.clockOf(t.Context(), Keys{}).now(); ok {
			t.Error("the time is known before any reply")
		}
		_, err := s.Change(t.Context(), s.Keys("c", "k"), change(OpDelete))
		must(t, err)
		time.Sleep(time.Second)
		now, ok := s.clockOf(t.Context(), Keys{}).now()
		if want := time.Duration(time.Now().Add(ahead).UnixNano()); !ok || now != want {
			t.Errorf("the server's time is %v, %v, want %v", now, ok, want)
		}
	})
}

func TestServerNowAsksOnlyIfNoReplyToldTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := testutil.NewBubbleRedis(t)
		s := newStore(client())
		asked := func(wantCommands int) {
			t.Helper()
			before := server.CommandCount()
			now, err := s.ServerNow(t.Context(), Keys{})
			must(t, err)
			if want := time.Duration(time.Now().UnixNano()); now != want {
				t.Errorf("ServerNow is %v, want %v", now, want)
			}
			if n := server.CommandCount() - before; n != wantCommands {
				t.Errorf("it took %d commands, want %d", n, wantCommands)
			}
		}
		must(t, s.rdb.Ping(t.Context()).Err()) // connects
		asked(1)
		asked(0)
		time.Sleep(maxOffsetAge)
		asked(0)
		time.Sleep(time.Microsecond)
		asked(1)
		s.forgetClocks()
		asked(1)
	})
}

func TestServerTimeIsOfItsMomentHoweverLongTheServerTakesToTellIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, client := testutil.NewBubbleRedis(t)
		s := newStore(client())
		s.CountFrom(time.Now().Add(-time.Hour))
		must(t, s.rdb.Ping(t.Context()).Err()) // connects
		at, want := time.Hour, time.Duration(time.Now().UnixNano())
		m.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
			time.Sleep(s.timeout / 4)
			return false
		})
		for _, how := range []string{"asked for", "known"} {
			got, _, err := s.ServerTime(t.Context(), Keys{}, at)
			must(t, err)
			if off := (got - want).Abs(); off > s.timeout/8 { // half a round trip
				t.Errorf("%s: it is off by %v", how, off)
			}
		}
	})
}

func TestServerNowOfADeadServerIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := testutil.NewBubbleRedis(t)
		s := newStore(client())
		defer s.Stop()
		server.SetError("LOADING not yet")
		if now, err := s.ServerNow(t.Context(), Keys{}); err == nil || now != 0 {
			t.Errorf("ServerNow is %v, %v, want an error", now, err)
		}
	})
}

func TestDurationsAreCountedOnTheMonotonicClock(t *testing.T) {
	s := NewStore(redis.NewClient(&redis.Options{}), "test", "here", time.Second)
	defer func() { must(t, s.rdb.Close()) }()
	if !strings.Contains(s.clockOf(t.Context(), Keys{}).start.String(), " m=") {
		t.Errorf("the clock starts at %v, which has no monotonic reading: a jump of the wall clock would move it", s.clockOf(t.Context(), Keys{}).start)
	}
}

func TestATighterSampleOutlivesNewerLooseOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock{start: time.Now()}
		// sample is a reply that says the server is ahead by offset, half a trip after sent.
		sample := func(offset, trip time.Duration) {
			sent := c.mono()
			time.Sleep(trip)
			c.observe((sent + trip/2 + offset).Microseconds(), sent)
		}
		estimate := func(want, slack time.Duration) {
			t.Helper()
			now, ok := c.now()
			if got := now - c.mono(); !ok || got != want || c.slack() != slack {
				t.Errorf("the server is ahead by %v ± %v, %v, want %v ± %v", got, c.slack(), ok, want, slack)
			}
		}
		sample(time.Hour, 100*time.Millisecond)
		estimate(time.Hour, 50*time.Millisecond)
		sample(time.Hour+time.Millisecond, 10*time.Millisecond) // tighter: taken
		estimate(time.Hour+time.Millisecond, 5*time.Millisecond)
		sample(time.Hour+3*time.Millisecond, 20*time.Millisecond) // looser: not
		estimate(time.Hour+time.Millisecond, 5*time.Millisecond)
		time.Sleep(betterFor)
		sample(time.Hour+2*time.Millisecond, 20*time.Millisecond) // looser, but the other is old
		estimate(time.Hour+2*time.Millisecond, 10*time.Millisecond)
		sample(3*time.Hour, time.Second) // looser, but both cannot be right: the server's clock was set
		estimate(3*time.Hour, time.Second/2)
	})
}

func TestARequestIsVoidOnceItsCallerHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := testutil.NewBubbleRedis(t)
		s := newStore(client())
		keys := s.Keys("c", "k")
		if s.notAfter(s.clockOf(t.Context(), keys)) != "" {
			t.Errorf("notAfter is %q before the server's time is known", s.notAfter(s.clockOf(t.Context(), keys)))
		}
		_, err := s.ServerNow(t.Context(), Keys{})
		must(t, err)
		// The server's clock jumps: what the store believes of it is wrong by an hour.
		server.SetTime(time.Now().Add(time.Hour))
		commands := server.CommandCount()
		f, err := s.Acquire(t.Context(), keys, Acquire{Owner: "a", TTL: life})
		must(t, err)
		if n := server.CommandCount() - commands; f.State != Granted || n < 2 {
			t.Errorf("acquire found %+v with %d commands, want a grant by the second after a void first", f, n)
		}
		server.SetTime(time.Now().Add(2 * time.Hour))
		stored, err := s.Change(t.Context(), keys, setChange(anEntry("version1")))
		must(t, err)
		if stored != Done || standing(t, client(), keys.V) == "" {
			t.Errorf("set: %v, want it done by the second after a void first", stored)
		}
	})
}
