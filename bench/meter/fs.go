package meter

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Writes counts what goes through a file system.
type Writes struct {
	bytes, syncs atomic.Int64
}

// Bytes is how many bytes were written to files.
func (w *Writes) Bytes() int64 { return w.bytes.Load() }

// Syncs is how often a file or a directory was synced.
func (w *Writes) Syncs() int64 { return w.syncs.Load() }

// AddSync counts a sync of a file that is written in another way.
func (w *Writes) AddSync() { w.syncs.Add(1) }

// AddBytes counts bytes that are written in another way.
func (w *Writes) AddBytes(n int) { w.bytes.Add(int64(n)) }

// FS is fs with everything that is written through it counted in w. Several may
// share one w.
func (w *Writes) FS(fs vfs.FS) vfs.FS { return &countingFS{fs, w} }

type countingFS struct {
	vfs.FS
	w *Writes
}

func (c *countingFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &countingFile{f, c.w}, nil
}

func (c *countingFS) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.wrap(c.FS.Create(name, k))
}

func (c *countingFS) OpenReadWrite(name string, k vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return c.wrap(c.FS.OpenReadWrite(name, k, o...))
}

func (c *countingFS) ReuseForWrite(old, name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.wrap(c.FS.ReuseForWrite(old, name, k))
}

func (c *countingFS) OpenDir(name string) (vfs.File, error) {
	return c.wrap(c.FS.OpenDir(name))
}

func (c *countingFS) Unwrap() vfs.FS { return c.FS }

type countingFile struct {
	vfs.File
	w *Writes
}

func (f *countingFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.w.bytes.Add(int64(n))
	return n, err
}

func (f *countingFile) WriteAt(p []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(p, at)
	f.w.bytes.Add(int64(n))
	return n, err
}

func (f *countingFile) Sync() error {
	f.w.syncs.Add(1)
	return f.File.Sync()
}

func (f *countingFile) SyncData() error {
	f.w.syncs.Add(1)
	return f.File.SyncData()
}

// SyncTo counts only where it waits for the disk: elsewhere it is a hint.
func (f *countingFile) SyncTo(length int64) (full bool, err error) {
	full, err = f.File.SyncTo(length)
	if full {
		f.w.syncs.Add(1)
	}
	return full, err
}
