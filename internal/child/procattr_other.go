//go:build !linux

package child

import "syscall"

// DieWithParent has no equivalent here: a test binary that is killed leaves its
// children behind until their own lifetime ends.
func DieWithParent() *syscall.SysProcAttr { return nil }
