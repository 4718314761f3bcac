package testutil_test

import (
	"strings"
	"testing"

	"github.com/herdgate/herdgate/internal/testutil"
)

type line struct {
	Word string `json:"word"`
}

func TestAChildProcessTellsItsParentWhatHappens(t *testing.T) {
	c := testutil.Spawn(t, "counter", testutil.Args{"second": "two"})
	for _, want := range []string{"one", "two"} {
		var got line
		c.Next(patience, &got)
		if got.Word != want {
			t.Errorf("the child said %q, want %q", got.Word, want)
		}
	}
	must(t, c.Stop(patience))
	if rest := c.Drain(patience); len(rest) != 1 || string(rest[0]) != `"stopping"` {
		t.Errorf("after Stop the child said %s, want only \"stopping\"", rest)
	}
}

func TestAKilledChildEndsWithoutItsLastWord(t *testing.T) {
	c := testutil.Spawn(t, "counter", testutil.Args{"second": "two"})
	var got line
	c.Next(patience, &got)
	c.Kill()
	if err := c.Wait(patience); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Wait returns %v, want that the child was killed", err)
	}
	for _, l := range c.Drain(patience) {
		if string(l) == `"stopping"` {
			t.Error("the killed child stopped in order")
		}
	}
}

func TestAFrozenChildGoesOnWhenThawed(t *testing.T) {
	c := testutil.Spawn(t, "counter", testutil.Args{"second": "two"})
	var got line
	c.Next(patience, &got)
	c.Freeze()
	c.Thaw()
	must(t, c.Stop(patience))
}

func TestAFrozenChildCanBeKilled(t *testing.T) {
	c := testutil.Spawn(t, "counter", nil)
	var got line
	c.Next(patience, &got)
	c.Freeze()
	c.Kill()
}

func TestTheErrorOfARoleReachesWait(t *testing.T) {
	err := testutil.Spawn(t, "failure", nil).Wait(patience)
	if err == nil || !strings.Contains(err.Error(), "no luck today") {
		t.Errorf("Wait returns %v, want the role's error", err)
	}
}

func TestARoleThatDoesNotExistIsNamed(t *testing.T) {
	err := testutil.Spawn(t, "typo", nil).Wait(patience)
	if err == nil || !strings.Contains(err.Error(), "role typo: no such role") {
		t.Errorf("Wait returns %v, want that role typo does not exist", err)
	}
}
