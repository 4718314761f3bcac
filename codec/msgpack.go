package codec

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// maxPooled is the largest buffer, in bytes, that is kept for the next call.
const maxPooled = 64 << 10

// Msgpack returns the default codec: MessagePack, by github.com/vmihailenco/msgpack/v5, id 1. It is safe for
// concurrent use. It keeps pools and what it learned of the types it met, so share one rather than making many.
//
// # What it stores
//
// Structs are stored as maps from field name to value; the `msgpack` struct tag renames and omits, other tags are
// ignored (a field hidden from JSON is cached all the same). An unknown field in a payload is skipped, a missing one
// leaves the zero value: raise the schema version when that would be wrong.
//
// # What it does not preserve
//
//   - The zone of a time. The instant is exact to the nanosecond; the decoded time is in time.Local (the zero time in
//     UTC), its monotonic reading gone.
//   - The width of int and uint in an any: they come back as the narrowest type that holds them (5 as int8, 300 as
//     uint16). The other integer types come back as they were. A float32 stays a float32.
//   - Concrete types in an any: a struct or a map comes back as map[string]any, a slice as []any.
//   - Range: a number too big for the field it is decoded into is cut to its low bits, without an error (300 into an
//     int8 is 44). Raise the schema version when a field gets narrower.
//   - Unexported fields, and the empty-but-not-nil of fields tagged omitempty.
//   - Sharing: two pointers to one value become two values.
//
// [Check] tells what a given value loses.
//
// # What it refuses
//
// Marshal fails on channels, functions, complex numbers; on a custom encoder that writes other than exactly one value;
// on the `intern` tag where it takes effect, and on empty extensions (both would let a hostile payload mislead the
// decoder). A value that contains itself ends in [ErrTooLarge], unless it does so by pointers and interfaces alone,
// which overflows the stack.
//
// Unmarshal walks the payload before it decodes it, so that no payload can exhaust memory or stack, and turns every
// panic into an error. A custom decoder of the value's type is trusted: what it allocates is not bounded, and it cannot
// look into an extension with the Decoder's methods, only read it as a whole.
//
// Do not embed a pointer to a struct in V: to decode one, the msgpack library starts a goroutine for that type that
// never ends. Embed by value.
func Msgpack() Codec {
	return &msgpackCodec{types: footprints{rules: msgpackRules()}}
}

type msgpackCodec struct {
	encoders sync.Pool // of *encoder
	decoders sync.Pool // of *decoder
	types    footprints
}

func (*msgpackCodec) ID() byte { return 1 }

func (*msgpackCodec) Name() string { return "msgpack" }

func (c *msgpackCodec) Marshal(v any) ([]byte, error) {
	e, ok := c.encoders.Get().(*encoder)
	if !ok {
		e = newEncoder()
	}
	if err := e.encode(v); err != nil {
		return nil, fmt.Errorf("codec: msgpack: marshal %T: %w", v, err) // e may hold half a value: it is dropped
	}
	if _, err := c.admit(e.buf, reflect.TypeOf(v)); err != nil {
		return nil, fmt.Errorf("codec: msgpack: marshal %T: what was encoded cannot be read back: %w", v, err)
	}
	data := slices.Clone(e.buf)
	if cap(e.buf) <= maxPooled {
		c.encoders.Put(e)
	}
	return data, nil
}

func (c *msgpackCodec) Unmarshal(data []byte, v any) error {
	t, err := target(v)
	if err != nil {
		return fmt.Errorf("codec: msgpack: %w", err)
	}
	n, err := c.admit(data, t)
	if err != nil {
		return fmt.Errorf("codec: msgpack: unmarshal %s: %w", t, err)
	}
	d, ok := c.decoders.Get().(*decoder)
	if !ok {
		d = newDecoder()
	}
	if err := d.decode(newReader(data, n), v); err != nil {
		// Resetting a Decoder does not end a recording that an error cut short, so d is dropped.
		return fmt.Errorf("codec: msgpack: unmarshal %s: %w: %w", t, ErrMalformed, err)
	}
	if len(data) <= maxPooled {
		c.decoders.Put(d)
	}
	return nil
}

// admit returns what data holds, or why it may not be decoded into a value of type t.
func (c *msgpackCodec) admit(data []byte, t reflect.Type) (counts, error) {
	if err := admitSize(len(data)); err != nil {
		return counts{}, err
	}
	n, err := scan(data)
	if err != nil {
		return counts{}, err
	}
	return n, c.types.admit(n, t)
}

// encoder is an Encoder and the buffer it writes to.
type encoder struct {
	enc    *msgpack.Encoder
	buf    []byte
	nextAt int // length at which the depth is looked at next
}

func newEncoder() *encoder {
	return &encoder{enc: msgpack.NewEncoder(nil)}
}

func (e *encoder) encode(v any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	e.buf = e.buf[:0]
	e.nextAt = maxPooled
	e.enc.Reset(e)

	// Encoders with pointer receivers are found on addressable values only.
	rv := reflect.ValueOf(v)
	if kind := rv.Kind(); kind != reflect.Struct && kind != reflect.Array {
		return e.enc.Encode(v)
	}
	addressable := reflect.New(rv.Type()).Elem()
	addressable.Set(rv)
	return e.enc.EncodeValue(addressable)
}

// Write stops the Encoder at MaxSize. It also looks at the depth, each time the buffer has doubled: a value that
// contains itself would overflow the stack long before it fills the buffer.
func (e *encoder) Write(p []byte) (int, error) {
	if len(p) > MaxSize-len(e.buf) {
		return 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, MaxSize)
	}
	e.buf = append(e.buf, p...)
	if len(e.buf) < e.nextAt {
		return len(p), nil
	}
	e.nextAt = 2 * len(e.buf)
	if _, err := scan(e.buf); err != nil && !errors.Is(err, errTruncated) && !errors.Is(err, errLength) {
		return 0, err // no continuation would make it right
	}
	return len(p), nil
}

func (e *encoder) WriteByte(b byte) error {
	_, err := e.Write([]byte{b})
	return err
}

// decoder is a Decoder and the reader it reads from.
type decoder struct {
	dec *msgpack.Decoder
	r   reader
}

func newDecoder() *decoder {
	return &decoder{dec: msgpack.NewDecoder(nil)}
}

func (d *decoder) decode(r reader, v any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	d.r = r
	d.dec.Reset(&d.r)
	err = d.dec.Decode(v)
	if err == nil && d.r.pos != len(r.data) {
		err = fmt.Errorf("%d of %d bytes were not read", len(r.data)-d.r.pos, len(r.data))
	}
	d.r.data = nil // the pool must not keep it alive
	return err
}
