package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A killed broker's partitions move, and its records are there after it returned.
func TestKillAndRestart(t *testing.T) {
	for _, net := range []string{"tcp", "inproc"} {
		t.Run(net, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var writes meter.Writes
			c, err := cluster.Open(ctx, cluster.Options{Dir: t.TempDir(), Net: net, FS: writes.FS(vfs.Default)})
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			require.NoError(t, c.CreateTopic(ctx, "t", tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}))
			p := c.Partition("t", 0)
			_, err = p.Append(ctx, tidemark.Record{Value: make([]byte, 1000)})
			require.NoError(t, err)
			require.Greater(t, writes.Bytes(), int64(3*1000))
			require.GreaterOrEqual(t, writes.Syncs(), int64(3))

			s, err := p.Status(ctx)
			require.NoError(t, err)
			require.NoError(t, c.Kill(s.Leader))
			require.Nil(t, c.Broker(s.Leader))
			require.NoError(t, c.ExpireSessions(ctx, s.Leader))
			for at := s.Leader; at == s.Leader || at < 0; { // it has moved: what is sent before has an unknown outcome
				now, err := p.Status(ctx)
				require.NoError(t, err)
				at = now.Leader
			}
			_, err = p.Append(ctx, tidemark.Record{Value: []byte("second")})
			require.NoError(t, err)

			require.NoError(t, c.Restart(ctx, s.Leader))
			require.NoError(t, c.Broker(s.Leader).Ready(ctx))
			require.NotNil(t, c.Store(s.Leader))
			f, err := p.Fetch(ctx, 0, tidemark.FetchOptions{})
			require.NoError(t, err)
			require.Len(t, f.Records, 2)
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []cluster.Options{{}, {Dir: "x", Net: "pigeon"}, {Dir: "x", Brokers: -1}} {
		_, err := cluster.Open(t.Context(), o)
		require.Error(t, err)
	}
}
