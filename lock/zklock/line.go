package zklock

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// node is a claim in ZooKeeper: x-<owner>-<sequence>, or s- for a shared one.
type node struct {
	name   string
	shared bool
	owner  string // escaped
	seq    int32
}

// dirOf is the node of a lock, above its claims. A name is escaped to be one element of a path.
func (b *Backend) dirOf(name string) string {
	if name == "." || name == ".." {
		name = strings.ReplaceAll(name, ".", "%2E")
	} else {
		name = url.PathEscape(name)
	}
	return b.root + "/" + name
}

func escapeOwner(owner string) string {
	return strings.ReplaceAll(url.PathEscape(owner), "-", "%2D")
}

// prefix is the name of a claim's node before ZooKeeper appends the sequence.
func prefix(kind, owner string) string { return kind + "-" + escapeOwner(owner) + "-" }

// parse reads a node's name; ok is false for one that is no claim.
func parse(name string) (n node, ok bool) {
	parts := strings.SplitN(name, "-", 3)
	if len(parts) != 3 || parts[0] != "x" && parts[0] != "s" {
		return node{}, false
	}
	// After 2³¹ claims under one parent the sequence is negative.
	seq, err := strconv.ParseInt(parts[2], 10, 32)
	return node{name: name, shared: parts[0] == "s", owner: parts[1], seq: int32(seq)}, err == nil
}

// isBefore orders the claims of one lock. Their sequences are close to each other, so it holds over an overflow too.
func (n node) isBefore(other node) bool { return n.seq-other.seq < 0 }

// line is the claims of a lock.
type line []node

func newLine(names []string) line {
	var l line
	for _, name := range names {
		if n, ok := parse(name); ok {
			l = append(l, n)
		}
	}
	return l
}

// of returns the claims of an owner: one, or more if the replies to earlier requests were lost.
func (l line) of(owner string) (own []node) {
	for _, n := range l {
		if n.owner == escapeOwner(owner) {
			own = append(own, n)
		}
	}
	return own
}

// excludes tells whether n and other cannot both hold the lock.
func (n node) excludes(other node) bool { return !n.shared || !other.shared }

// rival is the last claim before n that excludes it; ok is false if n holds the lock.
func (l line) rival(n node) (last node, ok bool) {
	for _, other := range l {
		if other.isBefore(n) && other.excludes(n) && (!ok || last.isBefore(other)) {
			last, ok = other, true
		}
	}
	return last, ok
}

// excludes tells whether n would have to wait, behind all that is there.
func (l line) excludes(n node) bool { return slices.ContainsFunc(l, n.excludes) }

func (l line) has(n node) bool { return slices.Contains(l, n) }
