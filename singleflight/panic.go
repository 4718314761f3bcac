package singleflight

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrGoexit is what every waiter of a flight gets when its function ended its
// goroutine by [runtime.Goexit] (testing's FailNow does) instead of returning.
var ErrGoexit = errors.New("singleflight: the function called runtime.Goexit")

// A PanicError is the error of a function that panicked.
type PanicError struct {
	Value any    // what the function panicked with
	Stack []byte // the stack of the panicking goroutine, as text
}

// Error tells the panic's value on one line; the stack is left to the field.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value if it is an error, else nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Protect runs fn in the calling goroutine and returns its result; if fn panics,
// the zero V and a [*PanicError]. It cannot stop a [runtime.Goexit] in fn, nor a
// fatal error of the runtime (concurrent map writes, out of memory).
func Protect[V any](fn func() (V, error)) (v V, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return fn()
}
