package codec

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// ErrLossy is wrapped by the error of [Check] when a value changes on its way through a codec.
var ErrLossy = errors.New("codec: the value does not survive the codec")

// Check encodes v, decodes the result into a zero V and compares the two. Its error is c's own, or wraps [ErrLossy] and
// names the first place that differs, such as ".Owner.Name". It is meant for tests and for the start of a service; v
// should have every field set, since a zero value survives nearly anything.
//
// Values are equal if their Equal method says so, where they have one (so the zone of a time does not count); else
// field by field, unexported ones included, and down to the types in an any. nil and empty differ, as they do in JSON.
func Check[V any](c Codec, v V) error {
	data, err := c.Marshal(v)
	if err != nil {
		return err
	}
	var got V
	if err := c.Unmarshal(data, &got); err != nil {
		return err
	}
	if d := (comparison{}).difference(reflect.ValueOf(&v).Elem(), reflect.ValueOf(&got).Elem()); d != nil {
		return fmt.Errorf("%w: %s: %T%s: %s", ErrLossy, c.Name(), v, d.path, d.what)
	}
	return nil
}

// RoundTrip is [Check] with [Msgpack], the codec of a cache whose policy names none: it tells in a test whether a value
// comes back from Redis as its loader has made it. A value of the local tier has not been through a codec, so what is
// lost here is at first there and later not.
//
// What it finds is said at [Msgpack]: unexported fields, fields that are omitted, types in an any. What it does not: the
// zone of a time, since its Equal method ignores it. The instant stays; where the zone matters, keep its name beside it.
func RoundTrip[V any](v V) error {
	return Check(Msgpack(), v)
}

// diff is the first place where two values differ.
type diff struct{ path, what string }

// under puts a diff, if there is one, below a field or an index.
func (d *diff) under(parent string) *diff {
	if d == nil {
		return nil
	}
	return &diff{parent + d.path, d.what}
}

// comparison holds the pairs of pointers that were met, so that it ends where a custom decoder has made a circle.
type comparison map[[2]uintptr]bool

// difference compares two values of one type, and returns nil if they are equal.
func (c comparison) difference(want, got reflect.Value) *diff {
	if equal, ok := equalMethod(want, got); ok {
		if equal {
			return nil
		}
		return &diff{what: fmt.Sprintf("%v became %v", want, got)}
	}
	switch want.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Slice, reflect.Map, reflect.Func:
		if want.IsNil() != got.IsNil() {
			return &diff{what: fmt.Sprintf("%s became %s", nilness(want), nilness(got))}
		}
		if want.IsNil() {
			return nil
		}
	}

	switch want.Kind() {
	case reflect.Interface:
		if a, b := want.Elem().Type(), got.Elem().Type(); a != b {
			return &diff{what: fmt.Sprintf("the type %s became %s", a, b)}
		}
		return c.difference(want.Elem(), got.Elem())
	case reflect.Pointer:
		pair := [2]uintptr{want.Pointer(), got.Pointer()}
		if c[pair] {
			return nil
		}
		c[pair] = true
		return c.difference(want.Elem(), got.Elem())
	case reflect.Struct:
		for i := range want.NumField() {
			if d := c.difference(want.Field(i), got.Field(i)); d != nil {
				return d.under("." + want.Type().Field(i).Name)
			}
		}
		return nil
	case reflect.Slice, reflect.Array:
		if want.Len() != got.Len() {
			return &diff{what: fmt.Sprintf("%d elements became %d", want.Len(), got.Len())}
		}
		for i := range want.Len() {
			if d := c.difference(want.Index(i), got.Index(i)); d != nil {
				return d.under("[" + strconv.Itoa(i) + "]")
			}
		}
		return nil
	case reflect.Map:
		if want.Len() != got.Len() {
			return &diff{what: fmt.Sprintf("%d keys became %d", want.Len(), got.Len())}
		}
		for iter := want.MapRange(); iter.Next(); {
			place := fmt.Sprintf("[%v]", iter.Key())
			other := got.MapIndex(iter.Key())
			if !other.IsValid() {
				return &diff{place, "the key is gone"}
			}
			if d := c.difference(iter.Value(), other); d != nil {
				return d.under(place)
			}
		}
		return nil
	case reflect.Float32, reflect.Float64:
		if want.Float() != want.Float() && got.Float() != got.Float() {
			return nil // both are NaN
		}
	}
	if !want.Equal(got) {
		return &diff{what: fmt.Sprintf("%v became %v", want, got)}
	}
	return nil
}

// equalMethod calls want.Equal(got) if the type has such a method and may be used here: not in an unexported field, nor
// on nil.
func equalMethod(want, got reflect.Value) (equal, ok bool) {
	if !want.CanInterface() || want.Kind() == reflect.Interface {
		return false, false
	}
	if want.Kind() == reflect.Pointer && (want.IsNil() || got.IsNil()) {
		return false, false
	}
	m := want.MethodByName("Equal")
	if !m.IsValid() {
		return false, false
	}
	if t := m.Type(); t.NumIn() != 1 || t.In(0) != want.Type() || t.NumOut() != 1 || t.Out(0).Kind() != reflect.Bool {
		return false, false
	}
	return m.Call([]reflect.Value{got})[0].Bool(), true
}

func nilness(v reflect.Value) string {
	if v.IsNil() {
		return "nil"
	}
	return "a " + v.Type().String() + " that is not nil"
}
