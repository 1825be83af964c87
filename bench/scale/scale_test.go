package scale

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/cluster"
)

func TestMain(m *testing.M) {
	if started, err := Child(context.Background(), os.Stdin, os.Stdout); started {
		if err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func tiny(t *testing.T) (context.Context, Options) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx, Options{Dir: t.TempDir(), Scale: 0.001, Rounds: 1, Say: t.Logf, session: 300 * time.Millisecond}
}

// Each workload runs, however small, and leaves nothing behind.
func TestWorkloads(t *testing.T) {
	for _, w := range Workloads() {
		if w.Name == "growth" {
			continue // it does not become small
		}
		t.Run(w.Name, func(t *testing.T) {
			ctx, o := tiny(t)
			r, err := w.Run(ctx, o)
			require.NoError(t, err)
			require.NotEmpty(t, r.Figures)
			left, err := os.ReadDir(o.Dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestGrowth(t *testing.T) {
	ctx, o := tiny(t)
	figures, err := growthAt(ctx, &o, 3, kib, 3)
	require.NoError(t, err)
	require.Positive(t, figures[0].Value)
}

// A record that is lost, changed or in another's place is noticed.
func TestLedgerNotices(t *testing.T) {
	ctx, o := tiny(t)
	r, err := o.open(ctx, "test", 0, cluster.Options{Net: "inproc"})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.close()) }()
	l := newLedger("t", 2, 100)
	require.NoError(t, r.create(ctx, l, 3))
	_, err = l.drive(ctx, r.Cluster, flow{inFlight: 4, bytes: 2000})
	require.NoError(t, err)
	require.NoError(t, l.verify(ctx, r.Cluster))

	for name, value := range map[string][]byte{
		"changed":       append(l.appendTo(nil, 0, 10)[:99], 0),
		"the next one":  l.appendTo(nil, 0, 11),
		"of another":    l.appendTo(nil, 1, 10),
		"shorter":       l.appendTo(nil, 0, 10)[:50],
		"of no content": make([]byte, 100),
	} {
		require.Error(t, l.check(value, 0, 10), name)
	}
	require.NoError(t, l.check(l.appendTo(nil, 0, 10), 0, 10))

	_, err = r.Partition("t", 0).Append(ctx, tidemark.Record{Value: l.appendTo(nil, 0, 11)})
	require.NoError(t, err)
	l.acked[0]++
	require.ErrorContains(t, l.verify(ctx, r.Cluster), "is record 11")
	l.acked[0]++
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	require.Error(t, l.read(short, r.Partition("t", 0), 0))
	require.Error(t, l.ack(1, tidemark.Result{Base: 7}, nil))
}

func TestRoom(t *testing.T) {
	_, o := tiny(t)
	_, err := o.place("test", 1<<60)
	require.ErrorContains(t, err, "are needed")
}

func TestFigures(t *testing.T) {
	require.True(t, Figure{"a", 5, "s", Bound{}}.Met())
	require.True(t, Figure{"a", 5, "s", atMost(5)}.Met())
	require.False(t, Figure{"a", 5, "s", atMost(4)}.Met())
	require.False(t, Figure{"a", 5, "s", atLeast(6)}.Met())
	require.False(t, Figure{"a", 1, "s", atMost(0)}.Met())
	require.Equal(t, "a: 5 s (<= 4, NOT MET)", Figure{"a", 5, "s", atMost(4)}.String())
	text, err := json.Marshal(Figure{"a", 5, "s", atLeast(5)})
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"a","value":5,"unit":"s","bound":">= 5","met":true}`, string(text))
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {Dir: "x", Scale: -1}, {Dir: "x", Rounds: -1}} {
		_, err := Workloads()[0].Run(t.Context(), o)
		require.Error(t, err)
	}
}
