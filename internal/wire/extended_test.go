package wire

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestTagsAndTokenComeBackAsTheyWereStored(t *testing.T) {
	for _, x := range []Extended{
		{},
		{TagsAt: 1<<63 + 5, Tags: []string{"a"}, Token: "W/\"1\""},
		{Tags: make([]string, MaxTags), Token: strings.Repeat("t", MaxToken)},
	} {
		for _, payload := range []string{"", "payload"} {
			got, rest, err := CutExtended(append(AppendExtended(nil, x), payload...))
			if err != nil || !reflect.DeepEqual(got, x) || string(rest) != payload {
				t.Errorf("%+v came back as %+v with %q, %v", x, got, rest, err)
			}
		}
	}
}

func TestWhatALaterBuildAddsToTheBlockIsSkipped(t *testing.T) {
	block := AppendExtended(nil, Extended{Token: "t"})
	block = append([]byte{block[0] + 3}, append(block[1:], "new"...)...)
	if x, rest, err := CutExtended(append(block, "payload"...)); err != nil || x.Token != "t" || string(rest) != "payload" {
		t.Errorf("got %+v, %q, %v", x, rest, err)
	}
}

func TestAnEntryWithTagsMayBeNegative(t *testing.T) {
	block := AppendExtended(nil, Extended{Tags: []string{"a"}})
	h := Header{Codec: 1, Flags: FlagNegative | FlagExtended, Fresh: 1, Hard: 1}
	if _, payload, err := Parse(Append(nil, h, block), Want{Codec: 1}); err != nil || !bytes.Equal(payload, block) {
		t.Errorf("got %x, %v", payload, err)
	}
}

func FuzzABlockIsReadOrRefused(f *testing.F) {
	f.Add(AppendExtended(nil, Extended{TagsAt: 7, Tags: []string{"a", "b"}, Token: "t"}))
	f.Add([]byte{3, 0, 65, 0})
	f.Fuzz(func(t *testing.T, payload []byte) {
		x, rest, err := CutExtended(payload)
		switch {
		case err != nil && !errors.Is(err, ErrBad):
			t.Errorf("error %v", err)
		case err == nil && (len(rest) > len(payload) || len(x.Tags) > MaxTags):
			t.Errorf("%d bytes gave %d tags and a rest of %d bytes", len(payload), len(x.Tags), len(rest))
		}
	})
}
