// Package protocodec is the codec of protobuf messages, for caches whose values are pointers to generated ones:
//
//	herdgate.New(gate, "product", load, herdgate.Policy{Codec: protocodec.New()}) // load returns a *shoppb.Product
package protocodec

import (
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"

	"github.com/herdgate/herdgate/codec"
)

// New returns a codec that stores messages in protobuf's wire format, id 4. V must be a pointer to a generated message,
// such as *shoppb.Product; Marshal and Unmarshal fail on any other type, and name it. It is safe for concurrent use.
//
// What protobuf says of compatibility holds for entries: a field that a build does not know is kept, one that is missing
// has its default. Raise the schema version when that would be wrong. Marshal writes equal messages as equal bytes, as
// long as they are of one build. proto.Equal compares what came back; codec.Check does not, since it sees the private
// state of messages. The message is the caller's and all others': do not change it, or give the cache proto.CloneOf with
// herdgate.WithClone.
//
// Marshal fails on nil, which is no message (a loader that has none returns herdgate.ErrNotFound), on text that is not
// UTF-8, where a required field is missing, and with [codec.ErrTooLarge] on what is beyond [codec.MaxSize],
// [codec.MaxDepth] or [codec.MaxMemory].
//
// Unmarshal walks the payload before it decodes it, so that no payload can exhaust memory or stack. Its error wraps
// codec.ErrTooLarge, or [codec.ErrMalformed] where the payload is no message of the type; a panic is such an error too.
func New() codec.Codec { return protoCodec{} }

type protoCodec struct{}

func (protoCodec) ID() byte { return 4 }

func (protoCodec) Name() string { return "protobuf" }

var (
	errNoMessage = errors.New("want a pointer to a generated protobuf message; other types need another codec")
	errNil       = errors.New("nil is no message; a loader that has none returns herdgate.ErrNotFound")
)

func (protoCodec) Marshal(v any) ([]byte, error) {
	data, err := marshal(v)
	if err != nil {
		return nil, fmt.Errorf("codec: protobuf: marshal %T: %w", v, err)
	}
	return data, nil
}

func (protoCodec) Unmarshal(data []byte, v any) error {
	ptr := reflect.ValueOf(v)
	if ptr.Kind() != reflect.Pointer || ptr.IsNil() {
		return fmt.Errorf("codec: protobuf: unmarshal into %T: want a pointer that is not nil", v)
	}
	if err := unmarshal(data, ptr.Elem()); err != nil {
		return fmt.Errorf("codec: protobuf: unmarshal %s: %w", ptr.Type().Elem(), err)
	}
	return nil
}

func marshal(v any) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			data, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	zero, err := newMessage(reflect.TypeOf(v))
	if err != nil {
		return nil, err
	}
	if reflect.ValueOf(v).IsNil() {
		return nil, errNil
	}
	data, err = proto.MarshalOptions{Deterministic: true}.Marshal(v.(proto.Message))
	if err != nil {
		return nil, err
	}
	if err := admit(data, zero); err != nil {
		return nil, fmt.Errorf("what was encoded cannot be read back: %w", err)
	}
	return data, nil
}

func unmarshal(data []byte, into reflect.Value) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v", codec.ErrMalformed, p)
		}
	}()
	m, err := newMessage(into.Type())
	if err != nil {
		return err
	}
	if err := admit(data, m); err != nil {
		return err
	}
	if err := (proto.UnmarshalOptions{RecursionLimit: codec.MaxDepth}).Unmarshal(data, m); err != nil {
		return fmt.Errorf("%w: %w", codec.ErrMalformed, err)
	}
	into.Set(reflect.ValueOf(m))
	return nil
}

// newMessage makes a message of a type that is a pointer to a generated one.
func newMessage(t reflect.Type) (proto.Message, error) {
	if t == nil || t.Kind() != reflect.Pointer || !t.Implements(reflect.TypeFor[proto.Message]()) {
		return nil, errNoMessage
	}
	m := reflect.New(t.Elem()).Interface().(proto.Message)
	// What has a message inside can do all but be read; the type of a dynamic message does not say what is in it.
	if r := m.ProtoReflect(); r.Descriptor() == nil || r.Interface() != m {
		return nil, errNoMessage
	}
	return m, nil
}
