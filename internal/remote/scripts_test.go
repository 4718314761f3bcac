package remote

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
)

// world is a test and a Redis for it.
type world struct {
	*testing.T
	rdb *redis.Client
}

// everywhere runs a test in virtual time and on a redis-server.
func everywhere(t *testing.T, f func(w *world)) {
	t.Helper()
	t.Run("virtual", func(t *testing.T) { virtually(t, f) })
	t.Run("real", func(t *testing.T) { f(&world{t, testutil.StartRedis(t).Client(t)}) })
}

const (
	cooling = 10 * time.Second // MinRebuildInterval where nothing waits for its end
	life    = time.Minute      // of everything else
)

// anEntry has a payload and a mark in every byte of the header that a script could hit.
func anEntry(version string) []byte {
	return []byte(fmt.Sprintf("0123456789abcdef%s9ABCDEFghijk%-8.8sSUM!a payload", strings.Repeat("\xff", 8), version))
}

func setChange(entry []byte) Change {
	return Change{ID: "1", Op: OpSet, Cache: "c", Key: "k", Interval: cooling, Entry: entry, PX: life}
}

func change(op Op) Change { return Change{ID: "1", Op: op, Cache: "c", Key: "k", Interval: cooling} }

// acquired takes the lease of a key on which nothing stands.
func acquired(tb testing.TB, s *Store, keys Keys, owner string) lock.Claim {
	tb.Helper()
	f, err := s.Acquire(tb.Context(), keys, Acquire{Owner: owner, TTL: life})
	must(tb, err)
	if f.State != Granted || f.Nonce == 0 {
		tb.Fatalf("acquire found %+v, want a grant", f)
	}
	return lock.Claim{Name: keys.B(), Owner: owner, Token: f.Nonce}
}

func commitUnder(claim lock.Claim, entry []byte) Commit {
	return Commit{Claim: claim, Cache: "c", Key: "k", Entry: entry, PX: life, Interval: cooling, Pass: life}
}

func finishUnder(claim lock.Claim, state FinishState) Finish {
	return Finish{Claim: claim, Cache: "c", Key: "k", State: state, For: life, Code: "error", Interval: cooling}
}

// standing is what a key holds, "" for nothing. Every key here has an end.
func standing(tb testing.TB, rdb redis.Cmdable, key string) string {
	tb.Helper()
	text, err := rdb.Get(tb.Context(), key).Result()
	if errors.Is(err, redis.Nil) {
		return ""
	}
	must(tb, err)
	if ttl := rdb.PTTL(tb.Context(), key).Val(); ttl <= 0 {
		tb.Errorf("%s lives for %v: %q", key, ttl, text)
	}
	return text
}

// kindOf is the first word of a build key.
func kindOf(tb testing.TB, rdb redis.Cmdable, keys Keys) string {
	tb.Helper()
	kind, _, _ := strings.Cut(standing(tb, rdb, keys.B()), " ")
	return kind
}

// I8: a nonce is never given twice, also after the server's clock was set back.
func TestANonceRisesOverAClockThatWasSetBack(t *testing.T) {
	everywhere(t, func(t *world) {
		s := newStore(t.rdb)
		keys := s.Keys("c", "k")
		last := uint64(t.rdb.Time(t.Context()).Val().Add(time.Hour).UnixMicro())
		must(t, t.rdb.Set(t.Context(), keys.B(), fmt.Sprintf("F %d 1 1 error", last), life).Err())
		if claim := acquired(t, s, keys, "a"); claim.Token != last+1 {
			t.Errorf("the nonce is %d, want one more than the last, %d", claim.Token, last)
		}
	})
}

// Expiries of Redis are times of its clock: what lives then has that much longer to live.
func TestWhatStandsWhenTheServersClockIsSetBackEndsSoonAllTheSame(t *testing.T) { // I4, I11
	const ttl = 2 * time.Second
	for _, stands := range []string{"L 0 %d 3 dead", "C %d 3", "P %d 3"} {
		t.Run(stands[:1], func(t *testing.T) {
			everywhere(t, func(t *world) {
				s := newStore(t.rdb)
				keys := s.Keys("c", "k")
				now, err := t.rdb.Time(t.Context()).Result()
				must(t, err)
				grant := now.Add(time.Hour).UnixMicro()
				for _, left := range []time.Duration{time.Hour, ttl / 2} {
					must(t, t.rdb.Set(t.Context(), keys.B(), fmt.Sprintf(stands, grant), left).Err())
					f, err := s.Acquire(t.Context(), keys, Acquire{Owner: "a", TTL: ttl})
					must(t, err)
					if f.State == Granted || f.Rest <= 0 || f.Rest > min(ttl, left) {
						t.Errorf("with %v left found %+v, want its end within %v", left, f, ttl)
					}
					if lives := t.rdb.PTTL(t.Context(), keys.B()).Val(); lives <= 0 || lives > min(ttl, left) {
						t.Errorf("with %v left it ends in %v", left, lives)
					}
				}
				// Where nothing was set back, a lease of a longer LockTTL is left alone.
				must(t, t.rdb.Set(t.Context(), keys.B(), fmt.Sprintf(stands, now.UnixMicro()), time.Hour).Err())
				f, err := s.Acquire(t.Context(), keys, Acquire{Owner: "a", TTL: ttl})
				must(t, err)
				if left := t.rdb.PTTL(t.Context(), keys.B()).Val(); f.State != Granted && left <= ttl {
					t.Errorf("what is of the present ends in %v", left)
				}
			})
		})
	}
}

// Its mark lives for twice the back-off.
func TestABackoffIsAsLongWhenTheServersClockIsSetBack(t *testing.T) { // I12
	const backoff = 30 * time.Second
	for name, ahead := range map[string]time.Duration{"before the load failed": 0, "after it": time.Hour} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *world) {
				s := newStore(t.rdb)
				keys := s.Keys("c", "k")
				now, err := t.rdb.Time(t.Context()).Result()
				must(t, err)
				mark := fmt.Sprintf("F %d 3 %d error", now.Add(time.Hour).UnixMicro(), now.Add(ahead+backoff).UnixMicro())
				must(t, t.rdb.Set(t.Context(), keys.B(), mark, ahead+2*backoff).Err())
				for range 3 {
					f, err := s.Acquire(t.Context(), keys, Acquire{Owner: "a", TTL: time.Second})
					must(t, err)
					lives := t.rdb.PTTL(t.Context(), keys.B()).Val()
					after, err := t.rdb.Time(t.Context()).Result()
					must(t, err)
					passed := after.Sub(now) + time.Second // of the time in the mark, which was written after it was read
					if f.State != Failed || f.Rest < backoff-passed || f.Rest > backoff+passed {
						t.Errorf("found %+v, want a back-off of %v", f, backoff)
					}
					if lives > 2*(backoff+passed) {
						t.Errorf("the mark lives for %v", lives)
					}
				}
			})
		})
	}
}

func TestStoringWritesTheServersTimeIntoTheEntryAndNothingElse(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		keys := s.Keys("c", "k")
		want := anEntry("version1")
		stores := map[string]func() (Stored, error){
			"commit": func() (Stored, error) {
				return s.Commit(t.Context(), keys, commitUnder(acquired(t, s, keys, "a"), want))
			},
			"set": func() (Stored, error) { return s.Change(t.Context(), keys, setChange(want)) },
		}
		for name, store := range stores {
			must(t, rdb.Del(t.Context(), keys.V, keys.B()).Err())
			from := rdb.Time(t.Context()).Val().UnixMilli()
			stored, err := store()
			must(t, err)
			to := rdb.Time(t.Context()).Val().UnixMilli()
			got := standing(t, rdb, keys.V)
			var at int64
			for _, b := range []byte(got[16:24]) {
				at = at<<8 | int64(b)
			}
			if stored != Done || at < from || at > to {
				t.Errorf("%s: %v, built at %d, want within %d and %d", name, stored, at, from, to)
			}
			if got[:16]+got[24:] != string(want[:16])+string(want[24:]) {
				t.Errorf("%s: stored %q, want %q but for bytes 16 to 23", name, got, want)
			}
		}
	})
}

func TestAnExpireClearsTheBuildTimeAndKeepsTheLifetime(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		keys := s.Keys("c", "k")
		_, err := s.Change(t.Context(), keys, setChange(anEntry("version1")))
		must(t, err)
		before := standing(t, rdb, keys.V)
		end := rdb.PExpireTime(t.Context(), keys.V).Val()
		stored, err := s.Change(t.Context(), keys, change(OpExpire))
		must(t, err)
		want := before[:16] + strings.Repeat("\x00", 8) + before[24:]
		if got := standing(t, rdb, keys.V); stored != Done || got != want {
			t.Errorf("%v: %q, want %q", stored, got, want)
		}
		if got := rdb.PExpireTime(t.Context(), keys.V).Val(); got != end {
			t.Errorf("it ends at %v, want %v as before", got, end)
		}
		must(t, rdb.Del(t.Context(), keys.V).Err())
		if _, err := s.Change(t.Context(), keys, change(OpExpire)); err != nil || standing(t, rdb, keys.V) != "" {
			t.Errorf("expiring nothing: %v, and made %q", err, standing(t, rdb, keys.V))
		}
	})
}

// spoil makes key something that no script of ours wrote.
func spoil(tb testing.TB, rdb *redis.Client, key, how string) {
	tb.Helper()
	ctx := tb.Context()
	must(tb, rdb.Del(ctx, key).Err())
	switch how {
	case "a list":
		must(tb, rdb.LPush(ctx, key, "x").Err())
	case "a list with an end":
		must(tb, rdb.LPush(ctx, key, "x").Err())
		must(tb, rdb.PExpire(ctx, key, life).Err())
	case "no end":
		must(tb, rdb.Set(ctx, key, "L 0 1 0 abc", 0).Err())
	case "empty", "text", "a lease without an owner", "bytes":
		form := map[string]string{"text": "hello", "a lease without an owner": "L 0 12 0 ", "bytes": "\x00\xff\r\n"}
		must(tb, rdb.Set(ctx, key, form[how], life).Err())
	default:
		tb.Fatalf("nobody knows how to make %s", how)
	}
}

func TestABuildKeyOfAWrongFormIsReplaced(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		for _, how := range []string{"a list", "a list with an end", "no end", "empty", "text", "a lease without an owner", "bytes"} {
			keys := s.Keys("c", how)
			for _, op := range []Op{OpDelete, OpExpire, OpSet} {
				spoil(t, rdb, keys.B(), how)
				c := setChange(anEntry("version1"))
				c.Op = op
				if stored, err := s.Change(t.Context(), keys, c); stored != Done || err != nil {
					t.Errorf("%s, %s: %v, %v", how, op, stored, err)
				}
			}
			spoil(t, rdb, keys.B(), how)
			if stored, err := s.Commit(t.Context(), keys, commitUnder(lock.Claim{Owner: "a", Token: 1}, anEntry("another"))); stored != Refused || err != nil {
				t.Errorf("%s, commit: %v, %v, want a refusal", how, stored, err)
			}
			if held, err := s.Finish(t.Context(), keys, finishUnder(lock.Claim{Owner: "a", Token: 1}, FinishFailed)); held || err != nil {
				t.Errorf("%s, finish: %v, %v, want false", how, held, err)
			}
			if err := s.Leases().Renew(t.Context(), lock.Claim{Name: keys.B(), Owner: "a", Token: 1}, life); !errors.Is(err, lock.ErrNotHeld) {
				t.Errorf("%s, renew: %v, want ErrNotHeld", how, err)
			}
			must(t, rdb.Del(t.Context(), keys.V).Err())
			acquired(t, s, keys, "abc")
			if got := kindOf(t, rdb, keys); got != "L" {
				t.Errorf("%s: then there stands %q, want a lease", how, got)
			}
		}
	})
}

func TestAnEntryOfAWrongTypeIsToldAndReplaced(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		keys := s.Keys("c", "k")
		spoil(t, rdb, keys.V, "a list")
		if _, _, err := s.Get(t.Context(), keys); !errors.Is(err, ErrWrongType) {
			t.Errorf("reading it: %v, want ErrWrongType", err)
		}
		stored, err := s.Commit(t.Context(), keys, commitUnder(acquired(t, s, keys, "a"), anEntry("version1")))
		if stored != Done || err != nil || len(standing(t, rdb, keys.V)) != len(anEntry("version1")) {
			t.Errorf("commit over it: %v, %v, stored %q", stored, err, standing(t, rdb, keys.V))
		}
		for _, op := range []Op{OpDelete, OpExpire} {
			spoil(t, rdb, keys.V, "a list")
			if stored, err := s.Change(t.Context(), keys, change(op)); stored != Done || err != nil || standing(t, rdb, keys.V) != "" {
				t.Errorf("%s: %v, %v, left %q", op, stored, err, standing(t, rdb, keys.V))
			}
		}
		spoil(t, rdb, keys.V, "a list")
		if stored, err := s.Change(t.Context(), keys, setChange(anEntry("version2"))); stored != Done || err != nil || standing(t, rdb, keys.V) == "" {
			t.Errorf("set over it: %v, %v, left %q", stored, err, standing(t, rdb, keys.V))
		}
	})
}

// full is a redis-server that has no memory for more, as soon as fill is called.
func full(t *testing.T) (rdb *redis.Client, fill func(full bool)) {
	t.Helper()
	rdb = testutil.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t)
	return rdb, func(full bool) {
		t.Helper()
		must(t, rdb.ConfigSet(t.Context(), "maxmemory", map[bool]string{true: "1", false: "0"}[full]).Err())
	}
}

func TestACommitWithoutMemoryLeavesAPassAndWakesTheWaiters(t *testing.T) {
	t.Parallel()
	rdb, fill := full(t)
	s := newStore(rdb)
	keys := s.Keys("c", "k")
	sub := rdb.Subscribe(t.Context(), s.channel)
	defer func() { must(t, sub.Close()) }()
	_, err := sub.Receive(t.Context())
	must(t, err)
	claim := acquired(t, s, keys, "a")
	_, err = s.Acquire(t.Context(), keys, Acquire{Owner: "b", TTL: life, Wait: true})
	must(t, err)
	fill(true)
	stored, err := s.Commit(t.Context(), keys, commitUnder(claim, anEntry("version1")))
	must(t, err)
	if kind := kindOf(t, rdb, keys); stored != NotStored || kind != "P" || standing(t, rdb, keys.V) != "" {
		t.Errorf("commit: %v, leaves %q and an entry %q, want NotStored, P and none", stored, kind, standing(t, rdb, keys.V))
	}
	m, err := sub.ReceiveMessage(t.Context())
	must(t, err)
	if want := wakeUp("c", "k"); m.Payload != want {
		t.Errorf("message %q, want %q", m.Payload, want)
	}
}

func TestAPassLeftForWantOfMemoryDoesNotEndTheIntervalEarly(t *testing.T) {
	t.Parallel()
	rdb, fill := full(t)
	s := newStore(rdb)
	keys := s.Keys("c", "k")
	c := commitUnder(acquired(t, s, keys, "a"), anEntry("version1"))
	c.Interval, c.Pass = life, time.Millisecond
	fill(true)
	_, err := s.Commit(t.Context(), keys, c)
	must(t, err)
	if got := kindOf(t, rdb, keys); got != "P" {
		t.Errorf("the build key is %q, want P for what is left of the interval", got)
	}
}

func TestASetWithoutMemoryDeletesTheEntry(t *testing.T) {
	t.Parallel()
	rdb, fill := full(t)
	s := newStore(rdb)
	keys := s.Keys("c", "k")
	_, err := s.Change(t.Context(), keys, setChange(anEntry("version1")))
	must(t, err)
	fill(true)
	stored, err := s.Change(t.Context(), keys, setChange(anEntry("version2")))
	must(t, err)
	if stored != NotStored || standing(t, rdb, keys.V) != "" {
		t.Errorf("set: %v, leaves %q, want NotStored and nothing", stored, standing(t, rdb, keys.V))
	}
}

func TestALeaseEndsAlsoWithoutMemory(t *testing.T) {
	t.Parallel()
	rdb, fill := full(t)
	s := newStore(rdb)
	ends := map[string]struct {
		want string
		end  func(keys Keys, claim lock.Claim) error
	}{
		"failed": {"F", func(keys Keys, claim lock.Claim) error {
			_, err := s.Finish(t.Context(), keys, finishUnder(claim, FinishFailed))
			return err
		}},
		"pass": {"P", func(keys Keys, claim lock.Claim) error {
			_, err := s.Finish(t.Context(), keys, finishUnder(claim, FinishPass))
			return err
		}},
		"nothing": {"C", func(keys Keys, claim lock.Claim) error {
			_, err := s.Finish(t.Context(), keys, finishUnder(claim, FinishNothing))
			return err
		}},
		"delete": {"C", func(keys Keys, _ lock.Claim) error {
			_, err := s.Change(t.Context(), keys, change(OpDelete))
			return err
		}},
		"expire nothing": {"C", func(keys Keys, _ lock.Claim) error {
			_, err := s.Change(t.Context(), keys, change(OpExpire))
			return err
		}},
		"set": {"C", func(keys Keys, _ lock.Claim) error {
			_, err := s.Change(t.Context(), keys, setChange(anEntry("version1")))
			return err
		}},
	}
	for name, e := range ends {
		keys := s.Keys("c", name)
		fill(false)
		claim := acquired(t, s, keys, "a")
		fill(true)
		must(t, s.Leases().Renew(t.Context(), claim, life))
		if err := e.end(keys, claim); err != nil || kindOf(t, rdb, keys) != e.want {
			t.Errorf("%s: %v, leaves %q, want %s", name, err, standing(t, rdb, keys.B()), e.want)
		}
	}
}

func TestAnExpireWithoutMemoryNeverLeavesTheEntryFresh(t *testing.T) {
	t.Parallel()
	rdb, fill := full(t)
	s := newStore(rdb)
	keys := s.Keys("c", "k")
	_, err := s.Change(t.Context(), keys, setChange(anEntry("version1")))
	must(t, err)
	fill(true)
	stored, err := s.Change(t.Context(), keys, change(OpExpire))
	must(t, err)
	if v := standing(t, rdb, keys.V); stored != Done || v != "" && v[16:24] != strings.Repeat("\x00", 8) {
		t.Errorf("expire: %v, leaves %q", stored, v)
	}
}

func TestALoserIsToldOfTheLeaseAlsoWithoutMemory(t *testing.T) {
	t.Parallel()
	rdb, fill := full(t)
	s := newStore(rdb)
	keys := s.Keys("c", "k")
	acquired(t, s, keys, "a")
	fill(true)
	f, err := s.Acquire(t.Context(), keys, Acquire{Owner: "b", TTL: life, Wait: true})
	if err != nil || f.State != Held {
		t.Errorf("acquire: %+v, %v, want Held", f, err)
	}
}

func TestAnAcquireWithoutMemoryGrantsNothing(t *testing.T) {
	t.Parallel()
	rdb, fill := full(t)
	s := newStore(rdb)
	keys := s.Keys("c", "k")
	fill(true)
	f, err := s.Acquire(t.Context(), keys, Acquire{Owner: "a", TTL: life})
	if err == nil || f.State == Granted || standing(t, rdb, keys.B()) != "" {
		t.Errorf("acquire: %+v, %v, leaves %q, want an error and nothing", f, err, standing(t, rdb, keys.B()))
	}
}

func TestALifetimeThatIsNotPositiveIsNeverSent(t *testing.T) {
	everywhere(t, func(t *world) {
		rdb := t.rdb
		s := newStore(rdb)
		keys := s.Keys("c", "k")
		claim := lock.Claim{Name: keys.B(), Owner: "a", Token: 1}
		for _, d := range []time.Duration{0, -1, -time.Millisecond, -time.Hour} {
			calls := map[string]func(){
				"acquire": func() { _, _ = s.Acquire(t.Context(), keys, Acquire{Owner: "a", TTL: d}) },
				"commit": func() {
					c := commitUnder(claim, anEntry("version1"))
					c.PX = d
					_, _ = s.Commit(t.Context(), keys, c)
				},
				"finish": func() {
					f := finishUnder(claim, FinishFailed)
					f.For = d
					_, _ = s.Finish(t.Context(), keys, f)
				},
				"set": func() {
					c := setChange(anEntry("version1"))
					c.PX = d
					_, _ = s.Change(t.Context(), keys, c)
				},
				"delete": func() {
					c := change(OpDelete)
					c.Interval = d
					_, _ = s.Change(t.Context(), keys, c)
				},
				"renew": func() { _ = s.Leases().Renew(t.Context(), claim, d) },
			}
			for name, call := range calls {
				func() {
					defer func() {
						if recover() == nil {
							t.Errorf("%s took %v for a lifetime", name, d)
						}
					}()
					call()
				}()
			}
		}
		if n := rdb.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys were written, want none", n)
		}
	})
}

func TestLifetimesAreRoundedUpToWholeMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1: "1", time.Microsecond: "1", time.Millisecond: "1", time.Millisecond + 1: "2", time.Hour: "3600000",
	} {
		if got := millis(d); got != want {
			t.Errorf("%v is sent as %s ms, want %s", d, got, want)
		}
	}
}

func TestTwoMastersThatLackTheSameNumberGiveOthersForIt(t *testing.T) { // I2
	everywhere(t, func(w *world) {
		s := newStore(w.rdb)
		numbers := map[string]func() (uint64, error){
			s.generationKey("c"):   func() (uint64, error) { return s.Clear(w.Context(), "c", "1", 0) },
			s.tagKeys("c", nil)[0]: func() (uint64, error) { return s.RaiseTags(w.Context(), "c", "1", []string{"t"}, time.Hour, 0) },
		}
		for key, next := range numbers {
			const last = 9e15 // of a clock far ahead
			given := map[uint64]struct{}{}
			for range 8 { // of which some may be the same by chance, but not all
				w.rdb.Set(w.Context(), key, strconv.Itoa(last), 0)
				n, err := next()
				if err != nil || n <= last {
					w.Fatalf("%s: %d, %v", key, n, err)
				}
				given[n] = struct{}{}
			}
			if len(given) == 1 {
				w.Errorf("%s: always %v", key, given)
			}
		}
	})
}

func TestANumberIsAboveTheOneThatItsCallerKnows(t *testing.T) { // I2
	everywhere(t, func(w *world) {
		s := newStore(w.rdb)
		const known = 9e15
		if n, err := s.Clear(w.Context(), "c", "1", known); err != nil || n <= known {
			w.Errorf("generation %d, %v", n, err)
		}
		if n, err := s.RaiseTags(w.Context(), "c", "1", []string{"t"}, time.Hour, known); err != nil || n <= known {
			w.Errorf("tags %d, %v", n, err)
		}
	})
}

func TestNumbersKeepToTheTimeOfTheServer(t *testing.T) {
	everywhere(t, func(w *world) {
		s := newStore(w.rdb)
		var n uint64
		for range 100 {
			var err error
			n, err = s.RaiseTags(w.Context(), "c", "1", []string{"t"}, time.Hour, n)
			must(w, err)
		}
		now, err := w.rdb.Time(w.Context()).Result()
		must(w, err)
		if ahead := int64(n) - now.UnixMicro(); ahead > maxLeap {
			w.Errorf("after 100 invalidations the number is %v ahead, want at most %v", time.Duration(ahead)*time.Microsecond, maxLeap*time.Microsecond)
		}
	})
}
