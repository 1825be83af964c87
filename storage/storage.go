// Package storage is the contract between Tidemark and the place where a
// broker keeps its replicas' logs.
//
// A Store holds many logs. Everything that changes one goes through Write: one
// ordered sequence of atomic groups, each reported exactly once when it is
// durable. There is no other way to write, so "durable before acknowledged" is
// a property of the caller's code path and not of its discipline.
package storage

import (
	"errors"
	"fmt"

	"github.com/tidemark-log/tidemark/protocol"
)

// Errors that implementations return, for use with errors.Is.
var (
	ErrClosed     = errors.New("storage: store is closed")
	ErrPoisoned   = errors.New("storage: store failed earlier and takes no more writes")
	ErrInUse      = errors.New("storage: directory is in use by another store")
	ErrForeign    = errors.New("storage: directory is neither empty nor a Tidemark store")
	ErrFormat     = errors.New("storage: unknown store format")
	ErrUnknownLog = errors.New("storage: no such log")
	ErrOutOfRange = errors.New("storage: offset out of range")
	ErrDamaged    = errors.New("storage: log is damaged")
)

// LogID names a log: one partition of one topic (by id, never by name).
type LogID = protocol.PartitionID

// EpochEntry says that leader epoch Epoch begins at offset Start.
type EpochEntry struct {
	Epoch int32
	Start int64
}

// State is what a store knows of one log.
type State struct {
	Start  int64        // log start offset
	End    int64        // log end offset: that of the next record
	HW     int64        // high watermark as last saved; a hint, never above End in a sound log
	Epochs []EpochEntry // leader-epoch history, both columns strictly rising
	Led    int32        // highest epoch that this replica led; -1: none. Survives Truncate and Reset
	Bytes  int64        // approximate size of the batches held
	// Damaged says why the log cannot be trusted, if an open found that: what the
	// other fields say may not be there. Ops and reads of such a log are refused.
	Damaged error
}

// Kind says what an Op does.
type Kind uint8

const (
	Append   Kind = iota + 1 // adds Batches at Offset, which is the log's end; creates the log when it does not exist
	Truncate                 // removes everything at or above Offset, which is a batch boundary
	Trim                     // raises the log start to Offset and frees whole batches below it
	Reset                    // removes everything; start and end become Offset
	Meta                     // changes only what Epochs, Led and HW carry; creates the log when it does not exist
	Delete                   // removes the log and all that is known of it
)

// Op is one change to one log. Epochs, Led and HW apply to every kind but
// Delete and commit together with it.
type Op struct {
	Log    LogID
	Kind   Kind
	Offset int64
	// Batches are encoded record batches with consecutive offsets (Append). The
	// store does not change or keep them after the group is done.
	Batches [][]byte
	// End is the log's end once the Op is applied (Append; must match Batches).
	End int64
	// HW is the high watermark to save along with the change.
	HW int64
	// Epochs, when not nil, replaces the whole epoch history. Truncate and Reset
	// must carry it (an empty, non-nil slice clears it).
	Epochs []EpochEntry
	// Led, when not nil, replaces State.Led.
	Led *int32
}

// Result tells what became of a group.
type Result struct {
	// Err is nil when the whole group, less the ops of the logs in Refused, is
	// durable. Otherwise none of it may be assumed to be, or not to be, durable,
	// and the store is poisoned.
	Err error
	// Refused has the logs whose ops were not applied because they do not fit the
	// log (an append that is not at its end, an unknown log): nil when none. A log
	// that was refused once refuses all later ops of the same open.
	Refused map[LogID]error
}

// Node is what a store knows of the broker that it belongs to.
type Node struct {
	Cluster     protocol.UUID // zero: not yet a member of a cluster
	Directory   protocol.UUID // made when the store was created; never changes
	BrokerID    int32         // -1: not yet set
	BrokerEpoch int64         // highest broker epoch that was registered with this directory
}

// Read is one consistent view of a part of a log.
type Read struct {
	// Batches hold whole encoded batches with consecutive offsets; the first one
	// contains the offset asked for. The caller owns the bytes.
	Batches []byte
	// Start and End are the log's as of the snapshot that was read.
	Start, End int64
}

// Health says how a store is.
type Health struct {
	Err  error  // why it takes no more writes; nil: it does
	Disk uint64 // bytes that the store takes on disk, approximately
}

// Store keeps the logs of one broker. All methods may be called from any
// goroutine. After Close they return ErrClosed.
type Store interface {
	// Node returns the broker's identity as of the last completed SetNode.
	Node() Node
	// SetNode replaces it and returns when it is durable. Directory cannot change.
	SetNode(n Node) error
	// Logs lists every log and its state. What it shows just after an open is durable.
	Logs() (map[LogID]State, error)
	// Write queues one atomic group of ops and returns without waiting for I/O.
	// Groups take effect in the order of the calls. done is called once, from
	// another goroutine, in the same order, never from inside Write; it does not
	// block. It is called also when the store fails or closes. The ops and all
	// that they refer to must not change until then. synced asks for durability
	// before done; without it done may come once the group is applied, and a
	// power cut may lose a suffix of such groups.
	Write(ops []Op, synced bool, done func(Result))
	// Read returns batches from the one that contains offset from on: at least one
	// batch, then more while the sum stays within maxBytes. At the log's end it returns no
	// batches; below the start or above the end, ErrOutOfRange. What it returns
	// was applied, though not always synced. Bytes that fail their checksum give
	// ErrDamaged.
	Read(log LogID, from int64, maxBytes int) (Read, error)
	// Health is cheap enough to be called often.
	Health() Health
	// Close waits for queued groups up to a bound, frees everything and ends in
	// bounded time even when the disk hangs. It is idempotent.
	Close() error
}

// OpError is the usual form of a refused op.
func OpError(op Op, state State, why string) error {
	return fmt.Errorf("storage: kind %d at offset %d refused, log is [%d, %d): %s", op.Kind, op.Offset, state.Start, state.End, why)
}
