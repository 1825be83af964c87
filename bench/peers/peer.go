// Package peers runs the same workloads on Tidemark and on what it is compared with:
// three replicas in this process, each with its files in a directory of its own.
package peers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/bench/meter"
)

// replicas is how many copies every peer keeps.
const replicas = 3

// Names of the peers, for Open.
const (
	TidemarkTCP    = "tidemark-tcp"
	TidemarkInproc = "tidemark-inproc"
	JetStream      = "jetstream"
	Raft           = "hashicorp-raft"
	Ceiling        = "ceiling"
)

// Config says what a peer is to be opened for.
type Config struct {
	Dir         string // its own, empty
	Partitions  int
	InFlight    int                  // records under way at most
	ValueBytes  int                  // of each record
	Background  bool                 // acknowledge before the disk has the record
	Compression tidemark.Compression // by Tidemark's Producer
}

// Peer keeps three copies of what is appended to its partitions, from 0. It is a Log or
// a Feeder.
type Peer interface {
	// AppendWait appends a value and waits for it. Any number of goroutines call it.
	AppendWait(ctx context.Context, partition int, value []byte) error
	// Read calls f with the values of a partition that were acknowledged, in the order
	// of the log, once nothing is under way. f does not keep them.
	Read(ctx context.Context, partition int, f func(value []byte) error) error
	// Writes counts what goes to files; nil where nobody does.
	Writes() *meter.Writes
	// Close ends the peer.
	Close() error
}

// Log is a replicated log.
type Log interface {
	Peer
	// Append begins to append a value; done is called once, from any goroutine, and
	// does not block. The value is the caller's again after that. Append may block; it is
	// called by one goroutine at a time.
	Append(ctx context.Context, partition int, value []byte, done func(error))
}

// Feeder has one partition, and is not given single values where many are under way.
type Feeder interface {
	Peer
	// Feed appends batches of values until going ends. fill makes the value with a
	// number, from 0; it is called by several goroutines. ended is called with the number
	// of values once all replicas have another batch, and how long the last of them took.
	Feed(going context.Context, fill func(value []byte, number uint64), ended func(values int, took time.Duration)) error
}

var openers = map[string]func(context.Context, Config) (Peer, error){
	TidemarkTCP:    func(ctx context.Context, c Config) (Peer, error) { return openTidemark(ctx, c, "tcp") },
	TidemarkInproc: func(ctx context.Context, c Config) (Peer, error) { return openTidemark(ctx, c, "inproc") },
	JetStream:      openJetStream,
	Raft:           openRaft,
	Ceiling:        openCeiling,
}

// Known are the names that Open takes.
func Known() []string { return slices.Sorted(maps.Keys(openers)) }

// Open opens a peer that is ready for appends. ctx bounds Open alone.
func Open(ctx context.Context, name string, c Config) (Peer, error) {
	open := openers[name]
	if open == nil {
		return nil, fmt.Errorf("bench: peer %q is none of %v", name, Known())
	}
	p, err := open(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("bench: %s: %w", name, err)
	}
	return p, nil
}
