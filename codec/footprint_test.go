package codec

import (
	"reflect"
	"runtime"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

type leaf struct {
	Pad [100]int64 `msgpack:",omitempty"`
}

type vine struct {
	Next *vine
	Leaf *leaf
}

type bush struct {
	Kids []bush
	Pad  [100]int64 `msgpack:",omitempty"`
}

// TestTheFootprintIsNoLessThanWhatDecodingTakes decodes payloads that are as cheap for their size as they can be.
func TestTheFootprintIsNoLessThanWhatDecodingTakes(t *testing.T) {
	const n = 20_000
	array := func(elem string) []byte {
		data := []byte{0xdd, 0, 0, n >> 8, n & 0xff}
		for range n {
			data = append(data, elem...)
		}
		return data
	}
	for name, c := range map[string]struct {
		data []byte
		into any
	}{
		"ints":               {array("\x01"), new([]int)},
		"empty strings":      {array("\xa0"), new([]string)},
		"nil structs":        {array("\xc0"), new([]leaf)},
		"pointers":           {array("\x80"), new([]*leaf)},
		"pointers to those":  {array("\x80"), new([]**leaf)},
		"arrays of pointers": {array("\x94\x80\x80\x80\x80"), new([][4]*leaf)},
		"embedded":           {array("\x81\xa4Leaf\x80"), new([]vine)},
		"chains":             {array("\x82\xa4Leaf\x80\xa4Next\x81\xa4Leaf\x80"), new([]vine)},
		"trees":              {array("\x81\xa4Kids\x91\x80"), new([]bush)},
		"empty maps":         {array("\x80"), new([]map[int]int)},
		"maps of one":        {array("\x81\x01\x01"), new([]map[int]int)},
		"maps of large ones": {array("\x81\x01\x80"), new([]map[int]leaf)},
		"maps in an any":     {array("\x81\xa0\xa0"), new(any)},
		"empty ones in any":  {array("\x80"), new([]any)},
		"arrays in an any":   {array("\x91\xc0"), new(any)},
		"strings in an any":  {array("\xa0"), new(any)},
	} {
		t.Run(name, func(t *testing.T) {
			counts, err := scan(c.data)
			if err != nil {
				t.Fatal(err)
			}
			limit := footprintOf(reflect.TypeOf(c.into).Elem()).of(counts)
			held, err := heldAfter(c.data, c.into)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.0f bytes held, limit %.0f", held, limit)
			if held > limit+64<<10 {
				t.Errorf("decoding took %.0f bytes, the footprint says at most %.0f", held, limit)
			}
		})
	}
}

func heldAfter(data []byte, v any) (float64, error) {
	if err := msgpack.NewDecoder(&reader{data: data}).Decode(reflect.New(reflect.TypeOf(v).Elem()).Interface()); err != nil {
		return 0, err // and what the msgpack library learns of a type is learnt
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	err := msgpack.NewDecoder(&reader{data: data}).Decode(v)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(v)
	return float64(after.HeapAlloc) - float64(before.HeapAlloc), err
}

func TestTheFootprintOfAnyTypeIsFoundInTime(t *testing.T) {
	type endless [1 << 14][1 << 14]*leaf
	type mutual struct {
		M map[string]*mutual
		S [][]mutual
		A any
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[endless](), reflect.TypeFor[mutual](), reflect.TypeFor[vine](), reflect.TypeFor[func()](),
	} {
		footprintOf(typ)
	}
	if f := footprintOf(reflect.TypeFor[leaf]()); f.pair != 0 {
		t.Errorf("a struct without maps has pairs of %v bytes", f.pair)
	}
}
