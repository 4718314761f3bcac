package herdgate

import (
	"testing"

	"github.com/herdgate/herdgate/internal/wire"
)

func TestAReplySentForBeforeAnInvalidationTeachesNothing(t *testing.T) {
	b := newTagBook(false)
	turn := b.turn.Load()
	b.raise([]string{"other"}, 20)
	b.learn(turn, 10, []string{"a"}, []uint64{5})
	if _, known := b.outdates(wire.Extended{TagsAt: 10, Tags: []string{"a"}}); known {
		t.Error("the number of a reply from before is kept")
	}
	if n := b.sequence(); n != 20 {
		t.Errorf("the sequence is %d", n)
	}
	b.learn(b.turn.Load(), 20, []string{"a"}, []uint64{15})
	if outdated, known := b.outdates(wire.Extended{TagsAt: 15, Tags: []string{"a", "other"}}); !outdated || !known {
		t.Error("one of two tags is newer, and that is not known")
	}
	if outdated, known := b.outdates(wire.Extended{TagsAt: 20, Tags: []string{"a", "other"}}); outdated || !known {
		t.Error("the tags hold, and that is not known")
	}
}

// With a sequence below the number of a tag, all that is loaded would be invalid at once.
func TestInvalidationsThatComeLateLeaveTheSequenceUnknown(t *testing.T) {
	b := newTagBook(false)
	for _, n := range []uint64{30, 20, 25} {
		b.raise([]string{"a"}, n)
	}
	if n := b.sequence(); n != 0 {
		t.Errorf("the sequence is %d, below the number of a tag", n)
	}
}

func TestNumbersFromBeforeTheSequenceFellInvalidateNothing(t *testing.T) {
	b := newTagBook(false)
	b.raise([]string{"a"}, 30)
	b.raise([]string{"a"}, 8) // of the new master
	b.learn(b.turn.Load(), 10, []string{"a"}, []uint64{9})
	if n := b.sequence(); n != 10 {
		t.Errorf("the sequence is %d", n)
	}
	if outdated, known := b.outdates(wire.Extended{TagsAt: 10, Tags: []string{"a"}}); outdated || !known {
		t.Errorf("outdated %v, known %v", outdated, known)
	}
}

func TestAnEntryAboveTheSequenceIsNotKnownToHold(t *testing.T) {
	b := newTagBook(false)
	b.learn(b.turn.Load(), 20, []string{"a"}, []uint64{15})
	if outdated, known := b.outdates(wire.Extended{TagsAt: 21, Tags: []string{"a"}}); outdated || known {
		t.Errorf("outdated %v, known %v", outdated, known)
	}
	b.forget()
	if n := b.highest(); n != 20 || b.sequence() != 0 {
		t.Errorf("the highest is %d, the sequence %d", n, b.sequence())
	}
}

func TestABookThatIsFullForgetsAndChecksAgain(t *testing.T) {
	tags := make([]string, maxBook)
	for i := range tags {
		tags[i] = string(rune(i + 1e5))
	}
	for _, alone := range []bool{false, true} {
		b := newTagBook(alone)
		b.raise([]string{"a"}, 7)
		turn := b.turn.Load()
		b.learn(turn, 9, tags, make([]uint64, len(tags)))
		if b.turn.Load() == turn {
			t.Error("copies are not checked again")
		}
		outdated, known := b.outdates(wire.Extended{TagsAt: 8, Tags: []string{"a"}})
		if outdated != alone || known != alone {
			t.Errorf("alone %v: outdated %v, known %v", alone, outdated, known)
		}
	}
}

func TestAGenerationIsNotUndoneByWhatIsOlder(t *testing.T) {
	var g generation
	turn := g.turn()
	if g.hear(10) {
		t.Error("the first generation is a change")
	}
	if g.learn(5, turn) || g.n.Load() != 10 {
		t.Errorf("a reply from before made it %d", g.n.Load())
	}
	turn = g.turn()
	if !g.hear(9) || g.n.Load() != 0 {
		t.Errorf("after a lower one, late or of a master that has lost the last, %d is used unasked", g.n.Load())
	}
	if g.learn(8, turn) || g.n.Load() != 0 {
		t.Errorf("a reply from before it made it %d", g.n.Load())
	}
	if !g.learn(4, g.turn()) || g.n.Load() != 4 {
		t.Errorf("a key that was lost left it at %d", g.n.Load())
	}
	if g.highest() != 10 {
		t.Errorf("the highest is %d", g.highest())
	}
	turn = g.turn()
	g.forget()
	if g.n.Load() != 0 {
		t.Error("nothing is forgotten")
	}
	if g.learn(4, turn) || g.n.Load() != 0 {
		t.Error("a reply from before what is forgotten counts")
	}
	if g.learn(4, g.turn()) || g.n.Load() != 4 {
		t.Error("the same generation again is a change, or not known")
	}
}

func TestWhatIsKnownToBeInvalidStaysSoWhenNumbersAreForgotten(t *testing.T) {
	b := newTagBook(false)
	b.raise([]string{"a"}, 20)
	b.forget()
	before, after := wire.Extended{TagsAt: 19, Tags: []string{"other", "a"}}, wire.Extended{TagsAt: 20, Tags: []string{"a"}}
	if !b.outdated(before) || b.outdated(after) {
		t.Errorf("outdated: %v before the invalidation, %v after it", b.outdated(before), b.outdated(after))
	}
	for _, x := range []wire.Extended{before, after} {
		if outdated, known := b.outdates(x); outdated || known {
			t.Errorf("with Redis: outdated %v, known %v, of what Redis is to be asked for", outdated, known)
		}
	}
	b.learn(b.turn.Load(), 10, []string{"a"}, []uint64{9}) // after a failover
	if outdated, known := b.outdates(wire.Extended{TagsAt: 10, Tags: []string{"a"}}); outdated || !known {
		t.Errorf("outdated %v, known %v by a number that was forgotten", outdated, known)
	}
	tags := make([]string, maxBook)
	for i := range tags {
		tags[i] = string(rune(i + 1e5))
	}
	b.learn(b.turn.Load(), 20, tags, make([]uint64, len(tags)))
	if !b.outdated(before) || b.outdated(after) {
		t.Errorf("of a full book, outdated: %v before the invalidation, %v after it", b.outdated(before), b.outdated(after))
	}
}
