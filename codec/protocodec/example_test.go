package protocodec_test

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/herdgate/herdgate/codec/protocodec"
)

func ExampleNew() {
	c := protocodec.New() // for herdgate.Policy's Codec

	data, err := c.Marshal(durationpb.New(90 * time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	var d *durationpb.Duration
	if err := c.Unmarshal(data, &d); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(data), d.AsDuration())

	_, err = c.Marshal(90 * time.Second)
	fmt.Println(err)
	// Output:
	// 2 1m30s
	// codec: protobuf: marshal time.Duration: want a pointer to a generated protobuf message; other types need another codec
}
