package redislock

import (
	"math"
	"strings"
	"testing"
	"time"
)

func FuzzDifferentNamesHaveDifferentKeysWithOneTag(f *testing.F) {
	f.Add("a", "b")
	f.Add("}", "%7D")
	f.Add("%", "%25")
	f.Add("{a}", "{a%7D")
	f.Fuzz(func(t *testing.T, a, b string) {
		k, err := newKeys("ns")
		if err != nil {
			t.Fatal(err)
		}
		if (a == b) != (k.lock(a) == k.lock(b)) {
			t.Errorf("names %q and %q have the keys %q and %q", a, b, k.lock(a), k.lock(b))
		}
		if a != "" && (tag(k.lock(a)) == "" || tag(k.lock(a)) != tag(k.fence(a))) {
			t.Errorf("keys %q and %q do not share a hash tag", k.lock(a), k.fence(a))
		}
	})
}

// tag is what Redis hashes of a key with braces: from the first opening one to the next closing one.
func tag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

func TestMillisecondsAreRoundedUp(t *testing.T) {
	for ttl, want := range map[time.Duration]int64{
		time.Millisecond:                1,
		time.Millisecond + 1:            2,
		1500 * time.Microsecond:         2,
		2*time.Second - time.Nanosecond: 2000,
		math.MaxInt64:                   9223372036855,
	} {
		if got := millis(ttl); got != want {
			t.Errorf("%v is %d ms, want %d", ttl, got, want)
		}
	}
}
