package herdgate

import (
	"cmp"
	"strings"
)

// pattern is text in which '*' stands for any number of any bytes.
type pattern struct {
	text   string
	prefix int // bytes before the first '*'
}

func newPattern(text string) pattern {
	if i := strings.IndexByte(text, '*'); i >= 0 {
		return pattern{text: text, prefix: i}
	}
	return pattern{text: text, prefix: len(text)}
}

// compare sorts the more special of two patterns first.
func (p pattern) compare(other pattern) int {
	literal := func(p pattern) int { return len(p.text) - strings.Count(p.text, "*") }
	return cmp.Or(
		cmp.Compare(other.prefix, p.prefix),
		cmp.Compare(literal(other), literal(p)),
		cmp.Compare(strings.Count(p.text, "*"), strings.Count(other.text, "*")),
	)
}

// matches looks for the parts between the stars from the left, each as early as it
// can be found: what is left for the parts after it is then the most there can be.
func (p pattern) matches(key string) bool {
	if p.prefix == len(p.text) {
		return key == p.text
	}
	if !strings.HasPrefix(key, p.text[:p.prefix]) {
		return false
	}
	key = key[p.prefix:]
	parts := p.text[p.prefix+1:]
	for {
		part, rest, more := strings.Cut(parts, "*")
		if !more {
			return strings.HasSuffix(key, part)
		}
		i := strings.Index(key, part)
		if i < 0 {
			return false
		}
		key, parts = key[i+len(part):], rest
	}
}
