package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sample returns a header with a different value in every byte, and the Want it satisfies.
func sample() (Header, Want) {
	h := Header{
		Codec:   0x11,
		Schema:  0x2122,
		KeyHash: 0x3132333435363738,
		BuiltAt: 0x4142434445464748,
		Fresh:   0x52535455,
		Hard:    0x61626364,
		Early:   0x51525354,
		Version: 0x7172737475767778,
	}
	return h, Want{Codec: h.Codec, Schema: h.Schema, KeyHash: h.KeyHash}
}

// flagged is an entry with flags and no payload.
func flagged(flags Flags) []byte {
	h, _ := sample()
	h.Flags = flags
	return Append(nil, h, nil)
}

// reseal gives entry the right checksum after a test has changed its other bytes.
func reseal(entry []byte) {
	binary.BigEndian.PutUint32(entry[checksumOffset:], checksum(entry, entry[HeaderSize:]))
}

func TestParseReturnsWhatAppendWasGiven(t *testing.T) {
	h, want := sample()
	for _, payload := range []string{"", "x", strings.Repeat("payload", 10_000)} {
		entry := Append([]byte("before"), h, []byte(payload))
		if got := len(entry); got != len("before")+HeaderSize+len(payload) {
			t.Fatalf("entry has %d bytes", got)
		}
		got, data, err := Parse(entry[len("before"):], want)
		if err != nil || got != h || string(data) != payload {
			t.Errorf("Parse = %+v, %d bytes, %v; want %+v, %d bytes", got, len(data), err, h, len(payload))
		}
	}
}

func TestDescribeTellsWhatParseCompares(t *testing.T) {
	h, _ := sample()
	entry := Append(nil, h, []byte("payload"))
	got, payload, err := Describe(entry)
	if err != nil || got != h || string(payload) != "payload" {
		t.Errorf("got %+v, %q, %v", got, payload, err)
	}
}

func TestDescribeTellsTheHeaderAlsoOfAnEntryThatCannotBeRead(t *testing.T) {
	h, _ := sample()
	h.Flags = 0x80
	newer := Append(nil, h, []byte("payload"))
	if got, payload, err := Describe(newer); !errors.Is(err, errUnknownFlags) || got != h || payload != nil {
		t.Errorf("unknown flags: got %+v, %q, %v", got, payload, err)
	}
	flipped := bytes.Clone(newer)
	flipped[HeaderSize]++
	if got, _, err := Describe(flipped); !errors.Is(err, errChecksum) || got != h {
		t.Errorf("a flipped bit: got %+v, %v", got, err)
	}
	for _, foreign := range [][]byte{nil, []byte("hello"), bytes.Repeat([]byte("text"), 20), append([]byte{0xC1, 0x68, 2}, newer[3:]...), newer[:HeaderSize-1]} {
		if got, _, err := Describe(foreign); err == nil || got != (Header{}) {
			t.Errorf("%q: got %+v, %v", foreign, got, err)
		}
	}
}

func TestThePayloadAliasesTheEntry(t *testing.T) {
	h, want := sample()
	entry := Append(nil, h, []byte("payload"))
	_, payload, err := Parse(entry, want)
	if err != nil || &payload[0] != &entry[HeaderSize] {
		t.Errorf("the payload was copied (err %v)", err)
	}
}

func TestTheStoredFormIsTheOneOfTheGoldenFiles(t *testing.T) {
	value, _ := sample()
	negative, _ := sample()
	negative.Flags = FlagNegative
	s2, _ := sample()
	s2.Flags = FlagS2
	zstd, _ := sample()
	zstd.Flags = FlagZstd
	for _, c := range []struct {
		file    string
		header  Header
		payload string
	}{
		{"value.hex", value, "payload"},
		{"empty.hex", value, ""},
		{"negative.hex", negative, ""},
		{"zero.hex", Header{}, ""},
		{"s2.hex", s2, "@\x1cpayload \xde\b\x00"},
		{"zstd.hex", zstd, "(\xb5/\xfd @}\x00\x00@payload \x01T\b\x03&]"},
	} {
		t.Run(c.file, func(t *testing.T) {
			entry := Append(nil, c.header, []byte(c.payload))
			path := filepath.Join("testdata", c.file)
			if *update {
				if err := os.WriteFile(path, []byte(hex.Dump(entry)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.Dump(entry); got != string(golden) {
				t.Errorf("stored form changed: instances of two builds could not read each other.\ngot:\n%swant:\n%s", got, golden)
			}
		})
	}
}

func TestThePartsThatScriptsTouchStandWhereTheConstantsSay(t *testing.T) {
	h, want := sample()
	entry := Append(nil, h, []byte("payload"))

	version := binary.BigEndian.AppendUint64(nil, h.Version)
	if got := entry[VersionOffset : VersionOffset+VersionSize]; !bytes.Equal(got, version) {
		t.Errorf("version = %x, want %x", got, version)
	}
	// A script rewrites built at, and the entry stays good.
	for _, builtAt := range []int64{0, 1, -1, 1 << 62} {
		binary.BigEndian.PutUint64(entry[BuiltAtOffset:], uint64(builtAt))
		got, _, err := Parse(entry, want)
		if err != nil || got.BuiltAt != builtAt {
			t.Errorf("built at %d: got %d, %v", builtAt, got.BuiltAt, err)
		}
	}
}

func TestParseNamesTheReasonWhyAnEntryIsBadOrNewer(t *testing.T) {
	tests := []struct {
		name   string
		change func(entry []byte, want *Want) []byte
		class  error
		reason error
	}{
		{"nothing stored", func([]byte, *Want) []byte { return nil }, ErrBad, errTruncated},
		{"garbage", func([]byte, *Want) []byte { return []byte(strings.Repeat("garbage ", 8)) }, ErrBad, errNoMagic},
		{"hostile payload", func([]byte, *Want) []byte { return []byte("\xdd\xff\xff\xff\xff") }, ErrBad, errTruncated},
		{"cut header", func(e []byte, _ *Want) []byte { return e[:HeaderSize-1] }, ErrBad, errTruncated},
		{"cut payload", func(e []byte, _ *Want) []byte { return e[:len(e)-1] }, ErrBad, errChecksum},
		{"no payload", func(e []byte, _ *Want) []byte { return e[:HeaderSize] }, ErrBad, errChecksum},
		{"trailing zero", func(e []byte, _ *Want) []byte { return append(e, 0) }, ErrBad, errChecksum},
		{"another magic", func(e []byte, _ *Want) []byte { e[1]++; return e }, ErrBad, errNoMagic},
		{"format 0", func(e []byte, _ *Want) []byte { e[formatOffset] = 0; return e }, ErrBad, errFormat},
		{"newer format", func(e []byte, _ *Want) []byte { e[formatOffset]++; return e }, ErrNewer, errNewerFormat},
		{"newer format, all else unknown", func(e []byte, _ *Want) []byte {
			clear(e[formatOffset+1:])
			e[formatOffset] = 0xff
			return e[:VersionOffset+VersionSize]
		}, ErrNewer, errNewerFormat},
		{"newer format, too short for a version", func(e []byte, _ *Want) []byte {
			e[formatOffset]++
			return e[:VersionOffset+VersionSize-1]
		}, ErrBad, errTruncated},
		{"another key", func(e []byte, w *Want) []byte { w.KeyHash++; return e }, ErrBad, ErrOther},
		{"another key's newer schema", func(e []byte, w *Want) []byte { w.KeyHash++; w.Schema--; return e }, ErrBad, ErrOther},
		{"bad checksum", func(e []byte, _ *Want) []byte { e[checksumOffset]++; return e }, ErrBad, errChecksum},
		{"changed payload", func(e []byte, _ *Want) []byte { e[HeaderSize]++; return e }, ErrBad, errChecksum},
		{"newer schema", func(e []byte, w *Want) []byte { w.Schema--; return e }, ErrNewer, errNewerSchema},
		{"newer schema by a flipped bit", func(e []byte, _ *Want) []byte { e[schemaOffset] |= 0x80; return e }, ErrBad, errChecksum},
		{"newer schema and another codec", func(e []byte, w *Want) []byte { w.Schema--; w.Codec++; return e }, ErrNewer, errNewerSchema},
		{"older schema", func(e []byte, w *Want) []byte { w.Schema++; return e }, ErrBad, errOlderSchema},
		{"older schema of a newer build", func(e []byte, w *Want) []byte {
			w.Schema++
			e[flagsOffset] = 0x80
			reseal(e)
			return e
		}, ErrBad, errOlderSchema},
		{"a flag of the future", func(e []byte, _ *Want) []byte { e[flagsOffset] = 0x80; reseal(e); return e }, ErrNewer, errUnknownFlags},
		{"a flag by a flipped bit", func(e []byte, _ *Want) []byte { e[flagsOffset] = 0x80; return e }, ErrBad, errChecksum},
		{"reserved byte in use", func(e []byte, _ *Want) []byte { e[reservedOffset] = 1; reseal(e); return e }, ErrNewer, errReservedInUse},
		{"another codec", func(e []byte, w *Want) []byte { w.Codec++; return e }, ErrBad, errCodec},
		{"hard before fresh", func(e []byte, _ *Want) []byte { clear(e[hardOffset:earlyOffset]); reseal(e); return e }, ErrBad, errHardFirst},
		{"early after fresh", func(e []byte, _ *Want) []byte { e[earlyOffset] = 0xff; reseal(e); return e }, ErrBad, errEarlyLate},
		{"negative with a payload", func(e []byte, _ *Want) []byte {
			e[flagsOffset] = byte(FlagNegative)
			reseal(e)
			return e
		}, ErrBad, errNegativeFilled},
		{"negative and S2", func([]byte, *Want) []byte { return flagged(FlagNegative | FlagS2) }, ErrBad, errNegativePacked},
		{"negative and Zstandard", func([]byte, *Want) []byte { return flagged(FlagNegative | FlagZstd) }, ErrBad, errNegativePacked},
		{"negative, extended and S2", func([]byte, *Want) []byte { return flagged(FlagNegative | FlagExtended | FlagS2) }, ErrBad, errNegativePacked},
		{"S2 and Zstandard", func([]byte, *Want) []byte { return flagged(FlagS2 | FlagZstd) }, ErrBad, errPackedTwice},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			h, want := sample()
			entry := c.change(Append(nil, h, []byte("payload")), &want)
			got, payload, err := Parse(entry, want)
			if !errors.Is(err, c.class) || !errors.Is(err, c.reason) {
				t.Errorf("err = %v, want %v", err, c.reason)
			}
			if errors.Is(err, ErrBad) && errors.Is(err, ErrNewer) {
				t.Errorf("%v is both bad and newer", err)
			}
			if got != (Header{}) || payload != nil {
				t.Errorf("a refused entry gave %+v and %q", got, payload)
			}
		})
	}
}

func TestTheChecksumIsCRC32COfLengthHeaderAndPayload(t *testing.T) {
	h, _ := sample()
	entry := Append(nil, h, []byte("payload"))
	covered := binary.BigEndian.AppendUint64(nil, uint64(len("payload")))
	covered = append(covered, entry[:BuiltAtOffset]...)
	covered = append(covered, entry[freshOffset:checksumOffset]...)
	covered = append(covered, "payload"...)
	want := crc32.Checksum(covered, crc32.MakeTable(crc32.Castagnoli))
	if got := binary.BigEndian.Uint32(entry[checksumOffset:]); got != want {
		t.Errorf("checksum = %#x, want %#x", got, want)
	}
}

func TestTheLimitsOfFreshnessMayCoincide(t *testing.T) {
	h, want := sample()
	for _, d := range []uint32{0, 1, 1<<32 - 1} {
		h.Fresh, h.Hard, h.Early = d, d, d
		if _, _, err := Parse(Append(nil, h, nil), want); err != nil {
			t.Errorf("fresh = hard = early = %d: %v", d, err)
		}
	}
}

func TestANegativeEntryHasNoPayload(t *testing.T) {
	h, want := sample()
	h.Flags = FlagNegative
	got, payload, err := Parse(Append(nil, h, nil), want)
	if err != nil || got != h || len(payload) != 0 {
		t.Errorf("Parse = %+v, %q, %v", got, payload, err)
	}
}

func TestEverySingleByteChangeOutsideBuiltAtIsRefused(t *testing.T) {
	h, want := sample()
	entry := Append(nil, h, []byte("payload"))
	for i := range entry {
		if i >= BuiltAtOffset && i < BuiltAtOffset+8 {
			continue
		}
		for change := 1; change < 256; change++ {
			entry[i] ^= byte(change)
			if _, _, err := Parse(entry, want); err == nil {
				t.Errorf("byte %d changed by %#x: taken for good", i, change)
			}
			entry[i] ^= byte(change)
		}
	}
}

func TestKeyHashIsTheSameInEveryProcess(t *testing.T) {
	for _, c := range []struct {
		key        string
		generation uint64
		want       uint64
	}{
		{"", 0, 0x34c96acdcadb1bbb},
		{"herdgate:{product:42}:v", 0, 0xeb02bc81b4bc883f},
		{"herdgate:{product:42}:v", 1, 0xe01481ccdc96a577},
	} {
		if got := KeyHash(c.key, c.generation); got != c.want {
			t.Errorf("KeyHash(%q, %d) = %#x, want %#x", c.key, c.generation, got, c.want)
		}
	}
}

func TestKeyHashDependsOnKeyAndGeneration(t *testing.T) {
	seen := make(map[uint64]string)
	for _, key := range []string{"", "a", "b", "a\x00", "a\x00\x00\x00\x00\x00\x00\x00\x00"} {
		for _, generation := range []uint64{0, 1, 1 << 56, 1<<64 - 1} {
			h := KeyHash(key, generation)
			if other, ok := seen[h]; ok {
				t.Errorf("%q in generation %d has the hash of %q", key, generation, other)
			}
			seen[h] = key
		}
	}
}

func TestSeenIsTheVersionOfWhateverWasRead(t *testing.T) {
	h, _ := sample()
	entry := Append(nil, h, []byte("payload"))
	version := string(binary.BigEndian.AppendUint64(nil, h.Version))
	for _, c := range []struct {
		name  string
		entry []byte
		want  string
	}{
		{"nothing", nil, ""},
		{"one byte short", entry[:43], ""},
		{"cut behind the version", entry[:44], version},
		{"an entry", entry, version},
		{"foreign bytes", bytes.Repeat([]byte("0123456789"), 6), "67890123"},
	} {
		if got := SeenIn(c.entry).String(); got != c.want {
			t.Errorf("%s: Seen = %q, want %q", c.name, got, c.want)
		}
	}
}

func TestTheReadPathDoesNotAllocate(t *testing.T) {
	h, want := sample()
	good := Append(nil, h, []byte("payload"))
	bad := bytes.Clone(good)
	bad[HeaderSize]++
	for name, f := range map[string]func(){
		"Parse":              func() { _, _, _ = Parse(good, want) },
		"Parse of a bad one": func() { _, _, _ = Parse(bad, want) },
		"KeyHash":            func() { KeyHash("herdgate:{product:42}:v", 1) },
		"Append with room":   func() { Append(good[:0], h, nil) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func FuzzAppendedEntriesParse(f *testing.F) {
	f.Add(byte(1), byte(0), uint16(1), uint64(1), int64(1), uint32(1), uint32(2), uint32(1), uint64(1), []byte("payload"))
	f.Fuzz(func(t *testing.T, codec, flags byte, schema uint16, hash uint64, builtAt int64, fresh, hard, early uint32, version uint64, payload []byte) {
		hard = max(hard, fresh)
		early = min(early, fresh)
		h := Header{codec, Flags(flags) & knownFlags, schema, hash, builtAt, fresh, hard, early, version}
		if h.Flags&FlagS2 != 0 {
			h.Flags &^= FlagZstd
		}
		if h.Flags&FlagNegative != 0 {
			h.Flags &^= FlagS2 | FlagZstd
		}
		if h.Flags == FlagNegative {
			payload = nil
		}
		got, data, err := Parse(Append(nil, h, payload), Want{codec, schema, hash})
		if err != nil || got != h || !bytes.Equal(data, payload) {
			t.Errorf("Parse = %+v, %x, %v; want %+v, %x", got, data, err, h, payload)
		}
	})
}

func FuzzParseNeverPanics(f *testing.F) {
	h, _ := sample()
	entry := Append(nil, h, []byte("payload"))
	f.Add(entry, byte(0), uint16(0), uint64(0))
	f.Add(entry, h.Codec, h.Schema, h.KeyHash)
	f.Add(entry[:HeaderSize], h.Codec, h.Schema, h.KeyHash)
	f.Add([]byte("\xc1\x68\x02"), h.Codec, h.Schema, h.KeyHash)
	f.Fuzz(func(t *testing.T, entry []byte, codec byte, schema uint16, hash uint64) {
		SeenIn(entry)
		_, _, _ = Describe(entry)
		got, payload, err := Parse(entry, Want{codec, schema, hash})
		if err != nil {
			if errors.Is(err, ErrBad) == errors.Is(err, ErrNewer) {
				t.Errorf("%v must be either bad or newer", err)
			}
			return
		}
		if again := Append(nil, got, payload); !bytes.Equal(again, entry) {
			t.Errorf("%x was taken for %x", entry, again)
		}
	})
}

func FuzzAChangedEntryIsRefused(f *testing.F) {
	f.Add([]byte("payload"), uint(0), byte(1))
	f.Add([]byte("payload"), uint(checksumOffset), byte(0x80))
	f.Add([]byte(""), uint(VersionOffset), byte(0xff))
	f.Fuzz(func(t *testing.T, payload []byte, at uint, change byte) {
		h, want := sample()
		entry := Append(nil, h, payload)
		at %= uint(len(entry))
		if change == 0 || at >= BuiltAtOffset && at < BuiltAtOffset+8 {
			return
		}
		entry[at] ^= change
		if _, _, err := Parse(entry, want); err == nil {
			t.Errorf("byte %d changed by %#x: taken for good", at, change)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, size := range map[string]int{"100B": 100, "10KB": 10_000} {
		b.Run(name, func(b *testing.B) {
			h, want := sample()
			entry := Append(nil, h, make([]byte, size))
			b.SetBytes(int64(len(entry)))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Parse(entry, want); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	h, _ := sample()
	payload := make([]byte, 100)
	buf := make([]byte, 0, HeaderSize+len(payload))
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], h, payload)
	}
}

func BenchmarkKeyHash(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		KeyHash("herdgate:{product:42}:v", 1)
	}
}
