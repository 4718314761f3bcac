package codec

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// footprint is the most memory, in bytes, that one array element and one map pair of a payload can take when it is
// decoded into a given type, wherever in the payload they stand. It is 0 where the type has no use for them. Floats,
// because products of array lengths overflow integers.
type footprint struct {
	elem, pair float64
}

// of is the most memory that a payload with n can take, beside the strings and byte slices in it.
func (f footprint) of(n counts) float64 {
	return roundUp * (f.elem*float64(n.elems) + f.pair*float64(n.pairs))
}

// rules are what decoders differ in.
type rules struct {
	// custom reports whether a value of a type that is neither pointer nor interface, or a pointer to it, decodes
	// itself: what that allocates is not measured.
	custom func(reflect.Type) bool

	growth float64 // most capacity of a decoded slice, as a multiple of its length
}

func msgpackRules() rules {
	return rules{growth: 1, custom: func(t reflect.Type) bool {
		p := reflect.PointerTo(t)
		return p.Implements(reflect.TypeFor[msgpack.CustomDecoder]()) ||
			p.Implements(reflect.TypeFor[msgpack.Unmarshaler]()) ||
			p.Implements(reflect.TypeFor[encoding.BinaryUnmarshaler]()) ||
			p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	}}
}

// jsonRules allow for slices that are appended to, since JSON does not announce their length.
func jsonRules() rules {
	return rules{growth: 2, custom: func(t reflect.Type) bool {
		p := reflect.PointerTo(t)
		return p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
			p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	}}
}

// footprints remembers the footprint of each type it met.
type footprints struct {
	rules rules
	types sync.Map // reflect.Type → footprint
}

// admit returns why a payload that holds n may not be decoded into a value of type t, if it may not.
func (fs *footprints) admit(n counts, t reflect.Type) error {
	if t == nil {
		return nil // nil is encoded, and takes nothing
	}
	f, ok := fs.types.Load(t)
	if !ok {
		f, _ = fs.types.LoadOrStore(t, footprintOf(t, fs.rules))
	}
	if need := f.(footprint).of(n); need > MaxMemory {
		return fmt.Errorf("%w: %d array elements and %d map pairs may take %.0f bytes of memory, want at most %d",
			ErrTooLarge, n.elems, n.pairs, need, MaxMemory)
	}
	return nil
}

// What the Go runtime adds. Sizes are in bytes, rounded up.
const (
	roundUp     = 1.125 // the allocator's size classes waste up to an eighth
	mapHeader   = 48    // of an empty map
	mapGroup    = 8     // slots that the first pair of a map allocates; later pairs take less than 3 each
	mapIndirect = 128   // larger keys and elements are stored behind a pointer, outside the slots
)

func footprintOf(t reflect.Type, r rules) footprint {
	m := measure{rules: r, types: make(map[reflect.Type]*measured)}
	m.size(t)
	return m.footprint
}

// measure walks a type.
type measure struct {
	footprint
	rules
	types map[reflect.Type]*measured
}

type measured struct {
	size         float64
	open, cyclic bool // being measured; met again meanwhile
}

// size returns the most bytes that one value of t takes with all that hangs on it by pointers: what one head in the
// payload can allocate. Contents of slices and maps are not in it, since each has a head of its own: they are noted in
// the footprint. So is a type that contains itself, each level of which needs another head.
func (m *measure) size(t reflect.Type) float64 {
	if known := m.types[t]; known != nil {
		known.cyclic = known.cyclic || known.open
		return known.size
	}
	this := &measured{size: float64(t.Size()), open: true}
	m.types[t] = this
	this.size += m.beyond(t)
	this.open = false
	if this.cyclic {
		m.elem = max(m.elem, this.size)
		m.pair = max(m.pair, this.size)
	}
	return this.size
}

// beyond returns the bytes that a value of t takes outside its own t.Size().
func (m *measure) beyond(t reflect.Type) float64 {
	if t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface && m.custom(t) {
		return 0 // of a pointer, what it points to is looked at next
	}
	switch t.Kind() {
	case reflect.Pointer:
		return m.size(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 { // bytes are stored as they are
			spare := (m.growth - 1) * float64(t.Elem().Size())
			m.elem = max(m.elem, m.size(t.Elem())+spare)
		}
	case reflect.Map:
		m.noteMap(t.Key(), t.Elem())
		return mapHeader
	case reflect.Interface:
		// It may come to hold a []any or a map[string]any of more of its kind; an empty map is the most that a
		// single byte makes of it.
		m.elem = max(m.elem, float64(t.Size()+mapHeader))
		m.noteMap(reflect.TypeFor[string](), reflect.TypeFor[any]())
		return mapHeader
	case reflect.Array:
		return float64(t.Len()) * (m.size(t.Elem()) - float64(t.Elem().Size()))
	case reflect.Struct:
		var sum float64
		for f := range t.Fields() {
			if f.IsExported() || f.Anonymous {
				sum += m.size(f.Type) - float64(f.Type.Size())
			}
		}
		return sum
	}
	return 0
}

func (m *measure) noteMap(key, elem reflect.Type) {
	slot := float64(min(key.Size(), mapIndirect) + min(elem.Size(), mapIndirect))
	m.pair = max(m.pair, mapGroup*slot+m.size(key)+m.size(elem))
}
