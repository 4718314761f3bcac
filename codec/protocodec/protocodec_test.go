package protocodec

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/gofeaturespb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/sourcecontextpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/herdgate/herdgate/codec"
)

// sample is a message with a map, a oneof, lists and messages in messages.
func sample(tb testing.TB) *structpb.Struct {
	tb.Helper()
	s, err := structpb.NewStruct(map[string]any{
		"name": "lamp", "price": 9.5, "sold": true, "none": nil,
		"tags": []any{"a", "b", []any{}}, "maker": map[string]any{"name": "acme", "since": 1950},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// file has proto2's optional fields, lists of numbers, and extensions.
func file() *descriptorpb.FileDescriptorProto {
	return &descriptorpb.FileDescriptorProto{
		Name: new("shop.proto"), PublicDependency: []int32{1, 2, 1 << 30},
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Lamp"), NestedType: []*descriptorpb.DescriptorProto{{}}}},
		Options:     &descriptorpb.FileOptions{GoPackage: new("shoppb")},
	}
}

func samples(tb testing.TB) []proto.Message {
	tb.Helper()
	boxed, err := anypb.New(sample(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return []proto.Message{
		sample(tb), file(), boxed, timestamppb.New(time.Unix(1, 2)), durationpb.New(-time.Second), &structpb.Struct{},
		wrapperspb.Bytes([]byte{0xff}), wrapperspb.String("text"), &fieldmaskpb.FieldMask{Paths: []string{"a", "", "c"}},
		&pluginpb.CodeGeneratorRequest{ProtoFile: []*descriptorpb.FileDescriptorProto{file(), {}}},
	}
}

// decoded unmarshals into a message of m's type.
func decoded(data []byte, m proto.Message) (proto.Message, error) {
	switch m.(type) {
	case *structpb.Struct:
		return decodedAs[*structpb.Struct](data)
	case *structpb.ListValue:
		return decodedAs[*structpb.ListValue](data)
	case *descriptorpb.FileDescriptorProto:
		return decodedAs[*descriptorpb.FileDescriptorProto](data)
	case *anypb.Any:
		return decodedAs[*anypb.Any](data)
	case *timestamppb.Timestamp:
		return decodedAs[*timestamppb.Timestamp](data)
	case *durationpb.Duration:
		return decodedAs[*durationpb.Duration](data)
	case *wrapperspb.BytesValue:
		return decodedAs[*wrapperspb.BytesValue](data)
	case *wrapperspb.StringValue:
		return decodedAs[*wrapperspb.StringValue](data)
	case *fieldmaskpb.FieldMask:
		return decodedAs[*fieldmaskpb.FieldMask](data)
	case *pluginpb.CodeGeneratorRequest:
		return decodedAs[*pluginpb.CodeGeneratorRequest](data)
	}
	return nil, fmt.Errorf("%T is missing here", m)
}

func decodedAs[M proto.Message](data []byte) (proto.Message, error) {
	var m M
	err := New().Unmarshal(data, &m)
	return m, err
}

func TestTheIDIsTheOneThatEntriesCarry(t *testing.T) {
	if c := New(); c.ID() != 4 || c.Name() != "protobuf" {
		t.Errorf("%s has the id %d", c.Name(), c.ID())
	}
}

func TestMessagesComeBack(t *testing.T) {
	for _, m := range samples(t) {
		data, err := New().Marshal(m)
		if err != nil {
			t.Errorf("%T: %v", m, err)
			continue
		}
		got, err := decoded(data, m)
		if err != nil || !proto.Equal(got, m) {
			t.Errorf("%v came back as %v, %v", m, got, err)
		}
	}
}

func TestEqualMessagesHaveEqualBytes(t *testing.T) {
	want, err := New().Marshal(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // a map of six in random order
		if got, err := New().Marshal(proto.CloneOf(sample(t))); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%x, %v; want %x", got, err, want)
		}
	}
}

func TestAFieldThatIsNotKnownIsKept(t *testing.T) {
	data := protowire.AppendTag(nil, 99, protowire.BytesType)
	data = protowire.AppendString(data, "of a newer build")
	var m *timestamppb.Timestamp
	if err := New().Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if got, err := New().Marshal(m); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%x became %x, %v", data, got, err)
	}
}

func TestADecodedMessageSharesNothingWithThePayload(t *testing.T) {
	data, err := New().Marshal(wrapperspb.Bytes([]byte("bytes")))
	if err != nil {
		t.Fatal(err)
	}
	var m *wrapperspb.BytesValue
	if err := New().Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(data)
	clear(m.GetValue())
	if !bytes.Equal(data, before) {
		t.Errorf("the payload changed with the value, to %q", data)
	}
}

func TestTypesThatAreNoGeneratedMessageAreNamed(t *testing.T) {
	c := New()
	for _, test := range []struct {
		value, into any
		name        string
	}{
		{1, new(int), "int:"},
		{"text", new(string), "string:"},
		{timestamppb.Timestamp{}, new(timestamppb.Timestamp), "timestamppb.Timestamp:"},
		{[]byte{}, new([]byte), "[]uint8:"},
		{new(int), new(*int), "*int:"},
		{nil, new(any), ":"}, // <nil> and interface {}
		{nil, new(proto.Message), ":"},
		{&around{timestamppb.Now()}, new(*around), "*protocodec.around:"},
		{dynamicpb.NewMessage(sample(t).ProtoReflect().Descriptor()), new(*dynamicpb.Message), "*dynamicpb.Message:"},
	} {
		_, marshalErr := c.Marshal(test.value)
		for _, err := range []error{marshalErr, c.Unmarshal(nil, test.into)} {
			if err == nil || errors.Is(err, codec.ErrMalformed) ||
				!strings.Contains(err.Error(), test.name) || !strings.Contains(err.Error(), "want a pointer to a generated protobuf message") {
				t.Errorf("%T: %v", test.into, err)
			}
		}
	}
	for _, v := range []any{nil, 1, (*timestamppb.Timestamp)(nil), timestamppb.Now(), (**timestamppb.Timestamp)(nil)} {
		if err := c.Unmarshal(nil, v); err == nil || !strings.Contains(err.Error(), "want a pointer") {
			t.Errorf("into %T: %v", v, err)
		}
	}
}

// around has the methods of the message in it.
type around struct{ *timestamppb.Timestamp }

func TestNilIsNoMessage(t *testing.T) {
	_, err := New().Marshal((*timestamppb.Timestamp)(nil))
	if err == nil || !strings.Contains(err.Error(), "marshal *timestamppb.Timestamp: nil is no message") {
		t.Errorf("err = %v", err)
	}
}

func TestMarshalRefusesWhatIsNoRightMessage(t *testing.T) {
	for _, m := range []proto.Message{
		wrapperspb.String("\xff"),
		&descriptorpb.UninterpretedOption_NamePart{}, // its fields are required
	} {
		if data, err := New().Marshal(m); err == nil {
			t.Errorf("%T: %x", m, data)
		}
	}
}

// nested is a list in a list, depth messages deep: an even number, for each list is in a value.
func nested(depth int) *structpb.ListValue {
	list := &structpb.ListValue{}
	for range (depth - 1) / 2 {
		list = &structpb.ListValue{Values: []*structpb.Value{structpb.NewListValue(list)}}
	}
	return list
}

func TestWhatIsTooLargeIsRefusedBothWays(t *testing.T) {
	for _, test := range []struct {
		name string
		m    proto.Message
		text string
	}{
		{"too long", wrapperspb.Bytes(make([]byte, codec.MaxSize)), "67108869 bytes, want at most 67108864"},
		{"too deep", nested(codec.MaxDepth + 1), "nested more than 1000 deep"},
		{"too many", &structpb.ListValue{Values: make([]*structpb.Value, 5<<18)}, "bytes of memory, want at most 268435456"},
	} {
		if list, ok := test.m.(*structpb.ListValue); ok && list.Values[0] == nil {
			for i := range list.Values {
				list.Values[i] = &structpb.Value{}
			}
		}
		data, err := proto.Marshal(test.m)
		if err != nil {
			t.Fatal(err)
		}
		_, marshalErr := New().Marshal(test.m)
		_, unmarshalErr := decoded(data, test.m)
		for _, err := range []error{marshalErr, unmarshalErr} {
			if !errors.Is(err, codec.ErrTooLarge) || errors.Is(err, codec.ErrMalformed) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s: %v", test.name, err)
			}
		}
	}
	deep := nested(codec.MaxDepth - 1)
	data, err := New().Marshal(deep)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decoded(data, deep); err != nil || !proto.Equal(got, deep) {
		t.Errorf("as deep as allowed: %v", err)
	}
}

func TestUnmarshalNamesTheReasonOfARefusal(t *testing.T) {
	group := string(protowire.AppendTag(nil, 7, protowire.StartGroupType))
	for _, data := range []string{
		"\xff", "\x0a", "\x0a\x05abc", "\x0a\x02\xff\xff", "\x00", "\x0f", "\x0c",
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		group, strings.Repeat(group, 100_000),
	} {
		_, err := decodedAs[*wrapperspb.StringValue]([]byte(data))
		if !errors.Is(err, codec.ErrMalformed) || !strings.Contains(err.Error(), "unmarshal *wrapperspb.StringValue: ") {
			t.Errorf("%.20q: %v", data, err)
		}
	}
}

// field is a field of wire type bytes.
func field(number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

func TestADecodedMessageTakesNoMoreThanTheEstimate(t *testing.T) {
	const n = 100_000
	var pairs, empties []byte
	for i := range n {
		pairs = append(pairs, field(1, field(1, fmt.Append(nil, i)))...)
		empties = append(empties, field(4, nil)...)
	}
	for _, test := range []struct {
		name string
		m    proto.Message
		data []byte
	}{
		{"pairs", &structpb.Struct{}, pairs},
		{"a list of messages", &structpb.ListValue{}, bytes.Repeat(field(1, nil), n)},
		{"a oneof", &structpb.ListValue{}, bytes.Repeat(field(1, []byte("\x20\x01")), n)},
		{"large messages", &descriptorpb.FileDescriptorProto{}, empties},
		{"texts", &fieldmaskpb.FieldMask{}, bytes.Repeat(field(1, nil), n)},
		{"packed numbers", &descriptorpb.FileDescriptorProto{}, field(10, make([]byte, n))},
		{"optional numbers", &pluginpb.CodeGeneratorRequest{}, bytes.Repeat(field(3, []byte("\x08\x01\x10\x01\x18\x01\x22\x00")), n)},
		{"fields not known", &sourcecontextpb.SourceContext{}, bytes.Repeat(field(99, nil), n)},
	} {
		var s scan
		if _, err := s.message(test.data, test.m.ProtoReflect().Descriptor(), 1); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := proto.Unmarshal(test.data, test.m); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		got, want := int64(after.HeapAlloc)-int64(before.HeapAlloc), s.need+2*int64(len(test.data))
		if got > want {
			t.Errorf("%s: %d bytes, estimated %d", test.name, got, want)
		}
		runtime.KeepAlive(test.m)
		runtime.KeepAlive(test.data)
	}
}

func TestExtensionsThatTheProgramKnowsAreCounted(t *testing.T) {
	m := &descriptorpb.FeatureSet{}
	proto.SetExtension(m, gofeaturespb.E_Go, &gofeaturespb.GoFeatures{})
	data, err := New().Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	md := m.ProtoReflect().Descriptor()
	for number, counts := range map[protowire.Number]bool{gofeaturespb.E_Go.TypeDescriptor().Number(): true, 9999: false} {
		var none, one scan
		_, noneErr := none.message(nil, md, 1)
		_, oneErr := one.message(field(number, nil), md, 1)
		if err := errors.Join(noneErr, oneErr); err != nil {
			t.Fatal(err)
		}
		if n := one.need - none.need; n > pairSize != counts {
			t.Errorf("extension %d counts for %d", number, n)
		}
	}
	var got *descriptorpb.FeatureSet
	if err := New().Unmarshal(data, &got); err != nil || !proto.Equal(got, m) {
		t.Errorf("%v came back as %v, %v", m, got, err)
	}
}

func TestGroupsAreWalkedToo(t *testing.T) {
	// message Node { Node child = 1 [features.message_encoding = DELIMITED]; repeated string names = 2; }
	asGroup := &descriptorpb.FeatureSet{MessageEncoding: descriptorpb.FeatureSet_DELIMITED.Enum()}
	fd, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("node.proto"), Syntax: new("editions"), Edition: descriptorpb.Edition_EDITION_2023.Enum(),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Node"), Field: []*descriptorpb.FieldDescriptorProto{
			{
				Name: new("child"), Number: new(int32(1)), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
				Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: new(".Node"), Options: &descriptorpb.FieldOptions{Features: asGroup},
			},
			{
				Name: new("names"), Number: new(int32(2)), Label: descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum(),
				Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
			},
		}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	md := fd.Messages().ByName("Node")
	nodes := func(depth int) []byte {
		data := bytes.Repeat(protowire.AppendTag(nil, 1, protowire.StartGroupType), depth-1)
		data = append(data, bytes.Repeat(protowire.AppendTag(nil, 1, protowire.EndGroupType), depth-1)...)
		return append(data, field(2, nil)...)
	}
	node := int64(messageSize + 2*fieldSize)
	var s scan
	if _, err := s.message(nodes(3), md, 1); err != nil || s.need != 3*node+2*boxSize+growth*fieldSize {
		t.Errorf("need = %d, %v", s.need, err)
	}
	for depth, want := range map[int]error{codec.MaxDepth: nil, codec.MaxDepth + 1: errDepth} {
		if _, err := new(scan).message(nodes(depth), md, 1); !errors.Is(err, want) {
			t.Errorf("%d deep: %v", depth, err)
		}
	}
}

func TestAPanicOfAMessageIsAnError(t *testing.T) {
	if _, err := New().Marshal(&panicking{}); err == nil || !strings.Contains(err.Error(), "panic: boom") {
		t.Errorf("err = %v", err)
	}
	var m *panicking
	if err := New().Unmarshal(nil, &m); !errors.Is(err, codec.ErrMalformed) || !strings.Contains(err.Error(), "panic: boom") {
		t.Errorf("err = %v", err)
	}
}

type panicking struct{}

func (*panicking) ProtoReflect() protoreflect.Message { panic("boom") }

func TestTheCodecIsSafeForConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup
	c := New()
	m := sample(t)
	for range 8 {
		wg.Go(func() {
			for range 100 {
				data, err := c.Marshal(m)
				if err != nil {
					t.Error(err)
				}
				var got *structpb.Struct
				if err := c.Unmarshal(data, &got); err != nil || !proto.Equal(got, m) {
					t.Errorf("%v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// FuzzUnmarshal decodes anything: what it takes, it must be able to store again, and to read.
func FuzzUnmarshal(f *testing.F) {
	for _, m := range samples(f) {
		data, err := New().Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("\xdd\xff\xff\xff\xff"))
	all := samples(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range all {
			got, err := decoded(data, m)
			if err != nil {
				if errors.Is(err, codec.ErrMalformed) == errors.Is(err, codec.ErrTooLarge) {
					t.Errorf("%v is neither malformed nor too large, or both", err)
				}
				continue
			}
			again, err := New().Marshal(got)
			if err != nil {
				t.Errorf("%x: %v was read and cannot be stored: %v", data, got, err)
				continue
			}
			if back, err := decoded(again, m); err != nil || !proto.Equal(back, got) {
				t.Errorf("%x: %v came back as %v, %v", data, got, back, err)
			}
		}
	})
}
