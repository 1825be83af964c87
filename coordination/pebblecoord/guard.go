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
// of its own, which would end the process, others leave it so that it can be neither
// opened nor closed, or repeat the same work for ever (D24). Therefore Pebble never
// sees one. The first failure is kept; from then on nothing more reaches the disk:
// new files live in memory, so that Pebble can finish what it is doing and be closed,
// and writes to old ones go nowhere. The disk stays as a crash at that moment would
// have left it. Nothing may be called durable before failure was asked.
type guard struct {
	vfs.FS

	mu     sync.Mutex
	err    error
	beyond *vfs.MemFS // what was made after the failure
	onFail func(error)
}

var _ vfs.FS = (*guard)(nil)

// failure returns the first failure, if there was one.
func (g *guard) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// fail takes note of a failure. Only the first one counts.
func (g *guard) fail(err error) {
	g.mu.Lock()
	first := g.err == nil
	if first {
		g.err = err
		g.beyond = vfs.NewMem()
	}
	onFail := g.onFail
	g.mu.Unlock()
	if first && onFail != nil {
		onFail(err)
	}
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

// after returns the file system of the time after the failure; nil before it.
func (g *guard) after() *vfs.MemFS {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.beyond
}

// write runs an operation that changes the disk. Pebble sees it succeed.
func (g *guard) write(op func() error) {
	if g.after() != nil {
		return
	}
	if err := op(); err != nil {
		g.fail(err)
	}
}

// tidy runs one whose failure loses nothing.
func (g *guard) tidy(op func() error) {
	if g.after() == nil {
		_ = op()
	}
}

// create opens a file for writing.
func (g *guard) create(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if g.after() == nil {
		f, err := open()
		if err == nil {
			return &file{File: f, guard: g, written: true}, nil
		}
		g.fail(err)
	}
	mem := g.after()
	if err := mem.MkdirAll(mem.PathDir(name), 0o755); err != nil {
		return nil, err
	}
	return mem.Create(name, vfs.WriteCategoryUnspecified)
}

func (g *guard) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(g.FS.PathBase(name), "marker.") {
		// A marker names another new file of its directory. Pebble 2.1.7 makes both
		// durable by one sync, so that a power cut may leave the marker alone.
		g.write(func() error { return syncDir(g.FS, g.FS.PathDir(name)) })
	}
	return g.create(name, func() (vfs.File, error) { return g.FS.Create(name, c) })
}

func (g *guard) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return g.create(name, func() (vfs.File, error) { return g.FS.OpenReadWrite(name, c, o...) })
}

func (g *guard) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.create(to, func() (vfs.File, error) { return g.FS.ReuseForWrite(from, to, c) })
}

func (g *guard) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	if mem := g.after(); mem != nil {
		if f, err := mem.Open(name, o...); err == nil {
			return f, nil
		}
	}
	return g.FS.Open(name, o...)
}

func (g *guard) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &file{File: f, guard: g}, nil
}

func (g *guard) Stat(name string) (vfs.FileInfo, error) {
	if mem := g.after(); mem != nil {
		if info, err := mem.Stat(name); err == nil {
			return info, nil
		}
	}
	return g.FS.Stat(name)
}

func (g *guard) Link(from, to string) error {
	if mem := g.after(); mem != nil {
		_ = mem.Link(from, to) // of a file that was made before nothing is left to be done
		return nil
	}
	g.write(func() error { return g.FS.Link(from, to) })
	return nil
}

func (g *guard) Rename(from, to string) error {
	if mem := g.after(); mem != nil {
		_ = mem.Rename(from, to)
		return nil
	}
	g.write(func() error { return g.FS.Rename(from, to) })
	return nil
}

func (g *guard) MkdirAll(dir string, perm os.FileMode) error {
	g.write(func() error { return g.FS.MkdirAll(dir, perm) })
	return nil
}

func (g *guard) Remove(name string) error {
	if mem := g.after(); mem != nil {
		_ = mem.Remove(name)
	}
	g.tidy(func() error { return g.FS.Remove(name) })
	return nil
}

func (g *guard) RemoveAll(name string) error {
	if mem := g.after(); mem != nil {
		_ = mem.RemoveAll(name)
	}
	g.tidy(func() error { return g.FS.RemoveAll(name) })
	return nil
}

func (g *guard) Unwrap() vfs.FS { return g.FS }

// file is a file or directory on the disk.
type file struct {
	vfs.File
	guard   *guard
	written bool // it was opened for writing
}

func (f *file) Write(p []byte) (int, error) {
	f.guard.write(func() error { return full(len(p))(f.File.Write(p)) })
	return len(p), nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.guard.write(func() error { return full(len(p))(f.File.WriteAt(p, off)) })
	return len(p), nil
}

func (f *file) Sync() error {
	f.guard.write(f.File.Sync)
	return nil
}

func (f *file) SyncData() error {
	f.guard.write(f.File.SyncData)
	return nil
}

func (f *file) SyncTo(length int64) (whole bool, err error) {
	f.guard.write(func() (err error) {
		whole, err = f.File.SyncTo(length)
		return err
	})
	return whole, nil
}

// Stat of a new log must not fail either, as far as Pebble can see.
func (f *file) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err == nil || !f.written {
		return info, err
	}
	f.guard.fail(err)
	return blankInfo{}, nil
}

// Preallocate only makes room: without it writing goes on as well.
func (f *file) Preallocate(offset, length int64) error {
	f.guard.tidy(func() error { return f.File.Preallocate(offset, length) })
	return nil
}

// Close goes through in any case, to free the handle.
func (f *file) Close() error {
	if err := f.File.Close(); err != nil {
		f.guard.fail(err)
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

// blankInfo describes a file of which nothing is known.
type blankInfo struct{}

func (blankInfo) Name() string           { return "" }
func (blankInfo) Size() int64            { return 0 }
func (blankInfo) Mode() os.FileMode      { return 0 }
func (blankInfo) ModTime() time.Time     { return time.Time{} }
func (blankInfo) IsDir() bool            { return false }
func (blankInfo) Sys() any               { return nil }
func (blankInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
