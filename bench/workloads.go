package main

import (
	"fmt"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/load"
	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/peers"
)

// workload is a line of the table: what is appended, by whom, and what must be reached.
// All of it is with three replicas, and acknowledged by all in sync.
type workload struct {
	name        string
	title       string
	plan        load.Plan
	background  bool
	compression tidemark.Compression
	peers       []string // besides Tidemark's own
	bounds      []bound
	// usual is the least that was seen of the others on an idle machine with two cores
	// and a disk that syncs in 0.4 ms, in the unit of figure.
	usual  map[string]float64
	figure figure // which tells whether a peer was disturbed
}

// figure is a number of a round by which peers are compared.
type figure struct {
	name string
	less bool // is better
	of   func(meter.Round) float64
}

var (
	records = figure{"records/s", false, meter.Round.RecordRate}
	rate    = figure{"MB/s", false, meter.Round.MBRate}
	p50     = figure{"p50 ms", true, func(r meter.Round) float64 { return r.Latency.P50.Seconds() * 1e3 }}
	p999    = figure{"p99.9 ms", true, func(r meter.Round) float64 { return r.Latency.P999.Seconds() * 1e3 }}
)

// bound says that a figure of Tidemark's must be at least factor times that of something
// else, or at most, where less is better.
type bound struct {
	figure figure
	factor float64
	// against is a peer's name, bestPeer, "own W1" (that workload's, same peer), or
	// nothing: then factor is the figure itself.
	against string
}

// bestPeer is whichever of the other logs is better.
const bestPeer = "best peer"

func (b bound) String() string {
	sign := "≥"
	if b.figure.less {
		sign = "≤"
	}
	if b.against == "" {
		return fmt.Sprintf("%s %s %g", b.figure.name, sign, b.factor)
	}
	return fmt.Sprintf("%s %s %g × %s", b.figure.name, sign, b.factor, b.against)
}

var (
	ours   = []string{peers.TidemarkTCP, peers.TidemarkInproc}
	logs   = []string{peers.JetStream, peers.Raft}
	others = []string{peers.JetStream, peers.Raft, peers.Ceiling}
)

var workloads = []workload{
	{
		name: "W1", title: "1 partition, 1 KiB, 1,024 in flight, fsync", peers: others,
		plan: load.Plan{Partitions: 1, ValueBytes: 1024, InFlight: 1024},
		bounds: []bound{
			{records, 2.5, peers.Raft}, {records, 3.5, peers.JetStream}, {records, 0.75, peers.Ceiling},
		},
		figure: rate, usual: map[string]float64{peers.Raft: 46, peers.JetStream: 36, peers.Ceiling: 133},
	},
	{
		name: "W2", title: "as W1, acknowledged before the disk has it", background: true, peers: []string{peers.JetStream},
		plan:   load.Plan{Partitions: 1, ValueBytes: 1024, InFlight: 1024},
		bounds: []bound{{records, 1.5, peers.JetStream}},
	},
	{
		name: "W3", title: "16 partitions, 1 KiB, 1,024 in flight, fsync", peers: logs,
		plan:   load.Plan{Partitions: 16, ValueBytes: 1024, InFlight: 1024},
		bounds: []bound{{records, 0.9, "own W1"}, {records, 4, bestPeer}},
	},
	{
		name: "W4", title: "1,000 partitions, 1 KiB, 4,096 in flight, fsync",
		plan:   load.Plan{Partitions: 1000, ValueBytes: 1024, InFlight: 4096},
		bounds: []bound{{records, 0.6, "own W1"}},
	},
	{
		name: "W5", title: "1 partition, 1 KiB, 1 in flight, fsync", peers: others,
		plan: load.Plan{Partitions: 1, ValueBytes: 1024, Callers: 1, MinRecords: 2000},
		bounds: []bound{
			{p50, 1, peers.Raft}, {p50, 1.25, peers.Ceiling}, {p999, 10, ""},
		},
		figure: p50, usual: map[string]float64{peers.Raft: 0.54, peers.JetStream: 0.71, peers.Ceiling: 0.52},
	},
	{
		name: "W6", title: "1 partition, 1 KiB, 64 callers, fsync", peers: logs,
		plan:   load.Plan{Partitions: 1, ValueBytes: 1024, Callers: 64},
		bounds: []bound{{records, 2, bestPeer}},
		figure: records, usual: map[string]float64{peers.Raft: 14_000, peers.JetStream: 20_000},
	},
	{
		name: "W7", title: "1 partition, 100 B, 10,000 in flight, fsync", peers: logs,
		plan:   load.Plan{Partitions: 1, ValueBytes: 100, InFlight: 10_000},
		bounds: []bound{{records, 8, bestPeer}},
		figure: records, usual: map[string]float64{peers.Raft: 88_000, peers.JetStream: 115_000},
	},
	{
		name: "W13a", title: "1 partition, 1 MiB, 24 in flight, fsync",
		plan:   load.Plan{Partitions: 1, ValueBytes: 1 << 20, InFlight: 24},
		bounds: []bound{{rate, 1, "own W1"}},
	},
	{
		name: "W13b", title: "1 partition, 10 KiB that compress by half, zstd, 256 in flight, fsync", compression: tidemark.Zstd,
		plan:   load.Plan{Partitions: 1, ValueBytes: 10 << 10, InFlight: 256, Half: true},
		bounds: []bound{{rate, 1, "own W1"}},
	},
}
