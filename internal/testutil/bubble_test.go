package testutil_test

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
)

// inBubble runs f in a bubble of its own for each protocol go-redis speaks.
func inBubble(t *testing.T, f func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	for name, protocol := range map[string]int{"RESP2": 2, "RESP3": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, client := testutil.NewBubbleRedis(t)
				f(t, client(func(o *redis.Options) { o.Protocol = protocol }))
			})
		})
	}
}

func TestAnHourOfVirtualTimePassesInABubble(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		must(t, rdb.Set(t.Context(), "k", "v", time.Hour).Err())
		time.Sleep(time.Hour - time.Millisecond)
		if got := rdb.Get(t.Context(), "k").Val(); got != "v" {
			t.Errorf("a millisecond before its expiry the key is %q, want v", got)
		}
		time.Sleep(time.Millisecond)
		if err := rdb.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("at its expiry the key reads %v, want redis.Nil", err)
		}
	})
}

func TestScriptsInABubbleReadItsClock(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		script := redis.NewScript(`local t = redis.call('TIME'); redis.call('SET', KEYS[1], 'v', 'PX', 1500); return t[1]`)
		sec, err := script.Run(t.Context(), rdb, []string{"k"}).Int64()
		must(t, err)
		if now := time.Now().Unix(); sec != now {
			t.Errorf("TIME in a script is %d, the bubble's clock is %d", sec, now)
		}
		if ttl := rdb.PTTL(t.Context(), "k").Val(); ttl != 1500*time.Millisecond {
			t.Errorf("PTTL is %v, want 1.5s", ttl)
		}
	})
}

func TestMessagesReachASubscriberInABubble(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		sub := rdb.Subscribe(t.Context(), "news")
		defer mustClose(t, sub)
		_, err := sub.Receive(t.Context())
		must(t, err)
		time.Sleep(time.Hour) // an idle subscription holds up nothing
		publish := redis.NewScript(`return redis.call('PUBLISH', 'news', ARGV[1])`)
		if n, err := publish.Run(t.Context(), rdb, nil, "hello").Int(); err != nil || n != 1 {
			t.Fatalf("PUBLISH in a script told %d subscribers (%v), want 1", n, err)
		}
		msg, err := sub.ReceiveMessage(t.Context())
		must(t, err)
		if msg.Payload != "hello" {
			t.Errorf("the message is %q, want hello", msg.Payload)
		}
	})
}

func TestASubscriberThatDoesNotReadHoldsUpNobodyInABubble(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		sub := rdb.Subscribe(t.Context(), "news")
		defer mustClose(t, sub)
		_, err := sub.Receive(t.Context())
		must(t, err)
		for range 100 {
			must(t, rdb.Publish(t.Context(), "news", strings.Repeat("x", 1000)).Err())
		}
		for range 100 {
			_, err := sub.ReceiveMessage(t.Context())
			must(t, err)
		}
	})
}

func TestALongPipelineRunsInABubble(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		start := time.Now()
		_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for range 1000 {
				p.Set(t.Context(), "k", strings.Repeat("x", 1000), 0)
				p.Get(t.Context(), "k")
			}
			return nil
		})
		must(t, err)
		if d := time.Since(start); d != 0 {
			t.Errorf("the pipeline took %v of virtual time, want none", d)
		}
	})
}

func TestReadTimeoutsEndReadsInABubble(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		sub := rdb.Subscribe(t.Context(), "silent")
		defer mustClose(t, sub)
		_, err := sub.Receive(t.Context())
		must(t, err)
		start := time.Now()
		_, err = sub.ReceiveTimeout(t.Context(), time.Minute)
		var netErr net.Error
		if !errors.As(err, &netErr) || !netErr.Timeout() || time.Since(start) != time.Minute {
			t.Errorf("reading a silent channel ended after %v with %v, want a timeout after 1m", time.Since(start), err)
		}
	})
}

// A wait for a free connection uses go-redis's process-wide timers; inBubble runs
// this in two bubbles, the second of which would panic over the first one's timer.
func TestManyCommandsAtOnceRunInOneBubbleAfterTheOther(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() { rdb.BLPop(ctx, 10*time.Second, "empty") })
		}
		wg.Wait()
	})
}

func TestAClientOfAClosedBubbleRedisGetsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, client := testutil.NewBubbleRedis(t)
		down := errors.New("redis is down")
		var out bool
		rdb := client(func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if out {
					return nil, down
				}
				return dial(ctx, network, addr)
			}
		})
		must(t, rdb.Set(t.Context(), "k", "v", 0).Err())
		out = true
		m.Close()
		if err := rdb.Get(t.Context(), "k").Err(); !errors.Is(err, down) {
			t.Errorf("Get with Redis down returns %v, want %v", err, down)
		}
		out = false
		if got, err := rdb.Get(t.Context(), "k").Result(); got != "v" {
			t.Errorf("Get with Redis back returns %q, %v, want v", got, err)
		}
	})
}
