package main

import (
	"testing"

	"go.uber.org/goleak"
)

// Libraries of peers start goroutines when they are linked, before any test.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }
