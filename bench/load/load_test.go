package load

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/bench/peers"
)

// kept is a partition with these values.
type kept [][]byte

func (k kept) Read(_ context.Context, _ int, f func([]byte) error) error {
	for _, v := range k {
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}

func TestCheck(t *testing.T) {
	v, err := newValues(100, false)
	require.NoError(t, err)
	value := func(partition, writer uint32, number uint64) []byte {
		p := make([]byte, 100)
		v.fill(p, partition, writer, number)
		return p
	}
	a0, a1, a2, b0 := value(0, 0, 0), value(0, 0, 1), value(0, 0, 2), value(0, 1, 0)
	flipped := value(0, 0, 1)
	flipped[99] ^= 1
	for name, c := range map[string]struct {
		has  kept
		fail string
	}{
		"whole":             {kept{a0, b0, a1, a2}, ""},
		"writers mixed":     {kept{b0, a0, a1, a2}, ""},
		"lost at the end":   {kept{a0, b0, a1}, "2 values of writer 0, 3 were acknowledged"},
		"lost in between":   {kept{a0, b0, a2}, "lost, doubled or reordered"},
		"lost all of b":     {kept{a0, a1, a2}, "0 values of writer 1, 1 were"},
		"doubled":           {kept{a0, a0, b0, a1, a2}, "lost, doubled or reordered"},
		"reordered":         {kept{a0, b0, a2, a1}, "lost, doubled or reordered"},
		"damaged":           {kept{a0, b0, flipped, a2}, "other contents"},
		"cut":               {kept{a0[:99]}, "99 bytes"},
		"of another place":  {kept{value(1, 0, 0)}, "of partition 1"},
		"of another writer": {kept{value(0, 2, 0)}, "of writer 2"},
		"too many":          {kept{a0, b0, a1, a2, value(0, 0, 3)}, "4 values of writer 0"},
	} {
		t.Run(name, func(t *testing.T) {
			seen, err := check(t.Context(), c.has, v, [][]uint64{{3, 1}})
			if c.fail == "" {
				require.NoError(t, err)
				require.Equal(t, int64(4), seen)
			} else {
				require.ErrorContains(t, err, c.fail)
			}
		})
	}
	_, err = newValues(15, false)
	require.Error(t, err)
}

// A batch of values compresses as it is meant to.
func TestValuesCompress(t *testing.T) {
	for half, want := range map[bool]float64{false: 1, true: 0.5} {
		v, err := newValues(10<<10, half)
		require.NoError(t, err)
		var packed bytes.Buffer
		z, err := zstd.NewWriter(&packed)
		require.NoError(t, err)
		const n = 100
		value := make([]byte, v.size)
		for i := range n {
			v.fill(value, 0, 0, uint64(i))
			_, err := z.Write(value)
			require.NoError(t, err)
		}
		require.NoError(t, z.Close())
		require.InDelta(t, want, float64(packed.Len())/float64(n*v.size), 0.06)
	}
}

func TestRun(t *testing.T) {
	for name, plan := range map[string]Plan{
		"stream":  {Partitions: 3, ValueBytes: 1024, InFlight: 256},
		"callers": {Partitions: 3, ValueBytes: 100, Callers: 5, MinRecords: 20},
		"feeder":  {Partitions: 1, ValueBytes: 1000, InFlight: 1000},
		"half":    {Partitions: 1, ValueBytes: 10 << 10, InFlight: 16, Half: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			plan.WarmUp, plan.Duration = 20*time.Millisecond, 100*time.Millisecond
			who := peers.TidemarkInproc
			if name == "feeder" {
				who = peers.Ceiling
			}
			p, err := peers.Open(ctx, who, peers.Config{
				Dir: t.TempDir(), Partitions: plan.Partitions, InFlight: plan.InFlight, ValueBytes: plan.ValueBytes,
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			round, err := Run(ctx, p, plan)
			require.NoError(t, err)
			require.GreaterOrEqual(t, round.Records, max(1, plan.MinRecords))
			require.GreaterOrEqual(t, round.Checked, round.Records)
			require.Positive(t, round.Latency.Count)
			require.Positive(t, round.Latency.P50)
			require.Greater(t, round.Written, round.Bytes)
			require.Positive(t, round.Syncs)
		})
	}
}

// failing refuses the third record.
type failing struct {
	peers.Log
	n int
}

func (f *failing) Append(_ context.Context, _ int, _ []byte, done func(error)) {
	if f.n++; f.n == 3 {
		done(context.DeadlineExceeded)
		return
	}
	done(nil)
}

func TestAppendFails(t *testing.T) {
	_, err := Run(t.Context(), &failing{}, Plan{Partitions: 1, ValueBytes: 100, InFlight: 1, WarmUp: time.Hour})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
