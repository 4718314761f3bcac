package herdgate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The rules that guard local copies, as a model: two processes, one key, every
// interleaving of some calls, of messages and of what may go wrong. Redis is the
// number of its latest change. A read gets that number, be it stored or loaded by a
// lease that no change took. Time and flights are left out: anything may take for ever.

const (
	modelProcesses = 2
	modelCalls     = 3 // of a process, at most
	modelMessages  = 6 // under way to a process, at most
)

type modelOp string

const (
	opRead   modelOp = "read"
	opDelete modelOp = "delete"
	opSet    modelOp = "set"
)

type modelProgram struct {
	ops     [modelProcesses][modelCalls]modelOp // in any order, and at the same time
	opening bool                                // no subscription has been confirmed
	giveUps int8                                // how many changes return an error; Redis may still make them
	resends int8                                // how often the client library sends a delete once more
	cuts    int8                                // how often process 0 is cut off from the bus
}

// modelFaults are what a process does wrong.
type modelFaults struct {
	fillWithoutTicket, fillUnlocked, fillBearsLaterGap bool
	readTicketLate, changeTicketLate                   bool
	onMessage, onReply, onGiveUp                       modelLapse
	setKeptBesideOthers                                bool
	ownIgnoredAfterGiveUp, ownIgnoredAgain             bool
	lossOpensNoGap, confirmRestoresGap                 bool
	confirmKeepsOwn                                    bool
	gapFillsFresh, gapFillsFreshLater                  bool
	hitIgnoresGap, hitBeforeFirstGap                   bool
}

// modelLapse is what an invalidation omits.
type modelLapse struct{ epochStays, copyStays bool }

type modelStage int8

const (
	notBegun modelStage = iota
	underWay
	checked // between the look at the epoch and the fill, if that is not one step
	over
)

type modelCall struct {
	stage      modelStage
	ticketed   bool
	epoch, gap int8 // the ticket
	copies     int8 // of its request, to be executed
	version    int8 // that its latest execution read or made
}

// modelMessage tells of a change; of version 0, that the subscription is confirmed.
type modelMessage struct{ process, call, version int8 }

type modelProcess struct {
	calls      [modelCalls]modelCall
	epoch, gap int8
	kept       struct{ version, gap int8 } // the copy, if version is not 0
	own        [modelCalls]bool            // the message of this call is to be ignored

	inbox    [modelMessages]modelMessage
	messages int8 // in inbox
	deaf     bool // messages do not get into inbox
	lost     bool // deaf has been noticed, and no subscription confirmed since

	known int8 // latest change that a call which begins now must see: what the rules are for
}

type modelState struct {
	redis                  int8
	processes              [modelProcesses]modelProcess
	giveUps, resends, cuts int8 // left
}

// guardModel searches all states that a program can get into, until one breaks a promise.
type guardModel struct {
	program modelProgram
	faults  modelFaults
	seen    map[modelState]struct{}
	path    []string
	hits    int    // states in which a copy is served
	broken  string // promise, and the path that led there
}

func (m *guardModel) search() {
	m.seen = map[modelState]struct{}{}
	s := modelState{redis: 1, giveUps: m.program.giveUps, resends: m.program.resends, cuts: m.program.cuts}
	for p := range s.processes {
		me := &s.processes[p]
		if me.deaf, me.lost = m.program.opening, m.program.opening; !m.program.opening {
			me.gap = 2
		}
	}
	m.visit(s)
}

func (m *guardModel) visit(s modelState) {
	s.forget()
	if _, ok := m.seen[s]; ok {
		return
	}
	m.seen[s] = struct{}{}
	for p := range s.processes {
		if promise := m.breaks(&s, p); promise != "" {
			m.broken = fmt.Sprintf("process %d %s, after\n\t%s", p, promise, strings.Join(m.path, "\n\t"))
			return
		}
	}
	for p := range s.processes {
		m.bus(s, p)
		for c, op := range m.program.ops[p] {
			if op != "" {
				m.call(s, p, c)
			}
		}
	}
}

// forget makes states equal that differ in what no rule looks at: of an epoch only
// whether it is still that of a ticket, of a call that is over what may still come.
func (s *modelState) forget() {
	for p := range s.processes {
		me := &s.processes[p]
		for c := range me.calls {
			switch call := &me.calls[c]; call.stage {
			case over:
				*call = modelCall{stage: over, copies: call.copies}
			case underWay:
				call.epoch = max(-1, call.epoch-me.epoch)
			}
		}
		me.epoch = 0
	}
}

// breaks names the promise that process p breaks.
func (m *guardModel) breaks(s *modelState, p int) string {
	me := &s.processes[p]
	if !m.hit(me) {
		return ""
	}
	m.hits++
	switch {
	case me.lost:
		return "serves a copy in a gap"
	case me.kept.version < me.known:
		return "serves a copy from before a change that it knows of"
	case me.kept.version != s.redis && me.messages == 0 && !me.deaf && !m.changing(me, p):
		return "has heard everything, and serves what Redis does not hold"
	}
	return ""
}

// changing reports whether a change was made whose call, which is to answer for it, is not over.
func (m *guardModel) changing(me *modelProcess, p int) bool {
	for c, call := range me.calls {
		if m.program.ops[p][c] != opRead && call.stage == underWay && call.version != 0 {
			return true
		}
	}
	return false
}

func (m *guardModel) step(s modelState, p, c int, what string, do func(*modelState, *modelProcess, *modelCall)) {
	if m.broken != "" {
		return
	}
	m.path = append(m.path, fmt.Sprintf("process %d: %s", p, what))
	me := &s.processes[p]
	do(&s, me, &me.calls[c])
	m.visit(s)
	m.path = m.path[:len(m.path)-1]
}

// call tries all that may happen next to call c of process p.
func (m *guardModel) call(s modelState, p, c int) {
	op, call := m.program.ops[p][c], s.processes[p].calls[c]
	late := op == opRead && m.faults.readTicketLate || op != opRead && m.faults.changeTicketLate
	answered := call.stage == underWay && call.version != 0
	if call.stage == notBegun {
		m.step(s, p, c, string(op)+" sends", func(_ *modelState, me *modelProcess, call *modelCall) {
			call.stage, call.copies, me.own[c] = underWay, 1, op != opRead
			if !late {
				m.ticket(me, call)
			}
		})
	}
	if call.copies > 0 {
		m.step(s, p, c, string(op)+" is executed", func(s *modelState, _ *modelProcess, call *modelCall) {
			call.copies--
			if op != opRead {
				s.redis++
				for p2 := range s.processes {
					s.processes[p2].receive(modelMessage{int8(p), int8(c), s.redis})
				}
			}
			call.version = s.redis
		})
	}
	if answered && !call.ticketed {
		// A step of its own, or nothing would come of it: at the very moment of the
		// execution a ticket is as good as before.
		m.step(s, p, c, string(op)+" takes its ticket", func(_ *modelState, me *modelProcess, call *modelCall) { m.ticket(me, call) })
	}
	if answered && call.ticketed {
		m.step(s, p, c, string(op)+" gets its reply", func(_ *modelState, me *modelProcess, call *modelCall) {
			call.stage = over
			if op == opRead {
				m.keep(me, call)
			} else {
				m.changed(me, call, op)
			}
		})
	}
	if call.stage == checked {
		m.step(s, p, c, string(op)+" fills", func(_ *modelState, me *modelProcess, call *modelCall) {
			call.stage = over
			m.put(me, call)
		})
	}
	if call.stage == underWay && op != opRead && s.giveUps > 0 {
		m.step(s, p, c, string(op)+" gives up", func(s *modelState, me *modelProcess, call *modelCall) {
			s.giveUps--
			call.stage = over
			me.own[c] = me.own[c] && m.faults.ownIgnoredAfterGiveUp
			me.invalidate(m.faults.onGiveUp)
		})
	}
	if call.stage == underWay && op == opDelete && s.resends > 0 {
		m.step(s, p, c, string(op)+" is sent again", func(s *modelState, _ *modelProcess, call *modelCall) {
			s.resends--
			call.copies++
		})
	}
}

// bus tries all that may happen next to the subscription of process p.
func (m *guardModel) bus(s modelState, p int) {
	me := &s.processes[p]
	if me.messages > 0 {
		m.step(s, p, 0, "bus hears", func(_ *modelState, me *modelProcess, _ *modelCall) {
			message := me.inbox[0]
			copy(me.inbox[:], me.inbox[1:])
			me.inbox[len(me.inbox)-1] = modelMessage{}
			me.messages--
			if message.version != 0 {
				m.invalidated(me, p, message)
				return
			}
			me.lost = false
			if !m.faults.confirmKeepsOwn {
				me.own = [modelCalls]bool{}
			}
			me.gap += 2 - me.gap%2
			if m.faults.confirmRestoresGap {
				me.gap = 2
			}
		})
	}
	switch {
	case me.deaf && me.lost:
		m.step(s, p, 0, "bus subscribes", func(_ *modelState, me *modelProcess, _ *modelCall) {
			me.deaf, me.messages, me.inbox = false, 0, [modelMessages]modelMessage{}
			me.receive(modelMessage{})
		})
	case me.deaf:
		m.step(s, p, 0, "bus notices that it is deaf", func(_ *modelState, me *modelProcess, _ *modelCall) {
			me.lost, me.messages, me.inbox = true, 0, [modelMessages]modelMessage{}
			if me.gap%2 == 0 && !m.faults.lossOpensNoGap {
				me.gap++
			}
		})
	case p == 0 && s.cuts > 0:
		m.step(s, p, 0, "bus turns deaf", func(s *modelState, me *modelProcess, _ *modelCall) {
			s.cuts--
			me.deaf = true
		})
	}
}

func (me *modelProcess) receive(message modelMessage) {
	if !me.deaf {
		me.inbox[me.messages] = message
		me.messages++
	}
}

// From here on it is the library, by its names.

func (m *guardModel) hit(me *modelProcess) bool {
	valid := me.kept.gap == me.gap && (me.kept.gap != 0 || m.faults.hitBeforeFirstGap)
	return me.kept.version != 0 && (valid || m.faults.hitIgnoresGap)
}

func (m *guardModel) ticket(me *modelProcess, call *modelCall) {
	call.ticketed, call.epoch = true, me.epoch
	switch {
	case me.gap%2 == 0 || m.faults.gapFillsFresh:
		call.gap = me.gap
	case m.faults.gapFillsFreshLater:
		call.gap = me.gap + 1
	}
}

func (m *guardModel) keep(me *modelProcess, call *modelCall) {
	switch {
	case call.epoch != me.epoch && !m.faults.fillWithoutTicket:
	case m.faults.fillUnlocked:
		call.stage = checked
	default:
		m.put(me, call)
	}
}

func (m *guardModel) put(me *modelProcess, call *modelCall) {
	me.kept.version, me.kept.gap = call.version, call.gap
	if m.faults.fillBearsLaterGap {
		me.kept.gap = me.gap
	}
}

func (m *guardModel) changed(me *modelProcess, call *modelCall, op modelOp) {
	me.known = max(me.known, call.version)
	alone := me.epoch == call.epoch || m.faults.setKeptBesideOthers
	me.invalidate(m.faults.onReply)
	if op == opSet && alone {
		m.put(me, call)
	}
}

func (me *modelProcess) invalidate(lapse modelLapse) {
	if !lapse.epochStays {
		me.epoch++
	}
	if !lapse.copyStays {
		me.kept.version = 0
	}
}

func (m *guardModel) invalidated(me *modelProcess, p int, message modelMessage) {
	own := p == int(message.process)
	if !own || me.calls[message.call].stage == over {
		me.known = max(me.known, message.version)
	}
	if own && me.own[message.call] {
		me.own[message.call] = m.faults.ownIgnoredAgain
		return
	}
	me.invalidate(m.faults.onMessage)
}

func modelPrograms() []modelProgram {
	type ops = [modelProcesses][modelCalls]modelOp
	return []modelProgram{
		{ops: ops{{opRead, opDelete}, {opRead, opSet}}},
		{ops: ops{{opSet, opSet, opRead}, {opRead}}},
		{ops: ops{{opRead, opSet}, {opDelete}}, giveUps: 1, resends: 1},
		{ops: ops{{opRead, opDelete}, {opSet}}, giveUps: 1, resends: 1},
		{ops: ops{{opRead, opDelete}}, giveUps: 1, resends: 1, cuts: 2},
		{ops: ops{{opRead, opRead}, {opSet}}, cuts: 2},
		{ops: ops{{opRead, opSet}, {opDelete}}, giveUps: 1, cuts: 1},
		{ops: ops{{opRead, opSet}, {opDelete}}, opening: true},
	}
}

func TestGuardModelServesNoCopyFromBeforeAChange(t *testing.T) { // I2, I9
	t.Parallel()
	for _, program := range modelPrograms() {
		m := guardModel{program: program}
		m.search()
		t.Logf("%d states of %+v", len(m.seen), program)
		if m.broken != "" {
			t.Errorf("%+v: %s", program, m.broken)
		}
		if m.hits == 0 {
			t.Errorf("%+v: no copy is ever served, which proves nothing", program)
		}
	}
}

func TestGuardModelNoticesEveryFault(t *testing.T) { // I2, I9
	t.Parallel()
	for _, faults := range []modelFaults{
		{fillWithoutTicket: true},
		{fillUnlocked: true},
		{fillBearsLaterGap: true},
		{readTicketLate: true},
		{changeTicketLate: true},
		{onMessage: modelLapse{epochStays: true}},
		{onMessage: modelLapse{copyStays: true}},
		{onReply: modelLapse{epochStays: true}},
		{onReply: modelLapse{copyStays: true}},
		{onGiveUp: modelLapse{epochStays: true}},
		{onGiveUp: modelLapse{copyStays: true}},
		{setKeptBesideOthers: true},
		{ownIgnoredAfterGiveUp: true},
		{ownIgnoredAgain: true},
		{lossOpensNoGap: true},
		{confirmRestoresGap: true},
		{confirmKeepsOwn: true},
		{gapFillsFresh: true},
		{gapFillsFreshLater: true},
		{hitIgnoresGap: true},
		{hitBeforeFirstGap: true},
	} {
		noticed := slices.ContainsFunc(modelPrograms(), func(program modelProgram) bool {
			m := guardModel{program: program, faults: faults}
			m.search()
			return m.broken != ""
		})
		if !noticed {
			t.Errorf("nothing comes of %+v", faults)
		}
	}
}
