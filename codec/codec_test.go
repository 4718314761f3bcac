package codec_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/herdgate/herdgate/codec"
)

func TestTheIDsAreThoseThatEntriesCarry(t *testing.T) {
	for _, test := range []struct {
		codec codec.Codec
		id    byte
		name  string
	}{
		{codec.Msgpack(), 1, "msgpack"},
		{codec.JSON(), 2, "json"},
		{codec.Raw(), 3, "raw"},
	} {
		if c := test.codec; c.ID() != test.id || c.Name() != test.name {
			t.Errorf("%s has the id %d, want %s and %d", c.Name(), c.ID(), test.name, test.id)
		}
	}
}

func TestUnmarshalWantsAPointer(t *testing.T) {
	for _, c := range []codec.Codec{codec.Msgpack(), codec.JSON(), codec.Raw()} {
		for _, v := range []any{nil, 1, "text", []byte("bytes"), product{}, (*product)(nil), (*[]byte)(nil), map[string]any{}} {
			err := c.Unmarshal([]byte("1"), v)
			if err == nil || errors.Is(err, codec.ErrMalformed) || !strings.Contains(err.Error(), "want a pointer") {
				t.Errorf("%s: Unmarshal into %T: %v", c.Name(), v, err)
			}
		}
	}
}

func TestCodecsAreSafeForConcurrentUse(t *testing.T) {
	type letter struct {
		S string
		N []int
	}
	msgpack, json, raw := codec.Msgpack(), codec.JSON(), codec.Raw()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				for _, err := range []error{
					codec.Check(msgpack, sample()),
					codec.Check(json, letter{"text", []int{1}}),
					codec.Check(raw, "text"),
				} {
					if err != nil {
						t.Error(err)
					}
				}
				for _, err := range []error{
					msgpack.Unmarshal([]byte("\x81\xa1S\xa1x"), new(struct{ S fmt.Stringer })),
					json.Unmarshal([]byte(`{"S":"x"}`), new(struct{ S fmt.Stringer })),
				} {
					if err == nil {
						t.Error("no error")
					}
				}
			}
		})
	}
	wg.Wait()
}
