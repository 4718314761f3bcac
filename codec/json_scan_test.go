package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestScanJSONDoesNotAllocate(t *testing.T) {
	data := []byte(`{"a":[1,2,{"b":"\""}]}`)
	if n := testing.AllocsPerRun(100, func() { _, _ = scanJSON(data) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestScanJSONCountsElementsAndPairs(t *testing.T) {
	for data, want := range map[string]counts{
		`1`:                        {},
		`"[1,2]:\"[,"`:             {},
		`[]`:                       {},
		"[ \n]":                    {},
		`[1]`:                      {elems: 1},
		`["a","b"]`:                {elems: 2},
		`[[],[[]]]`:                {elems: 3},
		`{}`:                       {},
		`{"a":1,"b":2}`:            {pairs: 2},
		`[{"a":[{}],"b":"}"},[1]]`: {elems: 4, pairs: 2},
	} {
		if got, err := scanJSON([]byte(data)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", data, got, err, want)
		}
	}
}

// FuzzScanJSONAgreesWithTheDecoder compares scanJSON with the tokens that encoding/json finds.
func FuzzScanJSONAgreesWithTheDecoder(f *testing.F) {
	for _, s := range []string{
		`[]`, `{}`, `[1,"x",null]`, `{"a":{"b":[{},[]]}}`, `"\\"`, `["\"",{"\\":1}]`, " [ ] ", `[}`, `]`, `{"a"`, `"\`,
		strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := scanJSON(data)
		if !json.Valid(data) {
			return // that it does not panic is all
		}
		want, depth := countTokens(t, data)
		if depth > MaxDepth {
			if !errors.Is(err, errTooDeep) {
				t.Errorf("%q: %v for a depth of %d", data, err, depth)
			}
			return
		}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", data, got, err, want)
		}
	})
}

// countTokens counts what the valid JSON in data holds, and how deep it goes.
func countTokens(t *testing.T, data []byte) (n counts, depth int) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	values := []int{0} // of each open array and object, keys included; the first is for the whole
	arrays := []bool{false}
	for {
		token, err := d.Token()
		if err != nil {
			return n, depth
		}
		top := len(values) - 1
		switch token {
		case json.Delim(']'), json.Delim('}'):
			if arrays[top] {
				n.elems += values[top]
			} else {
				n.pairs += values[top] / 2
			}
			values, arrays = values[:top], arrays[:top]
			continue
		}
		values[top]++
		if token == json.Delim('[') || token == json.Delim('{') {
			values, arrays = append(values, 0), append(arrays, token == json.Delim('['))
			depth = max(depth, top+1)
		}
	}
}
