//go:build !linux

package cluster

import "syscall"

// attributes put a child into a group of its own, so that a Ctrl-C is for this process alone.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
