//go:build !linux

package testutil

import "syscall"

// dieWithParent has no equivalent here: a test binary that is killed leaves its
// children behind until their own lifetime ends.
func dieWithParent() *syscall.SysProcAttr { return nil }
