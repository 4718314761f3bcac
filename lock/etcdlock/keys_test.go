package etcdlock

import (
	"strings"
	"testing"
	"time"

	"github.com/herdgate/herdgate/lock"
)

func FuzzDifferentClaimsHaveDifferentKeysUnderThePrefixOfTheirName(f *testing.F) {
	f.Add("a", "o", "a/x", "o")
	f.Add("a/", "o", "a%2F", "o")
	f.Add(".", "o", "..", "o")
	f.Add("a", "x/o", "a", "o")
	f.Fuzz(func(t *testing.T, name, owner, otherName, otherOwner string) {
		k, err := newKeys("ns")
		if err != nil {
			t.Fatal(err)
		}
		key, other := k.claim(name, "x", owner), k.claim(otherName, "x", otherOwner)
		if (name == otherName && owner == otherOwner) != (key == other) {
			t.Errorf("%q of %q has the key %q, and %q of %q %q", name, owner, key, otherName, otherOwner, other)
		}
		for _, prefix := range []string{k.rivals(lock.Request{Name: name}), k.rivals(lock.Request{Name: name, Shared: true})} {
			if (name == otherName) != strings.HasPrefix(other, prefix) {
				t.Errorf("the key %q of %q, and the prefix %q of %q", other, otherName, prefix, name)
			}
		}
	})
}

func TestSecondsAreRoundedUp(t *testing.T) {
	for ttl, want := range map[time.Duration]int64{
		time.Millisecond: 1, time.Second: 1, time.Second + 1: 2, 2*time.Second - 1: 2, time.Hour: 3600,
	} {
		if got := seconds(ttl); got != want {
			t.Errorf("%v is %d s, want %d", ttl, got, want)
		}
	}
}
