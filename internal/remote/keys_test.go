package remote

import (
	"strings"
	"testing"
	"time"
)

func hostileKeys() []string {
	return []string{
		"", " ", ":", "=", "=a", "%", "%%", "%25", "%7B", "%7b", "{", "}", "{}", "}{", "{}{", "{}{a}", "{a}", "{a}b", "b{a}", "{{a}}", "{a", "a}",
		"a}b", "a}{b}", "{a}{b}", "{%}", "%{a}", "a%b", "a:b", "v:c:{k}", ":b:c:k", "}:b:c:{k", "c:k", "\x00", "a\nb", "a\r\nb", "\xff\xfe", "ключ",
		"{\x00}", "a b", strings.Repeat("k", 1<<10), strings.Repeat("{", 1<<10), strings.Repeat("}", 1<<10), strings.Repeat("%", 1<<10),
	}
}

func keyStore() *Store { return NewStore(nil, "name-space", "here", time.Second) }

// origin reads a Redis key back, strictly: what it returns is the only thing that
// can have been mapped to it.
func origin(t *testing.T, redisKey string) (kind, cache, key string) {
	t.Helper()
	fields := strings.SplitN(redisKey, ":", 4)
	if len(fields) != 4 || fields[0] != "name-space" {
		t.Fatalf("%q does not have the form namespace:kind:cache:key", redisKey)
	}
	own, ok := strings.CutPrefix(fields[3], "=")
	if ok {
		return fields[1], fields[2], own
	}
	wrapped := fields[3]
	if len(wrapped) < 3 || wrapped[0] != '{' || wrapped[len(wrapped)-1] != '}' {
		t.Fatalf("%q does not end in one hash tag", redisKey)
	}
	inner := wrapped[1 : len(wrapped)-1]
	if inner == "%" {
		return fields[1], fields[2], ""
	}
	for len(inner) > 0 {
		b := inner[:1]
		switch {
		case b == "{" || b == "}":
			t.Fatalf("%q has a brace inside its hash tag", redisKey)
		case b != "%":
			key, inner = key+b, inner[1:]
		default:
			code := inner[:min(3, len(inner))]
			plain, ok := map[string]string{"%25": "%", "%7B": "{", "%7D": "}"}[code]
			if !ok {
				t.Fatalf("%q has the unknown escape %q", redisKey, code)
			}
			key, inner = key+plain, inner[3:]
		}
	}
	return fields[1], fields[2], key
}

// tag is what Redis Cluster hashes of a key; whole, if it finds no tag in it.
func tag(key string) (hashed string, whole bool) {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return key, true
	}
	end := strings.IndexByte(key[open+1:], '}')
	if end <= 0 {
		return key, true
	}
	return key[open+1 : open+1+end], false
}

// slot is the Redis Cluster slot of a key: CRC-16/XMODEM modulo 16384.
func slot(key string) uint16 {
	hashed, _ := tag(key)
	var crc uint16
	for _, b := range []byte(hashed) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}

func checkKeys(t *testing.T, cache, key string) {
	t.Helper()
	keys := keyStore().Keys(cache, key)
	for kind, redisKey := range map[string]string{"v": keys.V, "b": keys.B()} {
		if k, c, u := origin(t, redisKey); k != kind || c != cache || u != key {
			t.Errorf("%q in %q became %q, which reads back as kind %q, cache %q, key %q", key, cache, redisKey, k, c, u)
		}
		hashed, whole := tag(redisKey)
		if whole {
			t.Errorf("%q became %q, which has no hash tag", key, redisKey)
		}
		if own, none := tag(key); !none && hashed != own {
			t.Errorf("%q became %q with the tag %q, want its own %q", key, redisKey, hashed, own)
		}
	}
	if v, b := slot(keys.V), slot(keys.B()); v != b {
		t.Errorf("%q: V is in slot %d, B in %d", key, v, b)
	}
}

func TestASlotIsComputedAsRedisDoes(t *testing.T) {
	for key, want := range map[string]uint16{"123456789": 0x31C3, "foo": 12182, "a{foo}b": 12182} {
		if got := slot(key); got != want%16384 {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}

func TestEveryKeyCanBeReadBackFromBothItsRedisKeys(t *testing.T) {
	for _, key := range hostileKeys() {
		for _, cache := range []string{"c", "v", "b", "a.b-c_d"} {
			checkKeys(t, cache, key)
		}
	}
}

func TestNoTwoKeysShareARedisKey(t *testing.T) {
	taken := map[string]string{}
	for _, cache := range []string{"c", "b", "v"} {
		for _, key := range hostileKeys() {
			keys := keyStore().Keys(cache, key)
			for _, redisKey := range []string{keys.V, keys.B()} {
				if other, ok := taken[redisKey]; ok {
					t.Errorf("%q is the key of %q in %q and of %s", redisKey, key, cache, other)
				}
				taken[redisKey] = cache + "/" + key
			}
		}
	}
}

func TestKeysWithOneTagOfTheirOwnShareASlot(t *testing.T) {
	s := keyStore()
	a, b := s.Keys("c", "cart:{user7}"), s.Keys("other", "profile:{user7}")
	if slot(a.V) != slot(b.V) || slot(a.V) != slot("{user7}") {
		t.Errorf("slots %d and %d, want both that of {user7}, %d", slot(a.V), slot(b.V), slot("{user7}"))
	}
}

func FuzzKeys(f *testing.F) {
	keys := hostileKeys()
	for i, key := range keys {
		f.Add("c", key, "c", keys[(i+1)%len(keys)])
	}
	f.Add("a", "b", "ab", "")
	f.Add("c", "{%}", "c", "")
	f.Add("c", "{a}", "c", "a")
	f.Add("c", "=a", "c", "={a}")
	f.Add("v", "x", "b", "x")
	f.Fuzz(func(t *testing.T, cacheA, keyA, cacheB, keyB string) {
		cacheA, cacheB = named(cacheA), named(cacheB)
		checkKeys(t, cacheA, keyA)
		checkKeys(t, cacheB, keyB)
		a, b := keyStore().Keys(cacheA, keyA), keyStore().Keys(cacheB, keyB)
		if same := cacheA == cacheB && keyA == keyB; (a.V == b.V) != same || (a.B() == b.B()) != same || a.V == b.B() || a.B() == b.V {
			t.Errorf("%q in %q and %q in %q became %q and %q", keyA, cacheA, keyB, cacheB, a.V, b.V)
		}
	})
}

// named makes a legal cache name of any text.
func named(text string) string {
	legal := func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)) {
			return r
		}
		return -1
	}
	return "n" + strings.Map(legal, text)
}
