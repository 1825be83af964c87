package tcp

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The kernel takes little more than it can send: what waits there is out of reach.
func TestKernelHoldsLittle(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	room := func(prepare func(net.Conn)) (n int) {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		deaf, err := l.Accept() // it reads nothing
		require.NoError(t, err)
		defer deaf.Close()
		prepare(c)
		for part := make([]byte, 16<<10); err == nil; n += len(part) {
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			_, err = c.Write(part)
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		return n
	}
	untouched, tuned := room(func(net.Conn) {}), room(tune)
	t.Logf("%d KiB, tuned %d KiB", untouched>>10, tuned>>10)
	require.Less(t, tuned, untouched/2)
}
