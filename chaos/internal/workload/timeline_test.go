package workload

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeline(t *testing.T) {
	l := &timeline{changed: make(chan struct{})}
	_, ok, changed := l.after(0)
	require.False(t, ok)
	for _, at := range []time.Duration{10, 20, 50, 60} {
		l.note(func() time.Duration { return at })
	}
	select {
	case <-changed:
	default:
		require.Fail(t, "nobody is told")
	}
	at, ok, _ := l.after(20)
	require.True(t, ok)
	require.EqualValues(t, 50, at)
	_, ok, _ = l.after(60)
	require.False(t, ok)
	for _, tt := range []struct{ from, to, want time.Duration }{
		{0, 60, 30},
		{30, 40, 30}, // within a gap
		{30, 55, 30},
		{51, 60, 10},
		{55, 100, 40}, // one that has not ended
		{0, 5, 10},
	} {
		require.Equal(t, tt.want, l.longestGap(tt.from, tt.to), "%v to %v", tt.from, tt.to)
	}
}

func TestValue(t *testing.T) {
	for _, name := range []string{"p1-1", "p1-2", "x-99"} {
		v := value(name)
		require.Equal(t, v, value(name))
		require.Equal(t, name, string(v[:len(name)]))
		require.GreaterOrEqual(t, len(v), 100)
		require.LessOrEqual(t, len(v), 1000)
	}
}
