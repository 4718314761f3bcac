// Package codec turns values into the bytes a cache stores and back.
//
// [Msgpack] is the default. [JSON] is for entries that others read too, [Raw] for values that are bytes already; module
// codec/protocodec is for protobuf messages. A service brings its own by implementing [Codec].
//
// Whether a value comes back as it went in is up to its type, and no compiler says so: call [RoundTrip], or [Check] for
// another codec, in a test of each type that is cached.
package codec

import (
	"errors"
	"fmt"
	"reflect"
)

// Codec encodes and decodes the values of a cache. Its methods are called by many goroutines at once.
type Codec interface {
	// ID is stored in each entry, and an entry with another id is never decoded: it is rebuilt. So instances of one
	// cache with different codecs would replace each other's entries: raise the cache's schema version when you
	// change its codec. 0 is invalid, 1 to 63 belong to herdgate, 64 to 255 to services (see [FirstUserID]). Of
	// herdgate's, 1 is MessagePack, 2 JSON, 3 raw bytes, 4 protobuf.
	ID() byte

	// Name is the codec's name in errors and metrics, such as "msgpack".
	Name() string

	// Marshal encodes v, a value of the cache's type. The result belongs to the caller: the codec must not write to
	// it again. It must not be changed with v.
	Marshal(v any) ([]byte, error)

	// Unmarshal decodes data into v, a pointer to a zero value of the cache's type. data comes from Redis and may be
	// anything: Unmarshal must not panic on it, nor allocate memory out of proportion to it. Any error makes the entry
	// a miss.
	//
	// data may be shared, and it never changes again: the codec may keep it in v, as [Raw] does, but must not write to
	// it. Whoever calls Unmarshal has to keep this promise.
	Unmarshal(data []byte, v any) error
}

// The limits of herdgate's codecs. Marshal keeps them too: what it encodes, Unmarshal reads into a value of the same
// type.
const (
	// MaxSize is the longest payload, in bytes.
	MaxSize = 64 << 20

	// MaxDepth is how deep arrays and maps (objects, in JSON) may be nested. It means nothing to [Raw].
	MaxDepth = 1000

	// MaxMemory is the most memory, in bytes, that a payload may be able to take once decoded. One byte of payload
	// can ask for a whole zero struct, so the length alone bounds nothing. The bound is an estimate from above: the
	// payload's array elements times the largest element the type has, plus its map pairs times the largest pair.
	// While a slice is decoded, it may be held twice. It means nothing to [Raw].
	MaxMemory = 256 << 20
)

// FirstUserID is the least id a codec outside herdgate may use.
const FirstUserID = 64

// ErrMalformed is wrapped by Unmarshal's error when the payload is not exactly one well-formed value that fits the
// wanted type.
var ErrMalformed = errors.New("codec: malformed payload")

// ErrTooLarge is wrapped by the errors of Marshal and Unmarshal when the payload is longer, or would take more memory
// once decoded, than the codec allows.
var ErrTooLarge = errors.New("codec: too large")

// admitSize returns why a payload of n bytes is too long, if it is.
func admitSize(n int) error {
	if n > MaxSize {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrTooLarge, n, MaxSize)
	}
	return nil
}

// target returns the type that Unmarshal's v points to.
func target(v any) (reflect.Type, error) {
	ptr := reflect.ValueOf(v)
	if ptr.Kind() != reflect.Pointer || ptr.IsNil() {
		return nil, fmt.Errorf("unmarshal into %T: want a pointer that is not nil", v)
	}
	return ptr.Type().Elem(), nil
}
