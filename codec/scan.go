package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

var (
	errTruncated = fmt.Errorf("%w: it ends in the middle of a value", ErrMalformed)
	errLength    = fmt.Errorf("%w: a length exceeds what is left of the payload", ErrMalformed)
	errTrailing  = fmt.Errorf("%w: bytes after the value (a custom encoder must write exactly one value)", ErrMalformed)
	errReserved  = fmt.Errorf("%w: the byte c1 begins no value", ErrMalformed)
	errInterned  = fmt.Errorf("%w: interned strings are not supported: remove the intern tag", ErrMalformed)
	errEmptyExt  = fmt.Errorf("%w: an empty extension", ErrMalformed)
	errTooDeep   = fmt.Errorf("%w: nested deeper than %d", ErrTooLarge, MaxDepth)

	errInsideExt = errors.New("an extension stands where another kind of value is wanted")
)

// counts is what a payload holds.
type counts struct {
	elems, pairs int // array elements, map pairs
	extensions   int
}

// scan checks that data is exactly one MessagePack value, that every length in it fits what follows, and that it is
// not nested deeper than MaxDepth. It does not allocate.
//
// Since every element that is announced is then also found, and takes at least a byte, the announced counts of all
// arrays and maps together are no more than the bytes of data. This is what bounds a decoder that trusts them.
func scan(data []byte) (counts, error) {
	s := scanner{data: data}
	if err := s.values(1, 0); err != nil {
		return counts{}, err
	}
	if s.pos != len(data) {
		return counts{}, errTrailing
	}
	return s.counts, nil
}

type scanner struct {
	counts
	data []byte
	pos  int
}

// values skips n values that are enclosed in depth arrays and maps. What arrays and maps announce is not compared with
// what is left: elements that are missing are found missing, and an unfinished payload can be scanned for its depth.
func (s *scanner) values(n, depth int) error {
	for range n {
		h, err := parseHead(s.data[s.pos:])
		if err != nil {
			return err
		}
		s.pos += h.size
		children := h.n
		switch h.kind {
		case kindScalar:
			continue
		case kindBytes, kindExtension:
			if h.n > len(s.data)-s.pos {
				return errLength
			}
			if h.kind == kindExtension {
				if err := s.extension(s.data[s.pos-1], h.n); err != nil {
					return err
				}
			}
			s.pos += h.n
			continue
		case kindArray:
			s.elems += h.n
		case kindMap:
			s.pairs += h.n
			children *= 2
		}
		if children == 0 {
			continue
		}
		if depth == MaxDepth {
			return errTooDeep
		}
		if err := s.values(children, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// extension counts an extension, or refuses it where the decoder could take it for something else than the bytes of
// one value. See reader.
func (s *scanner) extension(id byte, size int) error {
	const interned = 0x80
	switch {
	case id == interned:
		return errInterned
	case size == 0:
		return errEmptyExt
	}
	s.extensions++
	return nil
}

type kind byte

const (
	kindScalar kind = iota
	kindBytes       // strings and binaries
	kindArray
	kindMap
	kindExtension
)

// head is the beginning of a value: all of it for a scalar, else what comes before the contents.
type head struct {
	kind kind
	size int // bytes of the head
	n    int // bytes, elements or pairs that follow
}

// parseHead reads the head at the start of b.
func parseHead(b []byte) (head, error) {
	if len(b) == 0 {
		return head{}, errTruncated
	}
	c := b[0]
	switch {
	case c < 0x80 || c >= 0xe0: // small integers
		return head{kindScalar, 1, 0}, nil
	case c < 0x90:
		return head{kindMap, 1, int(c & 0x0f)}, nil
	case c < 0xa0:
		return head{kindArray, 1, int(c & 0x0f)}, nil
	case c < 0xc0:
		return head{kindBytes, 1, int(c & 0x1f)}, nil
	}

	var h head
	switch c {
	case 0xc0, 0xc2, 0xc3: // nil, false, true
		return head{kindScalar, 1, 0}, nil
	case 0xc1:
		return head{}, errReserved
	case 0xcc, 0xd0: // 8-bit integers
		h = head{kindScalar, 2, 0}
	case 0xcd, 0xd1:
		h = head{kindScalar, 3, 0}
	case 0xca, 0xce, 0xd2: // float32 and 32-bit integers
		h = head{kindScalar, 5, 0}
	case 0xcb, 0xcf, 0xd3: // float64 and 64-bit integers
		h = head{kindScalar, 9, 0}
	case 0xc4, 0xd9:
		return sized(kindBytes, b, 1)
	case 0xc5, 0xda:
		return sized(kindBytes, b, 2)
	case 0xc6, 0xdb:
		return sized(kindBytes, b, 4)
	case 0xdc:
		return sized(kindArray, b, 2)
	case 0xdd:
		return sized(kindArray, b, 4)
	case 0xde:
		return sized(kindMap, b, 2)
	case 0xdf:
		return sized(kindMap, b, 4)
	case 0xc7:
		return sized(kindExtension, b, 1)
	case 0xc8:
		return sized(kindExtension, b, 2)
	case 0xc9:
		return sized(kindExtension, b, 4)
	default: // d4 to d8: extensions of 1, 2, 4, 8, 16 bytes
		h = head{kindExtension, 2, 1 << (c - 0xd4)}
	}
	if len(b) < h.size {
		return head{}, errTruncated
	}
	return h, nil
}

// sized reads a head whose length takes width bytes after the code; an extension's id follows.
func sized(k kind, b []byte, width int) (head, error) {
	h := head{kind: k, size: 1 + width}
	if k == kindExtension {
		h.size++
	}
	if len(b) < h.size {
		return head{}, errTruncated
	}
	var n uint32
	switch width {
	case 1:
		n = uint32(b[1])
	case 2:
		n = uint32(binary.BigEndian.Uint16(b[1:]))
	case 4:
		n = binary.BigEndian.Uint32(b[1:])
	}
	if int64(n) > MaxSize {
		return head{}, errLength // before int, which may have 32 bits
	}
	h.n = int(n)
	return h, nil
}

// reader feeds a scanned payload to a msgpack Decoder and keeps it on the values the scan saw.
//
// Where it wants a map, the Decoder skips the head of an extension and takes the extension's contents, which the scan
// did not look into, for the map: four bytes there could announce four billion pairs. Rightful readers of an
// extension take its contents by Read, as a block; only this mistake, and interned strings, take them by ReadByte,
// since that is how the Decoder reads the first byte of a value. So ReadByte inside an extension is an error. An empty
// extension has no inside to guard: the scan refuses it.
type reader struct {
	data []byte
	pos  int

	// inside and next belong to the last value whose head was looked at: inside is where its contents begin if it is an extension, else
	// equal to next, where the next value's head is.
	inside, next int
}

func newReader(data []byte, n counts) reader {
	if n.extensions == 0 {
		return reader{data: data, inside: len(data), next: len(data)} // nothing to guard
	}
	return reader{data: data}
}

func (r *reader) ReadByte() (byte, error) {
	if r.pos >= len(r.data) {
		return 0, io.EOF
	}
	for r.next <= r.pos {
		h, err := parseHead(r.data[r.next:])
		if err != nil {
			return 0, err
		}
		r.next += h.size
		r.inside = r.next
		switch h.kind {
		case kindBytes:
			r.next += h.n
			r.inside = r.next
		case kindExtension:
			r.next += h.n
		}
	}
	if r.pos >= r.inside {
		return 0, errInsideExt
	}
	r.pos++
	return r.data[r.pos-1], nil
}

// UnreadByte takes back the last ReadByte. The Decoder only takes back the first byte of a value.
func (r *reader) UnreadByte() error {
	if r.pos == 0 {
		return io.ErrNoProgress
	}
	r.pos--
	return nil
}

func (r *reader) Read(p []byte) (int, error) {
	if r.pos >= len(r.data) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.pos:])
	r.pos += n
	return n, nil
}
