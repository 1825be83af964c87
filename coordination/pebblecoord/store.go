// Package pebblecoord is a coordination store that lives within one process and
// keeps its keys in a Pebble database: the default for a cluster whose brokers run
// in one process, or for a single broker.
//
// A Store is the server; each broker gets its own Client by Connect. A transaction
// is synced to the disk before it is visible to anybody. Keys survive a restart,
// sessions do not: Open drops every ephemeral key.
package pebblecoord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/internal/engine"
)

// Errors of Open and Close, for use with errors.Is.
var (
	// ErrInUse means that another store has the directory open.
	ErrInUse = errors.New("pebblecoord: directory is in use by another store")
	// ErrForeign means that the directory holds something else. Nothing was written to it.
	ErrForeign = errors.New("pebblecoord: directory is neither empty nor a coordination store")
	// ErrFormat means that the directory was written in a format that this version
	// does not know, or that its content makes no sense.
	ErrFormat = errors.New("pebblecoord: unknown store format")
	// ErrDamaged means that the directory does not hold what was once durable in it.
	// Nothing was written to it.
	ErrDamaged = errors.New("pebblecoord: store is damaged")
	// ErrAbandoned means that the disk did not answer while the store was closed. Its
	// directory stays locked until it does, or until the process ends.
	ErrAbandoned = errors.New("pebblecoord: store could not be closed in time")
)

// closeTimeout bounds Close.
const closeTimeout = 5 * time.Second

// Options configure a Store. The zero value is good.
type Options struct {
	// FS is the file system; nil means the operating system's.
	FS vfs.FS
	// Logger gets what the database has to say; nil discards it.
	Logger *slog.Logger
	// History is how many events are kept for watches that begin at an earlier
	// revision, and how many one watch may leave unread before it ends with
	// coordination.ErrCompacted. 0 means 10,000. Values of more than 16 MiB in sum
	// shorten it. It does not survive a restart.
	History int
}

// Store is the server. All methods may be called from any goroutine.
//
// The first write that fails poisons it: from then on everything fails with
// coordination.ErrUnavailable, until it is closed and opened again. The write
// itself may be found applied then.
type Store struct {
	engine *engine.Engine
	disk   *disk
	close  func() error
}

// Open opens the store in dir, and makes it when dir does not exist or is empty.
// All ephemeral keys of an earlier open are deleted first, in one transaction.
// The caller must Close the Store.
func Open(dir string, o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d, err := openDisk(dir, o.FS, o.Logger)
	if err != nil {
		return nil, err
	}
	from, err := d.begin()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pebblecoord: open %s: %w", dir, err), closeWithin(d.close, closeTimeout))
	}
	s := &Store{disk: d}
	s.engine = engine.New(engine.Options{
		History:    o.History,
		Persist:    d.persist,
		Revision:   from.revision,
		Keys:       from.keys,
		Generation: from.generation,
	})
	s.close = sync.OnceValue(s.shutdown)
	d.guard.Notify(s.engine.Fail)
	return s, nil
}

// Client is the handle of one broker. Its Close ends its own watches and lets its
// own sessions expire; the Store and the other clients go on.
type Client struct {
	coordination.Store
	client *engine.Client
}

// Connect makes a Client. Clients of a closed Store are closed from the start.
func (s *Store) Connect() *Client {
	c := s.engine.Connect()
	return &Client{Store: c, client: c}
}

// Fence cuts the client off for good: every later call fails at once with
// coordination.ErrUnavailable, its watches end, and its sessions expire once their
// time is over, for nobody can renew them.
func (c *Client) Fence() { c.client.Fence() }

// Close ends all clients, watches and sessions and closes the database. It returns
// what poisoned the Store, if anything did. It takes at most about five seconds even
// when the disk hangs (ErrAbandoned). It is idempotent, and every call waits for the
// end of the first one.
func (s *Store) Close() error { return s.close() }

func (s *Store) shutdown() error {
	s.engine.Close()
	return closeWithin(func() error {
		// A write that hangs holds the database; there is no way to close it under way.
		s.engine.Idle(context.Background())
		return s.disk.close()
	}, closeTimeout)
}

// closeWithin runs f, and leaves it to itself when it takes too long.
func closeWithin(f func() error, limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return ErrAbandoned
	}
}

// caught runs f, and makes an error of a panic, which is how Pebble reports some
// failures.
func caught(f func() error) (err error) {
	defer func() {
		r := recover()
		if cause, ok := r.(error); ok {
			err = fmt.Errorf("pebblecoord: database panicked: %w", cause)
		} else if r != nil {
			err = fmt.Errorf("pebblecoord: database panicked: %v", r)
		}
	}()
	return f()
}
