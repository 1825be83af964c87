package tcp

import (
	"net"
	"syscall"
)

// unsentBytes is how much the kernel may hold that it has not sent yet: what is
// there already cannot be overtaken by link control, nor be dropped once it is
// stale. What is sent and not acknowledged is the kernel's to choose, so that
// throughput over long distances does not suffer.
const unsentBytes = 256 << 10

// tcpNotSentLowat is TCP_NOTSENT_LOWAT, which package syscall does not have.
const tcpNotSentLowat = 0x19

// tune prepares a connection on which messages are written. It is no matter if the
// kernel does not know how.
func tune(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, unsentBytes)
	})
}
