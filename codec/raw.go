package codec

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unsafe"
)

// Raw returns the codec of values that are bytes already, id 3: pages, images, messages encoded elsewhere. The payload
// is the value, so V must be []byte, string, or a type made from one of them, such as json.RawMessage; Marshal and
// Unmarshal fail on any other, and name it. It is safe for concurrent use.
//
// Every payload of at most [MaxSize] bytes is a value, a longer one an error that wraps [ErrTooLarge]; a string need
// not be UTF-8. A nil []byte cannot be told from an empty one: both come back empty and not nil.
//
// Marshal copies. Unmarshal does not: the value lies in the payload, which therefore must never change again (as [Codec]
// says; a cache keeps to it). Do not write to a []byte that was decoded, as others may share it; appending to it is
// safe, since that copies.
func Raw() Codec {
	return rawCodec{}
}

type rawCodec struct{}

func (rawCodec) ID() byte { return 3 }

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	if err := admitRaw(reflect.TypeOf(v)); err != nil {
		return nil, fmt.Errorf("codec: raw: marshal %T: %w", v, err)
	}
	value := reflect.ValueOf(v)
	if err := admitSize(value.Len()); err != nil {
		return nil, fmt.Errorf("codec: raw: marshal %T: %w", v, err)
	}
	if value.Kind() == reflect.String {
		return []byte(value.String()), nil
	}
	return slices.Clone(value.Bytes()), nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	t, err := target(v)
	if err != nil {
		return fmt.Errorf("codec: raw: %w", err)
	}
	if err := admitRaw(t); err != nil {
		return fmt.Errorf("codec: raw: unmarshal %s: %w", t, err)
	}
	if err := admitSize(len(data)); err != nil {
		return fmt.Errorf("codec: raw: unmarshal %s: %w", t, err)
	}
	value := reflect.ValueOf(v).Elem()
	if t.Kind() == reflect.String {
		// A string must never change, and data never does: see Codec.
		value.SetString(unsafe.String(unsafe.SliceData(data), len(data)))
		return nil
	}
	if data == nil {
		data = []byte{}
	}
	// Without spare capacity: two holders of a shared value who append to it must not write to the same memory.
	value.SetBytes(slices.Clip(data))
	return nil
}

// admitRaw returns why values of type t are not bytes, if they are not.
func admitRaw(t reflect.Type) error {
	if t != nil && (t.Kind() == reflect.String || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8) {
		return nil
	}
	return errNotRaw
}

var errNotRaw = errors.New("want []byte, string, or a type made from one of them; other types need another codec")
