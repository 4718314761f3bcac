package zklock

import (
	"fmt"
	"io"
	"math"
	"net"
	"path"
	"strings"
	"sync/atomic"
	"testing"
)

func FuzzDifferentClaimsHaveDifferentNodes(f *testing.F) {
	f.Add("a", "o", "a/x", "o")
	f.Add(".", "o", "..", "o")
	f.Add("%2E", "o", ".", "o")
	f.Add("a", "x-o", "a", "x")
	f.Add("a", "o-1", "a", "o")
	f.Fuzz(func(t *testing.T, name, owner, otherName, otherOwner string) {
		b := &Backend{root: "/ns"}
		dir, other := b.dirOf(name), b.dirOf(otherName)
		if (name == otherName) != (dir == other) {
			t.Errorf("the names %q and %q have the nodes %q and %q", name, otherName, dir, other)
		}
		if name != "" && (path.Dir(dir) != "/ns" || path.Clean(dir) != dir) {
			t.Errorf("the name %q has the node %q", name, dir)
		}
		n, ok := parse(fmt.Sprintf("%s%010d", prefix("x", owner), 7))
		if !ok || n.shared || n.seq != 7 {
			t.Errorf("the node of %q is read as %+v, %v", owner, n, ok)
		}
		if found := len(line{n}.of(otherOwner)) == 1; found != (owner == otherOwner) {
			t.Errorf("the node %q of %q is that of %q: %v", n.name, owner, otherOwner, found)
		}
	})
}

// lineOf makes a line of kinds and sequences.
func lineOf(names ...string) line {
	for i, name := range names {
		kind, seq, _ := strings.Cut(name, " ")
		names[i] = prefix(kind, "owner of "+name) + seq
	}
	return newLine(names)
}

func TestTheOrderHoldsOverAnOverflowOfTheSequence(t *testing.T) {
	l := lineOf(
		"x 2147483646", fmt.Sprint("x ", math.MaxInt32), fmt.Sprint("x ", math.MinInt32), "x -2147483647",
	)
	for i, n := range l {
		rival, waits := l.rival(n)
		if waits != (i > 0) || waits && rival != l[i-1] {
			t.Errorf("the rival of %+v is %+v, %v", n, rival, waits)
		}
	}
}

func TestReadersWaitForTheLastWriterAndWritersForTheLast(t *testing.T) {
	l := lineOf("s 0000000001", "s 0000000002", "x 0000000003", "s 0000000004", "s 0000000005", "x 0000000006")
	for i, want := range []int{-1, -1, 1, 2, 2, 4} {
		rival, waits := l.rival(l[i])
		if waits != (want >= 0) || waits && rival != l[want] {
			t.Errorf("the rival of number %d is %+v, %v, want number %d", i, rival, waits, want)
		}
	}
}

func TestStrangeNodesAreNoClaims(t *testing.T) {
	if l := newLine([]string{"x", "x-a", "y-a-0000000001", "x-a-b", "x-a-99999999999", "lock-0000000001", ""}); len(l) != 0 {
		t.Errorf("read as claims: %+v", l)
	}
}

func TestTheTimeoutIsReadHoweverTheAnswerIsCut(t *testing.T) {
	answer := []byte{0, 0, 0, 37, 0, 0, 0, 0, 0, 0, 15, 160, 9, 9, 9, 9, 9, 9, 9, 9}
	for size := 1; size <= len(answer); size++ {
		client, server := net.Pipe()
		go func() {
			for rest := answer; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				_, _ = server.Write(rest[:min(size, len(rest))])
			}
			_ = server.Close()
		}()
		var millis atomic.Int64
		got, err := io.ReadAll(&greeted{Conn: client, millis: &millis})
		if err != nil || string(got) != string(answer) || millis.Load() != 4000 {
			t.Errorf("in pieces of %d: read %v, %v and a timeout of %d ms, want 4000", size, got, err, millis.Load())
		}
	}
}
