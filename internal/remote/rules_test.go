package remote

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// rules is the protocol of one key: what stands at V and B, and what each script
// makes of it. It is written from the design, not from the scripts. It is a value,
// so that a step can be tried on a copy. Times are the server's, in µs.
type rules struct {
	v entry
	b build
}

const (
	immortal  = math.MaxInt64
	wrongType = "\x00a value of another Redis type" // stands for what GET cannot read
)

// entry is what stands at V.
type entry struct {
	raw   string
	until span // {} = absent
}

// build is what stands at B.
type build struct {
	kind    byte // 0 absent, one of LFCP, 'x' a string that no script wrote, 't' another type
	waited  bool
	grant   int64
	count   int
	owner   string
	retryAt int64
	code    string
	foreign string // kind 'x'
	until   span
}

// span is a moment that is known to lie between two: a server reads its clock once
// more than it tells.
type span struct{ lo, hi int64 }

// instant is when a script ran.
type instant struct {
	during span  // what its expiries count from
	now    int64 // what it read with TIME
}

func (i instant) plus(ms int64) span { return span{i.during.lo + 1000*ms, i.during.hi + 1000*ms} }

// request is one call of a script. Only some fields belong to each.
type request struct {
	script string
	owner  string
	nonce  int64

	ttl      int64 // acquire, renew
	seen     string
	notAfter int64 // acquire, change; 0 = none
	wait     bool
	outer    Outer

	entry    string // commit, set
	px       int64
	interval int64
	pass     int64

	state string // finish: F, P or C
	ms    int64
	code  string
	drop  bool

	op      Op // change
	message string
}

func (q request) args(channel string) []any {
	notAfter := ""
	if q.notAfter > 0 {
		notAfter = strconv.FormatInt(q.notAfter, 10)
	}
	switch q.script {
	case "acquire":
		return []any{q.owner, q.ttl, q.seen, notAfter, q.wait, string(q.outer)}
	case "renew":
		return []any{q.owner, q.nonce, q.ttl}
	case "commit":
		return []any{q.owner, q.nonce, q.entry, q.px, q.interval, q.pass, channel, q.message}
	case "finish":
		return []any{q.owner, q.nonce, q.state, q.ms, q.code, q.drop, q.interval, channel, q.message}
	default:
		return []any{string(q.op), notAfter, q.interval, channel, q.message, q.entry, q.px}
	}
}

func (q request) String() string {
	words := []string{q.script}
	for _, a := range q.args("") {
		words = append(words, fmt.Sprintf("%.60q", fmt.Sprint(a)))
	}
	return strings.Join(words, " ")
}

// answer is a script's reply without the time, and what was published. A span in
// the reply is a number of ms that may be any of these.
type answer struct {
	reply []any
	told  []string
}

func answered(reply ...any) answer { return answer{reply: reply} }

func (r *rules) step(q request, at instant) answer {
	switch q.script {
	case "acquire":
		return r.acquire(q, at)
	case "renew":
		if !r.held(q) {
			return answered(int64(0))
		}
		r.b.until = at.plus(q.ttl)
		return answered(int64(1))
	case "commit":
		return r.commit(q, at)
	case "finish":
		return r.finish(q, at)
	default:
		return r.change(q, at)
	}
}

// held: exactly this acquisition and this grant.
func (r *rules) held(q request) bool {
	return r.b.kind == 'L' && r.b.owner == q.owner && r.b.grant == q.nonce
}

func (r *rules) acquire(q request, at instant) answer {
	if q.notAfter > 0 && at.now > q.notAfter {
		return answered("VOID")
	}
	if r.v.present() && r.v.raw != wrongType && versionOf(r.v.raw) != q.seen {
		return answered("NEWER", r.v.raw)
	}
	b := r.b
	if b.kind == 't' || b.until.hi == immortal {
		b = build{}
	}
	r.b = b
	rest := span{max(b.until.lo-at.during.hi, 0) / 1000, max(b.until.hi-at.during.lo, 0) / 1000}
	switch {
	case b.kind == 'L' && b.owner == q.owner:
		r.b.until = at.plus(q.ttl)
		return answered("GRANTED", b.grant, b.count)
	case b.kind == 'L':
		r.b.waited = b.waited || q.wait
		return answered("HELD", rest)
	case b.kind == 'F' && at.now < b.retryAt:
		return answered("FAILED", ceilMillis(b.retryAt-at.now), b.count, b.code)
	case b.kind == 'C':
		return answered("COOLING", rest)
	case b.kind == 'P':
		return answered("PASS", rest)
	case q.outer == Theirs:
		return answered("HELD", int64(0))
	}
	r.b = build{
		kind: 'L', waited: q.outer == Mine, grant: max(at.now, b.grant+1), count: b.count,
		owner: q.owner, until: at.plus(q.ttl),
	}
	return answered("GRANTED", r.b.grant, r.b.count)
}

func (r *rules) commit(q request, at instant) answer {
	if !r.held(q) {
		if r.v.present() && r.v.raw != wrongType && versionOf(r.v.raw) == versionOf(q.entry) {
			return answered("STORED")
		}
		return answered("REFUSED")
	}
	told := r.wake(q)
	r.v = entry{raw: builtAt(q.entry, at.now/1000), until: at.plus(q.px)}
	r.rest(0, q.interval, at)
	return answer{reply: []any{"STORED"}, told: told}
}

func (r *rules) finish(q request, at instant) answer {
	if !r.held(q) {
		return answered(int64(0))
	}
	told := r.wake(q)
	if q.drop {
		r.v = entry{}
	}
	ms := max(q.ms, r.cooling(q.interval, at)) // neither mark may end the interval early
	switch q.state {
	case "F":
		r.b = build{
			kind: 'F', grant: r.b.grant, count: r.b.count + 1, retryAt: at.now + 1000*ms, code: q.code,
			until: at.plus(2 * ms),
		}
	case "P":
		r.b = build{kind: 'P', grant: r.b.grant, count: r.b.count, until: at.plus(ms)}
	default:
		r.rest(r.b.count, q.interval, at)
	}
	return answer{reply: []any{int64(1)}, told: told}
}

func (r *rules) change(q request, at instant) answer {
	if q.notAfter > 0 && at.now > q.notAfter {
		return answered("VOID")
	}
	switch q.op {
	case OpSet:
		r.v = entry{raw: builtAt(q.entry, at.now/1000), until: at.plus(q.px)}
	case OpExpire:
		if r.v.raw == wrongType || len(r.v.raw) < 48 {
			r.v = entry{}
		} else {
			r.v.raw = builtAt(r.v.raw, 0)
		}
	case OpDelete:
		r.v = entry{}
	}
	switch {
	case q.op == OpSet && (r.b.kind == 'L' || r.b.kind == 'F'):
		r.rest(0, q.interval, at)
	case r.b.kind == 'L':
		r.rest(r.b.count, q.interval, at)
	}
	return answer{reply: []any{"DONE"}, told: []string{q.message}}
}

func (r *rules) wake(q request) []string {
	if r.b.waited || q.drop { // who drops an entry tells everybody
		return []string{q.message}
	}
	return nil
}

// cooling is what is left of the interval since the grant, in ms.
func (r *rules) cooling(interval int64, at instant) int64 {
	return ceilMillis(r.b.grant - at.now + 1000*interval)
}

func (r *rules) rest(count int, interval int64, at instant) {
	if ms := r.cooling(interval, at); ms > 0 {
		r.b = build{kind: 'C', grant: r.b.grant, count: count, until: at.plus(ms)}
	} else {
		r.b = build{}
	}
}

func (e entry) present() bool { return e.raw != "" }

// stored is B as it stands in Redis.
func (b build) stored() string {
	switch b.kind {
	case 'L':
		return fmt.Sprintf("L %d %d %d %s", map[bool]int{true: 1}[b.waited], b.grant, b.count, b.owner)
	case 'F':
		return fmt.Sprintf("F %d %d %d %s", b.grant, b.count, b.retryAt, b.code)
	case 'C', 'P':
		return fmt.Sprintf("%c %d %d", b.kind, b.grant, b.count)
	case 't':
		return wrongType
	}
	return b.foreign
}

func versionOf(raw string) string {
	if len(raw) < 44 {
		return ""
	}
	return raw[36:44]
}

func builtAt(raw string, ms int64) string {
	stamp := binary.BigEndian.AppendUint64(nil, uint64(ms))
	return raw[:16] + string(stamp) + raw[24:]
}

func ceilMillis(micros int64) int64 { return int64(math.Ceil(float64(micros) / 1000)) }
