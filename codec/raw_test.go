package codec_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/herdgate/herdgate/codec"
)

type (
	page  []byte
	title string
	octet byte
)

func TestRawStoresTheValueItself(t *testing.T) {
	for _, v := range []any{"text \xff\x00", []byte("text \xff\x00"), page("text \xff\x00"), title("text \xff\x00"), []octet("text \xff\x00")} {
		data, err := codec.Raw().Marshal(v)
		if err != nil || string(data) != "text \xff\x00" {
			t.Errorf("%T: %q, %v", v, data, err)
		}
	}
}

func TestRawPreservesValues(t *testing.T) {
	c := codec.Raw()
	survives(t, c, "text \xff\x00")
	survives(t, c, "")
	survives(t, c, title("text"))
	survives(t, c, []byte("text \xff\x00"))
	survives(t, c, []byte{})
	survives(t, c, page("page"))
	survives(t, c, []octet("octets"))
	survives(t, c, json.RawMessage(`{"a":1}`))
	survives(t, c, strings.Repeat("x", codec.MaxSize))
}

func TestRawReturnsNilAsEmpty(t *testing.T) {
	c := codec.Raw()
	loses(t, c, []byte(nil), "[]uint8: nil became a []uint8 that is not nil")
	for _, data := range [][]byte{nil, {}} {
		var got []byte
		if err := c.Unmarshal(data, &got); err != nil || got == nil || len(got) != 0 {
			t.Errorf("%#v came back as %#v, %v", data, got, err)
		}
	}
}

func TestRawNamesTheTypeItCannotStore(t *testing.T) {
	c := codec.Raw()
	for _, test := range []struct {
		value any
		into  any
		name  string
	}{
		{1, new(int), "int:"},
		{product{}, new(product), "codec_test.product:"},
		{new("x"), new(*string), "*string:"},
		{[2]byte{}, new([2]byte), "[2]uint8:"},
		{[]string{}, new([]string), "[]string:"},
		{[]int8{}, new([]int8), "[]int8:"},
		{nil, new(any), ":"}, // <nil> and interface {}
	} {
		_, marshalErr := c.Marshal(test.value)
		for _, err := range []error{marshalErr, c.Unmarshal([]byte("x"), test.into)} {
			if err == nil || errors.Is(err, codec.ErrMalformed) ||
				!strings.Contains(err.Error(), test.name) || !strings.Contains(err.Error(), "want []byte, string") {
				t.Errorf("%T: %v", test.into, err)
			}
		}
	}
}

func TestRawRefusesWhatIsTooLong(t *testing.T) {
	c := codec.Raw()
	long := make([]byte, codec.MaxSize+1)
	_, marshalErr := c.Marshal(long)
	_, stringErr := c.Marshal(string(long))
	var b []byte
	var s string
	for _, err := range []error{marshalErr, stringErr, c.Unmarshal(long, &b), c.Unmarshal(long, &s)} {
		if !errors.Is(err, codec.ErrTooLarge) || !strings.Contains(err.Error(), "67108865 bytes, want at most 67108864") {
			t.Errorf("err = %v", err)
		}
	}
	if b != nil || s != "" {
		t.Error("a value that is too long was decoded")
	}
}

func TestRawMarshalCopies(t *testing.T) {
	v := []byte("value")
	data, err := codec.Raw().Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	clear(v)
	if string(data) != "value" {
		t.Errorf("the payload changed with the value, to %q", data)
	}
}

func TestRawUnmarshalDoesNotCopy(t *testing.T) {
	c := codec.Raw()
	data := bytes.Repeat([]byte("x"), 1<<10)
	var b page
	var s title
	if n := testing.AllocsPerRun(100, func() {
		if c.Unmarshal(data, &b) != nil || c.Unmarshal(data, &s) != nil {
			t.Error("an error")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !bytes.Equal(b, data) || string(s) != string(data) {
		t.Errorf("got %q and %q", b, s)
	}
}

func TestAppendingToARawValueLeavesOtherHoldersAlone(t *testing.T) {
	c := codec.Raw()
	data := append(make([]byte, 0, 64), "shared"...)
	var a, b []byte
	if err := errors.Join(c.Unmarshal(data, &a), c.Unmarshal(data, &b)); err != nil {
		t.Fatal(err)
	}
	first := append(a, " by a"...)
	_ = append(b, " by b"...)
	if string(first) != "shared by a" {
		t.Errorf("appending to one value changed another to %q", first)
	}
}

func TestAMutatedRawPayloadIsTheValue(t *testing.T) {
	c := codec.Raw()
	forMutations(t, []byte("some text that is stored"), func(data []byte) {
		var b []byte
		var s string
		if err := errors.Join(c.Unmarshal(data, &b), c.Unmarshal(data, &s)); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if !bytes.Equal(b, data) || s != string(data) {
			t.Fatalf("%q came back as %q and %q", data, b, s)
		}
	})
}

func FuzzRaw(f *testing.F) {
	f.Add([]byte("text"))
	f.Add([]byte{})
	f.Add([]byte("\xdd\xff\xff\xff\xff"))
	c := codec.Raw()
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, err := range []error{
			codec.Check(c, append([]byte{}, data...)), codec.Check(c, append(page{}, data...)),
			codec.Check(c, string(data)), codec.Check(c, title(data)),
		} {
			if err != nil {
				t.Errorf("%q: %v", data, err)
			}
		}
		var v any
		if c.Unmarshal(data, &v) == nil || c.Unmarshal(data, new(int)) == nil {
			t.Errorf("%q was decoded into a type that is not bytes", data)
		}
	})
}
