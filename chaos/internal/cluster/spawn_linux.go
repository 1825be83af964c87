package cluster

import "syscall"

// attributes put a child into a group of its own, so that a Ctrl-C is for this process
// alone, and have it killed when the thread that started it ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
