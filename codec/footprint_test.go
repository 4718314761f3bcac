package codec

import (
	"encoding/json"
	"reflect"
	"runtime"
	"strings"
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
			limit := footprintOf(reflect.TypeOf(c.into).Elem(), msgpackRules()).of(counts)
			held, err := heldAfter(c.into, func(v any) error { return msgpack.NewDecoder(&reader{data: c.data}).Decode(v) })
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

func TestTheFootprintIsNoLessThanWhatDecodingJSONTakes(t *testing.T) {
	const n = 5_000
	array := func(elem string) []byte {
		return []byte("[" + strings.Repeat(elem+",", n-1) + elem + "]")
	}
	for name, c := range map[string]struct {
		data []byte
		into any
	}{
		"ints":               {array("0"), new([]int)},
		"bytes":              {array("0"), new([]byte)},
		"empty strings":      {array(`""`), new([]string)},
		"empty structs":      {array("{}"), new([]leaf)},
		"pointers":           {array("{}"), new([]*leaf)},
		"spare elements":     {array("[{},{},{},{},{}]"), new([][]leaf)},
		"arrays of pointers": {array("[{},{},{},{}]"), new([][4]*leaf)},
		"embedded":           {array(`{"Leaf":{}}`), new([]vine)},
		"trees":              {array(`{"Kids":[{}]}`), new([]bush)},
		"empty maps":         {array("{}"), new([]map[int]int)},
		"maps of one":        {array(`{"1":1}`), new([]map[int]int)},
		"maps of large ones": {array(`{"1":{}}`), new([]map[int]leaf)},
		"maps in an any":     {array(`{"":""}`), new(any)},
		"empty ones in any":  {array("{}"), new([]any)},
		"arrays in an any":   {array("[0]"), new(any)},
		"numbers in an any":  {array("0"), new(any)},
		"strings in an any":  {array(`""`), new(any)},
	} {
		t.Run(name, func(t *testing.T) {
			counts, err := scanJSON(c.data)
			if err != nil {
				t.Fatal(err)
			}
			limit := footprintOf(reflect.TypeOf(c.into).Elem(), jsonRules()).of(counts)
			held, err := heldAfter(c.into, func(v any) error { return json.Unmarshal(c.data, v) })
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

// heldAfter returns the bytes that v takes once it is decoded.
func heldAfter(v any, decode func(v any) error) (float64, error) {
	if err := decode(reflect.New(reflect.TypeOf(v).Elem()).Interface()); err != nil {
		return 0, err // and what the library learns of a type is learnt
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	err := decode(v)
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
		footprintOf(typ, msgpackRules())
	}
	if f := footprintOf(reflect.TypeFor[leaf](), msgpackRules()); f.pair != 0 {
		t.Errorf("a struct without maps has pairs of %v bytes", f.pair)
	}
}

type binaryOnly struct{ P *[4096]byte }

func (*binaryOnly) UnmarshalBinary([]byte) error { return nil }

type jsonOnly struct{ P *[4096]byte }

func (*jsonOnly) UnmarshalJSON([]byte) error { return nil }

func TestOnlyWhatDecodesItselfIsNotMeasured(t *testing.T) {
	for _, c := range []struct {
		name     string
		slice    reflect.Type
		rules    rules
		measured bool
	}{
		{"UnmarshalBinary from MessagePack", reflect.TypeFor[[]binaryOnly](), msgpackRules(), false},
		{"UnmarshalBinary from JSON", reflect.TypeFor[[]binaryOnly](), jsonRules(), true},
		{"UnmarshalJSON from MessagePack", reflect.TypeFor[[]jsonOnly](), msgpackRules(), true},
		{"UnmarshalJSON from JSON", reflect.TypeFor[[]jsonOnly](), jsonRules(), false},
	} {
		if f := footprintOf(c.slice, c.rules); (f.elem > 4096) != c.measured {
			t.Errorf("%s: %.0f bytes for an element", c.name, f.elem)
		}
	}
}
