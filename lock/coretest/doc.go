// Package coretest runs the tests of the cache with lockers that live in modules of their
// own: the same tests, compiled with another file in the place of locks_test.go. It is a
// module of its own too, and holds only tests.
package coretest
