package child

import "syscall"

// DieWithParent makes the kernel kill the child when the thread that started it
// ends. Threads of a Go program live as long as the program, unless a goroutine
// ends while locked to its thread; tests that do that must not start processes.
func DieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
