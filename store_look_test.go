package tidemark

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// D16: a process that stood still does not take its own absence for a hang of the disk;
// a disk that hangs shows all the same.
func TestStoreLook(t *testing.T) {
	const every = time.Second
	var l storeLook
	require.Equal(t, 9*time.Second, l.fair(100*time.Second, 9*time.Second, every), "of what was before nothing is known")
	for s := time.Duration(101); s <= 104; s++ {
		require.Equal(t, (s-100)*time.Second, l.fair(s*time.Second, (s-100)*time.Second, every), "a disk that hangs")
	}
	require.Zero(t, l.fair(112*time.Second, 12*time.Second, every), "it stood still for 8 s")
	require.Equal(t, time.Second, l.fair(113*time.Second, 13*time.Second, every))
	require.Equal(t, 2*time.Second, l.fair(114*time.Second, 14*time.Second, every), "the disk hangs nevertheless")
	require.Equal(t, 500*time.Millisecond, l.fair(114*time.Second, 500*time.Millisecond, every), "a younger write")

	require.Zero(t, l.fair(120*time.Second, 20*time.Second, every))
	for s := time.Duration(123); s < 140; s += 3 { // always late
		require.Equal(t, (s-120)*time.Second, l.fair(s*time.Second, s*time.Second, every), "not twice running")
	}
}
