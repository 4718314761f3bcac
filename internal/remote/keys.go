package remote

import "strings"

// Keys are the two Redis keys of one cached key. They share a Cluster slot.
type Keys struct {
	V    string // the entry
	kind int    // where V says what kind of key it is; 0: it does not, and B is the same
}

// B is the build key: lease, failure mark, cooling or pass. It is made when it is asked
// for: a hit needs none.
func (k Keys) B() string {
	if k.kind == 0 {
		return k.V
	}
	return k.V[:k.kind] + "b" + k.V[k.kind+1:]
}

// Keys maps a user's key to its Redis keys. The mapping is injective over
// (namespace, cache, key, kind): namespace and cache hold no ':', the kind is a
// field of its own, and the rest begins with '{' for a key that was wrapped in a
// hash tag and with '=' for one that brought its own.
func (s *Store) Keys(cache, key string) Keys {
	before, key, after := slotted(key)
	return Keys{V: s.namespace + ":v:" + cache + before + key + after, kind: len(s.namespace) + 1}
}

// slotted writes the user's key, between two constants, so that Redis Cluster always
// finds a non-empty hash tag in it: the user's own if there is one, else the whole key,
// with the bytes that could end or start a tag escaped.
func slotted(key string) (before, escaped, after string) {
	switch {
	case key == "":
		return ":{", "%", "}" // '%' never stands alone in an escaped key
	case plain(key):
		return ":{", key, "}"
	case hasTag(key):
		return ":=", key, ""
	}
	return ":{", escaper().Replace(key), "}"
}

// plain reports whether a key has no byte that would have to be escaped.
func plain(key string) bool {
	for i := range len(key) {
		switch key[i] {
		case '%', '{', '}':
			return false
		}
	}
	return true
}

func escaper() *strings.Replacer {
	return strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
}

// hasTag reports whether Redis Cluster would hash only a part of key: the bytes
// between its first '{' and the first '}' after that, unless there are none.
func hasTag(key string) bool {
	_, rest, _ := strings.Cut(key, "{")
	return strings.IndexByte(rest, '}') > 0
}
