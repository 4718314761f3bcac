package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// heard is a Listener that keeps what it is told, in order.
type heard chan string

func (h heard) Invalidated(i Invalidation) { h <- fmt.Sprintf("invalidated %q", i) }
func (h heard) Cleared(m Cleared)          { h <- fmt.Sprintf("%+v", m) }
func (h heard) TagsRaised(m TagsRaised)    { h <- fmt.Sprintf("%+v", m) }
func (h heard) Woken(cache, key string)    { h <- fmt.Sprintf("woken %q %q", cache, key) }
func (h heard) Lost(reason error)          { h <- "lost: " + reason.Error() }
func (h heard) Confirmed()                 { h <- "confirmed" }

func (heard) Caches() ([]string, func([]uint64)) { return nil, func([]uint64) {} }
func (heard) Remembers() bool                    { return false }
func (heard) SameMasters(time.Time)              {}
func (heard) OtherMaster()                       {}

// next is what was told next. "lost" stands for a loss for any reason.
func (h heard) expect(tb testing.TB, want string) {
	tb.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case got := <-h:
		if want == "lost" && strings.HasPrefix(got, "lost: ") {
			return
		}
		if got != want {
			tb.Fatalf("the bus told %s, want %s", got, want)
		}
	case <-timer.C:
		tb.Fatalf("the bus does not tell: %s", want)
	}
}

// eventually waits for want and lets everything else pass.
func (h heard) eventually(tb testing.TB, want string) {
	tb.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		select {
		case got := <-h:
			if strings.HasPrefix(got, want) {
				return
			}
		case <-timer.C:
			tb.Fatalf("the bus does not tell: %s", want)
		}
	}
}

func listen(tb testing.TB, s *Store) (heard, *Bus) {
	tb.Helper()
	h := make(heard, 1000)
	bus := s.Listen(tb.Context(), h)
	tb.Cleanup(bus.Close)
	return h, bus
}

func TestChangesAndWakeUpsArriveWithAnyKey(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		h, bus := listen(t, s)
		defer bus.Close()
		h.expect(t, "confirmed")
		for n, key := range append(hostileKeys(), "a b  c ", " ", "I x y", "W x") {
			keys := s.Keys("c", key)
			for _, op := range []Op{OpDelete, OpExpire, OpSet} {
				c := setChange(anEntry("version1"))
				c.Op, c.Key, c.ID = op, key, fmt.Sprintf("%016x", n)
				_, err := s.Change(t.Context(), keys, c)
				must(t, err)
				h.expect(t, fmt.Sprintf("invalidated %q", Invalidation{Instance: "here", ID: c.ID, Op: op, Cache: "c", Key: key}))
			}
			must(t, rdb.Del(t.Context(), keys.V, keys.B()).Err())
			claim := acquired(t, s, keys, "a")
			_, err := s.Acquire(t.Context(), keys, Acquire{Owner: "b", TTL: life, Wait: true})
			must(t, err)
			c := commitUnder(claim, anEntry("version2"))
			c.Key = key
			_, err = s.Commit(t.Context(), keys, c)
			must(t, err)
			h.expect(t, fmt.Sprintf("woken %q %q", "c", key))
		}
	})
}

func TestMessagesOfUnknownFormAreIgnored(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		h, bus := listen(t, s)
		defer bus.Close()
		h.expect(t, "confirmed")
		for _, junk := range []string{"", " ", "I", "I ", "I a b", "I a b c d", "W", "W ", "W cache", "X y z", "i a b c d e", "\x00", "\xff\xfe", strings.Repeat("I", 1<<16)} {
			must(t, rdb.Publish(t.Context(), s.channel, junk).Err())
		}
		must(t, rdb.Publish(t.Context(), s.channel, "W c key").Err())
		h.expect(t, `woken "c" "key"`)
	})
}

func TestOtherNamespacesAreNotHeard(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s, other := newStore(rdb), NewStore(rdb, "tes", "here", time.Second)
		h, bus := listen(t, s)
		defer bus.Close()
		h.expect(t, "confirmed")
		_, err := other.Change(t.Context(), other.Keys("c", "k"), change(OpDelete))
		must(t, err)
		must(t, rdb.Publish(t.Context(), s.channel, "W c key").Err())
		h.expect(t, `woken "c" "key"`)
	})
}

// A message between the two acks is delivered, and nothing is confirmed yet.
func TestTheSubscriptionIsConfirmedByBothAcks(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	s := newStore(testutil.NewClient(t, proxy.Addr()))
	isAck := func(frame []byte) bool {
		return strings.Contains(string(frame), "\r\nsubscribe\r\n") && strings.Contains(string(frame), s.instance)
	}
	proxy.DropMessages(isAck, 1)
	h, bus := listen(t, s)
	defer bus.Close()
	direct := server.Client(t)
	testutil.Eventually(t, time.Minute, func() bool {
		return direct.Publish(t.Context(), s.channel, "W c key").Val() > 0 && len(h) > 0
	}, "a message is heard")
	h.expect(t, `woken "c" "key"`)
}

func TestAKilledSubscriptionIsALossAndComesBack(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	direct := server.Client(t)
	s := newStore(server.Client(t))
	h, bus := listen(t, s)
	defer bus.Close()
	for range 3 {
		h.expect(t, "confirmed")
		_, err := s.ServerNow(t.Context(), Keys{})
		must(t, err)
		must(t, direct.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
		h.expect(t, "lost")
	}
	h.expect(t, "confirmed")
	must(t, direct.Publish(t.Context(), s.channel, "W c key").Err())
	h.expect(t, `woken "c" "key"`)
}

func TestARestartedServerIsALossAndComesBack(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	s := newStore(server.Client(t))
	h, bus := listen(t, s)
	defer bus.Close()
	h.expect(t, "confirmed")
	server.Restart()
	h.expect(t, "lost")
	h.eventually(t, "confirmed")
	_, err := s.Change(t.Context(), s.Keys("c", "k"), change(OpDelete))
	must(t, err)
	h.expect(t, fmt.Sprintf("invalidated %q", Invalidation{Instance: "here", ID: "1", Op: OpDelete, Cache: "c", Key: "k"}))
}

func TestHeartbeatsThatDoNotComeBackAreALoss(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	s := newStore(testutil.NewClient(t, proxy.Addr()))
	h, bus := listen(t, s)
	defer bus.Close()
	h.expect(t, "confirmed")
	proxy.DropRequests(testutil.Command("publish"), -1)
	h.expect(t, "lost: "+errNoHeartbeat.Error())
	proxy.Reset()
	h.eventually(t, "confirmed")
}

// deaf is a client whose PUBLISH goes nowhere while it is set.
type deaf struct{ on *atomic.Bool }

func (deaf) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if d.on.Load() && cmd.Name() == "publish" {
			return nil
		}
		return next(ctx, cmd)
	}
}

func (d deaf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if d.on.Load() {
			cmds = slices.DeleteFunc(slices.Clone(cmds), func(cmd redis.Cmder) bool { return cmd.Name() == "publish" })
		}
		if len(cmds) == 0 {
			return nil
		}
		return next(ctx, cmds)
	}
}

func TestALossIsToldWithinTwoHeartbeats(t *testing.T) {
	virtually(t, func(t *world) {
		rdb := t.rdb
		var on atomic.Bool
		rdb.AddHook(deaf{&on})
		s := newStore(rdb)
		h, bus := listen(t, s)
		h.expect(t, "confirmed")
		time.Sleep(10*heartbeatEvery + heartbeatEvery/2)
		if len(h) > 0 {
			t.Fatalf("with its heartbeats coming the bus told %s", <-h)
		}
		on.Store(true)
		start := time.Now()
		h.expect(t, "lost: "+errNoHeartbeat.Error())
		if d := time.Since(start); d > heartbeatGrace {
			t.Errorf("told after %v, want at most %v", d, heartbeatGrace)
		}
		on.Store(false)
		h.eventually(t, "confirmed")
		bus.Close()
	})
}

func TestALossMakesTheServersTimeUnknown(t *testing.T) {
	virtually(t, func(t *world) {
		rdb := t.rdb
		var on atomic.Bool
		rdb.AddHook(deaf{&on})
		s := newStore(rdb)
		h, bus := listen(t, s)
		h.expect(t, "confirmed")
		_, err := s.ServerNow(t.Context(), Keys{})
		must(t, err)
		on.Store(true)
		h.expect(t, "lost: "+errNoHeartbeat.Error())
		if now, ok := s.clockOf(t.Context(), Keys{}).now(); ok {
			t.Errorf("after a loss the server's time is still %v", now)
		}
		bus.Close()
	})
}

type dial func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer dials as the test says, or else as the client would.
type dialer struct{ instead atomic.Pointer[dial] }

func (d *dialer) options(o *redis.Options) {
	usual := o.Dialer
	o.MaxRetries = -1
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if instead := d.instead.Load(); instead != nil {
			return (*instead)(ctx, network, addr)
		}
		return usual(ctx, network, addr)
	}
}

// hanging is a dial that goes nowhere until its ctx ends.
func hanging(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func refused(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }

func TestCloseEndsTheBusAtOnce(t *testing.T) {
	for name, how := range map[string]dial{
		"subscribed": nil, "in a dial that hangs": hanging, "between two dials": refused,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, client := testutil.NewBubbleRedis(t)
				d := &dialer{}
				rdb := client(d.options)
				if how != nil {
					d.instead.Store(&how)
				}
				s := newStore(rdb)
				_, bus := listen(t, s)
				time.Sleep(300 * time.Millisecond)
				start := time.Now()
				bus.Close()
				if took := time.Since(start); took > 0 {
					t.Errorf("Close took %v of virtual time, want none", took)
				}
				bus.Close() // and again
				must(t, s.Wait(t.Context()))
				time.Sleep(time.Minute) // the pool's own dial of a command connection times out
			})
		})
	}
}

// A server that accepts a connection and says nothing holds the client library as
// long as its timeouts are.
func TestASilentServerIsALossAndDoesNotHinderClose(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	endless := func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout, o.MaxRetries = -1, -1, -1 }
	s := newStore(testutil.NewClient(t, proxy.Addr(), endless))
	h, bus := listen(t, s)
	h.expect(t, "confirmed")
	proxy.Freeze()
	must(t, server.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	h.expect(t, "lost") // of the old connection, while the new one hangs
	bus.Close()
	proxy.Cut()
	proxy.Thaw()
	must(t, s.Wait(t.Context()))
}

// After an error of the connection the client library dials anew before it tells.
func TestALossIsToldThoughTheNextDialHangs(t *testing.T) {
	for name, how := range map[string]dial{"hanging": hanging, "refused": refused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client := testutil.NewBubbleRedis(t)
				d := &dialer{}
				s := newStore(client(d.options))
				h, bus := listen(t, s)
				h.expect(t, "confirmed")
				synctest.Wait() // miniredis may not be closed while somebody dials
				d.instead.Store(&how)
				start := time.Now()
				server.Close()
				h.expect(t, "lost")
				if took := time.Since(start); took > heartbeatGrace {
					t.Errorf("told after %v, want at most %v", took, heartbeatGrace)
				}
				bus.Close()
				s.Stop()
				time.Sleep(time.Minute) // the pool's own dial of a command connection times out
			})
		})
	}
}

// A dial of the client may hang in a Dialer that does not know when to end. The bus must
// not begin one after the other.
func TestSubscriptionsThatHangAreCountedAndBounded(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	begun := make(chan struct{}, 1)
	var d dialer
	stuck := dial(func(context.Context, string, string) (net.Conn, error) {
		poke(begun)
		<-release
		return nil, net.ErrClosed
	})
	d.instead.Store(&stuck)
	rdb := testutil.NewClient(t, "nowhere", d.options)
	quiet := new(atomic.Bool)
	quiet.Store(true)
	rdb.AddHook(deaf{quiet}) // heartbeats dial nothing
	s := newStore(rdb)
	_, bus := listen(t, s)
	<-begun
	bus.Close()
	testutil.Eventually(t, time.Minute, func() bool { return s.server.hung.Load() == 1 }, "one counts as hung")
	s.server.hung.Add(4*maxHung - 1)
	h, bus := listen(t, s)
	h.expect(t, "lost: "+ErrDown.Error())
	bus.Close()
	s.server.hung.Add(1 - 4*maxHung)
	close(release)
	must(t, s.Wait(t.Context()))
	if n := s.server.hung.Load(); n != 0 {
		t.Errorf("%d count as hung when all have ended", n)
	}
}
