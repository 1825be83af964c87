package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/peers"
	"github.com/tidemark-log/tidemark/bench/scale"
)

func TestRunW1(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "out.json")
	o, err := parse([]string{"-workloads", "W1", "-peers", "tidemark-inproc", "-rounds", "1", "-duration", "300ms",
		"-warmup", "50ms", "-dir", dir, "-json", file}, io.Discard)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), o, &out, io.Discard))
	require.Contains(t, out.String(), "W1: 1 partition")
	require.Contains(t, out.String(), "tidemark-inproc")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(text, &r))
	require.Len(t, r.Rounds["W1"]["tidemark-inproc"], 1)
	require.Positive(t, r.Rounds["W1"]["tidemark-inproc"][0].Checked)
	left, err := filepath.Glob(filepath.Join(dir, "tidemark-bench-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-workloads", "W99"}, {"-peers", "nobody"}, {"-rounds", "0"}, {"-duration", "-1s"}, {"more"}, {"-nothing"},
	} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
	o, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.workloads, len(workloads))
	require.Empty(t, o.large)
	o, err = parse([]string{"-workloads", "W5,W9,large"}, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.workloads, 1)
	require.Len(t, o.large, 1+len(scale.Workloads()))
}

// at is a round with that many records in a second, of 1,000 bytes, and that median in ms.
func at(records int64, p50 float64) meter.Round {
	return meter.Round{Records: records, Bytes: records * 1000, Elapsed: time.Second, Written: meter.Unknown, Disk: meter.Unknown,
		Syncs: meter.Unknown, Latency: meter.Percentiles{P50: time.Duration(p50 * 1e6), P999: 20 * time.Millisecond}}
}

func TestReport(t *testing.T) {
	mine := workload{
		name: "X", title: "as it is",
		bounds: []bound{
			{records, 2, bestPeer}, {records, 2.5, peers.JetStream}, {records, 0.5, "own W1"}, {p50, 1.25, peers.Ceiling},
			{p999, 10, ""}, {records, 9, "own W2"},
		},
		figure: records, usual: map[string]float64{peers.Raft: 100_000, peers.JetStream: 60_000},
	}
	r := results{
		"W1": {peers.TidemarkTCP: {at(400_000, 1)}},
		"X": {
			peers.TidemarkTCP: {at(130_000, 1), at(500_000, 9), at(150_000, 1)},
			peers.JetStream:   {at(50_000, 2)},
			peers.Raft:        {at(75_000, 1)},
			peers.Ceiling:     {at(75_000, 0.8)},
		},
	}
	// The median of ours is 150,000. W2 did not run, and nothing is said about it.
	require.Equal(t, []verdict{
		{peers.TidemarkTCP, "records/s ≥ 2 × best peer", 2, true, "hashicorp-raft disturbed"},
		{peers.TidemarkTCP, "records/s ≥ 2.5 × jetstream", 3, true, ""},
		{peers.TidemarkTCP, "records/s ≥ 0.5 × own W1", 0.375, false, ""},
		{peers.TidemarkTCP, "p50 ms ≤ 1.25 × ceiling", 1.25, true, ""},
		{peers.TidemarkTCP, "p99.9 ms ≤ 10", 20, false, ""},
	}, r.judge(&mine))

	var out bytes.Buffer
	require.NoError(t, r.print(&out, &mine, []string{peers.TidemarkTCP, peers.JetStream, peers.Raft, peers.Ceiling}))
	require.Regexp(t, `jetstream +50000 +50\.0 .* 3\.00`, out.String())
	require.Regexp(t, `hashicorp-raft +75000 .* 2\.00 disturbed`, out.String())
	require.Contains(t, out.String(), "NOT MET tidemark-tcp: records/s ≥ 0.5 × own W1, is 0.375")
}
