package remote

import "strings"

// Keys are the two Redis keys of one cached key. They share a Cluster slot.
type Keys struct {
	V string // the entry
	B string // the build key: lease, failure mark, cooling or pass
}

// Keys maps a user's key to its Redis keys. The mapping is injective over
// (namespace, cache, key, kind): namespace and cache hold no ':', the kind is a
// field of its own, and the rest begins with '{' for a key that was wrapped in a
// hash tag and with '=' for one that brought its own.
func (s *Store) Keys(cache, key string) Keys {
	before, key, after := slotted(key)
	both := s.namespace + ":v:" + cache + before + key + after + s.namespace + ":b:" + cache + before + key + after
	return Keys{V: both[:len(both)/2], B: both[len(both)/2:]} // one allocation
}

// slotted writes the user's key, between two constants, so that Redis Cluster always
// finds a non-empty hash tag in it: the user's own if there is one, else the whole key,
// with the bytes that could end or start a tag escaped.
func slotted(key string) (before, escaped, after string) {
	switch {
	case hasTag(key):
		return ":=", key, ""
	case key == "":
		return ":{", "%", "}" // '%' never stands alone in an escaped key
	case strings.ContainsAny(key, "%{}"):
		key = escaper().Replace(key)
	}
	return ":{", key, "}"
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
