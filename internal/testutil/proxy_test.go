package testutil_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// patient and hasty clients try once. A hasty one is for commands whose reply is
// not to come: it gives up early, though not so early that a busy machine could
// keep it from sending.
func patient(t *testing.T, addr string) *redis.Client {
	t.Helper()
	return testutil.NewClient(t, addr, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
}

const haste = 500 * time.Millisecond

func hasty(t *testing.T, addr string) *redis.Client {
	t.Helper()
	return testutil.NewClient(t, addr, func(o *redis.Options) {
		o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, haste
	})
}

// proxied returns a server's proxy and a client that goes past it.
func proxied(t *testing.T) (*testutil.Proxy, *redis.Client) {
	t.Helper()
	r := testutil.StartRedis(t)
	return testutil.NewProxy(t, r.Addr()), r.Client(t)
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

func TestAProxyForwardsEveryKindOfReply(t *testing.T) {
	for name, protocol := range map[string]int{"RESP2": 2, "RESP3": 3} {
		t.Run(name, func(t *testing.T) {
			r := testutil.StartRedis(t)
			p := testutil.NewProxy(t, r.Addr())
			rdb := testutil.NewClient(t, p.Addr(), func(o *redis.Options) { o.Protocol = protocol })
			ctx := t.Context()
			must(t, rdb.HSet(ctx, "h", "field", "line\r\nline", "empty", "").Err())
			must(t, rdb.SAdd(ctx, "s", "a", "b").Err())
			if got := rdb.HGetAll(ctx, "h").Val(); got["field"] != "line\r\nline" || len(got) != 2 {
				t.Errorf("a map arrives as %q", got)
			}
			if got := rdb.SMembers(ctx, "s").Val(); len(got) != 2 {
				t.Errorf("a set arrives as %q", got)
			}
			if err := rdb.Get(ctx, "absent").Err(); !errors.Is(err, redis.Nil) {
				t.Errorf("a null arrives as %v", err)
			}
			nested, err := rdb.Eval(ctx, "return {1, {'two', {}}, false}", nil).Slice()
			if err != nil || len(nested) != 3 {
				t.Errorf("nested arrays arrive as %v, %v", nested, err)
			}
			if err := rdb.Incr(ctx, "h").Err(); !redis.HasErrorPrefix(err, "WRONGTYPE") {
				t.Errorf("an error arrives as %v", err)
			}
			big := make([]byte, 1<<20)
			must(t, rdb.Set(ctx, "big", big, 0).Err())
			if got, _ := rdb.Get(ctx, "big").Bytes(); len(got) != len(big) {
				t.Errorf("of %d bytes %d arrive", len(big), len(got))
			}
			if got := p.Commands(); got["get"] != 2 || got["eval"] != 1 || p.Calls() != 9 {
				t.Errorf("of 9 commands the proxy counted %d: %v", p.Calls(), got)
			}
		})
	}
}

func TestASwallowedReplyLeavesTheCommandApplied(t *testing.T) {
	t.Parallel()
	p, direct := proxied(t)
	rdb := hasty(t, p.Addr())
	p.SwallowReplies(testutil.Command("SET"), 1)
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); !isTimeout(err) {
		t.Errorf("SET with its reply swallowed returns %v, want a timeout", err)
	}
	if got := direct.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("the server has %q, want v: the command was to be applied", got)
	}
	must(t, patient(t, p.Addr()).Set(t.Context(), "k", "w", 0).Err())
}

func TestASwallowedReplyInAPipelineIsNotTakenForAnother(t *testing.T) {
	t.Parallel()
	p, direct := proxied(t)
	p.SwallowReplies(testutil.Containing("second"), 1)
	pipe := hasty(t, p.Addr()).Pipeline()
	first, second, third := pipe.Incr(t.Context(), "first"), pipe.Incr(t.Context(), "second"), pipe.IncrBy(t.Context(), "third", 7)
	if _, err := pipe.Exec(t.Context()); !isTimeout(err) {
		t.Errorf("the pipeline returns %v, want a timeout", err)
	}
	if first.Val() != 1 || second.Val() != 0 || third.Val() != 0 {
		t.Errorf("replies are %d, %d, %d, want 1 and nothing after it", first.Val(), second.Val(), third.Val())
	}
	if got := direct.Get(t.Context(), "third").Val(); got != "7" {
		t.Errorf("the pipeline's last command left %q, want 7: it was to be applied", got)
	}
}

func TestADroppedRequestIsNotApplied(t *testing.T) {
	t.Parallel()
	p, direct := proxied(t)
	rdb := hasty(t, p.Addr())
	p.DropRequests(testutil.Command("SET"), 1)
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); !isTimeout(err) {
		t.Errorf("a dropped SET returns %v, want a timeout", err)
	}
	must(t, patient(t, p.Addr()).Set(t.Context(), "k2", "v", 0).Err()) // arrives after what was dropped
	if n := direct.Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("a dropped SET was applied")
	}
}

func TestWhatFollowsADroppedRequestOnItsConnectionIsLostToo(t *testing.T) {
	t.Parallel()
	p, direct := proxied(t)
	p.DropRequests(testutil.Containing("second"), 1)
	pipe := hasty(t, p.Addr()).Pipeline()
	for _, key := range []string{"first", "second", "third"} {
		pipe.Set(t.Context(), key, "v", 0)
	}
	if _, err := pipe.Exec(t.Context()); !isTimeout(err) {
		t.Errorf("the pipeline returns %v, want a timeout", err)
	}
	must(t, patient(t, p.Addr()).Ping(t.Context()).Err())
	if got := direct.Exists(t.Context(), "first", "second", "third").Val(); got != 1 {
		t.Errorf("of the pipeline %d commands were applied, want the first alone", got)
	}
}

func TestADuplicatedRequestIsAppliedTwiceAndAnsweredOnce(t *testing.T) {
	t.Parallel()
	p, _ := proxied(t)
	rdb := patient(t, p.Addr())
	p.DuplicateRequests(testutil.Command("INCR"), 1)
	for i, want := range []int64{1, 3} {
		if got := rdb.Incr(t.Context(), "n").Val(); got != want {
			t.Errorf("reply %d is %d, want %d", i+1, got, want)
		}
	}
}

func TestADelayedReplyComesAfterItsDelay(t *testing.T) {
	t.Parallel()
	p, _ := proxied(t)
	rdb := patient(t, p.Addr())
	must(t, rdb.Ping(t.Context()).Err())
	const delay = 50 * time.Millisecond
	p.DelayReplies(testutil.Command("GET"), delay)
	start := time.Now()
	rdb.Get(t.Context(), "k")
	if d := time.Since(start); d < delay {
		t.Errorf("the reply came after %v, want at least %v", d, delay)
	}
	p.Reset()
}

func TestAHeldRequestArrivesAfterItsClientHasGone(t *testing.T) {
	t.Parallel()
	p, direct := proxied(t)
	rdb := hasty(t, p.Addr())
	release := p.HoldRequests(testutil.Containing("late"), 1)
	if err := rdb.Set(t.Context(), "k", "late", 0).Err(); !isTimeout(err) {
		t.Errorf("a held SET returns %v, want a timeout", err)
	}
	must(t, rdb.Close())
	must(t, patient(t, p.Addr()).Set(t.Context(), "k", "early", 0).Err())
	release()
	release()
	testutil.Eventually(t, patience, func() bool { return direct.Get(t.Context(), "k").Val() == "late" },
		"the held SET is applied after the one sent later")
}

func TestAHeldRequestArrivesThoughRepliesBeforeItMissedTheirClient(t *testing.T) {
	t.Parallel()
	p, direct := proxied(t)
	p.DelayReplies(testutil.Command("GET"), haste*2/3) // the client leaves after the first
	release := p.HoldRequests(testutil.Containing("late"), 1)
	rdb := hasty(t, p.Addr())
	pipe := rdb.Pipeline()
	for range 3 {
		pipe.Get(t.Context(), "k")
	}
	pipe.Set(t.Context(), "k", "late", 0)
	if _, err := pipe.Exec(t.Context()); !isTimeout(err) {
		t.Errorf("the pipeline returns %v, want a timeout", err)
	}
	must(t, rdb.Close())
	time.AfterFunc(2*haste, release) // when the other replies have found no client
	testutil.Eventually(t, patience, func() bool { return direct.Get(t.Context(), "k").Val() == "late" },
		"the held SET is applied")
}

func TestACutProxyRefusesConnectionsUntilItResumes(t *testing.T) {
	t.Parallel()
	p, _ := proxied(t)
	rdb := patient(t, p.Addr())
	must(t, rdb.Ping(t.Context()).Err())
	p.Cut()
	if err := patient(t, p.Addr()).Ping(t.Context()).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection to a cut proxy: %v, want connection refused", err)
	}
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("an old connection through a cut proxy answers")
	}
	p.Resume()
	p.Resume()
	must(t, rdb.Ping(t.Context()).Err())
}

func TestAFrozenProxyForwardsWhatWasSentWhenThawed(t *testing.T) {
	t.Parallel()
	p, direct := proxied(t)
	rdb := hasty(t, p.Addr())
	must(t, rdb.Ping(t.Context()).Err()) // so that the SET below needs no handshake
	p.Freeze()
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); !isTimeout(err) {
		t.Errorf("SET through a frozen proxy returns %v, want a timeout", err)
	}
	if n := direct.Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("a frozen proxy forwarded a request")
	}
	p.Thaw()
	testutil.Eventually(t, patience, func() bool { return direct.Get(t.Context(), "k").Val() == "v" },
		"the request is applied when the proxy is thawed")
}

func TestAMessageCanBeLostAndTheNextArrives(t *testing.T) {
	for name, protocol := range map[string]int{"RESP2": 2, "RESP3": 3} {
		t.Run(name, func(t *testing.T) {
			p, direct := proxied(t)
			rdb := testutil.NewClient(t, p.Addr(), func(o *redis.Options) { o.Protocol = protocol })
			sub := rdb.Subscribe(t.Context(), "a", "b")
			defer mustClose(t, sub)
			for range 2 {
				_, err := sub.Receive(t.Context())
				must(t, err)
			}
			must(t, sub.Ping(t.Context()))
			_, err := sub.Receive(t.Context())
			must(t, err)
			p.DropMessages(testutil.Containing("lost"), 1)
			for _, m := range []string{"lost", "lost too late", "kept"} {
				must(t, direct.Publish(t.Context(), "b", m).Err())
			}
			for _, want := range []string{"lost too late", "kept"} {
				msg, err := sub.ReceiveMessage(t.Context())
				must(t, err)
				if msg.Payload != want {
					t.Errorf("the message is %q, want %q", msg.Payload, want)
				}
			}
		})
	}
}

func TestFaultsOfRepliesDoNotTouchStreams(t *testing.T) {
	for name, protocol := range map[string]int{"RESP2": 2, "RESP3": 3} {
		t.Run(name, func(t *testing.T) {
			p, _ := proxied(t)
			p.SwallowReplies(testutil.Command("subscribe", "ping"), -1)
			rdb := testutil.NewClient(t, p.Addr(), func(o *redis.Options) { o.Protocol = protocol })
			sub := rdb.Subscribe(t.Context(), "a")
			defer mustClose(t, sub)
			_, err := sub.ReceiveTimeout(t.Context(), patience)
			must(t, err)
			must(t, sub.Ping(t.Context()))
			_, err = sub.ReceiveTimeout(t.Context(), patience)
			must(t, err)
		})
	}
}

func TestAPushBetweenRepliesIsNotTakenForOne(t *testing.T) {
	t.Parallel()
	p, _ := proxied(t)
	conn := hasty(t, p.Addr()).Conn()
	defer mustClose(t, conn)
	must(t, conn.Do(t.Context(), "CLIENT", "TRACKING", "ON").Err())
	p.SwallowReplies(testutil.Containing("last"), 1)
	pipe := conn.Pipeline()
	pipe.Get(t.Context(), "k")
	pipe.Set(t.Context(), "k", "v", 0) // the server pushes that k, read before, has changed
	exists := pipe.Exists(t.Context(), "k")
	pipe.Get(t.Context(), "last")
	if _, err := pipe.Exec(t.Context()); !isTimeout(err) {
		t.Errorf("the pipeline returns %v, want a timeout", err)
	}
	if exists.Val() != 1 {
		t.Error("the reply before the swallowed one did not arrive")
	}
}

func TestACounterSeesOnlyWhatMatches(t *testing.T) {
	t.Parallel()
	p, _ := proxied(t)
	rdb := patient(t, p.Addr())
	gets := p.Count(testutil.Command("get"))
	all := p.Count(nil)
	for i := range 10 {
		rdb.Get(t.Context(), strconv.Itoa(i))
		rdb.Del(t.Context(), strconv.Itoa(i))
	}
	p.Reset()
	rdb.Get(t.Context(), "after")
	if gets.Load() != 10 || all.Load() < 20 {
		t.Errorf("of 10 GETs and 10 DELs were counted %d GETs, %d in all", gets.Load(), all.Load())
	}
}

func TestAProxyInFrontOfNothingClosesConnections(t *testing.T) {
	t.Parallel()
	r := testutil.StartRedis(t)
	p := testutil.NewProxy(t, r.Addr())
	r.Kill()
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer mustClose(t, conn)
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is alive")
	}
}

// Every control while many clients are at work: for the race detector, and for
// replies that would reach the wrong request.
func TestControlsAreSafeWhileClientsAreAtWork(t *testing.T) {
	t.Parallel()
	p, _ := proxied(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 8 {
		key := strconv.Itoa(i)
		rdb := hasty(t, p.Addr())
		wg.Go(func() {
			for ctx.Err() == nil {
				if got, err := rdb.Echo(ctx, key).Result(); err == nil && got != key {
					t.Errorf("ECHO %s got the reply %s", key, got)
				}
			}
		})
	}
	echoes := p.Count(testutil.Command("echo"))
	for round := range 5 {
		p.SwallowReplies(nil, 1)
		p.DropRequests(testutil.Containing("3"), 1)
		p.DuplicateRequests(nil, 3)
		p.DelayReplies(testutil.Containing("4"), time.Millisecond)
		release := p.HoldRequests(nil, 2)
		p.Freeze()
		p.Thaw()
		p.Cut()
		p.Resume()
		release()
		seen := int64(round+1) * 100
		testutil.Eventually(t, patience, func() bool { return echoes.Load() >= seen }, "clients go on")
	}
	cancel()
	wg.Wait()
}
