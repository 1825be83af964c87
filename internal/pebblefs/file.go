package pebblefs

import (
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// file is a handle of a Guard. The guard may close it at any time, also while
// Pebble uses it; the handle below is closed when its last user has returned.
type file struct {
	inner vfs.File
	guard *Guard
	name  string

	// Of WALs and manifests; they are written from their start on and synced by one
	// goroutine at a time.
	isWAL, isManifest bool
	num               uint64
	written           int64

	mu    sync.Mutex
	users int
	ended bool
}

var _ vfs.File = (*file)(nil)

// enter tells whether the handle may be used; if so, leave must follow.
func (f *file) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	f.users++
	return true
}

func (f *file) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users == 0 && f.ended {
		f.inner.Close() // nobody is left to tell
	}
}

// shut closes the handle once.
func (f *file) shut() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil
	}
	f.ended = true
	if f.users > 0 {
		return nil
	}
	return f.inner.Close()
}

func (f *file) change(op func() error) error {
	if !f.guard.begin() {
		return nil
	}
	if !f.enter() {
		return f.guard.end(ErrFenced)
	}
	defer f.leave()
	return f.guard.end(op())
}

func (f *file) Write(p []byte) (n int, err error) {
	n = len(p)
	err = f.change(func() (err error) { n, err = f.inner.Write(p); return err })
	if err == nil {
		n = len(p)
	}
	f.written += int64(n)
	return n, err
}

func (f *file) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.change(func() (err error) { n, err = f.inner.WriteAt(p, at); return err })
	if err == nil {
		n = len(p)
	}
	return n, err
}

func (f *file) Sync() error     { return f.sync(f.inner.Sync) }
func (f *file) SyncData() error { return f.sync(f.inner.SyncData) }

func (f *file) sync(op func() error) error {
	return f.change(func() error {
		err := op()
		if err == nil && (f.isWAL || f.isManifest) {
			f.guard.reached(f)
		}
		return err
	})
}

func (f *file) SyncTo(length int64) (full bool, err error) {
	err = f.change(func() (err error) { full, err = f.inner.SyncTo(length); return err })
	return full, err
}

// Preallocate is a hint: Pebble ignores its error.
func (f *file) Preallocate(offset, length int64) error {
	if !f.enter() {
		return nil
	}
	defer f.leave()
	return f.guard.tidy(func() error { return f.inner.Preallocate(offset, length) })
}

func (f *file) Close() error {
	g := f.guard
	g.mu.Lock()
	delete(g.files, f)
	g.mu.Unlock()
	if !g.begin() {
		f.shut()
		return nil
	}
	return g.end(f.shut())
}

func (f *file) Read(p []byte) (int, error) {
	if !f.enter() {
		return 0, ErrFenced
	}
	defer f.leave()
	return f.inner.Read(p)
}

func (f *file) ReadAt(p []byte, at int64) (int, error) {
	if !f.enter() {
		return 0, ErrFenced
	}
	defer f.leave()
	return f.inner.ReadAt(p, at)
}

func (f *file) Prefetch(at, length int64) error {
	if !f.enter() {
		return ErrFenced
	}
	defer f.leave()
	return f.inner.Prefetch(at, length)
}

func (f *file) Fd() uintptr {
	if !f.enter() {
		return vfs.InvalidFd
	}
	defer f.leave()
	return f.inner.Fd()
}

// Stat of a WAL is part of creating it, where Pebble survives no error.
func (f *file) Stat() (vfs.FileInfo, error) {
	if !f.isWAL {
		if !f.enter() {
			return nil, ErrFenced
		}
		defer f.leave()
		return f.inner.Stat()
	}
	var info vfs.FileInfo = nothingInfo(f.name)
	err := f.change(func() error {
		i, err := f.inner.Stat()
		if err == nil {
			info = i
		}
		return err
	})
	return info, err
}

// nothing is a file whose contents do not matter any more.
type nothing struct{ name string }

var _ vfs.File = nothing{}

func (nothing) Close() error                           { return nil }
func (nothing) Read([]byte) (int, error)               { return 0, io.EOF }
func (nothing) ReadAt([]byte, int64) (int, error)      { return 0, io.EOF }
func (nothing) Write(p []byte) (int, error)            { return len(p), nil }
func (nothing) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nothing) Preallocate(int64, int64) error         { return nil }
func (nothing) Sync() error                            { return nil }
func (nothing) SyncTo(int64) (bool, error)             { return true, nil }
func (nothing) SyncData() error                        { return nil }
func (nothing) Prefetch(int64, int64) error            { return nil }
func (nothing) Fd() uintptr                            { return vfs.InvalidFd }
func (n nothing) Stat() (vfs.FileInfo, error)          { return nothingInfo(n.name), nil }

type nothingInfo string

func (n nothingInfo) Name() string           { return string(n) }
func (n nothingInfo) Size() int64            { return 0 }
func (n nothingInfo) Mode() fs.FileMode      { return 0o600 }
func (n nothingInfo) ModTime() time.Time     { return time.Time{} }
func (n nothingInfo) IsDir() bool            { return false }
func (n nothingInfo) Sys() any               { return nil }
func (n nothingInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
