// Package codec turns values into the bytes a cache stores and back.
//
// [Msgpack] is the default. A service brings its own by implementing [Codec].
package codec

import "errors"

// Codec encodes and decodes the values of a cache. Its methods are called by many goroutines at once.
type Codec interface {
	// ID is stored in each entry, and an entry with another id is never decoded: it is rebuilt. So instances of one
	// cache with different codecs would replace each other's entries: raise the cache's schema version when you
	// change its codec. 0 is invalid, 1 to 63 belong to herdgate, 64 to 255 to services (see [FirstUserID]).
	ID() byte

	// Name is the codec's name in errors and metrics, such as "msgpack".
	Name() string

	// Marshal encodes v, a value of the cache's type. The result belongs to the caller: the codec must not write to
	// it again. It must not be changed with v.
	Marshal(v any) ([]byte, error)

	// Unmarshal decodes data into v, a pointer to a zero value of the cache's type. data comes from Redis and may be
	// anything: Unmarshal must not panic on it, nor allocate memory out of proportion to it. data is shared: the
	// codec must neither write to it nor keep it in v. Any error makes the entry a miss.
	Unmarshal(data []byte, v any) error
}

// FirstUserID is the least id a codec outside herdgate may use.
const FirstUserID = 64

// ErrMalformed is wrapped by Unmarshal's error when the payload is not exactly one well-formed value that fits the
// wanted type.
var ErrMalformed = errors.New("codec: malformed payload")

// ErrTooLarge is wrapped by the errors of Marshal and Unmarshal when the payload is longer, or would take more memory
// once decoded, than the codec allows.
var ErrTooLarge = errors.New("codec: too large")
