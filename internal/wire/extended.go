package wire

import (
	"encoding/binary"
	"fmt"
)

// The limits of what an [Extended] block holds.
const (
	MaxTags  = 64
	MaxTag   = 256  // bytes
	MaxToken = 4096 // bytes
)

// Extended is what may be stored beside a value: the block that stands before the payload of an entry with
// [FlagExtended], as
//
//	length   uvarint  of what follows
//	tags at  uvarint  see TagsAt
//	tags     uvarint  how many, each as uvarint length and bytes
//	token    uvarint  length and bytes
//
// Bytes of the block behind the token belong to a later build, and are skipped.
type Extended struct {
	// TagsAt is the number that the cache's tag sequence had before the value was loaded: an invalidation of one of
	// the tags with a higher number is newer than the value.
	TagsAt uint64
	Tags   []string
	Token  string
}

// Empty reports whether there is nothing to store.
func (x Extended) Empty() bool { return len(x.Tags) == 0 && x.Token == "" }

// HasExtended reports whether an entry, if it is one, has such a block.
func HasExtended(entry []byte) bool {
	return len(entry) > flagsOffset && Flags(entry[flagsOffset])&FlagExtended != 0
}

var errExtended = fmt.Errorf("%w: malformed block of tags and token", ErrBad)

// AppendExtended appends the block.
func AppendExtended(dst []byte, x Extended) []byte {
	block := binary.AppendUvarint(nil, x.TagsAt)
	block = binary.AppendUvarint(block, uint64(len(x.Tags)))
	for _, tag := range x.Tags {
		block = appendText(block, tag)
	}
	block = appendText(block, x.Token)
	dst = binary.AppendUvarint(dst, uint64(len(block)))
	return append(dst, block...)
}

// CutExtended splits what [Parse] returned as the payload of an entry with [FlagExtended] into its block and the
// payload proper.
func CutExtended(payload []byte) (x Extended, rest []byte, err error) {
	r := reader{data: payload}
	block := r.bytes(r.uvarint())
	rest = r.data
	b := reader{data: block, bad: r.bad}
	x.TagsAt = b.uvarint()
	if n := b.uvarint(); n > MaxTags {
		b.bad = true
	} else if n > 0 && !b.bad {
		x.Tags = make([]string, n)
		for i := range x.Tags {
			x.Tags[i] = string(b.bytes(b.uvarint()))
		}
	}
	x.Token = string(b.bytes(b.uvarint()))
	if b.bad {
		return Extended{}, nil, errExtended
	}
	return x, rest, nil
}

// CheckTags says what tags should be like if they cannot be stored, "" if they can.
func CheckTags(tags []string) (want string) {
	if len(tags) > MaxTags {
		return fmt.Sprintf("at most %d tags", MaxTags)
	}
	for _, tag := range tags {
		if len(tag) == 0 || len(tag) > MaxTag {
			return fmt.Sprintf("tags of 1 to %d bytes", MaxTag)
		}
	}
	return ""
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// reader reads from the front of data. What does not fit sets bad and reads as nothing.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.data)
	if n <= 0 {
		r.bad, r.data = true, nil
		return 0
	}
	r.data = r.data[n:]
	return v
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.data)) {
		r.bad, r.data = true, nil
		return nil
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b
}
