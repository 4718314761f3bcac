package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// heard is a Listener that keeps what it is told, in order.
type heard chan string

func (h heard) Invalidated(i Invalidation) { h <- fmt.Sprintf("invalidated %q", i) }
func (h heard) Woken(cache, key string)    { h <- fmt.Sprintf("woken %q %q", cache, key) }
func (h heard) Lost(reason error)          { h <- "lost: " + reason.Error() }
func (h heard) Confirmed()                 { h <- "confirmed" }

// next is what was told next. "lost" stands for a loss for any reason.
func (h heard) expect(t *testing.T, want string) {
	t.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case got := <-h:
		if got != want && !(want == "lost" && strings.HasPrefix(got, "lost: ")) {
			t.Fatalf("the bus told %s, want %s", got, want)
		}
	case <-timer.C:
		t.Fatalf("the bus does not tell: %s", want)
	}
}

// eventually waits for want and lets everything else pass.
func (h heard) eventually(t *testing.T, want string) {
	t.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		select {
		case got := <-h:
			if strings.HasPrefix(got, want) {
				return
			}
		case <-timer.C:
			t.Fatalf("the bus does not tell: %s", want)
		}
	}
}

func listen(t *testing.T, s *Store) (heard, *Bus) {
	t.Helper()
	h := make(heard, 1000)
	bus := s.Listen(t.Context(), h)
	t.Cleanup(bus.Close)
	return h, bus
}

func TestChangesAndWakeUpsArriveWithAnyKey(t *testing.T) {
	everywhere(t, func(t *testing.T, rdb *redis.Client) {
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
			must(t, rdb.Del(t.Context(), keys.V, keys.B).Err())
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
	everywhere(t, func(t *testing.T, rdb *redis.Client) {
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
	everywhere(t, func(t *testing.T, rdb *redis.Client) {
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
		_, err := s.ServerNow(t.Context())
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
type deaf struct{ on *bool }

func (deaf) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if *d.on && cmd.Name() == "publish" {
			return nil
		}
		return next(ctx, cmd)
	}
}

func (deaf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestALossIsToldWithinTwoHeartbeats(t *testing.T) {
	virtually(t, func(t *testing.T, rdb *redis.Client) {
		var on bool
		rdb.AddHook(deaf{&on})
		s := newStore(rdb)
		h, bus := listen(t, s)
		h.expect(t, "confirmed")
		time.Sleep(10*heartbeatEvery + heartbeatEvery/2)
		if len(h) > 0 {
			t.Fatalf("with its heartbeats coming the bus told %s", <-h)
		}
		on = true
		start := time.Now()
		h.expect(t, "lost: "+errNoHeartbeat.Error())
		if d := time.Since(start); d > heartbeatGrace {
			t.Errorf("told after %v, want at most %v", d, heartbeatGrace)
		}
		on = false
		h.eventually(t, "confirmed")
		bus.Close()
	})
}

func TestALossMakesTheServersTimeUnknown(t *testing.T) {
	virtually(t, func(t *testing.T, rdb *redis.Client) {
		var on bool
		rdb.AddHook(deaf{&on})
		s := newStore(rdb)
		h, bus := listen(t, s)
		h.expect(t, "confirmed")
		_, err := s.ServerNow(t.Context())
		must(t, err)
		on = true
		h.expect(t, "lost: "+errNoHeartbeat.Error())
		if now, ok := s.clock.now(); ok {
			t.Errorf("after a loss the server's time is still %v", now)
		}
		bus.Close()
	})
}

// dialer lets a test choose, for each connection, how it is made.
type dialer struct {
	real func(context.Context, string, string) (net.Conn, error)
	make func() func(context.Context, string, string) (net.Conn, error) // nil = real
}

func (d *dialer) options(o *redis.Options) {
	d.real = o.Dialer
	o.MaxRetries = -1
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dial := d.real
		if d.make != nil {
			dial = d.make()
		}
		return dial(ctx, network, addr)
	}
}

// hanging is a dial that goes nowhere until its ctx ends.
func hanging(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// silent is a connection that takes everything and says nothing.
func silent(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer func() { _ = theirs.Close() }()
		for buf := make([]byte, 1024); ; {
			if _, err := theirs.Read(buf); err != nil {
				return
			}
		}
	}()
	return ours, nil
}

func refused(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }

func TestCloseEndsTheBusAtOnce(t *testing.T) {
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"subscribed": nil, "in a dial that hangs": hanging, "on a connection that is silent": silent, "between two dials": refused,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, client := testutil.NewBubbleRedis(t)
				d := &dialer{}
				rdb := client(d.options)
				if dial != nil {
					d.make = func() func(context.Context, string, string) (net.Conn, error) { return dial }
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

// After an error of the connection the client library dials anew before it tells.
func TestALossIsToldThoughTheNextDialHangs(t *testing.T) {
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){"hanging": hanging, "silent": silent, "refused": refused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client := testutil.NewBubbleRedis(t)
				d := &dialer{}
				s := newStore(client(d.options))
				h, bus := listen(t, s)
				h.expect(t, "confirmed")
				d.make = func() func(context.Context, string, string) (net.Conn, error) { return dial }
				start := time.Now()
				server.Close()
				h.expect(t, "lost")
				if took := time.Since(start); took > heartbeatGrace {
					t.Errorf("told after %v, want at most %v", took, heartbeatGrace)
				}
				bus.Close()
				time.Sleep(time.Minute) // the pool's own dial of a command connection times out
			})
		})
	}
}
