package codec_test

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/herdgate/herdgate/codec"
)

func ExampleMsgpack() {
	type Product struct {
		Name  string
		Added time.Time
	}
	c := codec.Msgpack()

	data, err := c.Marshal(Product{"lamp", time.Unix(1_700_000_000, 0)})
	if err != nil {
		fmt.Println(err)
		return
	}
	var p Product
	if err := c.Unmarshal(data, &p); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Name, p.Added.UTC())

	// Four billion elements, none of them there.
	err = c.Unmarshal([]byte("\xdd\xff\xff\xff\xff"), new([]int))
	fmt.Println(errors.Is(err, codec.ErrMalformed))
	// Output:
	// lamp 2023-11-14 22:13:20 +0000 UTC
	// true
}

func ExampleJSON() {
	type Product struct {
		Name  string  `json:"name"`
		Price float64 `json:"price"`
	}
	c := codec.JSON()

	data, err := c.Marshal(Product{"lamp", 9.5})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(data))

	err = c.Unmarshal([]byte(`{"name":"lamp"}, and more`), new(Product))
	fmt.Println(errors.Is(err, codec.ErrMalformed))
	// Output:
	// {"name":"lamp","price":9.5}
	// true
}

func ExampleRaw() {
	type Page []byte
	c := codec.Raw()

	data, err := c.Marshal(Page("<h1>lamps</h1>"))
	if err != nil {
		fmt.Println(err)
		return
	}
	var page Page
	if err := c.Unmarshal(data, &page); err != nil { // page lies in data, which may not change any more
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", page)

	_, err = c.Marshal(42)
	fmt.Println(err)
	// Output:
	// <h1>lamps</h1>
	// codec: raw: marshal int: want []byte, string, or a type made from one of them; other types need another codec
}

// Textual stores values that write themselves as text.
type Textual struct{}

func (Textual) ID() byte     { return codec.FirstUserID }
func (Textual) Name() string { return "text" }

func (Textual) Marshal(v any) ([]byte, error) {
	m, ok := v.(encoding.TextMarshaler)
	if !ok {
		return nil, fmt.Errorf("text: %T is no encoding.TextMarshaler", v)
	}
	return m.MarshalText()
}

func (Textual) Unmarshal(data []byte, v any) error {
	u, ok := v.(encoding.TextUnmarshaler)
	if !ok {
		return fmt.Errorf("text: %T is no encoding.TextUnmarshaler", v)
	}
	return u.UnmarshalText(data)
}

func ExampleCodec() {
	fmt.Println(codec.Check(Textual{}, netip.MustParseAddr("192.0.2.1")))
	fmt.Println(codec.Check(Textual{}, 42))
	// Output:
	// <nil>
	// text: int is no encoding.TextMarshaler
}

func ExampleRoundTrip() {
	type Product struct {
		Name  string
		price int // lower-case: not stored
	}
	type Visit struct {
		Page string
		At   time.Time
	}
	fmt.Println(codec.RoundTrip(Product{Name: "lamp", price: 950}))
	fmt.Println(codec.RoundTrip(Visit{"lamps", time.Date(2026, 11, 30, 9, 0, 0, 0, time.FixedZone("far away", 3600))}))
	// Output:
	// codec: the value does not survive the codec: msgpack: codec_test.Product.price: 950 became 0
	// <nil>
}

func ExampleCheck() {
	type session struct {
		User  string
		token string // not stored: encoders do not see it
	}
	fmt.Println(codec.Check(codec.Msgpack(), session{User: "ann", token: "t0k3n"}))
	// Output: codec: the value does not survive the codec: msgpack: codec_test.session.token: t0k3n became
}
