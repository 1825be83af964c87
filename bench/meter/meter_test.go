package meter_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/bench/meter"
)

func TestPercentiles(t *testing.T) {
	var l meter.Latencies
	require.Zero(t, l.Percentiles())
	for i := 1000; i >= 1; i-- {
		l.Add(time.Duration(i))
	}
	require.Equal(t, meter.Percentiles{Count: 1000, P50: 500, P99: 990, P999: 999, Max: 1000}, l.Percentiles())
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2, meter.Median([]int{3, 1, 2}))
	require.Equal(t, 2, meter.Median([]int{4, 3, 1, 2}))
	require.Zero(t, meter.Median[int](nil))
	rounds := []meter.Round{
		{Records: 10, Bytes: 2e6, Elapsed: time.Second},
		{Records: 30, Bytes: 6e6, Elapsed: time.Second},
		{Records: 20, Bytes: 4e6, Elapsed: time.Second},
	}
	require.Equal(t, 20.0, meter.MedianBy(rounds, meter.Round.RecordRate))
	require.Equal(t, 4.0, meter.MedianBy(rounds, meter.Round.MBRate))
	require.Equal(t, 0.5, rounds[0].PerByte(1e6))
	require.Equal(t, -1.0, rounds[0].PerByte(meter.Unknown))
}

func TestFS(t *testing.T) {
	var w meter.Writes
	fs := w.FS(vfs.NewMem())
	f, err := fs.Create("a", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.SyncData())
	require.NoError(t, f.Close())
	dir, err := fs.OpenDir("")
	require.NoError(t, err)
	require.NoError(t, dir.Sync())
	require.NoError(t, dir.Close())
	require.Equal(t, int64(5), w.Bytes())
	require.Equal(t, int64(3), w.Syncs())
}

func TestProcess(t *testing.T) {
	cpu, err := meter.CPU()
	require.NoError(t, err)
	require.Positive(t, cpu)
	require.GreaterOrEqual(t, meter.DiskWritten(), int64(meter.Unknown))
}
