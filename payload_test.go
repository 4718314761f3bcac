package herdgate_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/wire"
)

var compressions = []herdgate.Compression{herdgate.NoCompression, herdgate.S2, herdgate.Zstd}

var flagOf = map[herdgate.Compression]wire.Flags{herdgate.S2: wire.FlagS2, herdgate.Zstd: wire.FlagZstd}

// stored returns what Redis holds for "k".
func stored(w *world) (wire.Header, []byte) {
	w.Helper()
	entry, err := w.connect().Get(w.Context(), entryKey).Bytes()
	if err != nil {
		w.Fatal(err)
	}
	header, payload, err := wire.Parse(entry, wire.Want{
		Codec: entry[3], Schema: binary.BigEndian.Uint16(entry[6:]), KeyHash: binary.BigEndian.Uint64(entry[8:]),
	})
	if err != nil {
		w.Fatal(err)
	}
	return header, payload
}

// replaceStored puts an entry with another payload, and a header that fits it, in the place of what Redis holds.
func replaceStored(w *world, flags wire.Flags, payload []byte) {
	w.Helper()
	header, _ := stored(w)
	header.Flags = flags
	if err := w.connect().Set(w.Context(), entryKey, wire.Append(nil, header, payload), time.Hour).Err(); err != nil {
		w.Fatal(err)
	}
}

func text(n int) string { return strings.Repeat("some text ", n/10) }

func TestInstancesOfAnyCompressionReadEachOther(t *testing.T) {
	everywhere(t, func(w *world) {
		for _, writing := range compressions {
			writer := newCache[string](w.T, w.gate(), nil, herdgate.Policy{Compression: writing})
			if err := writer.Set(w.Context(), "k", text(5000)); err != nil {
				w.Fatal(err)
			}
			header, payload := stored(w)
			if header.Flags != flagOf[writing] || len(payload) < 1000 == (writing == herdgate.NoCompression) {
				w.Errorf("%v: %d bytes are stored, with flags %x", writing, len(payload), header.Flags)
			}
			for _, reading := range compressions {
				reader := newCache[string](w.T, w.gate(), nil, herdgate.Policy{Compression: reading})
				r, err := reader.Lookup(w.Context(), "k")
				if err != nil || r.Value != text(5000) || r.Outcome != herdgate.OutcomeRemote {
					w.Errorf("%v by %v: got %d bytes, %v, %v", writing, reading, len(r.Value), r.Outcome, err)
				}
			}
		}
	})
}

func TestALoadedValueIsCompressed(t *testing.T) {
	everywhere(t, func(w *world) {
		load := func(context.Context, string) (string, error) { return text(5000), nil }
		for _, c := range []*herdgate.Cache[string]{
			newCache(w.T, w.gate(), load, herdgate.Policy{Compression: herdgate.Zstd, Tags: []string{"with a block before it"}}),
			newCache(w.T, w.gate(), load, herdgate.Policy{}),
		} {
			if v := get(w.T, c, "k"); v != text(5000) {
				w.Errorf("got %d bytes", len(v))
			}
			if s := c.Stats(); s.BadPayloads != 0 {
				w.Errorf("stats %+v", s)
			}
		}
		if header, payload := stored(w); header.Flags != wire.FlagZstd|wire.FlagExtended || len(payload) > 200 {
			w.Errorf("%d bytes are stored, with flags %x", len(payload), header.Flags)
		}
	})
}

func TestAPayloadUpToCompressAboveIsLeftAsItIs(t *testing.T) {
	everywhere(t, func(w *world) {
		g := w.gate()
		for i, test := range []struct {
			size, above int
			packed      bool
		}{{1024, 0, false}, {1025, 0, true}, {2000, 2000, false}, {2001, 2000, true}} {
			c, err := herdgate.New[[]byte](g, fmt.Sprint("c", i), nil, herdgate.Policy{
				Compression: herdgate.S2, CompressAbove: test.above, Codec: codec.Raw(),
			})
			if err != nil {
				w.Fatal(err)
			}
			if err := c.Set(w.Context(), "k", make([]byte, test.size)); err != nil {
				w.Fatal(err)
			}
			n := w.connect().StrLen(w.Context(), fmt.Sprintf("test:v:c%d:{k}", i)).Val() - wire.HeaderSize
			if packed := n < int64(test.size); packed != test.packed {
				w.Errorf("%d bytes above %d take %d", test.size, test.above, n)
			}
		}
	})
}

func TestACopyCountsWithTheSizeOfItsPlainPayload(t *testing.T) {
	everywhere(t, func(w *world) {
		small := func(o *herdgate.Options) { o.LocalBytes = 64 << 10 }
		policy := herdgate.Policy{Compression: herdgate.S2}
		writer := newCache[string](w.T, w.gate(small), nil, policy)
		reader := newCache[string](w.T, w.gate(small), nil, policy)
		local := func(c *herdgate.Cache[string]) bool {
			r, err := c.Lookup(w.Context(), "k")
			return err == nil && r.Outcome == herdgate.OutcomeLocal
		}
		set := func(size int) {
			if err := writer.Set(w.Context(), "k", text(size)); err != nil {
				w.Fatal(err)
			}
		}
		set(10 << 10)
		w.until("what fits is local", func() bool { return local(writer) && local(reader) })
		set(1 << 20)
		w.until("the reader has the message", func() bool { return len(get(w.T, reader, "k")) > 10<<10 })
		for range 3 {
			if local(writer) || local(reader) {
				w.Error("what does not fit is local")
			}
		}
	})
}

func TestWhatIsNotModifiedStaysAsItIsCompressed(t *testing.T) {
	everywhere(t, func(w *world) {
		writer := newCache[string](w.T, w.gate(), nil, herdgate.Policy{Compression: herdgate.S2})
		if err := writer.Set(w.Context(), "k", text(5000)); err != nil {
			w.Fatal(err)
		}
		before, payload := stored(w)
		c, err := herdgate.NewLoader(w.gate(), "things", herdgate.Loader[string](unmodified{}), herdgate.Policy{Compression: herdgate.Zstd})
		if err != nil {
			w.Fatal(err)
		}
		if v, err := c.Refresh(w.Context(), "k"); err != nil || v != text(5000) {
			w.Fatalf("got %d bytes, %v", len(v), err)
		}
		after, again := stored(w)
		if after.Version == before.Version || after.Flags != wire.FlagS2 || !bytes.Equal(again, payload) {
			w.Errorf("stored anew: %v; flags %x; %d bytes, want %d", after.Version != before.Version, after.Flags, len(again), len(payload))
		}
	})
}

type unmodified struct{}

func (unmodified) Load(_ context.Context, load *herdgate.Load[string]) (string, error) {
	return load.NotModified()
}

func TestAHostileCompressedPayloadIsAMiss(t *testing.T) { // I7, C25
	everywhere(t, func(w *world) {
		o := newOrigin(0)
		c := newCache(w.T, w.gate(), o.load, herdgate.Policy{LocalTTL: herdgate.Off, MinRebuildInterval: time.Millisecond})
		get(w.T, c, "k")
		for i, test := range []struct {
			flags   wire.Flags
			payload string
		}{
			{wire.FlagS2, ""},
			{wire.FlagZstd, ""},
			{wire.FlagS2, "\xa3k#1"},
			{wire.FlagZstd, "\xa3k#1"},
			{wire.FlagS2, "\xff\xff\xff\xff\x0f\x00"}, // 4 GiB
			{wire.FlagZstd, "\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00"}, // 16 EiB
			{wire.FlagS2, "\x05\x10\xdd\xff\xff\xff\xff"},                                       // well packed, and hostile to the codec
			{wire.FlagS2 | wire.FlagZstd, "\x04\x0c\xa3k#1"},
			{wire.FlagS2 | wire.FlagNegative, "\x04\x0c\xa3k#1"},
		} {
			replaceStored(w, test.flags, []byte(test.payload))
			w.pass(2 * time.Millisecond) // MinRebuildInterval
			r, err := c.Lookup(w.Context(), "k")
			if want := fmt.Sprintf("k#%d", i+2); err != nil || r.Value != want || r.Outcome != herdgate.OutcomeLoaded {
				w.Errorf("%x %q: got %+v, %v, want %s", test.flags, test.payload, r, err, want)
			}
			if s := c.Stats(); s.BadPayloads != uint64(i+1) {
				w.Errorf("%x %q: %d bad payloads", test.flags, test.payload, s.BadPayloads)
			}
		}
		replaceStored(w, wire.FlagS2, []byte("\x04\x0c\xa3k#0"))
		if v := get(w.T, c, "k"); v != "k#0" {
			w.Errorf("a good one: got %q", v)
		}
	})
}

func TestAValueLargerThanMaxSizeIsServedAndNotStored(t *testing.T) {
	everywhere(t, func(w *world) {
		var mu sync.Mutex
		var failures []error
		g := w.gate(func(o *herdgate.Options) {
			o.Observer = herdgate.ObserverFunc(func(e herdgate.Event) {
				if e.Kind == herdgate.EventCommitFailed {
					mu.Lock()
					defer mu.Unlock()
					failures = append(failures, e.Err)
				}
			})
		})
		load := func(context.Context, string) (string, error) { return text(5000), nil }
		c := newCache(w.T, g, load, herdgate.Policy{MaxSize: 1000})
		r, err := c.Lookup(w.Context(), "k")
		if err != nil || r.Value != text(5000) || r.Outcome != herdgate.OutcomeLoaded {
			w.Errorf("got %d bytes, %v, %v", len(r.Value), r.Outcome, err)
		}
		if n := w.connect().Exists(w.Context(), entryKey).Val(); n != 0 {
			w.Error("it is stored")
		}
		mu.Lock()
		defer mu.Unlock()
		if s := c.Stats(); s.CommitsFailed != 1 || s.CommitsStored != 0 || len(failures) != 1 ||
			!errors.Is(failures[0], herdgate.ErrTooLarge) || !strings.Contains(failures[0].Error(), "5003 bytes, want at most Policy.MaxSize, which is 1000") {
			w.Errorf("stats %+v, failures %v", s, failures)
		}
	})
}

func TestMaxSizeCountsWhatIsCompressed(t *testing.T) {
	everywhere(t, func(w *world) {
		plain := newCache[string](w.T, w.gate(), nil, herdgate.Policy{MaxSize: 1000})
		packed := newCache[string](w.T, w.gate(), nil, herdgate.Policy{MaxSize: 1000, Compression: herdgate.S2})
		if err := packed.Set(w.Context(), "k", text(5000)); err != nil {
			w.Fatal(err)
		}
		err := plain.Set(w.Context(), "k", text(6000))
		if e, ok := errors.AsType[*herdgate.ChangeError](err); !ok || !errors.Is(err, herdgate.ErrTooLarge) || e.Key != "k" {
			w.Errorf("got %v", err)
		}
		if v := get(w.T, plain, "k"); v != text(5000) {
			w.Errorf("after the Set that failed: %d bytes", len(v))
		}
	})
}

func TestWhatNobodyWouldUnpackIsNotStored(t *testing.T) {
	virtually(t, func(w *world) {
		c := newCache[string](w.T, w.gate(), nil, herdgate.Policy{Compression: herdgate.S2, Codec: boundless{codec.Raw()}})
		if err := c.Set(w.Context(), "k", "v"); !errors.Is(err, herdgate.ErrTooLarge) {
			w.Errorf("got %v", err)
		}
	})
}

// boundless makes payloads that are larger than herdgate's own codecs would.
type boundless struct{ codec.Codec }

func (boundless) ID() byte                    { return codec.FirstUserID }
func (boundless) Marshal(any) ([]byte, error) { return make([]byte, codec.MaxSize+1), nil }

func TestWithoutRedisAValueOfAnySizeIsKept(t *testing.T) {
	virtually(t, func(w *world) {
		c := newCache[string](w.T, openGate(w.T, herdgate.Options{}), nil, herdgate.Policy{MaxSize: 10})
		if err := c.Set(w.Context(), "k", text(5000)); err != nil {
			w.Fatal(err)
		}
		if v := get(w.T, c, "k"); v != text(5000) {
			w.Errorf("got %d bytes", len(v))
		}
	})
}
