package zkserver

import "syscall"

// withParent has the server end with the process that started it.
func withParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
