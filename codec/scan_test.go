package codec

import (
	"errors"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

func TestScanDoesNotAllocate(t *testing.T) {
	data, err := msgpack.Marshal(map[string]any{"a": []int{1, 2, 3}, "b": map[string]string{"c": "d"}, "e": 1.5})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = scan(data) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestScanCountsElementsPairsAndExtensions(t *testing.T) {
	// [{"a": []}, {1: 2, 3: time}]
	got, err := scan([]byte("\x92\x81\xa1a\x90\x82\x01\x02\x03\xd6\xff\x00\x00\x00\x00"))
	if want := (counts{elems: 2, pairs: 3, extensions: 1}); err != nil || got != want {
		t.Errorf("scan = %+v, %v; want %+v", got, err, want)
	}
}

func TestScanNamesTheReasonOfARefusal(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       error
	}{
		{"nothing", "", errTruncated},
		{"cut scalar", "\xcb\x00", errTruncated},
		{"cut length", "\xda\x00", errTruncated},
		{"cut id of an extension", "\xd4", errTruncated},
		{"missing element", "\x92\x01", errTruncated},
		{"missing value", "\x81\x01", errTruncated},
		{"cut text", "\xa2x", errLength},
		{"cut extension", "\xd5\x01\x00", errLength},
		{"length beyond any payload", "\xdd\xff\xff\xff\xff", errLength},
		{"two values", "\xc0\xc0", errTrailing},
		{"unused code", "\xc1", errReserved},
		{"reference to an interned string", "\xd4\x80\x00", errInterned},
		// The Decoder that wants a map would take the next value for the extension's contents, and so nest siblings.
		{"empty extension", "\xc7\x00\x01", errEmptyExt},
	} {
		if _, err := scan([]byte(c.data)); !errors.Is(err, c.want) {
			t.Errorf("%s: err = %v, want %v", c.name, err, c.want)
		}
	}
}

func TestScanAcceptsMaxDepthAndNoMore(t *testing.T) {
	nested := func(depth int) []byte {
		data := make([]byte, depth, depth+1)
		for i := range data {
			data[i] = 0x91
		}
		return append(data, 1)
	}
	if _, err := scan(nested(MaxDepth)); err != nil {
		t.Error(err)
	}
	if _, err := scan(nested(MaxDepth + 1)); !errors.Is(err, errTooDeep) {
		t.Errorf("err = %v", err)
	}
	var v any
	if err := Msgpack().Unmarshal(nested(MaxDepth), &v); err != nil {
		t.Error(err)
	}
}

// FuzzScanAgreesWithTheDecoder compares scan with the Decoder's own walk: what both accept, they read to the same end.
func FuzzScanAgreesWithTheDecoder(f *testing.F) {
	for c := range 256 {
		f.Add([]byte{byte(c), 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		f.Add([]byte{byte(c), 1, 1, 1})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := scan(data)
		if errors.Is(err, errTooDeep) || errors.Is(err, errInterned) || errors.Is(err, errEmptyExt) || errors.Is(err, errLength) {
			return // stricter than the Decoder, or cheaper
		}
		r := reader{data: data, inside: len(data), next: len(data)}
		skipErr := msgpack.NewDecoder(&r).Skip()
		if whole := skipErr == nil && r.pos == len(data); whole != (err == nil) {
			t.Errorf("%x: scan says %v, the decoder %v at %d", data, err, skipErr, r.pos)
		}
	})
}
