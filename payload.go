package herdgate

import (
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/pack"
	"github.com/herdgate/herdgate/internal/wire"
	"github.com/herdgate/herdgate/singleflight"
)

// body is a value as an entry holds it: what its codec has made of it, compressed or not.
type body struct {
	data  []byte
	flags wire.Flags // how it is compressed
	size  int        // before that
}

// pack encodes a value, and compresses it if its policy says so. Without Redis nothing
// but its size is of use.
func (c *Cache[V]) pack(value V, p *Policy) (body, error) {
	data, err := singleflight.Protect(func() ([]byte, error) { return c.policy.Codec.Marshal(value) })
	if err != nil {
		return body{}, err
	}
	b := body{data: data, size: len(data)}
	// A codec of the user's may make more than readers would unpack.
	if c.gate.store != nil && b.size > p.CompressAbove && b.size <= codec.MaxSize {
		algorithm, flag := p.Compression.stored()
		if packed, ok := c.packer.Pack(algorithm, data); ok {
			b.data, b.flags = packed, flag
		}
	}
	return b, nil
}

// unpack reads the payload of an entry, and returns what the codec had made. That
// shares no memory with anything but the entry.
func (c *Cache[V]) unpack(data []byte, flags wire.Flags) (b body, plain []byte, err error) {
	b = body{data: data, flags: flags & (wire.FlagS2 | wire.FlagZstd)}
	switch b.flags {
	case wire.FlagS2:
		plain, err = c.packer.Unpack(pack.S2, data, codec.MaxSize)
	case wire.FlagZstd:
		plain, err = c.packer.Unpack(pack.Zstd, data, codec.MaxSize)
	default:
		plain = data
	}
	b.size = len(plain)
	return b, plain, err
}

// stored is what is done to a payload, and the flag that says so.
func (k Compression) stored() (pack.Algorithm, wire.Flags) {
	switch k {
	case S2:
		return pack.S2, wire.FlagS2
	case Zstd:
		return pack.Zstd, wire.FlagZstd
	default:
		return pack.None, 0
	}
}
