package local_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestM01AppendAndRead(t *testing.T) {
	ctx := deadline(t)
	c, err := local.Open(ctx, t.TempDir(), local.Options{})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Controller().EnsureTopic(ctx, "orders", tidemark.TopicConfig{Partitions: 3}))
	p := c.Partition("orders", 0)
	for i := range 10 {
		res, err := p.Append(ctx, tidemark.Record{Value: fmt.Appendf(nil, "v%d", i)})
		require.NoError(t, err)
		require.Equal(t, int64(i), res.Base)
	}
	n := 0
	for rec, err := range p.Records(ctx, tidemark.Earliest()) {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("v%d", n), string(rec.Value))
		if n++; n == 10 {
			break
		}
	}
}
