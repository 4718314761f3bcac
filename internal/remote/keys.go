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
	suffix := ":" + cache + ":" + slotted(key)
	return Keys{V: s.namespace + ":v" + suffix, B: s.namespace + ":b" + suffix}
}

// slotted writes the user's key so that Redis Cluster always finds a non-empty
// hash tag in it: the user's own if there is one, else the whole key, with the
// bytes that could end or start a tag escaped.
func slotted(key string) string {
	if hasTag(key) {
		return "=" + key
	}
	if key == "" {
		return "{%}" // '%' never stands alone in an escaped key
	}
	if !strings.ContainsAny(key, "%{}") {
		return "{" + key + "}"
	}
	return "{" + escaper().Replace(key) + "}"
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
