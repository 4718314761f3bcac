package codec

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// JSON returns a codec that stores values as encoding/json writes them, id 2: larger and slower than [Msgpack], but
// readable by hand and by other programs. It is safe for concurrent use. It keeps what it learned of the types it met,
// so share one rather than making many.
//
// The `json` struct tag renames and omits; `msgpack` tags are ignored. Unmarshal is as forgiving as encoding/json: an
// unknown field is skipped, a missing one and a null leave the zero value, names match without regard to case, and a
// field that is there twice is decoded twice into the same place. Raise the schema version when that would be wrong. A
// number that does not fit its field is an error, wrapping [ErrMalformed].
//
// # What it does not preserve
//
//   - Numbers in an any: they come back as float64, so integers beyond 2⁵³ lose digits.
//   - Other types in an any: a struct or a map comes back as map[string]any, a slice as []any, a []byte as a string in
//     base64.
//   - Bytes of a string that are not UTF-8: each becomes U+FFFD.
//   - The name of a time's zone, and its monotonic reading. The instant and the offset are exact, unless the offset has
//     seconds (some of before 1970 do): they are cut off, and the instant moves.
//   - Fields that are unexported, tagged "-", or hidden by another of their name; the empty-but-not-nil of fields tagged
//     omitempty.
//   - Types in a map or an any whose MarshalJSON has a pointer receiver: encoding/json does not call it there.
//   - Sharing: two pointers to one value become two values.
//
// [Check] tells what a given value loses.
//
// # What it refuses
//
// Marshal fails on channels, functions, complex numbers, NaN and infinities, times beyond the year 9999, on a value that
// contains itself, and with [ErrTooLarge] on what is beyond [MaxSize], [MaxDepth] or [MaxMemory]. The length is known
// only when all is encoded. A panic in a MarshalJSON is an error.
//
// Unmarshal looks at the payload's length, depth and elements before it decodes it, so that no payload can exhaust
// memory or stack. Its error wraps [ErrTooLarge], or [ErrMalformed] where the payload is not exactly one JSON value that
// fits the type; white space around the value is allowed. A panic is such an error too. An UnmarshalJSON or
// UnmarshalText of the value's type is trusted: what it allocates is not bounded.
func JSON() Codec {
	return &jsonCodec{types: footprints{rules: jsonRules()}}
}

type jsonCodec struct {
	types footprints
}

func (*jsonCodec) ID() byte { return 2 }

func (*jsonCodec) Name() string { return "json" }

func (c *jsonCodec) Marshal(v any) ([]byte, error) {
	data, err := marshalJSON(v)
	if err != nil {
		return nil, fmt.Errorf("codec: json: marshal %T: %w", v, err)
	}
	if err := c.admit(data, reflect.TypeOf(v)); err != nil {
		return nil, fmt.Errorf("codec: json: marshal %T: what was encoded cannot be read back: %w", v, err)
	}
	return data, nil
}

func (c *jsonCodec) Unmarshal(data []byte, v any) error {
	t, err := target(v)
	if err != nil {
		return fmt.Errorf("codec: json: %w", err)
	}
	if err := c.admit(data, t); err != nil {
		return fmt.Errorf("codec: json: unmarshal %s: %w", t, err)
	}
	if err := unmarshalJSON(data, v); err != nil {
		return fmt.Errorf("codec: json: unmarshal %s: %w: %w", t, ErrMalformed, brief{err})
	}
	return nil
}

// admit returns why data may not be decoded into a value of type t, if it may not. That data is JSON is not checked.
func (c *jsonCodec) admit(data []byte, t reflect.Type) error {
	if err := admitSize(len(data)); err != nil {
		return err
	}
	n, err := scanJSON(data)
	if err != nil {
		return err
	}
	return c.types.admit(n, t)
}

func marshalJSON(v any) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			data, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	// A MarshalJSON with a pointer receiver is found on addressable values only, while its UnmarshalJSON is always
	// found: without the pointer, what is written could not be read.
	rv := reflect.ValueOf(v)
	if !rv.IsValid() || rv.Kind() == reflect.Pointer {
		return json.Marshal(v)
	}
	ptr := reflect.New(rv.Type())
	ptr.Elem().Set(rv)
	return json.Marshal(ptr.Interface())
}

func unmarshalJSON(data []byte, v any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return json.Unmarshal(data, v)
}

// scanJSON counts what data holds, for as long as it is JSON: a decoder gets no further. It does not allocate.
func scanJSON(data []byte) (counts, error) {
	var n counts
	var arrays [MaxDepth]bool // of each depth: whether it is an array
	depth := 0
	empty := false // nothing has come since an array was opened
	for i := 0; i < len(data); i++ {
		c := data[i]
		if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
			continue
		}
		if empty && c != ']' {
			n.elems++
		}
		empty = c == '['
		switch c {
		case '[', '{':
			if depth == MaxDepth {
				return counts{}, errTooDeep
			}
			arrays[depth] = c == '['
			depth++
		case ']', '}':
			if depth == 0 {
				return n, nil
			}
			depth--
		case ',':
			if depth > 0 && arrays[depth-1] {
				n.elems++
			}
		case ':':
			n.pairs++
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n, nil
}

// brief shortens the text of an error, in which encoding/json may quote a whole payload.
type brief struct{ error }

func (b brief) Error() string { return fmt.Sprintf("%.200s", b.error.Error()) }

func (b brief) Unwrap() error { return b.error }
