package codec_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/herdgate/herdgate/codec"
)

type article struct {
	ID      int64
	Name    string `json:"n"`
	Price   float64
	Tags    []string
	Stock   map[string]int
	Attrs   map[string]any
	Parent  *article
	Created time.Time
	Image   []byte
	Sum     [4]byte
	Raw     json.RawMessage
	On      bool
	Rare    string `json:",omitempty"`
	Any     any
}

func sampleArticle() article {
	return article{
		ID: math.MaxInt64, Name: "lamp <&>", Price: 0.1,
		Tags:    []string{"new", "", "läuft", "\u2028"},
		Stock:   map[string]int{"a": -1, "": 1 << 30},
		Attrs:   map[string]any{"x": "y", "n": nil, "l": []any{true, 1.5}, "m": map[string]any{"k": "v"}},
		Parent:  &article{ID: 1, Raw: json.RawMessage("1")},
		Created: time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.FixedZone("far away", -9*3600-1800)),
		Image:   []byte{0, 0xff}, Sum: [4]byte{1, 2, 3, 4}, Raw: json.RawMessage(`{"a":[1]}`),
		On: true, Rare: "r", Any: "any",
	}
}

func TestJSONPreservesValues(t *testing.T) {
	c := codec.JSON()
	survives(t, c, sampleArticle())
	survives(t, c, new(sampleArticle()))
	survives(t, c, (*article)(nil))
	survives(t, c, map[string]article{"a": sampleArticle()})
	survives(t, c, map[int]*int{1: nil, 2: new(2)})
	survives(t, c, "text")
	survives(t, c, []byte("bytes"))
	survives(t, c, []byte(nil))
	survives(t, c, []byte{})
	survives(t, c, []string(nil))
	survives(t, c, []string{})
	survives(t, c, map[string]int(nil))
	survives(t, c, map[string]int{})
	survives(t, c, []int{0, -1, math.MaxInt, math.MinInt})
	survives(t, c, []uint64{0, math.MaxUint64})
	survives(t, c, []float64{math.Copysign(0, -1), math.MaxFloat64, math.SmallestNonzeroFloat64})
	survives(t, c, any(nil))
	survives(t, c, any([]any{nil, false, 1.5, "x", map[string]any{"": []any{}}}))
	survives(t, c, true)
	survives(t, c, time.Time{})
	survives(t, c, struct{}{})
	survives(t, c, netip.MustParseAddr("192.0.2.1"))
	survives(t, c, strings.Repeat("long ", 100_000))
	survives(t, c, make([]int, 1<<20))
	survives(t, c, make([]any, 1<<20))
	survives(t, c, make([]map[string]string, 1<<18))
}

func TestJSONLosesWhatItsDocumentationNames(t *testing.T) {
	type private struct {
		Open   int
		secret string
	}
	type tagged struct {
		S []int `json:",omitempty"`
		N int   `json:"-"`
	}
	c := codec.JSON()
	loses(t, c, private{1, "x"}, `private.secret: x became `)
	loses(t, c, tagged{S: []int{}}, `tagged.S: a []int that is not nil became nil`)
	loses(t, c, tagged{N: 1}, `tagged.N: 1 became 0`)
	loses(t, c, []any{1}, `[0]: the type int became float64`)
	loses(t, c, []any{private{}}, `[0]: the type codec_test.private became map[string]interface {}`)
	loses(t, c, []any{[]byte("x")}, `[0]: the type []uint8 became string`)
	loses(t, c, "a\xffb", "string: a\xffb became a\ufffdb")
	// The year 1900 in a zone that is 19 min 32 s ahead: the 32 s go.
	loses(t, c, time.Date(1900, 1, 1, 0, 0, 0, 0, time.FixedZone("", 1172)), `1900-01-01 00:00:00 +0019 +0019`)
}

func TestJSONCallsMethodsWithPointerReceiversOnValues(t *testing.T) {
	type account struct{ Balance big.Int }
	c := codec.JSON()
	want := account{*big.NewInt(1 << 50)}
	data, err := c.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got account
	if err := c.Unmarshal(data, &got); err != nil || got.Balance.Cmp(&want.Balance) != 0 {
		t.Errorf("%s came back as %v, %v", data, &got.Balance, err)
	}
}

func TestJSONIsAsForgivingAsTheStandardLibrary(t *testing.T) {
	type pair struct {
		A int
		M map[string]int
	}
	for _, test := range []struct {
		name, payload string
		want          pair
	}{
		{"an unknown field", `{"A":1,"?":[{"x":2}]}`, pair{A: 1}},
		{"a missing field", `{}`, pair{}},
		{"a null field", `{"A":null}`, pair{}},
		{"null", `null`, pair{}},
		{"another case", `{"a":1}`, pair{A: 1}},
		{"a field twice", `{"A":1,"A":2}`, pair{A: 2}},
		{"a map twice", `{"M":{"a":1},"M":{"b":2}}`, pair{M: map[string]int{"a": 1, "b": 2}}},
		{"spaces around", " \t\r\n{ } \n", pair{}},
	} {
		var got pair
		if err := codec.JSON().Unmarshal([]byte(test.payload), &got); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v; want %+v", test.name, got, err, test.want)
		}
	}
}

// touchy panics whichever way it goes.
type touchy struct{}

func (touchy) MarshalJSON() ([]byte, error) { panic("boom") }

func (*touchy) UnmarshalJSON([]byte) error { panic("boom") }

func TestHostileJSONIsRefusedAndTakesNoMemory(t *testing.T) {
	list := func(elem string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(elem+",", n), ",") + "]"
	}
	for _, test := range []struct {
		name, payload string
		into          any
		want          error
	}{
		{"nothing", "", new(int), codec.ErrMalformed},
		{"spaces only", "  ", new(int), codec.ErrMalformed},
		{"MessagePack", "\x81\xa1S\xa1x", new(any), codec.ErrMalformed},
		{"a zero byte", "\x00", new(any), codec.ErrMalformed},
		{"cut text", `"ab`, new(string), codec.ErrMalformed},
		{"cut escape", `"\`, new(string), codec.ErrMalformed},
		{"cut object", `{"A":1`, new(any), codec.ErrMalformed},
		{"a value behind", "1 2", new(int), codec.ErrMalformed},
		{"a byte behind", "1\x00", new(int), codec.ErrMalformed},
		{"a bracket behind", "[]]", new([]int), codec.ErrMalformed},
		{"a bracket before", "][", new([]int), codec.ErrMalformed},
		{"NaN", "NaN", new(float64), codec.ErrMalformed},
		{"another type", `"x"`, new(int), codec.ErrMalformed},
		{"too large a number", "300", new(int8), codec.ErrMalformed},
		{"too large a number in an any", "1e999", new(any), codec.ErrMalformed},
		{"an interface with methods", `{"S":"x"}`, new(struct{ S fmt.Stringer }), codec.ErrMalformed},
		{"no base64", `"!"`, new([]byte), codec.ErrMalformed},
		{"a decoder's panic", "1", new(touchy), codec.ErrMalformed},
		{"deep arrays", strings.Repeat("[", 1<<20), new(any), codec.ErrTooLarge},
		{"deep objects", strings.Repeat(`{"":`, 1<<20), new(any), codec.ErrTooLarge},
		{"deep in an unknown field", `{"?":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}", new(article), codec.ErrTooLarge},
		{"too long", strings.Repeat(" ", codec.MaxSize) + "1", new(int), codec.ErrTooLarge},
		// A few bytes for each element that takes 4 KiB, whether they fit it or not.
		{"empty objects", list("{}", 1<<18), new([]big4K), codec.ErrTooLarge},
		{"nulls", list("null", 1<<18), new([]big4K), codec.ErrTooLarge},
		{"numbers for structs", list("0", 1<<18), new([]big4K), codec.ErrTooLarge},
		{"in a field", `{"S":` + list("{}", 1<<18) + "}", new(struct{ S []big4K }), codec.ErrTooLarge},
		{"behind pointers", list("{}", 1<<18), new([]*big4K), codec.ErrTooLarge},
		{"behind text", `["\\\"",` + list("{}", 1<<18) + "]", new([2]*[]big4K), codec.ErrTooLarge},
		{"cut", list("{}", 1<<18)[:1<<19], new([]big4K), codec.ErrTooLarge},
		{"large values of a map", `{` + strings.Repeat(`"":0,`, 1<<18) + `"":0}`, new(map[string]big4K), codec.ErrTooLarge},
		{"arrays of one", list("[0]", 1<<16), new([][1]big4K), codec.ErrTooLarge},
		{"large arrays", list("[]", 1<<18), new([][512]int), codec.ErrTooLarge},
		{"in an any", list("{}", 1<<22), new(any), codec.ErrTooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := codec.JSON()
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

func TestJSONReadsMaxDepthAndNoMore(t *testing.T) {
	c := codec.JSON()
	nested := func(depth int) []byte {
		return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	}
	if err := c.Unmarshal(nested(codec.MaxDepth), new(any)); err != nil {
		t.Error(err)
	}
	if err := c.Unmarshal(nested(codec.MaxDepth+1), new(any)); !errors.Is(err, codec.ErrTooLarge) {
		t.Errorf("err = %v", err)
	}
}

func TestTheErrorOfAHugeJSONPayloadIsShort(t *testing.T) {
	digits := strings.Repeat("1", 1<<20)
	for _, test := range []struct {
		payload string
		into    any
	}{
		{digits, new(int8)},
		{`"` + digits + `x"`, new(json.Number)},
		{`{"N":"` + digits + `"}`, new(struct {
			N int8 `json:",string"`
		})},
	} {
		err := codec.JSON().Unmarshal([]byte(test.payload), test.into)
		if !errors.Is(err, codec.ErrMalformed) || len(err.Error()) > 400 {
			t.Errorf("into %T: %.400v", test.into, err)
		}
	}
	err := codec.JSON().Unmarshal([]byte("300"), new(int8))
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok {
		t.Errorf("the reason is lost: %v", err)
	}
}

type jsonFunc func() ([]byte, error)

func (f jsonFunc) MarshalJSON() ([]byte, error) { return f() }

func TestJSONRefusesToMarshalWhatCannotBeReadBack(t *testing.T) {
	circle := []any{nil}
	circle[0] = circle
	list := &tree{}
	list.L = list
	deep := any(nil)
	for range codec.MaxDepth + 1 {
		deep = []any{deep}
	}
	failed := errors.New("failed")

	for _, test := range []struct {
		name  string
		value any
		want  error  // nil: any
		text  string // in the error's text
	}{
		{"a channel", make(chan int), nil, "chan int"},
		{"a function in a struct", struct{ F func() }{func() {}}, nil, "func()"},
		{"not a number", math.NaN(), nil, "NaN"},
		{"a far year", time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), nil, "year"},
		{"an encoder's error", jsonFunc(func() ([]byte, error) { return nil, failed }), failed, "jsonFunc"},
		{"an encoder's panic", touchy{}, nil, "panic: boom"},
		{"an encoder's garbage", jsonFunc(func() ([]byte, error) { return []byte("{"), nil }), nil, "unexpected end"},
		{"a slice in itself", circle, nil, "cycle"},
		{"a struct in itself", list, nil, "cycle"},
		{"too deep", deep, codec.ErrTooLarge, "nested deeper than 1000"},
		{"too long", strings.Repeat("x", codec.MaxSize), codec.ErrTooLarge, "67108866 bytes, want at most 67108864"},
		{"too much when decoded", make([]*big4K, 1<<20), codec.ErrTooLarge, "1048576 array elements"},
	} {
		t.Run(test.name, func(t *testing.T) {
			data, err := codec.JSON().Marshal(test.value)
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

func TestValuesAndJSONPayloadsShareNoMemory(t *testing.T) {
	c := codec.JSON()
	want := sampleArticle()
	data, err := c.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	kept := string(data)
	var got article
	if err := c.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if string(data) != kept {
		t.Error("Unmarshal wrote to the payload")
	}
	clear(data)
	if again, err := c.Marshal(got); err != nil || string(again) != kept {
		t.Errorf("got %s, %v; want %s", again, err, kept)
	}
}

func FuzzJSONUnmarshal(f *testing.F) {
	c := codec.JSON()
	data, err := c.Marshal(sampleArticle())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, s := range []string{`null`, `[1,-0,1e9]`, `{"a":{"a":[]}}`, `"\u0000\ud800"`, `[`, `"\`, `{"A":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range []any{
			new(article), new([]int), new(map[string]map[string]any), new([]tree), new(map[int]string), new(time.Time), new([]byte),
		} {
			_ = c.Unmarshal(data, v)
		}
		var v any
		if c.Unmarshal(data, &v) != nil {
			return
		}
		// What was read can be stored and read again.
		if err := codec.Check(c, v); err != nil {
			t.Errorf("%q: %v", data, err)
		}
	})
}
