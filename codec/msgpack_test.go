package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/codec"
)

type product struct {
	ID       int64
	Name     string `msgpack:"n"`
	Price    float64
	Tags     []string
	Stock    map[string]int
	Attrs    map[string]any
	Parent   *product
	Variants []product
	Created  time.Time
	Ends     *time.Time
	Image    []byte
	Sum      [4]byte
	Level    int8
	Delay    time.Duration
	On       bool
	Hidden   string `msgpack:"-"`
	Rare     string `msgpack:",omitempty"`
	Any      any
}

// sample returns a product with every field set that msgpack stores.
func sample() product {
	ends := time.Unix(1_700_000_000, 123_456_789)
	return product{
		ID: 42, Name: "lamp", Price: 9.5,
		Tags:     []string{"new", "", "läuft"},
		Stock:    map[string]int{"a": -1, "b": 1 << 30},
		Attrs:    map[string]any{"x": "y", "n": nil, "l": []any{true, "z"}, "m": map[string]any{"k": 1.5}, "t": ends},
		Parent:   &product{ID: 1, Name: "furniture"},
		Variants: []product{{ID: 43}, {ID: 44, Tags: []string{}}},
		Created:  time.Unix(1<<35, 1),
		Ends:     &ends,
		Image:    []byte{0, 0xff, 0xc1},
		Sum:      [4]byte{1, 2, 3, 4},
		Level:    -8, Delay: time.Minute, On: true, Rare: "r", Any: "any",
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func survives[V any](t *testing.T, c codec.Codec, v V) {
	t.Helper()
	if err := codec.Check(c, v); err != nil {
		t.Error(err)
	}
}

func TestMsgpackPreservesValues(t *testing.T) {
	c := codec.Msgpack()
	survives(t, c, sample())
	survives(t, c, new(sample()))
	survives(t, c, product{})
	survives(t, c, (*product)(nil))
	survives(t, c, []product{sample(), {}})
	survives(t, c, map[string]product{"a": sample()})
	survives(t, c, map[int]*product{1: nil, 2: {ID: 2}})
	survives(t, c, "text")
	survives(t, c, []byte("bytes"))
	survives(t, c, []string(nil))
	survives(t, c, []string{})
	survives(t, c, []int(nil))
	survives(t, c, []int{})
	survives(t, c, []int{0, -1, math.MaxInt, math.MinInt})
	survives(t, c, []uint64{0, math.MaxUint64})
	survives(t, c, [3]float32{1, float32(math.Inf(1)), float32(math.NaN())})
	survives(t, c, map[string]string{"": ""})
	survives(t, c, map[[2]int8]bool{{1, 2}: true})
	survives(t, c, any(nil))
	survives(t, c, any("in an interface"))
	survives(t, c, any(map[string]any{"a": []any{nil, false}}))
	survives(t, c, 7)
	survives(t, c, int8(-7))
	survives(t, c, true)
	survives(t, c, time.Second)
	survives(t, c, time.Time{})
	survives(t, c, time.Unix(-1, 999_999_999))
	survives(t, c, struct{}{})
	survives(t, c, new(new(5)))
	survives(t, c, strings.Repeat("long ", 100_000))
	survives(t, c, make([]int64, 100_000))
}

func TestMsgpackPreservesTypesThatEncodeThemselves(t *testing.T) {
	c := codec.Msgpack()
	survives(t, c, netip.MustParseAddr("192.0.2.1"))
	// The encoder of a big.Int has a pointer receiver, and the struct comes by value.
	type account struct{ Balance big.Int }
	v := account{*big.NewInt(1 << 50)}
	data, err := c.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var got account
	if err := c.Unmarshal(data, &got); err != nil || got.Balance.Cmp(&v.Balance) != 0 {
		t.Errorf("got %v, %v", &got.Balance, err)
	}
}

func TestMsgpackKeepsTheInstantOfATimeAndForgetsItsZone(t *testing.T) {
	c := codec.Msgpack()
	zone := time.FixedZone("far away", 13*3600)
	want := time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, zone)
	data, err := c.Marshal(struct{ At time.Time }{want})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ At time.Time }
	if err := c.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if !got.At.Equal(want) {
		t.Errorf("got %v, want %v", got.At, want)
	}
	if got.At.Location() != time.Local {
		t.Errorf("zone is %v, want the local one", got.At.Location())
	}
}

func TestMsgpackChangesOnlyIntAndUintInAnAny(t *testing.T) {
	c := codec.Msgpack()
	for _, test := range []struct{ in, want any }{
		{5, int8(5)},
		{-5, int8(-5)},
		{300, uint16(300)},
		{-300, int16(-300)},
		{70_000, uint32(70_000)},
		{uint(5), int8(5)},
		{uint(200), uint8(200)},
		{int8(5), int8(5)},
		{int16(5), int16(5)},
		{int32(5), int32(5)},
		{int64(5), int64(5)},
		{uint8(5), uint8(5)},
		{uint16(5), uint16(5)},
		{uint32(5), uint32(5)},
		{uint64(5), uint64(5)},
		{float32(5), float32(5)},
		{float64(5), float64(5)},
	} {
		data, err := c.Marshal([]any{test.in})
		if err != nil {
			t.Fatal(err)
		}
		var got []any
		if err := c.Unmarshal(data, &got); err != nil || got[0] != test.want {
			t.Errorf("%T(%v) came back as %T(%v), %v; want %T", test.in, test.in, got[0], got[0], err, test.want)
		}
	}
}

func TestMsgpackCutsANumberThatIsTooBigForItsField(t *testing.T) {
	c := codec.Msgpack()
	data, err := c.Marshal(struct{ N int }{300})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ N int8 }
	if err := c.Unmarshal(data, &got); err != nil || got.N != 44 {
		t.Errorf("got %d, %v; the documentation says 44", got.N, err)
	}
}

func TestMsgpackReadsStructsThatGainedAndLostFields(t *testing.T) {
	c := codec.Msgpack()
	data, err := c.Marshal(struct {
		Kept, Lost int
		LostToo    map[string][]int
	}{1, 2, map[string][]int{"x": {3}}})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Gained, Kept int }
	if err := c.Unmarshal(data, &got); err != nil || got.Kept != 1 || got.Gained != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// big decodes from one byte (nil) and takes 4 KiB.
type big4K struct{ _, A [2048]byte }

type tree struct {
	L, R *tree
	Pad  [1000]byte `msgpack:",omitempty"`
}

func TestHostilePayloadsAreRefusedAndTakeNoMemory(t *testing.T) {
	repeat := func(s string, n int) string { return strings.Repeat(s, n) }
	header32 := func(code byte, n int) string {
		return string([]byte{code, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	tests := []struct {
		name, payload string
		into          any
		want          error
	}{
		{"nothing", "", new(int), codec.ErrMalformed},
		{"4 billion elements", "\xdd\xff\xff\xff\xff", new([]int), codec.ErrMalformed},
		{"4 billion elements, one there", "\xdd\xff\xff\xff\xff\x01", new([]int), codec.ErrMalformed},
		{"65535 elements", "\xdc\xff\xff", new([]product), codec.ErrMalformed},
		{"4 billion strings", "\xdd\xff\xff\xff\xff", new([]string), codec.ErrMalformed},
		{"4 billion elements in an any", "\xdd\xff\xff\xff\xff", new(any), codec.ErrMalformed},
		{"4 billion pairs", "\xdf\xff\xff\xff\xff", new(map[string]any), codec.ErrMalformed},
		{"4 billion pairs in an any", "\xdf\xff\xff\xff\xff", new(any), codec.ErrMalformed},
		{"4 GB of bytes", "\xc6\xff\xff\xff\xff", new([]byte), codec.ErrMalformed},
		{"4 GB of text", "\xdb\xff\xff\xff\xff", new(string), codec.ErrMalformed},
		{"4 GB of extension", "\xc9\xff\xff\xff\xff\x01", new(any), codec.ErrMalformed},
		{"hidden in an unknown field", "\x81\xa1?\xdd\xff\xff\xff\xff", new(product), codec.ErrMalformed},
		{"cut number", "\xcf\x01", new(uint64), codec.ErrMalformed},
		{"cut length", "\xdd\xff", new([]int), codec.ErrMalformed},
		{"two values", "\x01\x02", new(int), codec.ErrMalformed},
		{"the unused code", "\xc1", new(any), codec.ErrMalformed},
		{"another type", "\xa1x", new(int), codec.ErrMalformed},
		{"panic by an interface with methods", "\x81\xa1S\xa1x", new(struct{ S fmt.Stringer }), codec.ErrMalformed},
		{"panic by a nil time", "\x81\xa2At\xc0", new(struct{ At time.Time }), codec.ErrMalformed},
		{"panic by a slice as a key", "\x81\x91\x01\x01", new(map[any]any), codec.ErrMalformed},
		{"unknown extension", "\xd4\x07\x00", new(any), codec.ErrMalformed},
		{"interned string", "\xd4\x80\x00", new(string), codec.ErrMalformed},
		{"deep arrays", repeat("\x91", 1<<20) + "\x01", new(any), codec.ErrTooLarge},
		{"deep maps", repeat("\x81\xa0", 1<<20) + "\x01", new(any), codec.ErrTooLarge},
		{"deep in an unknown field", "\x81\xa1?" + repeat("\x91", 1<<20) + "\x01", new(product), codec.ErrTooLarge},
		{"deep and unfinished", repeat("\x91", 1<<20), new(any), codec.ErrTooLarge},
		{"too long", "\xc6" + header32(0, codec.MaxSize)[1:] + repeat("x", codec.MaxSize), new([]byte), codec.ErrTooLarge},
		// One million map pairs behind the head of an extension, which a decoder that wants a map skips.
		{"map in an extension", "\xc7\x05\x01\xdf\x00\x10\x00\x00", new(map[string]any), codec.ErrMalformed},
		{"map in a time", "\xd7\xff\xdf\x00\x10\x00\x00\x00\x00\x00", new(map[string]any), codec.ErrMalformed},
		{"map in a time in a map", "\x81\x01\xd7\xff\xdf\x00\x10\x00\x00\x00\x00\x00", new(map[int]map[int]int), codec.ErrMalformed},
		{"map in a fixed extension", "\x91\xd5\x01\xde\xff", new([]map[string]string), codec.ErrMalformed},
		{"map behind an empty extension", "\x92\xc7\x00\x01\x80", new([]map[string]string), codec.ErrMalformed},
		// One byte for each element that takes 4 KiB.
		{"nils for large structs", header32(0xdd, 1<<20) + repeat("\xc0", 1<<20), new([]big4K), codec.ErrTooLarge},
		{"nils in a field", "\x81\xa1S" + header32(0xdd, 1<<20) + repeat("\xc0", 1<<20), new(struct{ S []big4K }), codec.ErrTooLarge},
		{"empty maps behind pointers", header32(0xdd, 1<<20) + repeat("\x80", 1<<20), new([]*big4K), codec.ErrTooLarge},
		{"large values of a map", header32(0xdf, 1<<20) + repeat("\x01\xc0", 1<<20), new(map[int]big4K), codec.ErrTooLarge},
		{"large arrays", header32(0xdd, 1<<20) + repeat("\x90", 1<<20), new([][512]int), codec.ErrTooLarge},
		{"empty maps in an any", header32(0xdd, 1<<23) + repeat("\x80", 1<<23), new(any), codec.ErrTooLarge},
		{"a wide tree", header32(0xdd, 1<<18) + repeat("\x82\xa1L\x80\xa1R\x80", 1<<18), new([]*tree), codec.ErrTooLarge},
	}
	c := codec.Msgpack()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			data := []byte(test.payload)
			var err error
			used := allocated(func() { err = c.Unmarshal(data, test.into) })
			if !errors.Is(err, test.want) {
				t.Errorf("err = %v, want %v", err, test.want)
			}
			if used > 1<<20 {
				t.Errorf("%d bytes of memory for a payload that is refused", used)
			}
		})
	}
}

// allocated returns the bytes that f allocates. Other goroutines must be quiet.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestHonestPayloadsOfCheapElementsAreRead(t *testing.T) {
	c := codec.Msgpack()
	survives(t, c, make([]int, 1<<20))
	survives(t, c, make([]any, 1<<20))
	survives(t, c, make([]map[string]string, 1<<18))
	survives(t, c, make([]big4K, 1<<10))
}

func TestADecodedValueStaysWithinTheMemoryLimit(t *testing.T) {
	c := codec.Msgpack()
	n := 3 << 20 // of 72 bytes each, by the estimate
	data := append([]byte{0xdd, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, bytes.Repeat([]byte{0x80}, n)...)
	var v any
	var err error
	used := allocated(func() { err = c.Unmarshal(data, &v) })
	if err != nil {
		t.Fatal(err)
	}
	if used > 2*codec.MaxMemory {
		t.Errorf("%d bytes allocated, the limit is %d", used, codec.MaxMemory)
	}
}

func TestMutatedPayloadsNeitherPanicNorGrowMemory(t *testing.T) {
	for _, c := range []codec.Codec{codec.Msgpack(), codec.JSON()} {
		t.Run(c.Name(), func(t *testing.T) {
			good, err := c.Marshal(sample())
			if err != nil {
				t.Fatal(err)
			}
			forMutations(t, good, func(data []byte) {
				used := allocated(func() {
					_ = c.Unmarshal(data, new(product))
					_ = c.Unmarshal(data, new(any))
					_ = c.Unmarshal(data, new([]int))
					_ = c.Unmarshal(data, new(map[string]map[string]product))
				})
				if used > 1<<20 {
					t.Fatalf("%d bytes allocated for %q", used, data)
				}
			})
		})
	}
}

// forMutations calls f with good, changed in a few bytes and perhaps cut. f must not keep what it is given.
func forMutations(t *testing.T, good []byte, f func(data []byte)) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	data := bytes.Clone(good)
	for range 10_000 {
		copy(data, good)
		for range 1 + rng.IntN(4) {
			data[rng.IntN(len(data))] = byte(rng.Uint32())
		}
		f(data[:len(data)-rng.IntN(2)*rng.IntN(len(data))])
	}
}

type selfMade struct{ do func() ([]byte, error) }

func (s selfMade) MarshalMsgpack() ([]byte, error) { return s.do() }

func (*selfMade) UnmarshalMsgpack([]byte) error { panic("boom") }

type twoValues struct{ a, b int }

func (v twoValues) EncodeMsgpack(e *msgpack.Encoder) error { return e.EncodeMulti(v.a, v.b) }

type interned struct {
	A string `msgpack:",intern"`
	B string `msgpack:",intern"`
}

func TestMarshalRefusesWhatCannotBeReadBack(t *testing.T) {
	circle := []any{nil}
	circle[0] = circle
	wide := make([]any, 1<<22)
	wide[0] = wide
	ring := map[string]any{}
	ring["next"] = ring
	list := &tree{}
	list.L = list
	failed := errors.New("failed")

	for _, test := range []struct {
		name  string
		value any
		want  error  // nil: any
		text  string // in the error's text
	}{
		{"a channel", make(chan int), nil, "unsupported chan int"},
		{"a function in a struct", struct{ F func() }{func() {}}, nil, "unsupported func()"},
		{"an encoder's error", selfMade{func() ([]byte, error) { return nil, failed }}, failed, "selfMade"},
		{"an encoder's panic", selfMade{func() ([]byte, error) { panic("boom") }}, nil, "panic: boom"},
		{"an encoder's garbage", selfMade{func() ([]byte, error) { return []byte{0xdd}, nil }}, codec.ErrMalformed, "middle of a value"},
		{"an encoder's silence", selfMade{func() ([]byte, error) { return nil, nil }}, codec.ErrMalformed, "middle of a value"},
		{"two values in one", twoValues{1, 2}, codec.ErrMalformed, "exactly one value"},
		{"interned strings", interned{"same", "same"}, codec.ErrMalformed, "intern tag"},
		{"a slice in itself", circle, codec.ErrTooLarge, "nested deeper"},
		{"a large slice in itself", wide, codec.ErrTooLarge, "nested deeper"},
		{"a map in itself", ring, codec.ErrTooLarge, "nested deeper"},
		{"a struct in itself", list, codec.ErrTooLarge, "nested deeper"},
		{"too long", make([]byte, codec.MaxSize), codec.ErrTooLarge, "more than 67108864 bytes"},
		{"too much when decoded", make([]*big4K, 1<<20), codec.ErrTooLarge, "1048576 array elements"},
	} {
		t.Run(test.name, func(t *testing.T) {
			data, err := codec.Msgpack().Marshal(test.value)
			if err == nil || data != nil {
				t.Fatalf("%d bytes, %v; want an error", len(data), err)
			}
			if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("err = %v, want %v", err, test.want)
			}
			if !strings.Contains(err.Error(), test.text) || len(err.Error()) > 300 {
				t.Errorf("err = %q, want it to contain %q, and to be short", err, test.text)
			}
		})
	}
}

func TestADecodersPanicIsAnError(t *testing.T) {
	err := codec.Msgpack().Unmarshal([]byte{0xc3}, new(selfMade))
	if !errors.Is(err, codec.ErrMalformed) || !strings.Contains(err.Error(), "panic: boom") {
		t.Errorf("err = %v", err)
	}
}

// lazy reads nothing of what it is given.
type lazy struct{}

func (*lazy) DecodeMsgpack(*msgpack.Decoder) error { return nil }

func TestADecoderThatLeavesBytesUnreadIsAnError(t *testing.T) {
	for _, data := range []string{"\x01", "\xa3abc"} {
		if err := codec.Msgpack().Unmarshal([]byte(data), new(lazy)); !errors.Is(err, codec.ErrMalformed) {
			t.Errorf("%x: %v", data, err)
		}
	}
}

func TestValuesAndPayloadsShareNoMemory(t *testing.T) {
	c := codec.Msgpack()
	type holder struct {
		B []byte
		S string
		R msgpack.RawMessage
		A any
	}
	want := holder{[]byte("bytes"), "string", msgpack.RawMessage{0xa1, 'r'}, []byte("any")}
	data, err := c.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	kept := bytes.Clone(data)
	var got holder
	if err := c.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, kept) {
		t.Error("Unmarshal wrote to the payload")
	}
	clear(data)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q: it lay in the payload", got, want)
	}
	for range 10 { // a pool may be empty now and then
		again, err := c.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Marshal("a later value"); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, kept) {
			t.Fatalf("a later Marshal changed the payload to %x, want %x", again, kept)
		}
	}
}

// loose leaves its Encoder and its Decoder in another mode.
type loose struct{}

func (loose) EncodeMsgpack(e *msgpack.Encoder) error {
	e.UseCompactInts(true)
	return e.EncodeInt64(1)
}

func (*loose) DecodeMsgpack(d *msgpack.Decoder) error {
	d.UseLooseInterfaceDecoding(true)
	return d.Skip()
}

func TestACustomDecoderDoesNotChangeTheNextCall(t *testing.T) {
	c := codec.Msgpack()
	for range 10 {
		data, err := c.Marshal(loose{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Unmarshal(data, new(loose)); err != nil {
			t.Fatal(err)
		}
		survives(t, c, any(int32(5)))
		survives(t, c, []any{int64(5)})
	}
}

func FuzzMsgpackUnmarshal(f *testing.F) {
	c := codec.Msgpack()
	for _, v := range []any{sample(), []int{1, 300}, map[string]any{"a": time.Unix(1, 1)}, "text"} {
		data, err := c.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("\xdd\xff\xff\xff\xff"))
	f.Add([]byte("\x81\xa6Parent\xd7\xff\xdf\x00\x10\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range []any{
			new(product), new([]int), new(map[string]map[string]any), new([]tree), new([]string), new(map[any]any), new(time.Time),
		} {
			_ = c.Unmarshal(data, v)
		}
		var v any
		if c.Unmarshal(data, &v) != nil {
			return
		}
		// What was read can be stored and read again.
		if err := codec.Check(c, v); err != nil {
			t.Errorf("%x: %v", data, err)
		}
	})
}

func FuzzWhatMsgpackMarshalsIsRead(f *testing.F) {
	f.Add(int64(1), "name", 1.5, "tag", "key", int64(1_700_000_000), int64(1), []byte("image"), true)
	f.Add(int64(math.MinInt64), strings.Repeat("x", 300), math.Inf(-1), "", "", int64(-1), int64(999_999_999), []byte(nil), false)
	c := codec.Msgpack()
	f.Fuzz(func(t *testing.T, id int64, name string, price float64, tag, key string, sec, nsec int64, image []byte, on bool) {
		at := time.Unix(sec, nsec)
		v := product{
			ID: id, Name: name, Price: price, Tags: []string{tag, name}, Image: image, On: on, Created: at, Ends: &at,
			Stock: map[string]int{key: int(id), name: 2}, Attrs: map[string]any{tag: price, key: name, "at": at},
			Parent: &product{Name: tag}, Any: []any{name, on, id},
		}
		data, err := msgpack.Marshal(&v)
		if err != nil {
			return
		}
		if err := c.Unmarshal(data, new(product)); err != nil {
			t.Errorf("%x: %v", data, err)
		}
		if err := codec.Check(c, v); err != nil {
			t.Error(err)
		}
	})
}
