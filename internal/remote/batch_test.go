package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
)

// steps counts what goes to servers: the pipelines, and the commands outside of them.
type steps struct {
	mu sync.Mutex
	n  map[string]int // protected by mu; by the name of the first command
}

func (s *steps) took() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.n
	s.n = nil
	return n
}

func (s *steps) count(cmd redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch cmd.Name() {
	case "get", "mget", "eval", "evalsha": // a new connection asks for other things
		if s.n == nil {
			s.n = map[string]int{}
		}
		s.n[cmd.Name()]++
	}
}

func (*steps) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *steps) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.count(cmd)
		return next(ctx, cmd)
	}
}

func (s *steps) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.count(cmds[0])
		return next(ctx, cmds)
	}
}

// crowd is a store and many keys.
type crowd struct {
	*testing.T
	store *Store
	rdb   redis.UniversalClient
	keys  []Keys
	nodes int // that have some of the keys
	steps *steps
}

const crowdSize = 60

// withCrowds runs a test on the embedded server, a redis-server, and a Cluster.
func withCrowds(t *testing.T, test func(c *crowd)) {
	t.Helper()
	run := func(t *testing.T, rdb redis.UniversalClient, nodes int, s *steps) {
		t.Helper()
		c := &crowd{T: t, store: newStore(rdb), rdb: rdb, nodes: nodes, steps: s}
		must(t, c.store.Load(t.Context()))
		for i := range crowdSize {
			c.keys = append(c.keys, c.store.Keys("c", fmt.Sprint(i)))
		}
		test(c)
	}
	everywhere(t, func(w *world) {
		s := &steps{}
		w.rdb.AddHook(s)
		run(w.T, w.rdb, 1, s)
	})
	t.Run("cluster", func(t *testing.T) {
		rdb := testutil.StartCluster(t).Client(t)
		s := &steps{}
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(s) })
		run(t, rdb, 3, s)
	})
}

// each makes something for each key.
func each[E any](c *crowd, f func(i int, keys Keys) E) []E {
	all := make([]E, len(c.keys))
	for i, k := range c.keys {
		all[i] = f(i, k)
	}
	return all
}

func owner(i int) string { return fmt.Sprintf("%x", i+1) }

// version is the entry of a key, told from those of the others.
func version(i int) []byte { return anEntry(fmt.Sprintf("entry%03d", i)) }

func (c *crowd) acquire() []lock.Claim {
	c.Helper()
	asked := each(c, func(i int, _ Keys) Acquire { return Acquire{Owner: owner(i), TTL: life} })
	found := c.store.AcquireMany(c.Context(), c.keys, asked)
	return each(c, func(i int, keys Keys) lock.Claim {
		if found[i].Err != nil || found[i].Value.State != Granted {
			c.Fatalf("acquire of %s: %+v, want a grant", keys.B(), found[i])
		}
		return lock.Claim{Name: keys.B(), Owner: owner(i), Token: found[i].Value.Nonce}
	})
}

func (c *crowd) commit(claims []lock.Claim) {
	c.Helper()
	for i, a := range c.store.CommitMany(c.Context(), c.keys, each(c, func(i int, _ Keys) Commit { return commitUnder(claims[i], version(i)) })) {
		if a.Err != nil || a.Value != Done {
			c.Errorf("commit of %s: %+v", c.keys[i].V, a)
		}
	}
}

func (c *crowd) wantEntries() {
	c.Helper()
	for i, a := range c.store.ReadMany(c.Context(), c.keys) {
		if a.Err != nil || versionOf(string(a.Value)) != versionOf(string(version(i))) {
			c.Errorf("%s holds %q, %v", c.keys[i].V, a.Value, a.Err)
		}
	}
}

func (c *crowd) wantSteps(step, command string, want int) {
	c.Helper()
	if took := c.steps.took(); len(took) != 1 || took[command] != want {
		c.Errorf("%s took %v, want %d of %s", step, took, want, command)
	}
}

func TestManyKeysTakeOneStepANode(t *testing.T) {
	withCrowds(t, func(c *crowd) {
		read := "mget"
		if c.nodes > 1 {
			read = "get"
		}
		c.steps.took()
		for i, a := range c.store.ReadMany(c.Context(), c.keys) {
			if a.Value != nil || a.Err != nil {
				c.Errorf("%s holds %q, %v, want nothing", c.keys[i].V, a.Value, a.Err)
			}
		}
		c.wantSteps("read", read, c.nodes)
		claims := c.acquire()
		c.wantSteps("acquire", "evalsha", c.nodes)
		c.commit(claims)
		c.wantSteps("commit", "evalsha", c.nodes)
		c.wantEntries()
		c.wantSteps("read", read, c.nodes)

		must(c, c.rdb.Del(c.Context(), c.keys[0].V, c.keys[0].B()).Err())
		finished := c.store.FinishMany(c.Context(), c.keys, each(c, func(i int, _ Keys) Finish { return finishUnder(claims[i], FinishNothing) }))
		for i, a := range finished {
			if a.Value || a.Err != nil {
				c.Errorf("finish of %s, whose lease is over: %+v", c.keys[i].B(), a)
			}
		}
	})
}

func TestManyKeysHaveEachTheirOwnAnswer(t *testing.T) {
	withCrowds(t, func(c *crowd) {
		s, ctx := c.store, c.Context()
		stored, held, failed, foreign := c.keys[0], c.keys[1], c.keys[2], c.keys[3]
		claim := acquired(c, s, stored, "a")
		_, err := s.Commit(ctx, stored, commitUnder(claim, version(0)))
		must(c, err)
		acquired(c, s, held, "b")
		_, err = s.Finish(ctx, failed, finishUnder(acquired(c, s, failed, "c"), FinishFailed))
		must(c, err)
		must(c, c.rdb.HSet(ctx, foreign.V, "a", "b").Err())

		found := s.AcquireMany(ctx, c.keys, each(c, func(i int, _ Keys) Acquire { return Acquire{Owner: owner(i), TTL: life, Wait: true} }))
		want := map[int]State{0: Newer, 1: Held, 2: Failed}
		for i, a := range found {
			state := want[i]
			if state == 0 {
				state = Granted
			}
			if a.Err != nil || a.Value.State != state {
				c.Errorf("key %d: %+v, want state %d", i, a, state)
			}
		}
		if v := found[0].Value.Entry; versionOf(string(v)) != versionOf(string(version(0))) {
			c.Errorf("the newer entry is %q", v)
		}
		if b := standing(c, c.rdb, held.B()); !strings.HasPrefix(b, "L 1 ") {
			c.Errorf("the lease that somebody waits for is %q", b)
		}
		read := s.ReadMany(ctx, c.keys)
		if a := read[3]; a.Value != nil || c.nodes > 1 && !errors.Is(a.Err, ErrWrongType) || c.nodes == 1 && a.Err != nil {
			c.Errorf("an entry of a wrong type reads as %+v", a)
		}
		if a := read[4]; a.Value != nil || a.Err != nil {
			c.Errorf("beside it nothing reads as %+v", a)
		}
		stores := s.CommitMany(ctx, c.keys, each(c, func(i int, keys Keys) Commit {
			return commitUnder(lock.Claim{Name: keys.B(), Owner: owner(i), Token: found[i].Value.Nonce}, version(i))
		}))
		for i, a := range stores {
			refused := i == 1 || i == 2
			if a.Err != nil || (a.Value == Refused) != refused { // the first finds its own version there, as after a lost reply
				c.Errorf("commit of key %d: %+v", i, a)
			}
		}
	})
}

func TestManyKeysWorkAfterTheScriptsWereFlushed(t *testing.T) {
	withCrowds(t, func(c *crowd) {
		flush := func() {
			c.Helper()
			if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
				must(c, cluster.ForEachMaster(c.Context(), func(ctx context.Context, node *redis.Client) error { return node.ScriptFlush(ctx).Err() }))
				return
			}
			must(c, c.rdb.ScriptFlush(c.Context()).Err())
		}
		flush()
		claims := c.acquire()
		flush()
		c.commit(claims)
		c.wantEntries()
	})
}

func TestManyKeysWorkBeforeTheScriptsAreLoaded(t *testing.T) {
	withCrowds(t, func(c *crowd) {
		c.store = newStore(c.rdb)
		c.commit(c.acquire())
		c.wantEntries()
	})
}

func TestMoreKeysThanOneStepHolds(t *testing.T) {
	everywhere(t, func(w *world) {
		s := &steps{}
		w.rdb.AddHook(s)
		c := &crowd{T: w.T, store: newStore(w.rdb), rdb: w.rdb, nodes: 1, steps: s}
		must(w, c.store.Load(w.Context()))
		for i := range 2*maxStep + 1 {
			c.keys = append(c.keys, c.store.Keys("c", fmt.Sprint(i)))
		}
		s.took()
		c.acquire()
		c.wantSteps("acquire", "evalsha", 3)
	})
}

func TestGrantsWhoseRepliesWereLostAreKnownAsOurs(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *wire) {
		c := &crowd{T: t.T, store: t.store, rdb: t.direct, nodes: 1}
		for i := range crowdSize {
			c.keys = append(c.keys, c.store.Keys("c", fmt.Sprint(i)))
		}
		t.proxy.SwallowReplies(isScript(), 1)
		claims := c.acquire()
		t.proxy.SwallowReplies(isScript(), 1)
		c.commit(claims)
		c.wantEntries()
		for _, keys := range c.keys {
			if kind := kindOf(t, t.direct, keys); kind != "C" {
				t.Errorf("the build key is %q", kind)
			}
		}
	})
}

func TestManyStepsThatComeTooLateAreMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := testutil.NewBubbleRedis(t)
		c := &crowd{T: t, store: newStore(client()), nodes: 1}
		for i := range crowdSize {
			c.keys = append(c.keys, c.store.Keys("c", fmt.Sprint(i)))
		}
		_, err := c.store.ServerNow(t.Context(), Keys{})
		must(t, err)
		server.SetTime(time.Now().Add(time.Hour)) // what the store believes of the server's clock is wrong by that
		c.acquire()
	})
}

func TestANodeThatIsDownCostsTheKeysOfOthersNothing(t *testing.T) {
	t.Parallel()
	cluster := testutil.StartCluster(t)
	rdb := cluster.Client(t)
	c := &crowd{T: t, store: newStore(rdb), rdb: rdb}
	must(t, c.store.Load(t.Context()))
	for i := range crowdSize {
		c.keys = append(c.keys, c.store.Keys("c", fmt.Sprint(i)))
	}
	c.acquire()
	down := cluster.Nodes[0]
	down.Freeze()
	defer func() {
		down.Thaw()
		must(t, c.store.Wait(t.Context()))
	}()
	failed := 0
	for i, a := range c.store.ReadMany(t.Context(), c.keys) {
		if on := c.store.masterOf(t.Context(), c.keys[i]).Options().Addr; (a.Err != nil) != (on == down.Addr()) {
			t.Errorf("key %d on %s: %v", i, on, a.Err)
		}
		if a.Err != nil {
			failed++
		}
	}
	if failed == 0 || failed == len(c.keys) {
		t.Errorf("%d of %d keys are on the frozen node", failed, len(c.keys))
	}
}

func TestAServerThatIsMuteIsNotAskedForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, stop := mute(t)
		s := newStore(rdb)
		s.Stop() // a probe would hang, too
		keys := make([]Keys, 3*maxStep)
		for i := range keys {
			keys[i] = s.Keys("c", fmt.Sprint(i))
		}
		start := time.Now()
		for _, a := range s.ReadMany(t.Context(), keys) {
			if !errors.Is(a.Err, ErrNoAnswer) {
				t.Fatalf("got %+v", a)
			}
		}
		if d := time.Since(start); d != s.timeout {
			t.Errorf("it took %v, want the timeout of one step, %v", d, s.timeout)
		}
		stop()
		must(t, s.Wait(t.Context()))
	})
}

func TestRenewalsThatFallDueTogetherAreOneStep(t *testing.T) {
	withCrowds(t, func(c *crowd) {
		claims := c.acquire()
		lost := 7
		must(c, c.rdb.Del(c.Context(), c.keys[lost].B()).Err())
		before := c.rdb.PTTL(c.Context(), c.keys[0].B()).Val()
		c.steps.took()
		backend := c.store.LeasesTogether()
		var all sync.WaitGroup
		for i, claim := range claims {
			all.Go(func() {
				err := backend.Renew(c.Context(), claim, 10*life)
				if i == lost && !errors.Is(err, lock.ErrNotHeld) || i != lost && err != nil {
					c.Errorf("renewal of key %d: %v", i, err)
				}
			})
		}
		all.Wait()
		took := c.steps.took()
		// All are due at one moment, but when each comes is up to the scheduler.
		if n := took["evalsha"]; n < c.nodes || n > 2*c.nodes {
			c.Errorf("renewing took %v, want a step of each of %d nodes", took, c.nodes)
		}
		if after := c.rdb.PTTL(c.Context(), c.keys[0].B()).Val(); after <= before {
			c.Errorf("a renewed lease lives for %v, before for %v", after, before)
		}
	})
}
