package pack_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/pack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var algorithms = []pack.Algorithm{pack.S2, pack.Zstd}

func TestUnpackReturnsWhatPackWasGiven(t *testing.T) {
	for _, a := range algorithms {
		for _, payload := range [][]byte{
			bytes.Repeat([]byte("a"), 50),
			bytes.Repeat([]byte("payload "), 32), // less than a Zstandard frame says its size by itself
			rows(t, 1<<10),
			rows(t, 300<<10), // more than a block
			make([]byte, 3<<20),
		} {
			p := new(pack.Packer)
			before := bytes.Clone(payload)
			packed, ok := p.Pack(a, payload)
			if !ok || len(packed) >= len(payload) || !bytes.Equal(payload, before) {
				t.Fatalf("%s: %d bytes packed to %d, %v", a, len(payload), len(packed), ok)
			}
			got, err := new(pack.Packer).Unpack(a, packed, len(payload))
			if err != nil || !bytes.Equal(got, payload) || cap(got) > 2*len(payload) {
				t.Errorf("%s: %d bytes came back as %d, %v", a, len(payload), len(got), err)
			}
		}
	}
}

func TestWhatWasStoredBeforeIsUnpacked(t *testing.T) {
	for a, stored := range map[pack.Algorithm]string{
		pack.S2:   "@\x1cpayload \xde\b\x00",
		pack.Zstd: "(\xb5/\xfd @}\x00\x00@payload \x01T\b\x03&]",
	} {
		got, err := new(pack.Packer).Unpack(a, []byte(stored), 64)
		if want := strings.Repeat("payload ", 8); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", a, got, err)
		}
	}
}

func TestPackLeavesAloneWhatGetsLittleSmaller(t *testing.T) {
	noise := make([]byte, 10_000)
	_, _ = rand.Read(noise)
	nearly := append(bytes.Clone(noise[:9000]), make([]byte, 1000)...) // a tenth
	some := append(bytes.Clone(noise[:8000]), make([]byte, 2000)...)   // a fifth
	for _, a := range algorithms {
		p := new(pack.Packer)
		for _, payload := range [][]byte{nil, {1}, noise, nearly} {
			if packed, ok := p.Pack(a, payload); ok {
				t.Errorf("%s: %d bytes were packed to %d", a, len(payload), len(packed))
			}
		}
		if _, ok := p.Pack(a, some); !ok {
			t.Errorf("%s: a fifth is not worth it", a)
		}
	}
	if _, ok := new(pack.Packer).Pack(pack.None, make([]byte, 1000)); ok {
		t.Error("packed with nothing")
	}
}

func TestUnpackNamesWhatIsWrong(t *testing.T) {
	p := new(pack.Packer)
	payload := rows(t, 4<<10)
	s2, _ := p.Pack(pack.S2, payload)
	zs, _ := p.Pack(pack.Zstd, payload)
	two := append(bytes.Clone(zs), zs...)
	skippable := append([]byte("\x50\x2a\x4d\x18\x04\x00\x00\x00skip"), zs...)
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	sizeless := e.EncodeAll(payload[:200], nil)
	for _, c := range []struct {
		name  string
		a     pack.Algorithm
		data  []byte
		limit int
		want  error
		text  string
	}{
		{"nothing", pack.S2, nil, 100, pack.ErrCorrupt, "s2: "},
		{"nothing", pack.Zstd, nil, 100, pack.ErrCorrupt, "zstd: "},
		{"one byte too long", pack.S2, s2, len(payload) - 1, pack.ErrTooLarge, "s2: 4096 bytes when unpacked, want at most 4095"},
		{"one byte too long", pack.Zstd, zs, len(payload) - 1, pack.ErrTooLarge, "zstd: 4096 bytes when unpacked, want at most 4095"},
		{"4 GiB", pack.S2, []byte("\xff\xff\xff\xff\x0f\x00"), codec.MaxSize, pack.ErrTooLarge, "4294967295 bytes"},
		{"16 EiB", pack.Zstd, []byte("\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00"), codec.MaxSize, pack.ErrTooLarge, "18446744073709551615 bytes"},
		{"less than it says", pack.S2, append([]byte("\x81\x20"), s2[2:]...), codec.MaxSize, pack.ErrCorrupt, "corrupt"},
		{"more than it says", pack.S2, append([]byte("\xff\x1f"), s2[2:]...), codec.MaxSize, pack.ErrCorrupt, "corrupt"},
		{"cut", pack.S2, s2[:len(s2)-1], codec.MaxSize, pack.ErrCorrupt, "s2: "},
		{"cut", pack.Zstd, zs[:len(zs)-1], codec.MaxSize, pack.ErrCorrupt, "zstd: "},
		{"more behind it", pack.S2, append(bytes.Clone(s2), 0), codec.MaxSize, pack.ErrCorrupt, "s2: "},
		{"more behind it", pack.Zstd, append(bytes.Clone(zs), 0), codec.MaxSize, pack.ErrCorrupt, "zstd: "},
		{"a second frame", pack.Zstd, two, codec.MaxSize, pack.ErrCorrupt, "zstd: "},
		{"a frame to skip", pack.Zstd, skippable, codec.MaxSize, pack.ErrCorrupt, "does not say its size"},
		{"a frame without a size", pack.Zstd, sizeless, codec.MaxSize, pack.ErrCorrupt, "does not say its size"},
		{"the other algorithm", pack.S2, zs, codec.MaxSize, pack.ErrCorrupt, "s2: "},
		{"the other algorithm", pack.Zstd, s2, codec.MaxSize, pack.ErrCorrupt, "zstd: "},
		{"no algorithm", pack.None, s2, codec.MaxSize, pack.ErrCorrupt, "none: not a way to compress"},
		{"an unknown algorithm", 9, s2, codec.MaxSize, pack.ErrCorrupt, "algorithm 9: not a way to compress"},
	} {
		got, err := p.Unpack(c.a, c.data, c.limit)
		if !errors.Is(err, c.want) || got != nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s, %s: %d bytes, %v; want %v and %q", c.a, c.name, len(got), err, c.want, c.text)
		}
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestABombIsRefusedBeforeItIsAllocated(t *testing.T) {
	p := new(pack.Packer)
	const limit = 1 << 20
	bomb := make([]byte, 100*limit)
	for _, a := range algorithms {
		packed, ok := p.Pack(a, bomb)
		if !ok {
			t.Fatal("not packed")
		}
		if a == pack.Zstd { // an honest first frame, and the bomb behind it
			small, _ := p.Pack(a, bomb[:1000])
			packed = append(small, packed...)
		}
		if n := allocated(func() {
			if _, err := p.Unpack(a, packed, limit); err == nil {
				t.Errorf("%s: no error", a)
			}
		}); n > limit {
			t.Errorf("%s: %d bytes were allocated, of at most %d", a, n, limit)
		}
	}
}

func TestWhatWasUnpackedStaysTheCallers(t *testing.T) {
	p := new(pack.Packer)
	for _, a := range algorithms {
		first, _ := p.Pack(a, bytes.Repeat([]byte("first "), 100))
		second, _ := p.Pack(a, bytes.Repeat([]byte("other "), 100))
		got, err := p.Unpack(a, first, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Unpack(a, second, 1000); err != nil {
			t.Fatal(err)
		}
		clear(first)
		if want := strings.Repeat("first ", 100); string(got) != want {
			t.Errorf("%s: it became %q", a, got)
		}
	}
}

func TestAPackerIsSafeForConcurrentUse(t *testing.T) {
	p := new(pack.Packer)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			payload := binary.BigEndian.AppendUint64(rows(t, (i+1)<<10), uint64(i))
			for range 50 {
				for _, a := range algorithms {
					packed, _ := p.Pack(a, payload)
					got, err := p.Unpack(a, packed, len(payload))
					if err != nil || !bytes.Equal(got, payload) {
						t.Errorf("%s: %d bytes, %v", a, len(got), err)
					}
					if _, err := p.Unpack(a, packed[:len(packed)/2], len(payload)); err == nil {
						t.Errorf("%s: half a payload is taken for one", a)
					}
				}
			}
		})
	}
	wg.Wait()
}

func FuzzPackedPayloadsComeBack(f *testing.F) {
	f.Add([]byte("a"))
	f.Add(bytes.Repeat([]byte("payload "), 100))
	f.Add(rows(f, 2<<10))
	p := new(pack.Packer)
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, a := range algorithms {
			packed, ok := p.Pack(a, payload)
			if !ok {
				continue
			}
			if got, err := p.Unpack(a, packed, len(payload)); err != nil || !bytes.Equal(got, payload) {
				t.Errorf("%s: %x became %x, %v", a, payload, got, err)
			}
		}
	})
}

func FuzzUnpackTakesAnything(f *testing.F) {
	p := new(pack.Packer)
	for _, payload := range [][]byte{bytes.Repeat([]byte("a"), 100), rows(f, 1<<10), rows(f, 200<<10)} {
		for _, a := range algorithms {
			packed, _ := p.Pack(a, payload)
			f.Add(packed)
			f.Add(append(packed, packed...))
		}
	}
	f.Add([]byte("\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 20
		for _, a := range algorithms {
			payload, err := p.Unpack(a, data, limit)
			switch {
			case err == nil && len(payload) > limit:
				t.Errorf("%s: %d bytes", a, len(payload))
			case err != nil && (payload != nil || errors.Is(err, pack.ErrCorrupt) == errors.Is(err, pack.ErrTooLarge)):
				t.Errorf("%s: %d bytes and %v", a, len(payload), err)
			}
		}
	})
}
