// Package coordination is the contract between Tidemark and the small, strongly
// consistent store that holds a cluster's metadata: versioned keys, guarded
// transactions, ephemeral keys bound to a session, and watches.
//
// The data path never uses it: while the store is away records flow on, and
// only changes of metadata wait.
package coordination

import (
	"context"
	"errors"
	"time"
)

// Errors that implementations return, for use with errors.Is.
var (
	// ErrUnavailable means that the store could not be reached, or did not answer
	// in time. A transaction that ended so may or may not have been applied.
	ErrUnavailable = errors.New("coordination: store is unavailable")
	// ErrSessionExpired means that the session ended and its ephemeral keys are gone, or will be.
	ErrSessionExpired = errors.New("coordination: session expired")
	// ErrCompacted means that a watch cannot go on from its revision; list and watch again.
	ErrCompacted = errors.New("coordination: revision was compacted")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("coordination: store is closed")
)

// KV is one key. Revision is the store's revision at which the key was last
// written; it is never 0, and it rises with every change in the whole store.
type KV struct {
	Key      string
	Value    []byte
	Revision int64
	Session  string // "" unless ephemeral
}

// Guard holds when the key's Revision equals Revision; 0 means that the key
// does not exist.
type Guard struct {
	Key      string
	Revision int64
}

// Op is one write of a transaction: a put, or a delete. A put with Session
// makes the key ephemeral: it goes when that session ends.
type Op struct {
	Key     string
	Value   []byte
	Session string
	Delete  bool
}

// What every Store takes in one transaction; more it may refuse.
const (
	MaxTxnOps   = 128       // guards, and as many ops
	MaxTxnBytes = 384 << 10 // keys and values of the ops
)

// Txn applies all of Ops if all of Guards hold, else nothing.
type Txn struct {
	Guards []Guard
	Ops    []Op
}

// TxnResult tells what became of a transaction.
type TxnResult struct {
	Applied  bool
	Revision int64 // of the keys just written, when Applied; else the store's revision
}

// Event is a change of one key as a watch reports it.
type Event struct {
	KV
	Deleted bool
}

// Changes are the events of one revision or more, in order. A watch that fails
// ends with one Changes whose Err is set (ErrCompacted, ErrUnavailable,
// ErrClosed); then its channel is closed.
type Changes struct {
	Events   []Event
	Revision int64
	Err      error
}

// Store holds the metadata. All methods may be called from any goroutine; the
// values passed in may be reused after the call, those returned belong to the caller.
type Store interface {
	// Get returns the key and true, or false when it does not exist.
	Get(ctx context.Context, key string) (KV, bool, error)
	// List returns the keys that begin with prefix, in order, and the revision of the view.
	List(ctx context.Context, prefix string) ([]KV, int64, error)
	// Do runs a transaction. An error other than ErrSessionExpired leaves open
	// whether it was applied, or will be; ErrSessionExpired (a put names a session
	// that has ended) means that it was not.
	Do(ctx context.Context, t Txn) (TxnResult, error)
	// Watch reports every change to keys with the prefix after the revision, in
	// order and without a gap, until ctx ends (then the channel is closed without an Err).
	Watch(ctx context.Context, prefix string, after int64) (<-chan Changes, error)
	// NewSession begins a session that ends ttl after its last renewal.
	NewSession(ctx context.Context, ttl time.Duration) (Session, error)
	// Close ends the sessions' renewals and the watches that were begun through this Store.
	Close() error
}

// Session keeps ephemeral keys alive. It is renewed only by calls to Renew: who
// holds it decides whether it is fit to live on.
type Session interface {
	ID() string
	// Renew makes the session last another ttl from now on.
	Renew(ctx context.Context) error
	// Done is closed once the session is known to have ended.
	Done() <-chan struct{}
	// Close ends the session and deletes its ephemeral keys.
	Close(ctx context.Context) error
}
