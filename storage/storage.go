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
	// Damaged says why the log cannot be trusted, if an open found that: an error
	// that wraps ErrDamaged. The other fields are what could be read, and what they
	// say may not be there; Led is -1 when it could not be read, so that here -1
	// means unknown. Reads of such a log give the error, and of all ops it takes only
	// Delete, and Reset unless it has refused another op before; either ends the damage.
	Damaged error
}

// Kind says what an Op does.
type Kind uint8

const (
	Append   Kind = iota + 1 // adds Batches at Offset, which is the log's end; creates the log when it does not exist
	Truncate                 // removes everything at or above Offset, which is a batch boundary
	Trim                     // raises the log start to Offset and frees whole batches below it
	Reset                    // removes all records; start and end become Offset; creates the log when it does not exist
	Meta                     // changes only what Epochs, Led and HW carry; creates the log when it does not exist
	Delete                   // removes the log and all that is known of it, Led too; never refused, see Result
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
	// log (an append that is not at its end, an unknown log, a damaged one): nil when
	// none. Of one log a group's ops are applied all or not at all. A log that was
	// refused once refuses all later ops of the same open, up to a Delete.
	//
	// Delete begins anew: it is taken also by a log that is damaged or was refused,
	// ends both, and what the same group has for the log before it counts for nothing
	// and is not checked. So one group of Delete and then Reset or Meta, with what of
	// the old log must stay (Led), replaces a damaged log as one atomic step.
	Refused map[LogID]error
}

// Node is what a store knows of the broker that it belongs to.
type Node struct {
	Cluster     protocol.UUID // zero: not yet a member of a cluster
	Directory   protocol.UUID // made when the store was created; never changes
	BrokerID    int32         // -1: not yet set
	BrokerEpoch int64         // highest broker epoch that was registered with this directory
	// Unclean: the store was not closed cleanly before this open, so that a suffix of
	// the groups that were written without sync may be missing, and the cluster has
	// not been told yet. Only the store sets it; it does not change while the store is
	// open, and SetNode ignores it. It is false only for a store that is new, and
	// after a Close that made every group durable, in a life without an error, that
	// began clean or in which a SetNode raised BrokerEpoch: the broker registered, and
	// said then how it had come up. An open counts as unclean for the next one from
	// its beginning on, whether or not anything is written: a crash while it starts is
	// a crash.
	Unclean bool
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
	// SetNode replaces it, but for Unclean, and returns when it is durable, with all
	// groups written before. Directory cannot change.
	SetNode(n Node) error
	// Logs lists every log and its state. What it shows just after an open is durable.
	Logs() (map[LogID]State, error)
	// Write queues one atomic group of ops and returns without waiting for I/O.
	// Groups take effect in the order of the calls. done is called once, from
	// another goroutine, in the same order for all groups, never from inside Write; it
	// does not block. It is called also when the store fails or closes. The ops and
	// all that they refer to must not change until then.
	//
	// With synced, done comes when the group is durable, and so are all groups before
	// it, the unsynced ones included. Without, done comes once the group is applied:
	// the store begins to make it durable at once and does not wait for that. A crash
	// loses a suffix of the sequence of groups, each of them wholly, and none that was
	// synced or is before one that was. If an unsynced group turns out not to become
	// durable after its done, the store is poisoned: Health and later groups say so.
	Write(ops []Op, synced bool, done func(Result))
	// Read returns batches from the one that contains offset from on: at least one
	// batch, then more while the sum stays within maxBytes. At the log's end it returns no
	// batches; below the start or above the end, ErrOutOfRange. What it returns
	// was applied, though not always synced. Bytes that fail their checksum give
	// ErrDamaged.
	Read(log LogID, from int64, maxBytes int) (Read, error)
	// Health is cheap enough to be called often.
	Health() Health
	// Close takes no more groups, makes those that were written durable, synced or
	// not, frees everything and lets go of the place. It ends in bounded time even when
	// the disk hangs; what is left of the store then can never touch what a later open
	// does. Groups that it could not wait for are done with ErrClosed. An error
	// means that not everything may be durable; the next open is unclean then, unless
	// everything was. It is idempotent.
	Close() error
}

// OpError is the usual form of a refused op.
func OpError(op Op, state State, why string) error {
	return fmt.Errorf("storage: kind %d at offset %d refused, log is [%d, %d): %s", op.Kind, op.Offset, state.Start, state.End, why)
}
