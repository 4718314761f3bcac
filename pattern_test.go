package herdgate

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzAPatternMatchesLikeARegularExpression(f *testing.F) {
	for _, seed := range [][2]string{
		{"user:*:cart", "user:1:cart"},
		{"*", ""},
		{"a*b*c", "abbc"},
		{"a*a", "a"},
		{"**", "x"},
		{"", ""},
		{"*ab*ab", "abab"},
		{"*ab*ab", "ab"},
		{"x*", "x"},
		{"*x", "yx"},
		{"a*aba", "ababa"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, key string) {
		if !utf8.ValidString(text) || !utf8.ValidString(key) {
			return // a regular expression reads runes
		}
		want := regexp.MustCompile(`(?s)\A` + strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, `.*`) + `\z`)
		if got := newPattern(text).matches(key); got != want.MatchString(key) {
			t.Errorf("%q matches %q: %v", text, key, got)
		}
	})
}

func TestTheMoreSpecialPatternComesFirst(t *testing.T) {
	ranked := []string{"user:1", "user:*:cart", "user:*", "u*r:*", "u*", "*:cart", "*"}
	for i := range ranked[1:] {
		if newPattern(ranked[i]).compare(newPattern(ranked[i+1])) >= 0 {
			t.Errorf("%q does not come before %q", ranked[i], ranked[i+1])
		}
	}
}
