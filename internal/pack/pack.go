// Package pack compresses payloads: with S2 for speed, or with Zstandard for size.
package pack

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Algorithm is a way to compress.
type Algorithm uint8

// The algorithms.
const (
	None Algorithm = iota
	S2             // one block of S2, the extension of Snappy
	Zstd           // one frame of Zstandard that says its size
)

// String returns the algorithm's name in errors.
func (a Algorithm) String() string {
	switch a {
	case None:
		return "none"
	case S2:
		return "s2"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// Errors of [Packer.Unpack], for errors.Is.
var (
	ErrCorrupt  = errors.New("pack: corrupt")
	ErrTooLarge = errors.New("pack: too large")
)

var (
	errNotPacked = errors.New("not a way to compress")
	errSizeless  = errors.New("the frame does not say its size")
)

// Packer compresses with any algorithm, and reads what any Packer has written. The zero value is ready. It is safe for
// concurrent use, has no goroutines, and holds nothing for Zstandard before it is met.
//
// A Zstandard encoder takes about 1.5 MB, a decoder 70 KB. There are as many as there are calls at once, so that no
// call waits for another one's payload; idle ones go with the next garbage collections.
type Packer struct {
	encoders sync.Pool // of *zstd.Encoder
	decoders sync.Pool // of *zstd.Decoder
}

// Pack compresses a payload. ok is false if that would save less than an eighth, which is not worth the time of the
// readers: the payload is then to be stored as it is.
func (p *Packer) Pack(a Algorithm, payload []byte) (packed []byte, ok bool) {
	switch a {
	case S2:
		packed = s2.Encode(nil, payload)
	case Zstd:
		packed = p.encode(payload)
	default:
		return nil, false
	}
	if len(packed) > len(payload)-len(payload)/8 {
		return nil, false
	}
	return packed, true
}

// Unpack returns the payload that was compressed to data, in memory of its own: nothing here keeps it. data may be
// anything. The error wraps [ErrTooLarge] if data says that it is longer than limit bytes when unpacked, which is found
// out before they are allocated, and [ErrCorrupt] if it is not what it says.
func (p *Packer) Unpack(a Algorithm, data []byte, limit int) ([]byte, error) {
	size, err := unpackedSize(a, data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, a, err)
	}
	if size > uint64(limit) {
		return nil, fmt.Errorf("%w: %s: %d bytes when unpacked, want at most %d", ErrTooLarge, a, size, limit)
	}
	var payload []byte
	if a == S2 {
		payload, err = s2.Decode(make([]byte, size), data)
	} else {
		payload, err = p.decode(data, make([]byte, 0, size))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, a, err)
	}
	return payload, nil
}

// unpackedSize is how long data says that it is when unpacked.
func unpackedSize(a Algorithm, data []byte) (uint64, error) {
	switch a {
	case S2:
		n, err := s2.DecodedLen(data)
		return uint64(n), err
	case Zstd:
		var h zstd.Header
		if err := h.Decode(data); err != nil {
			return 0, err
		}
		if !h.HasFCS {
			return 0, errSizeless
		}
		return h.FrameContentSize, nil
	default:
		return 0, errNotPacked
	}
}

// window is how many bytes back Zstandard looks for repetitions. For a payload of more than one block an encoder holds
// as much of it.
const window = 1 << 20

func (p *Packer) encode(payload []byte) []byte {
	e, ok := p.encoders.Get().(*zstd.Encoder)
	if !ok {
		e, _ = zstd.NewWriter(nil, // its errors are of the options
			zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(window),
			zstd.WithLowerEncoderMem(true),
			zstd.WithSingleSegment(true), // makes small frames say their size, too
			zstd.WithEncoderCRC(false),   // an entry has its own
		)
	}
	packed := e.EncodeAll(payload, nil)
	p.encoders.Put(e)
	return packed
}

// decode fills the capacity of payload, and fails where there is more. Only the first frame's size is known before.
func (p *Packer) decode(data, payload []byte) ([]byte, error) {
	d, ok := p.decoders.Get().(*zstd.Decoder)
	if !ok {
		d, _ = zstd.NewReader(nil, // its errors are of the options
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecodeAllCapLimit(true),
		)
	}
	payload, err := d.DecodeAll(data, payload)
	p.decoders.Put(d)
	return payload, err
}
