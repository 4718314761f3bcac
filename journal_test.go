package herdgate

import (
	"strconv"
	"testing"

	"github.com/herdgate/herdgate/internal/remote"
)

func TestTheJournalKeepsTheStrongerChangeUntilTheLastOneIsMade(t *testing.T) {
	var j journal
	k := journalKey{"c", "k"}
	j.add(k, remote.OpExpire, 0)
	if ch, _ := j.all(); ch[k].op != remote.OpExpire {
		t.Errorf("an expire is kept as %+v", ch[k])
	}
	j.add(k, remote.OpSet, 7)
	j.add(k, remote.OpExpire, 5)
	changes, _ := j.all()
	if got := changes[k]; got.op != remote.OpDelete || got.horizon != 7 || len(changes) != 1 {
		t.Errorf("expire, set, expire are kept as %+v", changes)
	}
	j.add(k, remote.OpDelete, 0)
	j.remove(k, changes[k].stamp)
	if !j.holds("c", "k") {
		t.Error("a change that came while another one was made is forgotten")
	}
	changes, _ = j.all()
	j.remove(k, changes[k].stamp)
	if j.holds("c", "k") || j.len() != 0 {
		t.Error("a change that was made is still held")
	}
	if j.holds("c", "other") || j.holds("d", "k") {
		t.Error("the journal holds what is not in it")
	}
}

func TestAJournalThatIsFullHoldsTheWholeCache(t *testing.T) {
	var j journal
	for i := range maxJournal {
		if !j.add(journalKey{"c", strconv.Itoa(i)}, remote.OpDelete, 0) {
			t.Fatalf("no room for change %d", i)
		}
	}
	if !j.add(journalKey{"c", "0"}, remote.OpDelete, 0) {
		t.Error("no room for a key that is there")
	}
	if j.holds("d", "k") {
		t.Error("another cache is held")
	}
	if j.add(journalKey{"d", "k"}, remote.OpDelete, 0) {
		t.Error("there was room for one more")
	}
	_, whole := j.all()
	if !j.holds("d", "anything") || j.holds("c", "anything") || !whole["d"].clear || j.len() != maxJournal+1 {
		t.Errorf("the journal does not stand for the cache it had no room for: %+v", whole)
	}
	j.addWhole("d", nil)
	j.removeWhole("d", whole["d"].stamp)
	if !j.holds("d", "anything") {
		t.Error("a Clear that came while another one was made is forgotten")
	}
}

func TestTheJournalGathersTagsUntilItClears(t *testing.T) {
	var j journal
	j.addWhole("c", []string{"a"})
	j.addWhole("c", []string{"b"})
	if _, whole := j.all(); whole["c"].clear || len(whole["c"].tags) != 2 {
		t.Errorf("two tags are kept as %+v", whole["c"])
	}
	j.addWhole("c", nil)
	j.addWhole("c", []string{"d"})
	if _, whole := j.all(); !whole["c"].clear {
		t.Errorf("a Clear is kept as %+v", whole["c"])
	}
	if j.addWhole("d", make([]string, maxJournal+1)) || !j.holds("d", "k") {
		t.Error("there was room for too many tags")
	}
}

// An outage in which many tags are invalidated must not cost the square of their number.
func TestATagCostsTheJournalNoMoreForThoseThatItHolds(t *testing.T) {
	var j journal
	for i := range maxJournal / 2 {
		j.addWhole("c", []string{strconv.Itoa(i)})
	}
	tag := []string{"0"}
	if n := testing.AllocsPerRun(10, func() { j.addWhole("c", tag) }); n > 1 {
		t.Errorf("one more tag costs %v allocations", n)
	}
	_, whole := j.all()
	j.addWhole("c", []string{"late"})
	if _, there := whole["c"].tags["late"]; there {
		t.Error("what is under way changes")
	}
	j.removeWhole("c", whole["c"].stamp)
	if !j.holds("c", "k") {
		t.Error("a tag that came meanwhile is forgotten")
	}
}

func TestAChangeAfterAClearIsNoOverflowOfTheJournal(t *testing.T) {
	var j journal
	j.addWhole("c", nil)
	_, whole := j.all()
	if !j.add(journalKey{"c", "k"}, remote.OpDelete, 0) || j.len() != 1 {
		t.Error("the Clear has no room for it")
	}
	j.removeWhole("c", whole["c"].stamp)
	if !j.holds("c", "k") {
		t.Error("it is taken for made by a Clear that came before it")
	}
}
