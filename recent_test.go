package herdgate

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// recentKeys are the keys of changes that were made.
func recentKeys(changes []recentChange) (keys []string) {
	for _, ch := range changes {
		if ch.op != "" {
			keys = append(keys, ch.key)
		}
	}
	return keys
}

func TestRecentChangesStayUntilTheMasterHasHadThemForTheWindow(t *testing.T) {
	r := recent{window: 10 * time.Second}
	for i := range 4 {
		r.add(recentChange{op: "delete", key: strconv.Itoa(i), sent: time.Duration(i) * time.Second})
	}
	r.safe(11500 * time.Millisecond)
	failed, _ := r.add(recentChange{op: "delete", key: "failed", sent: 12 * time.Second})
	r.drop(failed)
	if got := recentKeys(r.take()); !slices.Equal(got, []string{"2", "3"}) {
		t.Errorf("remembered are %q", got)
	}
	r.drop(failed) // it is not there any more
	if next, _ := r.add(recentChange{op: "delete", key: "next"}); next != failed+1 || r.empty() {
		t.Errorf("the next is number %d", next)
	}
	r.safe(time.Hour)
	if !r.empty() {
		t.Error("something is left")
	}
}

func TestTheOldestOfTooManyRecentChangesIsForgotten(t *testing.T) {
	r := recent{window: time.Hour}
	forgotten := 0
	for i := range maxRecent + 3 {
		if _, full := r.add(recentChange{op: "delete", key: strconv.Itoa(i)}); full {
			forgotten++
		}
	}
	if got := recentKeys(r.take()); forgotten != 3 || len(got) != maxRecent || got[0] != "3" {
		t.Errorf("%d forgotten, %d left from %q on", forgotten, len(got), got[0])
	}
}

func TestNothingIsRememberedWithoutAWindow(t *testing.T) {
	r := recent{window: Off}
	if r.add(recentChange{op: "delete"}); !r.empty() {
		t.Error("something is")
	}
}

func BenchmarkRememberAChange(b *testing.B) {
	r := recent{window: time.Hour}
	for b.Loop() {
		r.add(recentChange{op: "delete", cache: "product", key: "42"})
	}
}
