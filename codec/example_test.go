package codec_test

import (
	"encoding/json"
	"errors"
	"fmt"
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

// JSON stores values as JSON. It does not bound what a payload can take once decoded.
type JSON struct{}

func (JSON) ID() byte                           { return codec.FirstUserID }
func (JSON) Name() string                       { return "json" }
func (JSON) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (JSON) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

func ExampleCodec() {
	data, _ := JSON{}.Marshal([]string{"readable", "by hand"})
	fmt.Println(string(data))
	// Output: ["readable","by hand"]
}

func ExampleCheck() {
	type session struct {
		User  string
		token string // not stored: encoders do not see it
	}
	fmt.Println(codec.Check(codec.Msgpack(), session{User: "ann", token: "t0k3n"}))
	// Output: codec: the value does not survive the codec: msgpack: codec_test.session.token: t0k3n became
}
