package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/internal/testutil"
)

// scene is one key on one server, the rules beside it, and everything that was sent.
type scene struct {
	tb       testing.TB
	rng      *rand.Rand
	store    *Store
	keys     Keys
	sub      *redis.PubSub
	real     bool // a redis-server: whole milliseconds, and time passes by itself
	rules    rules
	promises promises
	known    int64 // a server time that has passed
	past     []request
	grants   []request // owner and nonce of the leases given
	seq      int64
}

const randomSteps = 300

func TestRandomInterleavingsOfTheScriptsFollowTheRules(t *testing.T) {
	for range 8 {
		seed := rand.Uint64()
		virtually(t, func(t *world) {
			if err := play(t, newStore(t.rdb), seed, randomSteps, false); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}

func TestRandomInterleavingsFollowTheRulesOnARedisServer(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rdb := testutil.StartRedis(t).Client(t)
	if err := play(t, newStore(rdb), seed, randomSteps, true); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
}

func virtually(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, client := testutil.NewBubbleRedis(t)
		f(&world{t, client()})
	})
}

func newStore(rdb redis.UniversalClient) *Store { return NewStore(rdb, "test", "here", time.Second) }

// play makes random steps on a key and compares each with the rules and the
// invariants. Its error tells the steps that led to the difference.
func play(tb testing.TB, store *Store, seed uint64, steps int, onServer bool) error {
	tb.Helper()
	ctx := tb.Context()
	s := &scene{
		tb: tb, rng: rand.New(rand.NewPCG(seed, 0)), store: store, keys: store.Keys("c", "k"),
		sub: store.rdb.Subscribe(ctx, store.channel), real: onServer,
	}
	defer func() { _ = s.sub.Close() }()
	if err := store.Load(ctx); err != nil {
		return err
	}
	if _, err := s.sub.Receive(ctx); err != nil {
		return err
	}
	if err := s.look(); err != nil {
		return err
	}
	var story []string
	for n := range steps {
		what, err := s.next()
		story = append(story, fmt.Sprintf("%d %s", s.known, what))
		if err != nil {
			return fmt.Errorf("step %d: %w\nthe last steps (server µs first):\n%s", n, err,
				strings.Join(story[max(0, len(story)-12):], "\n"))
		}
	}
	if err := store.rdb.Publish(ctx, store.channel, "the end").Err(); err != nil {
		return err
	}
	return s.hear("the end") // and nothing that nobody expected before it
}

// next makes one random step.
func (s *scene) next() (string, error) {
	switch n := s.rng.IntN(100); {
	case n < 26:
		return s.send(s.anAcquire())
	case n < 34:
		return s.send(s.underLease(request{script: "renew", ttl: s.ms(30, 60)}))
	case n < 46:
		return s.send(s.underLease(request{
			script: "commit", entry: s.anEntry(), px: s.ms(20, 200), interval: interval, pass: s.ms(5, 60), message: s.message("W"),
		}))
	case n < 58:
		return s.send(s.underLease(request{
			script: "finish", state: pick(s.rng, "F", "F", "P", "C"), ms: s.ms(1, 60), code: pick(s.rng, "error", "panic"),
			drop: s.rng.IntN(6) == 0, interval: interval, message: s.message("W"),
		}))
	case n < 66:
		q := request{script: "change", op: pick(s.rng, OpDelete, OpExpire, OpSet), interval: interval, message: s.message("I")}
		if q.notAfter = s.aDeadline(); q.op == OpSet {
			q.entry, q.px = s.anEntry(), s.ms(20, 200)
		}
		return s.send(q)
	case n < 80 && len(s.past) > 0: // a lost reply, or a copy that comes late
		return s.send(s.past[max(0, len(s.past)-1-s.rng.IntN(6))])
	case n < 98:
		return s.pass()
	default:
		return s.vandalise()
	}
}

const interval = 20 // MinRebuildInterval, ms

func (s *scene) ms(lo, hi int64) int64 { return lo + s.rng.Int64N(hi-lo) }

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func (s *scene) message(kind string) string {
	s.seq++
	return fmt.Sprintf("%s %d", kind, s.seq)
}

func (s *scene) anEntry() string {
	s.seq++
	return fmt.Sprintf("0123456789abcdef%s9ABCDEFghijk%08dSUM!payload", strings.Repeat("\xff", 8), s.seq)
}

// aDeadline is mostly none, else one that passes soon or has passed.
func (s *scene) aDeadline() int64 {
	return pick(s.rng, 0, 0, s.known-1, s.known+5_000, s.known+50_000, s.known+1_000_000)
}

func (s *scene) anAcquire() request {
	q := request{
		script: "acquire", owner: fmt.Sprintf("%032x", s.rng.Uint64()), ttl: s.ms(30, 60),
		seen: versionOf(s.rules.v.raw), notAfter: s.aDeadline(), wait: s.rng.IntN(2) == 0, outer: s.anOuter(),
	}
	if s.rng.IntN(6) == 0 {
		q.seen = pick(s.rng, "", "anything")
	}
	return q
}

// anOuter is mostly of a gate without another locker.
func (s *scene) anOuter() Outer {
	switch s.rng.IntN(12) {
	case 0:
		return Mine
	case 1:
		return Theirs
	}
	return NotAsked
}

// underLease names a lease: mostly the last that was given, else an earlier one, or
// a mixture of two that nobody was given.
func (s *scene) underLease(q request) request {
	if len(s.grants) == 0 {
		q.owner, q.nonce = "abc", 1
		return q
	}
	g := s.grants[len(s.grants)-1]
	earlier := s.grants[max(0, len(s.grants)-1-s.rng.IntN(5))]
	q.owner, q.nonce = g.owner, g.nonce
	switch s.rng.IntN(10) {
	case 0:
		q.owner, q.nonce = earlier.owner, earlier.nonce
	case 1:
		q.owner = earlier.owner
	case 2:
		q.nonce = earlier.nonce
	}
	return q
}

// pass lets time pass, often exactly until something ends or just not yet.
func (s *scene) pass() (string, error) {
	until := s.known + s.rng.Int64N(60_000)
	ends := []int64{s.known + 1, s.known + 1000*interval}
	for _, t := range []int64{s.rules.b.until.lo, s.rules.b.retryAt, s.rules.v.until.lo, s.rules.b.grant + 1000*interval} {
		if t > s.known && t != immortal {
			ends = append(ends, t, t, t-1, t+1)
		}
	}
	if s.rng.IntN(4) > 0 {
		until = pick(s.rng, ends...)
	}
	what := fmt.Sprintf("time passes until %d", until)
	if !s.real {
		time.Sleep(time.Duration(until-s.known) * time.Microsecond)
		return what, s.look()
	}
	for s.known < until { // the server's clock ends this
		if err := s.look(); err != nil {
			return what, err
		}
	}
	return what, nil
}

// vandalise writes what no script writes.
func (s *scene) vandalise() (string, error) {
	rdb := s.store.rdb
	const ttl = 40 * time.Millisecond
	soon := span{s.known + 40_000, s.known + 40_000}
	if s.real {
		soon.hi += time.Minute.Microseconds() // when the write happens is not known
	}
	never := span{immortal, immortal}
	list := func(key string, end span) error {
		_, err := rdb.TxPipelined(s.tb.Context(), func(p redis.Pipeliner) error {
			p.Del(s.tb.Context(), key)
			p.LPush(s.tb.Context(), key, "x")
			if end != never {
				p.PExpire(s.tb.Context(), key, ttl)
			}
			return nil
		})
		return err
	}
	end := pick(s.rng, soon, never)
	var err error
	what := pick(s.rng, "B of another type", "B of no form", "B for ever", "a lease for ever", "V of another type", "V too short")
	switch what {
	case "B of another type":
		err = list(s.keys.B(), end)
		s.rules.b = build{kind: 't', until: end}
		s.promises.forget()
	case "B of no form":
		text := pick(s.rng, "", "L", "L 1 x y z", "F 1", "hello", "L 2 1 1 ab", "L 1 1 1 ", "C 1", "\x00")
		err = rdb.Set(s.tb.Context(), s.keys.B(), text, ttl).Err()
		s.rules.b = build{kind: 'x', foreign: text, until: soon}
		s.promises.forget()
	case "B for ever":
		text := pick(s.rng, "C 1 2", "P 1 2", "hello")
		err = rdb.Set(s.tb.Context(), s.keys.B(), text, 0).Err()
		s.rules.b = build{kind: 'x', foreign: text, until: never}
		s.promises.forget()
	case "a lease for ever":
		if s.rules.b.kind == 'L' && s.rules.b.until.lo > s.known+20_000 {
			err = rdb.Persist(s.tb.Context(), s.keys.B()).Err()
			s.rules.b.until = never
			s.promises.anyTime()
		}
	case "V of another type":
		err = list(s.keys.V, end)
		s.rules.v = entry{raw: wrongType, until: end}
	case "V too short":
		err = rdb.Set(s.tb.Context(), s.keys.V, "short", ttl).Err()
		s.rules.v = entry{raw: "short", until: soon}
	}
	return "vandal: " + what, errors.Join(err, s.look())
}

// send runs a script and compares what it answers, leaves and tells with the rules.
func (s *scene) send(q request) (string, error) {
	keys := []string{s.keys.V, s.keys.B()}
	if q.script == "renew" {
		keys = keys[1:]
	}
	v, err := s.script(q).run(s.tb.Context(), s.store.rdb, again, keys, q.args(s.store.channel)...)
	if err != nil {
		return q.String(), err
	}
	reply, now, err := s.untimed(v)
	what := fmt.Sprintf("%v -> %q", q, reply)
	if err != nil {
		return what, err
	}
	seen, err := s.read()
	if err != nil {
		return what, err
	}
	before := s.rules
	at := s.when(now, seen.from)
	told, err := s.settle(q, at, reply, seen)
	if err != nil {
		return what, err
	}
	s.known = seen.from
	for _, want := range told {
		if err := s.hear(want); err != nil {
			return what, err
		}
	}
	if q.script != "change" || q.op != OpSet { // a set is sent exactly once
		s.past = append(s.past, q)
	}
	if q.script == "acquire" && reply[0] == "GRANTED" {
		q.nonce = s.rules.b.grant
		s.grants = append(s.grants, q)
	}
	return what, s.promises.check(q, reply, at, before, s.rules)
}

func (s *scene) script(q request) *script {
	return map[string]*script{
		"acquire": s.store.acquire, "renew": s.store.renew, "commit": s.store.commit, "finish": s.store.finish, "change": s.store.change,
	}[q.script]
}

// untimed takes the server's time out of a reply; renew does not tell it.
func (s *scene) untimed(v any) (reply []any, now int64, err error) {
	fields, ok := v.([]any)
	if !ok {
		t, err := s.store.rdb.Time(s.tb.Context()).Result()
		return []any{v}, t.UnixMicro(), err
	}
	r := newReply(v)
	if now = r.integer(1); r.err != nil {
		return nil, 0, r.err
	}
	return slices.Delete(slices.Clone(fields), 1, 2), now, nil
}

// when tells the moments at which a script may have run that read now and was over
// by then.
func (s *scene) when(now, then int64) instant {
	if s.real {
		return instant{during: span{s.known / 1000 * 1000, then / 1000 * 1000}, now: now}
	}
	return instant{during: span{now, now}, now: now}
}

// settle finds the course of events that the rules allow and that explains both the
// reply and what stands there now. There is more than one only where a key expires
// about when the script runs.
func (s *scene) settle(q request, at instant, reply []any, seen sight) ([]string, error) {
	var wrong error
	for _, r := range s.starts(at) {
		a := r.step(q, at)
		err := a.matches(reply)
		if err == nil {
			err = s.compare(&r, seen)
		}
		if err == nil {
			s.rules = r
			return a.told, nil
		}
		if wrong == nil {
			wrong = err
		}
	}
	return nil, wrong
}

// starts are the states a script may have found: with and without what may have expired.
func (s *scene) starts(at instant) []rules {
	var found []rules
	for _, vGone := range s.gone(s.rules.v.until, at.during) {
		for _, bGone := range s.gone(s.rules.b.until, at.during) {
			r := s.rules
			if vGone {
				r.v = entry{}
			}
			if bGone {
				r.b = build{}
			}
			found = append(found, r)
		}
	}
	return found
}

// gone tells whether what lives until then has expired at a moment within at.
// A redis-server counts whole milliseconds, and the last of them belongs to the key.
func (s *scene) gone(until, at span) []bool {
	alive, dead := at.hi < until.lo, at.lo >= until.hi
	if s.real {
		alive, dead = at.hi/1000 <= until.lo/1000, at.lo/1000 > until.hi/1000
	}
	switch {
	case alive:
		return []bool{false}
	case dead:
		return []bool{true}
	}
	return []bool{false, true}
}

func (a answer) matches(reply []any) error {
	same := slices.EqualFunc(a.reply, reply, func(want, got any) bool {
		if rest, ok := want.(span); ok {
			ms, ok := got.(int64)
			return ok && rest.lo <= ms && ms <= rest.hi
		}
		return fmt.Sprint(want) == fmt.Sprint(got)
	})
	if !same {
		return fmt.Errorf("it answers %q, want %q", reply, a.reply)
	}
	return nil
}

// sight is what stands at both keys, read between two server times.
type sight struct {
	from, to int64
	v, b     *redis.StringCmd
	vEnd     int64 // PEXPIRETIME
	bEnd     int64
}

func (s *scene) read() (sight, error) {
	p := s.store.rdb.Pipeline()
	from := p.Time(s.tb.Context())
	x := sight{v: p.Get(s.tb.Context(), s.keys.V), b: p.Get(s.tb.Context(), s.keys.B())}
	vEnd, bEnd := p.Do(s.tb.Context(), "PEXPIRETIME", s.keys.V), p.Do(s.tb.Context(), "PEXPIRETIME", s.keys.B())
	to := p.Time(s.tb.Context())
	_, _ = p.Exec(s.tb.Context()) // each reply is looked at
	x.from, x.to = from.Val().UnixMicro(), to.Val().UnixMicro()
	x.vEnd, _ = vEnd.Int64()
	x.bEnd, _ = bEnd.Int64()
	return x, errors.Join(from.Err(), vEnd.Err(), bEnd.Err(), to.Err())
}

// look compares both keys with the rules while no script runs.
func (s *scene) look() error {
	seen, err := s.read()
	if err != nil {
		return err
	}
	s.known = seen.from
	return s.compare(&s.rules, seen)
}

// compare checks what stands at both keys. What has expired leaves r, and on a
// redis-server r learns the exact ends.
func (s *scene) compare(r *rules, seen sight) error {
	if r.v.present() {
		there, err := s.compareKey("V", &r.v.until, r.v.raw, seen.v, seen.vEnd, seen)
		if err != nil {
			return err
		}
		if !there {
			r.v = entry{}
		}
	} else if !errors.Is(seen.v.Err(), redis.Nil) {
		return fmt.Errorf("V holds %q, want none", seen.v)
	}
	if r.b.kind != 0 {
		there, err := s.compareKey("B", &r.b.until, r.b.stored(), seen.b, seen.bEnd, seen)
		if err != nil {
			return err
		}
		if !there {
			r.b = build{}
		}
	} else if !errors.Is(seen.b.Err(), redis.Nil) {
		return fmt.Errorf("B holds %q, want none", seen.b)
	}
	return nil
}

func (s *scene) compareKey(name string, until *span, want string, got *redis.StringCmd, end int64, seen sight) (there bool, err error) {
	text := got.Val()
	if err := got.Err(); err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE") {
		text = wrongType
	}
	may := s.gone(*until, span{seen.from, seen.to})
	switch absent := errors.Is(got.Err(), redis.Nil); {
	case absent && slices.Contains(may, true), end == -2 && slices.Contains(may, true):
		return false, nil
	case absent:
		return false, fmt.Errorf("%s is gone, want %q", name, want)
	case !slices.Contains(may, false):
		return false, fmt.Errorf("%s outlives its end: %q", name, text)
	case text != want:
		return false, fmt.Errorf("%s holds %q, want %q", name, text, want)
	case end == -1:
		if until.hi != immortal {
			return false, fmt.Errorf("%s lives for ever: %q", name, text)
		}
		return true, nil
	case end < until.lo/1000 || end > until.hi/1000:
		return false, fmt.Errorf("%s ends at %d ms, want within %d and %d", name, end, until.lo/1000, until.hi/1000)
	}
	if s.real {
		*until = span{1000 * end, 1000 * end}
	}
	return true, nil
}

// hear takes the next message of the bus.
func (s *scene) hear(want string) error {
	ctx, cancel := context.WithTimeout(s.tb.Context(), 10*time.Second)
	defer cancel()
	m, err := s.sub.ReceiveMessage(ctx)
	if err != nil {
		return fmt.Errorf("message %q did not come: %w", want, err)
	}
	if m.Payload != want {
		return fmt.Errorf("message %q came, want %q", m.Payload, want)
	}
	return nil
}

// promises are the invariants, watched from outside: they know replies and the
// entry, not the rules.
type promises struct {
	lease   *request // held, as far as replies tell
	until   span
	granted int64 // the last grant
	backoff int64 // nobody is granted before
	slack   int64 // by how much expiries may have been counted from an earlier moment
	revoked map[grantID]bool
	given   map[int64]bool
}

type grantID struct {
	owner string
	nonce int64
}

// forget: the build key was replaced by a hand from outside.
func (p *promises) forget() { *p = promises{revoked: p.revoked} }

// anyTime: the lease may end whenever it is looked at.
func (p *promises) anyTime() { p.until, p.granted, p.given = span{0, immortal}, 0, nil }

func (p *promises) check(q request, reply []any, at instant, before, after rules) error {
	if p.given == nil {
		p.given = map[int64]bool{}
	}
	if p.revoked == nil {
		p.revoked = map[grantID]bool{}
	}
	p.slack = max(p.slack, at.now-at.during.lo)
	holds := p.lease != nil && p.lease.owner == q.owner && p.lease.nonce == q.nonce && at.during.lo <= p.until.hi
	stored := before.v.raw != after.v.raw && after.v.present()
	switch q.script {
	case "acquire":
		if reply[0] != "GRANTED" {
			return nil
		}
		return p.grant(q, reply, at)
	case "renew":
		if reply[0] == int64(0) {
			return nil
		}
		if !holds {
			return errors.New("I8: renewed by a stranger")
		}
		p.until = at.plus(q.ttl)
	case "commit":
		if !stored {
			return nil
		}
		if p.revoked[grantID{q.owner, q.nonce}] {
			return errors.New("I2: a commit was stored whose lease a change had removed")
		}
		if !holds {
			return errors.New("I8: a commit was stored without its lease")
		}
		p.lease = nil
	case "finish":
		if reply[0] == int64(0) {
			return nil
		}
		if !holds {
			return errors.New("I8: a lease was finished by a stranger")
		}
		p.lease = nil
		if q.state == "F" {
			p.backoff = at.now + 1000*q.ms
		}
	case "change":
		if reply[0] == "VOID" {
			if stored {
				return errors.New("a change that came too late did something")
			}
			return nil
		}
		if p.lease != nil {
			p.revoked[grantID{p.lease.owner, p.lease.nonce}] = true
			p.lease = nil
		}
		if q.op == OpSet {
			p.backoff = 0
		}
	}
	return nil
}

func (p *promises) grant(q request, reply []any, at instant) error {
	nonce, err := strconv.ParseInt(fmt.Sprint(reply[1]), 10, 64)
	if err != nil {
		return err
	}
	if q.notAfter > 0 && at.now > q.notAfter {
		return errors.New("an acquire that came too late was granted")
	}
	if p.lease != nil && p.lease.owner == q.owner && p.lease.nonce == nonce {
		p.until = at.plus(q.ttl)
		return nil
	}
	alive := p.lease != nil && at.during.hi < p.until.lo
	switch {
	case alive && p.lease.owner == q.owner:
		return errors.New("I8: an acquisition sent twice got another nonce")
	case p.given[nonce]:
		return errors.New("I8: a nonce was given twice")
	case q.outer == Theirs:
		return errors.New("I1: granted against another locker")
	case alive:
		return errors.New("I1: two live leases")
	case at.now-p.granted < 1000*interval-p.slack:
		return errors.New("I1: two grants within the interval")
	case at.now < p.backoff:
		return errors.New("I12: granted while a back-off runs")
	}
	q.nonce = nonce
	p.lease, p.until, p.granted, p.backoff, p.slack = &q, at.plus(q.ttl), at.now, 0, 0
	p.given[nonce] = true
	// A build key that a foreign hand replaced does not tell the last nonce: the same
	// request, come again within the same microsecond, is given the same one anew.
	delete(p.revoked, grantID{q.owner, nonce})
	return nil
}
