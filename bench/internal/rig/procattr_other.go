//go:build !linux

package rig

import "syscall"

// dieWithParent has no equivalent here: a suite that is killed leaves its redis-servers
// behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
