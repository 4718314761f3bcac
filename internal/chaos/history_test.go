package chaos

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// keys is how many keys there are: the first half in one cache, the rest in another.
// Those that are odd are also Set.
const keys = 16

// op is what a record tells of.
type op string

const (
	opGet    op = "get"
	opDelete op = "delete"
	opSet    op = "set"
	opExpire op = "expire"
	opWhole  op = "whole" // a Clear, or an InvalidateTags, of all keys of a cache

	opLoad     op = "load"     // a run of the loader; Version is what it read from the source at its begin
	opLost     op = "lost"     // the lease of a load was lost or revoked, and its process knows
	opReplayed op = "replayed" // a change of the journal was made; Key is -1 for one of a whole cache
	opTrouble  op = "trouble"  // Redis did not answer, or messages may have been lost
	opStalled  op = "stalled"  // the process stood still, as on a machine that is too busy
)

// moment is a time in ns since the run began. Those of one process are exact; those of
// several agree to skew.
type moment int64

const skew = moment(20 * time.Millisecond)

// forever is when what cannot be bounded ends.
const forever = moment(math.MaxInt64 / 2)

// record is something that a process did or saw.
type record struct {
	Op      op     `json:"o"`
	Key     int    `json:"k"`
	Version int64  `json:"v,omitempty"`
	Begin   moment `json:"b"`
	End     moment `json:"e"`
	Intent  int64  `json:"i,omitempty"` // of a change
	Stale   bool   `json:"s,omitempty"` // of a get: the value may have been served as a stale one
	Leased  bool   `json:"l,omitempty"` // of a load
	Asked   moment `json:"a,omitempty"` // of a load that is leased: no later the lease was asked for
	Err     string `json:"x,omitempty"` // "" is success, see journaled
}

// journaled is the Err of a change that Redis has not got yet.
const journaled = "journaled"

// Intent is what a process told the source before it made a change. It stands also if
// the process was killed before it could tell how that ended.
type Intent struct {
	ID       int64
	Process  int
	Op       op
	Key      int         // for opWhole the first key of the cache
	At       moment      // when the source was changed
	Versions [keys]int64 // of the source then
}

// window is a time in which a process was cut off from Redis, or frozen.
type window struct {
	Process  int // -1: all
	Kind     string
	From, To moment
}

// history is all that is known of a run.
type history struct {
	processes [][]record
	intents   []Intent
	windows   []window
}

// bounds are what the rules allow.
type bounds struct {
	// told is how long after a change was acknowledged a process that is connected may
	// serve an older value: until a message that nobody knows is lost is not needed any
	// more, and what was under way has ended.
	told time.Duration
	// kept is how long any process may serve it, by the key.
	kept func(key int) time.Duration
	// settle is how long after a fault its effects may last.
	settle time.Duration
	// longest is how long a call may take.
	longest time.Duration
}

// change is a change of one key, as the rules see it.
type change struct {
	process    int
	op         op
	floor      int64 // no value older than this may be seen after it
	begin, end moment
	effective  moment // no later it acted on Redis
	promised   bool   // in its own process
	acked      bool   // in all of them
}

// findings are what check has found, and how much there was to find it in.
type findings struct {
	ops        int // calls
	violations []string
	compared   int // gets that a change of their own process came before
	told       int // gets that the change of another process came before, by bounds.told
	loads      int // under the lease
	unlocked   int // loads without it
}

// check applies the rules to a history.
//
// Own process (I2): when a change of a key has returned nil, or that it is journaled, no
// call of that process that begins later gets a version that the source had left before
// the change began. An Expire allows it for values that are served as stale. A Set of the
// older version that may have come later than the change allows it, too.
//
// Other processes (I2, I9): the same for a change that returned nil, with some time
// between its end and the beginning of the call: bounds.told if the process was connected
// all the while, bounds.kept in any case.
//
// One load (I1): two loads under the lease of one key do not overlap, unless the first
// of them had lost its lease, and its process knew, or was frozen; a change of the key
// came in between; or Redis lost its data.
//
// No call fails, gets the value of another key or of the future (I6, I7), or takes longer
// than bounds.longest (I3).
func (h *history) check(b bounds) findings {
	var f findings
	changes := h.changes()
	impaired := h.impaired()
	for p, records := range h.processes {
		var gets [keys][]record
		for _, r := range records {
			switch r.Op {
			case opGet:
				f.ops++
				h.checkCall(&f, p, r, b)
				if r.Err == "" {
					gets[r.Key] = append(gets[r.Key], r)
				}
			case opDelete, opSet, opExpire, opWhole:
				f.ops++
				h.checkCall(&f, p, r, b)
			case opLoad:
				if r.Leased {
					f.loads++
				} else {
					f.unlocked++
				}
			default:
			}
		}
		for k := range gets {
			slices.SortFunc(gets[k], func(a, b record) int { return cmp.Compare(a.Begin, b.Begin) })
			checkOwn(&f, p, gets[k], changes[k])
			checkOthers(&f, p, k, gets[k], changes[k], b, impaired[p])
		}
	}
	h.checkLoads(&f, changes)
	return f
}

func (f *findings) add(format string, args ...any) {
	f.violations = append(f.violations, fmt.Sprintf(format, args...))
}

// String writes a moment as a time since the run began.
func (m moment) String() string { return time.Duration(m).String() }

func (r record) String() string {
	return fmt.Sprintf("%s of key %d, %v to %v, version %d, stale %v, error %q", r.Op, r.Key, r.Begin, r.End, r.Version, r.Stale, r.Err)
}

func (c change) String() string {
	return fmt.Sprintf("%s by process %d, %v to %v, source at %d", c.op, c.process, c.begin, c.end, c.floor)
}

// checkCall checks what every call must keep.
func (h *history) checkCall(f *findings, p int, r record, b bounds) {
	if r.Err != "" && r.Err != journaled {
		f.add("process %d: %v failed", p, r)
	}
	took := r.End - r.Begin
	for _, w := range h.windows { // a frozen process has all the time of the world
		if w.Process == p && w.Kind == kindFreeze && w.From < r.End && w.To > r.Begin {
			took -= min(w.To, r.End) - max(w.From, r.Begin)
		}
	}
	if time.Duration(took) > b.longest {
		f.add("process %d: %v took %v", p, r, took)
	}
}

// changes are those of each key.
func (h *history) changes() [keys][]change {
	told := map[int64]record{}
	replayed := make([]map[int][]moment, len(h.processes)) // by process and key
	died := make([]moment, len(h.processes))
	for p, records := range h.processes {
		replayed[p] = map[int][]moment{}
		for _, r := range records {
			died[p] = max(died[p], r.End)
			switch r.Op {
			case opDelete, opSet, opExpire, opWhole:
				told[r.Intent] = r
			case opReplayed:
				replayed[p][r.Key] = append(replayed[p][r.Key], r.End)
			default:
			}
		}
	}
	var all [keys][]change
	for _, i := range h.intents {
		c := change{process: i.Process, op: i.Op, begin: i.At, end: forever, effective: forever}
		if r, ok := told[i.ID]; ok {
			c.begin, c.end, c.effective = r.Begin, r.End, r.End
			c.acked, c.promised = r.Err == "", r.Err == "" || r.Err == journaled
			if !c.acked {
				c.effective = forever
				key := i.Key
				if i.Op == opWhole {
					key = -1
				}
				for _, at := range replayed[i.Process][key] {
					if at > r.End {
						c.effective = at
						break
					}
				}
			}
		}
		from, to := i.Key, i.Key+1
		if i.Op == opWhole {
			from, to = cacheOf(i.Key)
		}
		for k := from; k < to; k++ {
			c.floor = i.Versions[k]
			all[k] = append(all[k], c)
		}
	}
	for k := range all {
		slices.SortStableFunc(all[k], func(a, b change) int { return cmp.Compare(a.end, b.end) })
	}
	return all
}

// cacheOf are the keys of the cache that a key belongs to.
func cacheOf(key int) (from, to int) {
	if key < keys/2 {
		return 0, keys / 2
	}
	return keys / 2, keys
}

// impaired is when each process may not have been connected.
func (h *history) impaired() [][]window {
	all := make([][]window, len(h.processes))
	for p, records := range h.processes {
		for _, w := range h.windows {
			if w.Process == p || w.Process == -1 {
				all[p] = append(all[p], w)
			}
		}
		for _, r := range records {
			if r.Op == opTrouble || r.Op == opStalled && r.End-r.Begin > moment(time.Second) {
				all[p] = append(all[p], window{Process: p, Kind: string(r.Op), From: r.Begin - moment(time.Second), To: r.End})
			}
		}
	}
	return all
}

func checkOwn(f *findings, p int, gets []record, changes []change) {
	var mine []change
	for _, c := range changes {
		if c.process == p && c.promised {
			mine = append(mine, c)
		}
	}
	before := 0
	for _, g := range gets {
		for before < len(mine) && mine[before].end < g.Begin {
			before++
		}
		if before > 0 {
			f.compared++
		}
		for _, c := range slices.Backward(mine[:before]) {
			if !c.allows(g, changes) {
				f.add("own process %d: %v after %v", p, g, c)
				break
			}
		}
	}
}

func checkOthers(f *findings, p, key int, gets []record, changes []change, b bounds, impaired []window) {
	var theirs []change
	for _, c := range changes {
		if c.process != p && c.acked {
			theirs = append(theirs, c)
		}
	}
	before := 0
	for _, g := range gets {
		for before < len(theirs) && theirs[before].end+moment(b.told) < g.Begin {
			before++
		}
		if before > 0 {
			f.told++
		}
		for _, c := range slices.Backward(theirs[:before]) {
			if c.allows(g, changes) {
				continue
			}
			late := c.end+moment(b.kept(key)) < g.Begin
			if late || !within(impaired, c.begin-skew, g.Begin, moment(b.settle)) {
				f.add("other process %d: %v, %v after %v", p, g, g.Begin-c.end, c)
				break
			}
		}
	}
}

// allows reports whether a call that begins after c may get what it got.
func (c change) allows(g record, changes []change) bool {
	return g.Version >= c.floor || c.op == opExpire && g.Stale || setLater(changes, g.Version, c)
}

// setLater reports whether a Set of version may have come after c.
func setLater(changes []change, version int64, c change) bool {
	return slices.ContainsFunc(changes, func(s change) bool {
		return s.op == opSet && s.floor == version && s.effective+skew > c.begin
	})
}

// within reports whether one of the windows, and settle after it, touches from..to.
func within(windows []window, from, to, settle moment) bool {
	return slices.ContainsFunc(windows, func(w window) bool { return w.From <= to && w.To+settle >= from })
}

// held is a load under the lease.
type held struct {
	record
	process int
}

func (h *history) checkLoads(f *findings, changes [keys][]change) {
	var loads [keys][]held
	for p, records := range h.processes {
		for _, r := range records {
			if r.Op == opLoad && r.Leased {
				loads[r.Key] = append(loads[r.Key], held{r, p})
			}
		}
	}
	for k := range loads {
		slices.SortFunc(loads[k], func(a, b held) int { return cmp.Compare(a.Begin, b.Begin) })
		for i, first := range loads[k] {
			for _, second := range loads[k][i+1:] {
				if second.Begin+skew >= first.End {
					break
				}
				if !h.mayOverlap(first, second, changes[k]) {
					f.add("two loads: process %d: %v; and process %d: %v\n%s", first.process, first.record, second.process, second.record,
						h.around(first.Key, first.Begin-moment(lockTTL), max(first.End, second.End)+moment(lockTTL)/2, first.process, second.process))
				}
			}
		}
	}
}

// around tells what some processes did and saw of a key.
func (h *history) around(key int, from, to moment, processes ...int) string {
	var text strings.Builder
	for _, p := range processes {
		for _, r := range h.processes[p] {
			if (r.Key == key || r.Key == -1) && r.Begin <= to && r.End >= from && r.Op != opGet {
				fmt.Fprintf(&text, "\tprocess %d: %v, leased %v, asked for at %v\n", p, r, r.Leased, r.Asked)
			}
		}
	}
	for _, w := range h.windows {
		if w.From <= to && w.To >= from {
			fmt.Fprintf(&text, "\t%s of process %d, %v to %v\n", w.Kind, w.Process, w.From, w.To)
		}
	}
	return text.String()
}

// mayOverlap reports whether there is a reason why second began before first ended.
func (h *history) mayOverlap(first, second held, changes []change) bool {
	// From when it was asked for the lease could be taken away, its holder know of it or not.
	from, to := first.Asked-skew, second.Begin+skew
	if slices.ContainsFunc(changes, func(c change) bool { return c.begin <= to && c.effective >= from }) {
		return true
	}
	if slices.ContainsFunc(h.processes[first.process], func(r record) bool {
		return r.Op == opLost && r.Key == first.Key && r.Begin >= from && r.Begin <= to ||
			r.Op == opStalled && r.Begin <= to && r.End >= from
	}) {
		return true
	}
	return slices.ContainsFunc(h.windows, func(w window) bool {
		lost := w.Kind == kindLoss || w.Kind == kindFreeze && w.Process == first.process
		return lost && w.From <= to && w.To >= from
	})
}
