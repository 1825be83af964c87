//go:build !linux

package tcp

import "net"

// writeBuffer is how much the kernel may hold: what is there already cannot be
// overtaken by link control, nor be dropped once it is stale.
const writeBuffer = 512 << 10

// tune prepares a connection on which messages are written.
func tune(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetWriteBuffer(writeBuffer)
	}
}
