package codec_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/herdgate/herdgate/codec"
)

func loses[V any](t *testing.T, c codec.Codec, v V, what string) {
	t.Helper()
	err := codec.Check(c, v)
	if !errors.Is(err, codec.ErrLossy) || !strings.HasSuffix(err.Error(), what) {
		t.Errorf("err = %v, want it to end in %q", err, what)
	}
}

type node struct {
	Name   string
	parent *node
	Kids   []*node
}

func TestCheckNamesWhatIsLost(t *testing.T) {
	type private struct {
		Open   int
		secret string
	}
	type omit struct {
		S []int `msgpack:",omitempty"`
	}
	type skip struct {
		F func() `msgpack:"-"`
		N int    `msgpack:"-"`
	}
	c := codec.Msgpack()
	parent := &node{Name: "parent"}
	parent.Kids = []*node{{Name: "child", parent: parent}}

	loses(t, c, private{1, "x"}, `codec_test.private.secret: x became `)
	loses(t, c, map[string][]private{"k": {{}, {1, "x"}}}, `[k][1].secret: x became `)
	loses(t, c, omit{[]int{}}, `codec_test.omit.S: a []int that is not nil became nil`)
	loses(t, c, skip{N: 1}, `codec_test.skip.N: 1 became 0`)
	loses(t, c, skip{F: func() {}}, `codec_test.skip.F: a func() that is not nil became nil`)
	loses(t, c, []any{1}, `[0]: the type int became int8`)
	loses(t, c, []any{private{}}, `[0]: the type codec_test.private became map[string]interface {}`)
	loses(t, c, []any{[]byte(nil)}, `[0]: a interface {} that is not nil became nil`)
	loses(t, c, parent, `.Kids[0].parent: a *codec_test.node that is not nil became nil`)
}

func TestCheckTakesEqualValuesForEqual(t *testing.T) {
	c := codec.Msgpack()
	survives(t, c, time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("far away", 3600)))
	survives(t, c, []float64{math.NaN()})
	survives(t, c, &node{Name: "alone"})
}

func TestRoundTripChecksTheDefaultCodec(t *testing.T) { // C26, C27
	type private struct{ secret string }
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("far away", 3600))
	if err := codec.RoundTrip(at); err != nil {
		t.Errorf("the zone of a time counts: %v", err)
	}
	if err := codec.RoundTrip([]private{{"x"}}); !errors.Is(err, codec.ErrLossy) || !strings.Contains(err.Error(), "msgpack") {
		t.Errorf("err = %v", err)
	}
	if err := codec.RoundTrip(make(chan int)); err == nil || errors.Is(err, codec.ErrLossy) {
		t.Errorf("err = %v", err)
	}
}

func TestCheckReturnsTheCodecsErrors(t *testing.T) {
	err := codec.Check(codec.Msgpack(), make(chan int))
	if err == nil || errors.Is(err, codec.ErrLossy) {
		t.Errorf("err = %v", err)
	}
	err = codec.Check(codec.Msgpack(), selfMade{func() ([]byte, error) { return []byte{0xc3}, nil }})
	if !errors.Is(err, codec.ErrMalformed) {
		t.Errorf("err = %v", err)
	}
}

// family decodes into a circle.
type family struct{ Kid *family }

func (*family) MarshalMsgpack() ([]byte, error) { return []byte{0xc3}, nil }

func (f *family) UnmarshalMsgpack([]byte) error {
	f.Kid = f
	return nil
}

func TestCheckEndsWhereADecoderMakesACircle(t *testing.T) {
	f := &family{}
	f.Kid = f
	survives(t, codec.Msgpack(), f)
}
