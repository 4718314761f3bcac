// Package historytest has no code but tests: histories of locks, recorded with every backend while messages are lost and
// connections cut, are checked for being those of one lock. It is a module of its own because it depends on all backends
// and on the checker, which nobody else should.
package historytest
