package pebblecoord

import (
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guard stands between Pebble and the real file system.
//
// Pebble does not survive a failed write: some of them make it panic in a goroutine
// of its own, which would end the process, others leave it so that it cannot be
// closed (D24). Therefore, once the database is open, Pebble never sees one. The
// first failure is kept; from then on nothing more reaches the disk, while Pebble is
// told that all went well, so that it can finish and be closed. The disk stays as a
// crash at that moment would have left it. Nothing may be called durable before
// failure was asked.
type guard struct {
	vfs.FS

	mu     sync.Mutex
	live   bool // the database is open
	err    error
	onFail func(error)
}

var _ vfs.FS = (*guard)(nil)

// failure returns the first failure, if there was one.
func (g *guard) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// fail takes note of a failure and returns what Pebble is to see of it.
func (g *guard) fail(err error) error {
	g.mu.Lock()
	first := g.err == nil
	if first {
		g.err = err
	}
	live, onFail := g.live, g.onFail
	g.mu.Unlock()
	if first && onFail != nil {
		onFail(err)
	}
	if live {
		return nil
	}
	return err
}

// opened says that the database is open: from now on failures are hidden from it.
func (g *guard) opened() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.live = true
}

// notify has onFail called at the first failure, which may have been already.
func (g *guard) notify(onFail func(error)) {
	g.mu.Lock()
	g.onFail = onFail
	err := g.err
	g.mu.Unlock()
	if err != nil {
		onFail(err)
	}
}

// swallows says whether writes go nowhere by now.
func (g *guard) swallows() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.live && g.err != nil
}

// write runs an operation that changes the disk.
func (g *guard) write(op func() error) error {
	if g.swallows() {
		return nil
	}
	if err := op(); err != nil {
		return g.fail(err)
	}
	return nil
}

// tidy runs one whose failure loses nothing.
func (g *guard) tidy(op func() error) error {
	if g.swallows() {
		return nil
	}
	_ = op()
	return nil
}

// slow keeps Pebble, which repeats failed background work at once and without end,
// from taking a processor for itself.
func (g *guard) slow() {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
}

// create opens a file for writing.
func (g *guard) create(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if g.swallows() {
		g.slow()
		return blank{}, nil
	}
	f, err := open()
	if err != nil {
		if err = g.fail(err); err != nil {
			return nil, err
		}
		return blank{}, nil
	}
	return &file{File: f, guard: g, written: true}, nil
}

func (g *guard) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(g.FS.PathBase(name), "marker.") {
		// A marker names another new file of its directory. Pebble 2.1.7 makes both
		// durable by one sync, so that a power cut may leave the marker alone.
		if err := g.write(func() error { return syncDir(g.FS, g.FS.PathDir(name)) }); err != nil {
			return nil, err
		}
	}
	return g.create(name, func() (vfs.File, error) { return g.FS.Create(name, c) })
}

func (g *guard) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return g.create(name, func() (vfs.File, error) { return g.FS.OpenReadWrite(name, c, o...) })
}

func (g *guard) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.create(to, func() (vfs.File, error) { return g.FS.ReuseForWrite(from, to, c) })
}

func (g *guard) OpenDir(name string) (vfs.File, error) {
	return g.open(func() (vfs.File, error) { return g.FS.OpenDir(name) })
}

func (g *guard) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return g.open(func() (vfs.File, error) { return g.FS.Open(name, o...) })
}

func (g *guard) open(open func() (vfs.File, error)) (vfs.File, error) {
	f, err := open()
	if err != nil {
		if g.swallows() { // it looks for a file that was never written
			g.slow()
		}
		return nil, err
	}
	return &file{File: f, guard: g}, nil
}

func (g *guard) Link(from, to string) error {
	return g.write(func() error { return g.FS.Link(from, to) })
}

func (g *guard) Rename(from, to string) error {
	return g.write(func() error { return g.FS.Rename(from, to) })
}

func (g *guard) MkdirAll(dir string, perm os.FileMode) error {
	return g.write(func() error { return g.FS.MkdirAll(dir, perm) })
}

func (g *guard) Remove(name string) error {
	return g.tidy(func() error { return g.FS.Remove(name) })
}

func (g *guard) RemoveAll(name string) error {
	return g.tidy(func() error { return g.FS.RemoveAll(name) })
}

func (g *guard) Unwrap() vfs.FS { return g.FS }

// file is an open file or directory behind a guard.
type file struct {
	vfs.File
	guard   *guard
	written bool // it was opened for writing
}

func (f *file) Write(p []byte) (int, error) {
	return len(p), f.guard.write(func() error { return full(len(p))(f.File.Write(p)) })
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return len(p), f.guard.write(func() error { return full(len(p))(f.File.WriteAt(p, off)) })
}

func (f *file) Sync() error     { return f.guard.write(f.File.Sync) }
func (f *file) SyncData() error { return f.guard.write(f.File.SyncData) }

func (f *file) SyncTo(length int64) (whole bool, err error) {
	err = f.guard.write(func() (err error) {
		whole, err = f.File.SyncTo(length)
		return err
	})
	return whole, err
}

// Stat of a new log must not fail either, as far as Pebble can see.
func (f *file) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err == nil || !f.written {
		return info, err
	}
	if err = f.guard.fail(err); err != nil {
		return nil, err
	}
	return blankInfo{}, nil
}

// Preallocate only makes room: without it writing goes on as well.
func (f *file) Preallocate(offset, length int64) error {
	return f.guard.tidy(func() error { return f.File.Preallocate(offset, length) })
}

// Close goes through in any case. Everything that counts was synced before.
func (f *file) Close() error {
	if err := f.File.Close(); err != nil && !f.guard.swallows() {
		return f.guard.fail(err)
	}
	return nil
}

// full makes an error of a short write.
func full(want int) func(int, error) error {
	return func(n int, err error) error {
		if err == nil && n < want {
			err = io.ErrShortWrite
		}
		return err
	}
}

// blank is a file that could not be made, and of which Pebble is not to know.
type blank struct{}

func (blank) Close() error                           { return nil }
func (blank) Read([]byte) (int, error)               { return 0, io.EOF }
func (blank) ReadAt([]byte, int64) (int, error)      { return 0, io.EOF }
func (blank) Write(p []byte) (int, error)            { return len(p), nil }
func (blank) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (blank) Preallocate(int64, int64) error         { return nil }
func (blank) Stat() (vfs.FileInfo, error)            { return blankInfo{}, nil }
func (blank) Sync() error                            { return nil }
func (blank) SyncTo(int64) (bool, error)             { return true, nil }
func (blank) SyncData() error                        { return nil }
func (blank) Prefetch(int64, int64) error            { return nil }
func (blank) Fd() uintptr                            { return vfs.InvalidFd }

// blankInfo describes a blank.
type blankInfo struct{}

func (blankInfo) Name() string           { return "" }
func (blankInfo) Size() int64            { return 0 }
func (blankInfo) Mode() os.FileMode      { return 0 }
func (blankInfo) ModTime() time.Time     { return time.Time{} }
func (blankInfo) IsDir() bool            { return false }
func (blankInfo) Sys() any               { return nil }
func (blankInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
