// Package faultfs is a file system whose disk can be full or can hang.
package faultfs

import (
	"os"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Disk is what the files are on. The zero value is a good one. All methods may be
// called from any goroutine.
type Disk struct {
	mu    sync.Mutex
	full  bool
	until chan struct{} // closed when it answers again; nil: it does
	hung  int           // operations that wait
}

// SetFull says whether there is room. While there is none whatever needs some fails
// with ENOSPC, a write after half of it.
func (d *Disk) SetFull(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// SetStalled says whether writes, syncs and changes of names hang. What hung goes on
// when it is over.
func (d *Disk) SetStalled(stalled bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case stalled && d.until == nil:
		d.until = make(chan struct{})
	case !stalled && d.until != nil:
		close(d.until)
		d.until = nil
	}
}

// Hung is how many operations wait for the disk.
func (d *Disk) Hung() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hung
}

// enter waits while the disk hangs, and reports whether it is full then.
func (d *Disk) enter() (full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.until != nil {
		until := d.until
		d.hung++
		d.mu.Unlock()
		<-until
		d.mu.Lock()
		d.hung--
	}
	return d.full
}

// room is enter for what needs some.
func (d *Disk) room() error {
	if d.enter() {
		return syscall.ENOSPC
	}
	return nil
}

// Wrap is the file system fs on this disk.
func (d *Disk) Wrap(fs vfs.FS) vfs.FS { return &faultFS{fs, d} }

type faultFS struct {
	vfs.FS
	d *Disk
}

func (f *faultFS) Unwrap() vfs.FS { return f.FS }

func (f *faultFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{file, f.d}, nil
}

func (f *faultFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.d.room(); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.Create(name, c))
}

func (f *faultFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f.d.enter()
	return f.wrap(f.FS.OpenReadWrite(name, c, o...))
}

func (f *faultFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.d.enter()
	return f.wrap(f.FS.ReuseForWrite(from, to, c))
}

func (f *faultFS) OpenDir(name string) (vfs.File, error) { return f.wrap(f.FS.OpenDir(name)) }

func (f *faultFS) MkdirAll(dir string, perm os.FileMode) error {
	if err := f.d.room(); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir, perm)
}

func (f *faultFS) Link(from, to string) error {
	if err := f.d.room(); err != nil {
		return err
	}
	return f.FS.Link(from, to)
}

func (f *faultFS) Rename(from, to string) error {
	f.d.enter()
	return f.FS.Rename(from, to)
}

func (f *faultFS) Remove(name string) error {
	f.d.enter()
	return f.FS.Remove(name)
}

func (f *faultFS) RemoveAll(name string) error {
	f.d.enter()
	return f.FS.RemoveAll(name)
}

type faultFile struct {
	vfs.File
	d *Disk
}

func (f *faultFile) Write(p []byte) (int, error) {
	if !f.d.enter() {
		return f.File.Write(p)
	}
	n, err := f.File.Write(p[:len(p)/2])
	if err == nil {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *faultFile) WriteAt(p []byte, at int64) (int, error) {
	if !f.d.enter() {
		return f.File.WriteAt(p, at)
	}
	n, err := f.File.WriteAt(p[:len(p)/2], at)
	if err == nil {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *faultFile) Preallocate(at, length int64) error {
	if err := f.d.room(); err != nil {
		return err
	}
	return f.File.Preallocate(at, length)
}

func (f *faultFile) Sync() error {
	f.d.enter()
	return f.File.Sync()
}

func (f *faultFile) SyncData() error {
	f.d.enter()
	return f.File.SyncData()
}

func (f *faultFile) SyncTo(length int64) (bool, error) {
	f.d.enter()
	return f.File.SyncTo(length)
}
