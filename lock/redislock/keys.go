package redislock

import (
	"fmt"
	"strings"
	"time"
)

// keys names what a lock needs in Redis: <namespace>:lock:{<name>}, <namespace>:fence:{<name>} and one channel.
//
// The braces put both keys of a lock into one slot of a cluster. Redis ends the tag at the first closing brace, so
// those of the name are escaped, and the escape character with them, which keeps different names different.
type keys struct {
	namespace string
	escape    *strings.Replacer
}

func newKeys(namespace string) (keys, error) {
	legal := func(r rune) bool {
		return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	if namespace == "" || strings.ContainsFunc(namespace, func(r rune) bool { return !legal(r) }) {
		return keys{}, fmt.Errorf("redislock: Namespace is %q: must match [A-Za-z0-9._-]+", namespace)
	}
	return keys{namespace: namespace, escape: strings.NewReplacer("%", "%25", "}", "%7D")}, nil
}

func (k keys) lock(name string) string { return k.namespace + ":lock:{" + k.escape.Replace(name) + "}" }

func (k keys) fence(name string) string {
	return k.namespace + ":fence:{" + k.escape.Replace(name) + "}"
}
func (k keys) channel() string { return k.namespace + ":lock:released" }

// millis is ttl in whole milliseconds, rounded up: Redis must not end a lock before its holder does.
func millis(ttl time.Duration) int64 {
	ms := ttl.Milliseconds()
	if ttl%time.Millisecond > 0 {
		ms++
	}
	return ms
}
