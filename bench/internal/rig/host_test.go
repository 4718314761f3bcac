package rig

import (
	"os"
	"slices"
	"testing"
)

func TestAHostTellsOfAFailureAndCleansUpInReverse(t *testing.T) {
	h := NewHost(t.Context())
	var order []int
	var dir string
	if err := h.Try(func() {
		dir = h.TempDir()
		h.Cleanup(func() { order = append(order, 1) })
		h.Cleanup(func() { order = append(order, 2); h.Fatal("stuck") })
	}); err != nil {
		t.Error(err)
	}
	after := false
	if err := h.Try(func() { h.Fatalf("no %s", "java"); after = true }); err == nil || err.Error() != "no java" || after {
		t.Errorf("got error %v, gone on %t; want no java, and not", err, after)
	}
	if err := h.Close(); err == nil || err.Error() != "stuck" {
		t.Errorf("got error %v of a clean-up, want stuck", err)
	}
	if !slices.Equal(order, []int{2, 1}) {
		t.Errorf("cleaned up in the order %v", order)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}
