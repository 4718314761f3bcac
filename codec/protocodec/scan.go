package protocodec

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/herdgate/herdgate/codec"
)

var errDepth = fmt.Errorf("%w: messages nested more than %d deep", codec.ErrTooLarge, codec.MaxDepth)

// admit returns why data may not be decoded as the message m is, if it may not. Two bytes can ask for a whole message,
// so what bounds memory is what they ask for. Where data is no such message, the decoder gets no further than the scan.
func admit(data []byte, m proto.Message) error {
	if len(data) > codec.MaxSize {
		return fmt.Errorf("%w: %d bytes, want at most %d", codec.ErrTooLarge, len(data), codec.MaxSize)
	}
	var s scan
	_, err := s.message(data, m.ProtoReflect().Descriptor(), 1)
	if err == nil && s.need > codec.MaxMemory {
		err = fmt.Errorf("%w: it may take %d bytes of memory, want at most %d", codec.ErrTooLarge, s.need, codec.MaxMemory)
	}
	return err
}

// What the fields of a decoded message take, in bytes, estimated from above. Text and bytes themselves are not counted:
// they take what they take in the payload.
const (
	messageSize = 64                   // the state of a message, and the pointer to it in a slice that has grown
	fieldSize   = 24                   // of the largest field, a slice
	boxSize     = 32                   // of a value behind a pointer or in a oneof
	pairSize    = 8 * (16 + fieldSize) // the first pair of a map allocates eight
	growth      = 2                    // most capacity of a slice, as a multiple of its length
	numberSize  = 8
)

// scan walks a payload and adds up what its decoding may allocate.
type scan struct{ need int64 }

// message walks a message. rest is what comes after the end of a group.
func (s *scan) message(data []byte, md protoreflect.MessageDescriptor, depth int) (rest []byte, err error) {
	if depth > codec.MaxDepth {
		return nil, errDepth
	}
	if !md.IsMapEntry() { // which is a message in the payload only
		s.need += messageSize + fieldSize*int64(md.Fields().Len())
	}
	for len(data) > 0 {
		number, wireType, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil, malformed(n)
		}
		data = data[n:]
		if wireType == protowire.EndGroupType {
			return data, nil
		}
		if data, err = s.field(data, number, wireType, fieldOf(md, number), depth); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// field walks one field behind its tag. fd is nil if it is not known: it is kept as it is.
func (s *scan) field(data []byte, number protowire.Number, wireType protowire.Type, fd protoreflect.FieldDescriptor, depth int) (rest []byte, err error) {
	var inner protoreflect.MessageDescriptor
	if fd != nil {
		inner = fd.Message()
		s.need += occurrence(fd)
	}
	if inner != nil && wireType == protowire.StartGroupType {
		return s.message(data, inner, depth+1)
	}
	n := protowire.ConsumeFieldValue(number, wireType, data)
	if n < 0 {
		return nil, malformed(n)
	}
	if fd == nil || wireType != protowire.BytesType {
		return data[n:], nil
	}
	value, _ := protowire.ConsumeBytes(data)
	switch {
	case inner != nil:
		_, err = s.message(value, inner, depth+1)
	case fd.IsList() && fd.Kind() != protoreflect.StringKind && fd.Kind() != protoreflect.BytesKind:
		s.need += growth * numberSize * packed(value, fd.Kind())
	}
	return data[n:], err
}

func malformed(n int) error { return fmt.Errorf("%w: %w", codec.ErrMalformed, protowire.ParseError(n)) }

// fieldOf is the field, or the extension that the program knows, of a message; nil if there is none.
func fieldOf(md protoreflect.MessageDescriptor, number protowire.Number) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByNumber(number); fd != nil || !md.ExtensionRanges().Has(number) {
		return fd
	}
	xt, err := protoregistry.GlobalTypes.FindExtensionByNumber(md.FullName(), number)
	if err != nil {
		return nil
	}
	return xt.TypeDescriptor()
}

// occurrence is what a field takes outside its message each time it is there, but for the message that it holds.
func occurrence(fd protoreflect.FieldDescriptor) int64 {
	switch {
	case fd.IsMap(), fd.IsExtension(): // extensions are in a map, too
		return pairSize
	case fd.IsList():
		return growth * fieldSize
	case fd.HasPresence():
		return boxSize
	}
	return 0
}

// packed is how many numbers a packed list holds.
func packed(list []byte, kind protoreflect.Kind) int64 {
	switch kind {
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return int64(len(list) / 8)
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return int64(len(list) / 4)
	default: // varints: each ends in a byte below 128
		var n int64
		for _, b := range list {
			if b < 0x80 {
				n++
			}
		}
		return n
	}
}
