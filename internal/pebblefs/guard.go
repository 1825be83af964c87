package pebblefs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// phase is where an open is in its life.
type phase uint8

const (
	opening phase = iota // before Pebble has it: errors are returned
	live                 // an error fails the open and is hidden from Pebble
	failed               // writes are swallowed; reads still work
	fenced               // writes are swallowed, reads fail, handles and lock go
)

// ErrFenced is what reads get, and what Err says, after Fence.
var ErrFenced = errors.New("pebblefs: this open of the directory has ended")

// Guard is the vfs.FS of one open, between Pebble and the real one (D24).
//
// Pebble does not survive write errors: an error when the WAL is closed or
// created panics while DB.mu is unlocked but its unlock is deferred, which ends
// the whole process; one while it is written makes a later commit panic with the
// commit mutex held, and DB.Close never returns; one while a directory is synced
// panics at once, in whatever goroutine. So Pebble never sees one. The
// first failed write puts the guard into the phase failed: from then on nothing
// reaches the disk any more, and Pebble is told that all went well, so that it
// can finish what it is doing and be closed. What is on the disk is what a crash
// at that moment would have left. That the writes failed is known to the guard,
// which must be asked (Err) before anything is called durable.
type Guard struct {
	vfs.FS

	mu      sync.Mutex
	onFail  func(error)
	phase   phase
	err     error          // first failure
	repeats int            // calls of slow
	writing int            // writes that are inside the real file system now
	files   map[*file]bool // open handles
	lock    io.Closer      // directory lock
	synced  Synced         // how far
	unnamed Position       // ... a new manifest, whose name may not be on the disk
	idle    chan struct{}  // closed when fenced, writing is 0, and handles and lock are released
	leaving bool           // they are being released
	hurry   chan struct{}  // closed when nobody should be slowed down any more
}

var _ vfs.FS = (*Guard)(nil)

// Synced says how much of Pebble's newest WAL and newest manifest is on the disk.
type Synced struct{ WAL, Manifest Position }

// Position is how many bytes of the file with a number are on the disk.
type Position struct {
	Num   uint64
	Bytes int64
}

// Synced returns how much is on the disk.
func (g *Guard) Synced() Synced {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.synced
}

// reached takes note of a sync of f.
func (g *Guard) reached(f *file) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := Position{f.num, f.written}
	switch {
	case f.isManifest && f.num > g.synced.Manifest.Num:
		g.unnamed = at
	case f.isManifest && f.num == g.synced.Manifest.Num:
		g.synced.Manifest = at
	case f.isWAL && f.num >= g.synced.WAL.Num:
		g.synced.WAL = at
	}
}

// named takes note of a sync of the directory.
func (g *Guard) named() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unnamed.Num > g.synced.Manifest.Num {
		g.synced.Manifest = g.unnamed
	}
}

// NewGuard makes the guard of one open on fs. It returns errors until Live is called.
func NewGuard(fs vfs.FS) *Guard {
	return &Guard{
		FS:    fs,
		files: map[*file]bool{},
		idle:  make(chan struct{}),
		hurry: make(chan struct{}),
	}
}

// Notify has f called at the first failure, at once if there was one already. f may
// be called from any goroutine, and inside calls of Pebble. Only one f is kept.
func (g *Guard) Notify(f func(error)) {
	g.mu.Lock()
	g.onFail = f
	err := g.err
	g.mu.Unlock()
	if err != nil {
		f(err)
	}
}

// Err is the first failure, nil while there is none.
func (g *Guard) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// begin tells whether a write may go to the disk; if so, end must follow.
func (g *Guard) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.phase >= failed {
		return false
	}
	g.writing++
	return true
}

// end takes the outcome of a write and returns what Pebble is to see.
func (g *Guard) end(err error) error {
	g.mu.Lock()
	report := g.failLocked(err)
	g.writing--
	g.releaseLocked()
	hide := g.phase != opening
	g.mu.Unlock()
	if report != nil {
		report(err)
	}
	if hide {
		return nil
	}
	return err
}

// Fail makes the open fail as if a write had.
func (g *Guard) Fail(err error) {
	g.mu.Lock()
	report := g.failLocked(err)
	g.mu.Unlock()
	if report != nil {
		report(err)
	}
}

// failLocked takes note of the first failure and returns whom to tell of it, if
// anybody.
func (g *Guard) failLocked(err error) func(error) {
	if err == nil || g.err != nil {
		return nil
	}
	g.err = err
	if g.phase == live {
		g.phase = failed
	}
	return g.onFail
}

// Live ends the phase opening: Pebble comes in.
func (g *Guard) Live() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.phase == opening {
		g.phase = live
	}
}

// Hurry ends the slowing down of failed work: the store is about to close.
func (g *Guard) Hurry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.hurry:
	default:
		close(g.hurry)
	}
}

// Fence ends this open: no write begins any more, and once the writes that have
// begun are over, the handles and the lock are released and the channel is closed.
// It does not wait for the disk.
func (g *Guard) Fence() <-chan struct{} {
	g.Hurry()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.phase != fenced {
		g.phase = fenced
		if g.err == nil {
			g.err = ErrFenced
		}
		g.releaseLocked()
	}
	return g.idle
}

// Writing is the number of writes that are inside the file system now.
func (g *Guard) Writing() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writing
}

// releaseLocked frees the handles and the lock when the last write is over, from a
// goroutine of its own: closing a file may hang as well, and g.mu must not.
func (g *Guard) releaseLocked() {
	if g.phase != fenced || g.writing > 0 || g.leaving {
		return
	}
	g.leaving = true
	files, lock := g.files, g.lock
	g.files, g.lock = map[*file]bool{}, nil
	go func() {
		for f := range files {
			f.shut() // may fail: nothing depends on it any more
		}
		if lock != nil {
			lock.Close()
		}
		close(g.idle)
	}()
}

// patience is how much Pebble may do after a failure before it is slowed down.
const patience = 100

// slow keeps Pebble, which repeats failed background work at once and for ever,
// from using up a core until the store is closed.
func (g *Guard) slow() {
	g.mu.Lock()
	g.repeats++
	free := g.repeats <= patience
	g.mu.Unlock()
	if free {
		return
	}
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.hurry:
	}
}

// Lock is called once per open.
func (g *Guard) Lock(name string) (io.Closer, error) {
	lock, err := g.FS.Lock(name)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lock = lock
	return g, nil
}

// Close releases the directory lock; Fence may have done so before.
func (g *Guard) Close() error {
	g.mu.Lock()
	lock := g.lock
	g.lock = nil
	g.mu.Unlock()
	if lock == nil {
		return nil
	}
	return lock.Close()
}

func (g *Guard) Unwrap() vfs.FS { return g.FS }

// wrap registers a new handle.
func (g *Guard) wrap(name string, f vfs.File) vfs.File {
	w := &file{inner: f, guard: g, name: filepath.Base(name)}
	if w.num, w.isWAL = WALNumber(w.name); !w.isWAL {
		w.num, w.isManifest = manifestNumber(w.name)
	}
	g.mu.Lock()
	late := g.leaving
	if !late {
		g.files[w] = true
	}
	g.mu.Unlock()
	if late {
		w.shut()
	}
	return w
}

// writable opens a file for writing.
func (g *Guard) writable(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if !g.begin() {
		g.slow()
		return nothing{name: filepath.Base(name)}, nil
	}
	f, err := open()
	if err != nil {
		if err = g.end(err); err != nil {
			return nil, err
		}
		return nothing{name: filepath.Base(name)}, nil
	}
	f = g.wrap(name, f)
	g.end(nil)
	return f, nil
}

// pebbleMarker begins the names of Pebble's marker files. Such a name says which
// manifest is the current one. Pebble 2.1.7 makes the manifest, the new marker and
// the removal of the old one durable by one sync of the directory, so that a power
// cut in between, which may keep any part of them, could leave a marker without its
// manifest, or no marker at all.
const pebbleMarker = "marker."

// settle makes durable what came before the creation or removal of a marker.
func (g *Guard) settle(name string) error {
	if !strings.HasPrefix(g.FS.PathBase(name), pebbleMarker) {
		return nil
	}
	return g.change(func() error {
		err := SyncDir(g.FS, g.FS.PathDir(name))
		if err == nil {
			g.named()
		}
		return err
	})
}

func (g *Guard) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := g.settle(name); err != nil {
		return nil, err
	}
	return g.writable(name, func() (vfs.File, error) { return g.FS.Create(name, c) })
}

func (g *Guard) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return g.writable(name, func() (vfs.File, error) { return g.FS.OpenReadWrite(name, c, o...) })
}

func (g *Guard) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.writable(newname, func() (vfs.File, error) { return g.FS.ReuseForWrite(oldname, newname, c) })
}

func (g *Guard) OpenDir(name string) (vfs.File, error) { return g.open(name, g.FS.OpenDir) }

func (g *Guard) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return g.open(name, func(string) (vfs.File, error) { return g.FS.Open(name, o...) })
}

func (g *Guard) open(name string, open func(string) (vfs.File, error)) (vfs.File, error) {
	g.mu.Lock()
	p := g.phase
	g.mu.Unlock()
	if p == fenced {
		g.slow()
		return nil, ErrFenced
	}
	f, err := open(name)
	if err != nil {
		if p == failed {
			g.slow()
		}
		return nil, err
	}
	return g.wrap(name, f), nil
}

// change runs an operation on names that must succeed.
func (g *Guard) change(op func() error) error {
	if !g.begin() {
		return nil
	}
	return g.end(op())
}

func (g *Guard) Link(oldname, newname string) error {
	return g.change(func() error { return g.FS.Link(oldname, newname) })
}

func (g *Guard) Rename(oldname, newname string) error {
	return g.change(func() error { return g.FS.Rename(oldname, newname) })
}

func (g *Guard) MkdirAll(dir string, perm os.FileMode) error {
	return g.change(func() error { return g.FS.MkdirAll(dir, perm) })
}

// tidy runs an operation whose failure loses nothing.
func (g *Guard) tidy(op func() error) error {
	if !g.begin() {
		return nil
	}
	err := op()
	g.end(nil)
	return err
}

func (g *Guard) Remove(name string) error {
	if err := g.settle(name); err != nil {
		return err
	}
	return g.tidy(func() error { return g.FS.Remove(name) })
}

func (g *Guard) RemoveAll(name string) error {
	return g.tidy(func() error { return g.FS.RemoveAll(name) })
}

// WALNumber parses the name of a WAL.
func WALNumber(name string) (uint64, bool) {
	digits, isLog := strings.CutSuffix(name, ".log")
	if !isLog {
		return 0, false
	}
	num, err := strconv.ParseUint(digits, 10, 64)
	return num, err == nil
}

const manifestPrefix = "MANIFEST-"

// ManifestName is the name of a manifest.
func ManifestName(num uint64) string { return fmt.Sprintf(manifestPrefix+"%06d", num) }

func manifestNumber(name string) (uint64, bool) {
	digits, isManifest := strings.CutPrefix(name, manifestPrefix)
	if !isManifest {
		return 0, false
	}
	num, err := strconv.ParseUint(digits, 10, 64)
	return num, err == nil
}
