// Package wire is the stored form of an entry: a 48-byte header in front of the payload that a codec made.
//
// All numbers are big-endian:
//
//	 0  magic     2   c1 68
//	 2  format    1   1
//	 3  codec     1   id of the codec that made the payload
//	 4  flags     1
//	 5  reserved  1   0
//	 6  schema    2   schema version of the value's type
//	 8  key hash  8   see [KeyHash]
//	16  built at  8   server time in milliseconds; 0 = marked stale
//	24  fresh     4   milliseconds after built at
//	28  hard      4   milliseconds after built at
//	32  early     4   milliseconds after built at
//	36  version   8   random for each store
//	44  checksum  4   CRC-32C
//	48  payload
//
// What the payload is made of, and what stands before it, the flags say: see [Flags].
//
// The checksum covers the payload's length, the header without built at and the checksum itself, and the payload.
// Built at stands outside because the script that stores the entry writes it, and the one that expires it clears it.
//
// # Later formats
//
// Every later format keeps the magic, the format byte, and the version at its offset: the scripts of an older
// instance compare the version of whatever they find (see [Seen]). All else may move, so of a later format nothing
// more than its number can be believed.
//
// Within a format a flag, or a use of the reserved byte, may be added at any time. A build that does not know it
// cannot read the payload, but the checksum still tells it that the byte was written on purpose: such an entry is
// [ErrNewer], and builds old and new share a Redis without overwriting each other.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cespare/xxhash/v2"
)

// The parts of the layout that scripts and other packages rely on, in bytes.
const (
	HeaderSize    = 48 // bytes before the payload
	BuiltAtOffset = 16 // eight bytes, rewritten in place by scripts
	VersionOffset = 36 // the same in every format
	VersionSize   = 8
)

const (
	magic  = 0xC168 // c1 begins neither UTF-8 nor MessagePack: text or a bare payload under our key is never taken for an entry
	format = 1

	formatOffset   = 2
	codecOffset    = 3
	flagsOffset    = 4
	reservedOffset = 5
	schemaOffset   = 6
	hashOffset     = 8
	freshOffset    = 24
	hardOffset     = 28
	earlyOffset    = 32
	checksumOffset = 44
)

// Flags say how to read what follows the header.
type Flags byte

// The flags. An entry has at most one of the first three. FlagExtended may stand beside any: its block is never
// compressed.
const (
	FlagNegative Flags = 1 << iota // the source has no value for the key; there is no payload
	FlagS2                         // the payload is compressed with S2
	FlagZstd                       // the payload is compressed with Zstandard
	FlagExtended                   // a block of tags and token stands before the payload, see [Extended]

	knownFlags = FlagNegative | FlagS2 | FlagZstd | FlagExtended
)

// ErrBad is wrapped, with the reason, by every error of [Parse] that means: this is no entry for us, replace it.
var ErrBad = errors.New("wire: not a usable entry")

// ErrNewer is wrapped by the errors of [Parse] that mean: a newer build or a newer schema of this cache wrote the
// entry. It is a miss, and this instance must not overwrite it.
var ErrNewer = errors.New("wire: entry of a newer instance")

// ErrOther wraps [ErrBad]: the entry is of another key, or of another generation of its cache, as after a Clear.
var ErrOther = fmt.Errorf("%w: it belongs to another key or to a cleared generation", ErrBad)

// The reasons are made once, so that a Redis full of garbage costs no allocations.
var (
	errNoMagic        = fmt.Errorf("%w: the magic is missing", ErrBad)
	errTruncated      = fmt.Errorf("%w: shorter than its header", ErrBad)
	errFormat         = fmt.Errorf("%w: format 0 does not exist", ErrBad)
	errChecksum       = fmt.Errorf("%w: the checksum does not match", ErrBad)
	errOlderSchema    = fmt.Errorf("%w: older schema", ErrBad)
	errCodec          = fmt.Errorf("%w: made by another codec", ErrBad)
	errHardFirst      = fmt.Errorf("%w: hard expiry before the end of freshness", ErrBad)
	errEarlyLate      = fmt.Errorf("%w: early refresh after the end of freshness", ErrBad)
	errNegativeFilled = fmt.Errorf("%w: a negative entry with a payload", ErrBad)
	errNegativePacked = fmt.Errorf("%w: a negative entry with a compressed payload", ErrBad)
	errPackedTwice    = fmt.Errorf("%w: compressed with both S2 and Zstandard", ErrBad)

	errNewerFormat   = fmt.Errorf("%w: newer format", ErrNewer)
	errNewerSchema   = fmt.Errorf("%w: newer schema", ErrNewer)
	errUnknownFlags  = fmt.Errorf("%w: unknown flags", ErrNewer)
	errReservedInUse = fmt.Errorf("%w: the reserved byte is in use", ErrNewer)
)

// Header is what is known of an entry before its payload is decoded.
type Header struct {
	Codec   byte // id of the codec that made the payload
	Flags   Flags
	Schema  uint16 // schema version of the value's type
	KeyHash uint64 // see [KeyHash]

	// BuiltAt is the Redis server's time in milliseconds when the entry was stored; 0 = marked stale by an Expire.
	// Nothing vouches for it (it is outside the checksum): a reader must take any value, also a negative one.
	BuiltAt int64

	Fresh uint32 // milliseconds after BuiltAt while the entry is fresh
	Hard  uint32 // milliseconds after BuiltAt until nobody may serve it; at least Fresh
	Early uint32 // milliseconds after BuiltAt from which one caller refreshes early; at most Fresh

	Version uint64 // random for each store
}

// Want is what an entry must be to be read.
type Want struct {
	Codec   byte
	Schema  uint16
	KeyHash uint64
}

// Append appends a whole entry to dst, checksum included, and returns the extended slice. dst may be nil; payload is
// copied and must not overlap the free capacity of dst. Append stores what it is given: a header that [Parse] would
// refuse makes an entry that Parse refuses.
func Append(dst []byte, h Header, payload []byte) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, magic)
	dst = append(dst, format, h.Codec, byte(h.Flags), 0)
	dst = binary.BigEndian.AppendUint16(dst, h.Schema)
	dst = binary.BigEndian.AppendUint64(dst, h.KeyHash)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.BuiltAt))
	dst = binary.BigEndian.AppendUint32(dst, h.Fresh)
	dst = binary.BigEndian.AppendUint32(dst, h.Hard)
	dst = binary.BigEndian.AppendUint32(dst, h.Early)
	dst = binary.BigEndian.AppendUint64(dst, h.Version)
	dst = binary.BigEndian.AppendUint32(dst, checksum(dst[start:], payload))
	return append(dst, payload...)
}

// Parse reads an entry. The payload it returns aliases entry and has not been looked at beyond its checksum. Every
// error wraps [ErrBad] or [ErrNewer]; Parse neither panics nor allocates, whatever the input.
//
// The order of the checks is the contract. Of a newer format only the number can be read, so it comes before all but
// the magic. In our own format the key and the checksum come first: only an entry that somebody wrote for this very
// key, on purpose, can be newer; a flipped bit never makes one. An older schema is bad whatever else it carries, since
// this instance is then the newer one. Flags come before the codec, because a build that adds one may add a codec too.
func Parse(entry []byte, want Want) (Header, []byte, error) {
	switch {
	case len(entry) < VersionOffset+VersionSize:
		return Header{}, nil, errTruncated // no format is shorter
	case binary.BigEndian.Uint16(entry) != magic:
		return Header{}, nil, errNoMagic
	case entry[formatOffset] > format:
		return Header{}, nil, errNewerFormat
	case entry[formatOffset] < format:
		return Header{}, nil, errFormat
	case len(entry) < HeaderSize:
		return Header{}, nil, errTruncated
	}

	payload := entry[HeaderSize:]
	h := header(entry)
	var err error
	switch {
	case h.KeyHash != want.KeyHash:
		err = ErrOther
	case binary.BigEndian.Uint32(entry[checksumOffset:]) != checksum(entry, payload):
		err = errChecksum
	case h.Schema > want.Schema:
		err = errNewerSchema
	case h.Schema < want.Schema:
		err = errOlderSchema
	case h.Flags&^knownFlags != 0:
		err = errUnknownFlags
	case entry[reservedOffset] != 0:
		err = errReservedInUse
	case h.Codec != want.Codec:
		err = errCodec
	case h.Fresh > h.Hard:
		err = errHardFirst
	case h.Early > h.Fresh:
		err = errEarlyLate
	case h.Flags&FlagS2 != 0 && h.Flags&FlagZstd != 0:
		err = errPackedTwice
	case h.Flags&FlagNegative != 0 && h.Flags&(FlagS2|FlagZstd) != 0:
		err = errNegativePacked
	case h.Flags&FlagNegative != 0 && h.Flags&FlagExtended == 0 && len(payload) > 0:
		err = errNegativeFilled
	}
	if err != nil {
		return Header{}, nil, err
	}
	return h, payload, nil
}

// header reads the fields of an entry in our format that is no shorter than HeaderSize.
func header(entry []byte) Header {
	return Header{
		Codec:   entry[codecOffset],
		Flags:   Flags(entry[flagsOffset]),
		Schema:  binary.BigEndian.Uint16(entry[schemaOffset:]),
		KeyHash: binary.BigEndian.Uint64(entry[hashOffset:]),
		BuiltAt: int64(binary.BigEndian.Uint64(entry[BuiltAtOffset:])),
		Fresh:   binary.BigEndian.Uint32(entry[freshOffset:]),
		Hard:    binary.BigEndian.Uint32(entry[hardOffset:]),
		Early:   binary.BigEndian.Uint32(entry[earlyOffset:]),
		Version: binary.BigEndian.Uint64(entry[VersionOffset:]),
	}
}

// Describe reads an entry for a person: as [Parse] does for the cache that stored it, whichever that is. With an error
// the header is still what stands there if the format is ours, and zero if it is not; nothing vouches for it then.
func Describe(entry []byte) (Header, []byte, error) {
	var h Header
	if len(entry) >= HeaderSize && binary.BigEndian.Uint16(entry) == magic && entry[formatOffset] == format {
		h = header(entry)
	}
	_, payload, err := Parse(entry, Want{Codec: h.Codec, Schema: h.Schema, KeyHash: h.KeyHash})
	return h, payload, err
}

// checksum covers the payload's length, the header's bytes before and after built at, and the payload.
func checksum(header, payload []byte) uint32 {
	// MakeTable hands out one shared table for this polynomial, the one with hardware support; it builds none.
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := lengthSum(table, uint64(len(payload)))
	sum = crc32.Update(sum, table, header[:BuiltAtOffset])
	sum = crc32.Update(sum, table, header[freshOffset:checksumOffset])
	return crc32.Update(sum, table, payload)
}

// lengthSum is the checksum of n's eight bytes. crc32.Update would need them in a slice, which escapes to the heap.
func lengthSum(table *crc32.Table, n uint64) uint32 {
	sum := ^uint32(0)
	for shift := 56; shift >= 0; shift -= 8 {
		sum = table[byte(sum)^byte(n>>shift)] ^ sum>>8
	}
	return ^sum
}

// KeyHash names a full Redis key in one generation of its cache: the xxhash64, seed 0, of the key and the
// generation's eight bytes. It is the same in every process and every build. It guards against mistakes and cleared
// generations, not against somebody who can write to Redis.
func KeyHash(fullKey string, generation uint64) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(fullKey) // a Digest never fails
	var g [8]byte
	binary.BigEndian.PutUint64(g[:], generation)
	_, _ = d.Write(g[:])
	return d.Sum64()
}

// Seen is the version of whatever was read at an entry's key, in any format: the zero Seen if it is too short to have
// one. The acquire script compares the same bytes, to learn whether the entry changed since it was read.
type Seen struct {
	version [VersionSize]byte
	there   bool
}

// SeenIn returns the version of entry.
func SeenIn(entry []byte) (s Seen) {
	if len(entry) >= VersionOffset+VersionSize {
		s.there = true
		copy(s.version[:], entry[VersionOffset:])
	}
	return s
}

// String returns the bytes of the version, "" if there is none.
func (s Seen) String() string {
	if !s.there {
		return ""
	}
	return string(s.version[:])
}
