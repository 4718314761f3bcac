package remote

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// taken is how often a connection was taken out of the client's pool so far.
func taken(s *Store) uint32 {
	stats := s.rdb.(*redis.Client).PoolStats()
	return stats.Hits + stats.Misses
}

// out is how many connections are out of the pool.
func out(s *Store) uint32 {
	stats := s.rdb.(*redis.Client).PoolStats()
	return stats.TotalConns - stats.IdleConns
}

// follow lets n callers go along, one after the other, without a pause.
func follow(t *testing.T, s *Store, n int) {
	t.Helper()
	for range n {
		must(t, ask(t.Context(), s, 0))
	}
}

func TestCallersThatFollowOneAnotherHandOnAConnection(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, _, _ func()) {
		before := taken(s)
		follow(t, s, lineAfter)
		if n := taken(s) - before; n != lineAfter || out(s) != 0 {
			t.Errorf("the first %d callers have taken %d connections, and %d are out; want one each, and none", lineAfter, n, out(s))
		}
		time.Sleep(s.timeout / stallPart / 2) // the watch finds it used of late, and has to look again
		follow(t, s, 100)
		if n := taken(s) - before; n != lineAfter+1 || out(s) != 1 {
			t.Errorf("the next 100 callers have taken %d connections, and %d are out; want one, and one", n-lineAfter, out(s))
		}
		if g.along.Load() != lineAfter+100 {
			t.Errorf("%d callers went along, want all %d", g.along.Load(), lineAfter+100)
		}
		time.Sleep(2 * s.timeout / stallPart)
		synctest.Wait()
		if out(s) != 0 {
			t.Error("nobody reads any more, and the connection is still out")
		}
	})
}

func TestCallersThatAreFarBetweenLeaveTheConnectionToThePool(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, _ *gets, _, _ func()) {
		pause := s.timeout / stallPart / (lineAfter / 2)
		before := taken(s)
		for range 5 * lineAfter {
			must(t, ask(t.Context(), s, 0))
			time.Sleep(pause)
		}
		if n := taken(s) - before; n != 5*lineAfter {
			t.Errorf("%d callers have taken %d connections", 5*lineAfter, n)
		}
	})
}

func TestThePoolLooksAfterALineOnceASecond(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, _ *gets, _, _ func()) {
		follow(t, s, lineAfter)
		before := taken(s)
		for start := time.Now(); time.Since(start) < 10*lineAge; time.Sleep(time.Millisecond) {
			must(t, ask(t.Context(), s, 0))
		}
		if n := taken(s) - before; n < 9 || n > 11 {
			t.Errorf("in %v the connection was taken out %d times", 10*lineAge, n)
		}
	})
}

func TestTheEndOfAStoreGivesItsLineBack(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, _ *gets, _, _ func()) {
		follow(t, s, 2*lineAfter)
		must(t, s.Wait(t.Context()))
		if out(s) != 0 {
			t.Error("the store is done, and a connection is still out")
		}
	})
}

// Else the next caller would wait for the one that hangs, without a limit.
func TestReadsGoOnWhileALineHangs(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, _, _ func()) {
		follow(t, s, 2*lineAfter)
		release := g.block()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := ask(t.Context(), s, 0); !errors.Is(err, ErrNoAnswer) {
				t.Errorf("a read that hangs ended with %v", err)
			}
		})
		time.Sleep(2 * s.timeout) // the watch has given up on it
		g.hold.Store(nil)         // it alone hangs on
		along := g.along.Load()
		for range trust {
			must(t, ask(t.Context(), s, 0))
			synctest.Wait()
		}
		start := time.Now()
		follow(t, s, 2*lineAfter)
		if took := time.Since(start); took != 0 || g.along.Load() == along {
			t.Errorf("%d callers went along, and took %v", g.along.Load()-along, took)
		}
		release()
		wg.Wait()
		synctest.Wait()
		must(t, s.Wait(t.Context()))
		if out(s) != 0 {
			t.Errorf("%d connections are out for ever", out(s))
		}
	})
}

// tries is a redis.Limiter that counts how often a connection is asked for.
type tries struct{ atomic.Int64 }

func (n *tries) Allow() error       { n.Add(1); return nil }
func (*tries) ReportResult(_ error) {}

func TestALineThatWasCutCostsNoCallAnError(t *testing.T) {
	t.Parallel()
	server := testutil.StartRedis(t)
	proxy := testutil.NewProxy(t, server.Addr())
	n := &tries{}
	s := newStore(testutil.NewClient(t, proxy.Addr(), func(o *redis.Options) {
		o.ContextTimeoutEnabled = true
		o.Limiter = n
	}))
	must(t, server.Client(t).Set(t.Context(), s.Keys("c", "0").V, entryOf(0), 0).Err())
	for range 5 {
		for taken(s) == 0 || out(s) != 1 { // until there is a line
			must(t, ask(t.Context(), s, 0))
		}
		proxy.Cut()
		proxy.Resume()
		before := n.Load()
		must(t, ask(t.Context(), s, 0))
		if tried := n.Load() - before; tried > 4 { // the line; and for another connection, one and two to greet
			t.Errorf("a read over a line that was cut took %d tries", tried)
		}
		must(t, ask(t.Context(), s, 0))
	}
	must(t, s.Wait(t.Context()))
	if out(s) != 0 {
		t.Errorf("%d connections are out for ever", out(s))
	}
}

func TestAScriptMeetsTheConnectionThatReadsGoOver(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, _ *gets, _, _ func()) {
		follow(t, s, 2*lineAfter)
		if out(s) != 1 {
			t.Fatalf("%d connections are out, want the line", out(s))
		}
		_, err := s.Generation(t.Context(), "c")
		must(t, err)
		if out(s) != 0 {
			t.Error("a script was sent over another connection than the reads")
		}
	})
}

func TestASmallPoolLendsNoLine(t *testing.T) {
	t.Parallel()
	client := func(set func(*redis.Options)) redis.UniversalClient {
		o := &redis.Options{}
		set(o)
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	for name, c := range map[string]struct {
		client redis.UniversalClient
		lends  bool
	}{
		"large":        {client(func(o *redis.Options) { o.PoolSize = smallPool + 1 }), true},
		"small":        {client(func(o *redis.Options) { o.PoolSize = smallPool }), false},
		"limited":      {client(func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = 100, smallPool }), false},
		"large limit":  {client(func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = 100, 100 }), true},
		"of a Cluster": {cluster, false},
	} {
		if got := lender(c.client) != nil; got != c.lends {
			t.Errorf("%s: lends %v, want %v", name, got, c.lends)
		}
	}
}

func TestACallWithALineWhoseTimeIsOverSendsNothingMore(t *testing.T) {
	trustedReads(t, func(t *testing.T, s *Store, g *gets, stall, resume func()) {
		follow(t, s, 2*lineAfter)
		before := g.alone.Load()
		stall()
		endsAtItsDeadline(t, s)
		if n := g.alone.Load() - before; n != 1 {
			t.Errorf("it has sent %d GETs", n)
		}
		resume()
		must(t, s.Wait(t.Context()))
		if out(s) != 0 {
			t.Errorf("%d connections are out for ever", out(s))
		}
	})
}
