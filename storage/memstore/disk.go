// Package memstore keeps logs in memory. What it keeps belongs to a Disk, which
// outlives the Stores that are opened on it one after the other, so that a crash,
// a restart and a faulty disk can be played.
//
// A Disk made with [Manual] does nothing by itself: its owner decides when which
// group becomes durable, and a program with one goroutine is deterministic.
package memstore

import (
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// Option changes how a Disk works.
type Option func(*Disk)

// Manual makes the Disk deterministic: groups wait for Store.Step, Store.Sync or
// Store.Complete, no goroutine is started, and done is called by those methods and
// by Close. A group that the store does not take (closed, poisoned) waits for
// them too.
func Manual() Option { return func(d *Disk) { d.manual = true } }

// SyncDelay is how long one sync takes; all groups written before it began share
// it. Default 0. It has no effect on a Manual disk.
func SyncDelay(delay time.Duration) Option { return func(d *Disk) { d.delay = delay } }

// CloseTimeout bounds how long Store.Close waits for queued groups. Default 10 s.
// A Manual disk does not wait.
func CloseTimeout(bound time.Duration) Option { return func(d *Disk) { d.closeTimeout = bound } }

// Directory sets the directory id. Default: random.
func Directory(id protocol.UUID) Option { return func(d *Disk) { d.node.Directory = id } }

// Disk is what survives a crash. All methods may be called from any goroutine.
type Disk struct {
	manual       bool
	delay        time.Duration
	closeTimeout time.Duration

	mu    sync.Mutex // also guards the open store
	node  storage.Node
	logs  map[storage.LogID]*image
	open  *Store
	fail  error
	hung  bool
	clean bool // the last store was closed, and everything is durable
	check bool // bytes were corrupted: reads verify checksums
}

// NewDisk returns an empty disk.
func NewDisk(options ...Option) *Disk {
	d := &Disk{
		closeTimeout: 10 * time.Second,
		node:         storage.Node{BrokerID: -1},
		clean:        true,
		logs:         map[storage.LogID]*image{},
	}
	for _, o := range options {
		o(d)
	}
	if d.node.Directory.IsZero() {
		rand.Read(d.node.Directory[:]) // never fails
	}
	return d
}

// Open returns a store over what the disk holds. ErrInUse while another is open.
func (d *Disk) Open() (*Store, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != nil {
		return nil, storage.ErrInUse
	}
	s := newStore(d)
	d.open, d.clean = s, false
	if !d.manual {
		go s.run()
	}
	return s, nil
}

// Crash ends the process that has the store open, if one has: its calls return
// ErrClosed from now on and the dones of its groups that are not done are never
// called. Of the groups that are not durable the first keep survive (all, when
// there are fewer), wholly; the others are lost, wholly.
func (d *Disk) Crash(keep int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.open
	if s == nil {
		return
	}
	for _, g := range s.queue[:min(max(keep, 0), len(s.queue))] {
		d.persist(g)
	}
	s.dead, s.crashed = true, true
	s.queue, s.late = nil, nil
	d.open = nil
	s.end()
}

// FailWrites makes every group that is not durable yet, and later ones, fail with
// an error that wraps err; the open store is poisoned by the first of them. Nil
// ends this for stores that are opened later.
func (d *Disk) FailWrites(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
	d.wake()
}

// Hang makes the disk stop answering: groups stay pending until Unhang, though the
// dones of unsynced ones come (Store.Complete).
func (d *Disk) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hung = true
}

// Unhang ends Hang.
func (d *Disk) Unhang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hung = false
	d.wake()
}

// Corrupt flips one bit of the batch that contains offset, on the disk and for
// the open store, and reports whether there is one. Reads of it give ErrDamaged.
func (d *Disk) Corrupt(log storage.LogID, offset int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.check = true
	found := d.logs[log].corrupt(offset)
	if d.open != nil && d.open.logs[log] != d.logs[log] {
		// The images may share the batch: flipping twice would repair it.
		found = found || d.open.logs[log].corrupt(offset)
	}
	return found
}

// Damage makes the next Open find the log damaged (storage.State), and reports
// whether the disk has it. led says whether its Led cannot be read either. What the
// open store writes to the log later repairs it.
func (d *Disk) Damage(log storage.LogID, led bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.logs[log]
	if l == nil {
		return false
	}
	damaged := *l
	damaged.state.Damaged = fmt.Errorf("%w: %s", storage.ErrDamaged, log)
	if led {
		damaged.state.Led = -1
	}
	d.logs[log] = &damaged
	return true
}

// persist makes one group durable. d.mu is held.
func (d *Disk) persist(g *group) {
	for id, img := range g.after {
		if img == nil {
			delete(d.logs, id)
		} else {
			d.logs[id] = img
		}
	}
	if g.node != nil {
		d.node = *g.node // Open says what Unclean is
	}
}

// wake makes the open store's goroutine look again. d.mu is held.
func (d *Disk) wake() {
	if d.open != nil {
		d.open.signal()
	}
}
