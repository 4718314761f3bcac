package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = moment(time.Millisecond)

// story makes a history by hand.
type story struct{ h history }

func (s *story) process(p int, records ...record) {
	for len(s.h.processes) <= p {
		s.h.processes = append(s.h.processes, nil)
	}
	s.h.processes[p] = append(s.h.processes[p], records...)
}

// got is a call that got a version.
func (s *story) got(p, key int, version int64, begin, end moment) {
	s.process(p, record{Op: opGet, Key: key, Version: version, Begin: begin, End: end})
}

// changed is a change after which the source was at version.
func (s *story) changed(p int, o op, key int, version int64, begin, end moment, err string) {
	id := s.begun(p, o, key, version, begin)
	s.process(p, record{Op: o, Key: key, Version: version, Intent: id, Begin: begin, End: end, Err: err})
}

// begun is one whose process was killed before it told more.
func (s *story) begun(p int, o op, key int, version int64, at moment) (id int64) {
	s.process(p)
	i := Intent{ID: int64(len(s.h.intents)) + 1, Process: p, Op: o, Key: key, At: at}
	i.Versions[key] = version
	s.h.intents = append(s.h.intents, i)
	return i.ID
}

func (s *story) loaded(p, key int, begin, end moment) {
	s.process(p, record{Op: opLoad, Key: key, Version: 1, Asked: begin, Begin: begin, End: end, Leased: true})
}

// loadedLate is a load whose lease was asked for some time before.
func (s *story) loadedLate(p, key int, asked, begin, end moment) {
	s.process(p, record{Op: opLoad, Key: key, Version: 1, Asked: asked, Begin: begin, End: end, Leased: true})
}

func (s *story) lost(p, key int, at moment) {
	s.process(p, record{Op: opLost, Key: key, Begin: at, End: at})
}

func (s *story) fault(p int, kind string, from, to moment) {
	s.h.windows = append(s.h.windows, window{Process: p, Kind: kind, From: from, To: to})
}

func TestTheCheckerFindsWhatBreaksARule(t *testing.T) {
	const (
		key  = 1
		late = 10_000 * ms // past told, and not past kept
	)
	for _, tc := range []struct {
		name string
		want string // in the one violation; "": there is none
		tell func(*story)
	}{
		{"a new value after a delete", "", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.got(0, key, 2, 11*ms, 12*ms)
		}},
		{"an old value after a delete", "own process", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.got(0, key, 1, 11*ms, 12*ms)
		}},
		{"an old value after a journaled delete", "own process", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, journaled)
			s.got(0, key, 1, 11*ms, 12*ms)
		}},
		{"an old value in a call from before the delete ended", "", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.got(0, key, 1, 9*ms, 12*ms)
		}},
		{"an old value after a set", "own process", func(s *story) {
			s.changed(0, opSet, key, 2, 0, 10*ms, "")
			s.got(0, key, 1, 11*ms, 12*ms)
		}},
		{"an old value after all was cleared", "own process", func(s *story) {
			s.changed(0, opWhole, key, 2, 0, 10*ms, "")
			s.got(0, key, 1, 11*ms, 12*ms)
		}},
		{"an old value that a set brought back which was under way", "", func(s *story) {
			s.changed(1, opSet, key, 2, 0, 50*ms, "")
			s.changed(0, opDelete, key, 3, 30*ms, 60*ms, "")
			s.got(0, key, 2, 61*ms, 62*ms)
		}},
		{"an old value that a set brought back whose process was killed", "", func(s *story) {
			s.begun(1, opSet, key, 2, 0)
			s.changed(0, opDelete, key, 3, 30*ms, 60*ms, "")
			s.got(0, key, 2, 61*ms, 62*ms)
		}},
		{"an old value of a set that was over before the delete", "own process", func(s *story) {
			s.changed(1, opSet, key, 2, 0, 50*ms, "")
			s.changed(0, opDelete, key, 3, 100*ms, 110*ms, "")
			s.got(0, key, 2, 111*ms, 112*ms)
		}},
		{"an old value after an expire, served as stale", "", func(s *story) {
			s.changed(0, opExpire, key, 2, 0, 10*ms, "")
			s.process(0, record{Op: opGet, Key: key, Version: 1, Begin: 11 * ms, End: 12 * ms, Stale: true})
		}},
		{"an old value after an expire, served as fresh", "own process", func(s *story) {
			s.changed(0, opExpire, key, 2, 0, 10*ms, "")
			s.got(0, key, 1, 11*ms, 12*ms)
		}},
		{"an old value elsewhere before the message", "", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.got(1, key, 1, 11*ms, 12*ms)
		}},
		{"an old value elsewhere for long", "other process", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.got(1, key, 1, late, late+ms)
		}},
		{"an old value elsewhere for long after a journaled delete", "", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, journaled)
			s.got(1, key, 1, late, late+ms)
		}},
		{"an old value in a process that is cut off", "", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.fault(1, "cut", 5*ms, late)
			s.got(1, key, 1, late, late+ms)
		}},
		{"an old value in a process while another is cut off", "other process", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.fault(0, "cut", 5*ms, late)
			s.got(1, key, 1, late, late+ms)
		}},
		{"an old value past its lifetime in a process that is cut off", "other process", func(s *story) {
			s.changed(0, opDelete, key, 2, 0, 10*ms, "")
			s.fault(1, "cut", 5*ms, 20*late)
			s.got(1, key, 1, 10*late, 10*late+ms)
		}},
		{"two loads one after the other", "", func(s *story) {
			s.loaded(0, key, 0, 100*ms)
			s.loaded(1, key, 100*ms, 200*ms)
		}},
		{"two loads at once", "two loads", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"two loads at once of two keys", "", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.loaded(1, key+1, 100*ms, 300*ms)
		}},
		{"two loads at once with a change between", "", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.changed(1, opDelete, key, 2, 50*ms, 60*ms, "")
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"two loads at once, the first of which learned late of its grant, before a change", "", func(s *story) {
			s.loadedLate(0, key, 0, 200*ms, 400*ms)
			s.changed(1, opDelete, key, 2, 50*ms, 60*ms, "")
			s.loaded(1, key, 300*ms, 500*ms)
		}},
		{"two loads at once, the second of which learned late of its grant, before a change", "two loads", func(s *story) {
			s.changed(1, opDelete, key, 2, 50*ms, 60*ms, "")
			s.loaded(0, key, 200*ms, 400*ms)
			s.loadedLate(1, key, 0, 300*ms, 500*ms)
		}},
		{"two loads at once, long after a change", "two loads", func(s *story) {
			s.changed(1, opDelete, key, 2, 0, 10*ms, "")
			s.loaded(0, key, 200*ms, 400*ms)
			s.loaded(1, key, 300*ms, 500*ms)
		}},
		{"two loads at once, the first of which lost its lease", "", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.lost(0, key, 90*ms)
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"two loads at once, the process of the first of which stood still", "", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.process(0, record{Op: opStalled, Key: -1, Begin: 20 * ms, End: 199 * ms})
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"two loads at once, the process of the second of which stood still", "two loads", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.process(1, record{Op: opStalled, Key: -1, Begin: 20 * ms, End: 99 * ms})
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"two loads at once, the second of which lost its lease", "two loads", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.lost(1, key, 90*ms)
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"two loads at once as Redis lost its data", "", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.fault(-1, kindLoss, 50*ms, 90*ms)
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"two loads at once while the second process was cut off", "two loads", func(s *story) {
			s.loaded(0, key, 0, 200*ms)
			s.fault(1, "cut", 50*ms, 90*ms)
			s.loaded(1, key, 100*ms, 300*ms)
		}},
		{"a call that failed", "failed", func(s *story) {
			s.process(0, record{Op: opGet, Key: key, Err: "no luck"})
		}},
		{"a call that took for ever", "took", func(s *story) {
			s.got(0, key, 1, 0, 60_000*ms)
		}},
		{"a call in a process that was frozen", "", func(s *story) {
			s.fault(0, kindFreeze, 1*ms, 59_000*ms)
			s.got(0, key, 1, 0, 60_000*ms)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s story
			s.process(0)
			s.process(1)
			tc.tell(&s)
			found := s.h.check(limits).violations
			switch {
			case tc.want == "" && len(found) > 0:
				t.Errorf("found %q, want nothing", found)
			case tc.want != "" && (len(found) != 1 || !strings.Contains(found[0], tc.want)):
				t.Errorf("found %q, want one that says %q", found, tc.want)
			}
		})
	}
}

func TestARunFindsABrokenInstance(t *testing.T) {
	t.Parallel()
	for plant, want := range map[string]string{
		plantDeaf: "other process", plantForgetful: "own process", plantLoner: "two loads",
	} {
		t.Run(plant, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, config{
				For: 8 * time.Second, Seed: 1, Processes: 3, Callers: 6, Pause: 10 * time.Millisecond, Plant: plant,
			})
			f.run()
			calm := limits
			calm.settle = 0
			found := f.history.check(calm)
			if !slices.ContainsFunc(found.violations, func(v string) bool { return strings.Contains(v, want) }) {
				t.Errorf("%d violations in %d calls, none of which says %q: %.10q", len(found.violations), found.ops, want, found.violations)
			}
		})
	}
}
