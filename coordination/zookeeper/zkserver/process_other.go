//go:build !linux

package zkserver

import "syscall"

// withParent would have the server end with the process that started it; there is no way here.
func withParent() *syscall.SysProcAttr { return nil }
