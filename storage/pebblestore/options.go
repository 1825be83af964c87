package pebblestore

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options of a store. Fields that are zero get the default.
type Options struct {
	// FS is the file system. Default: the operating system's.
	FS vfs.FS
	// CacheBytes is the size of the block cache, for reads. Default 16 MiB.
	CacheBytes int64
	// MemtableBytes is how much is gathered in memory before it is written to a
	// table, besides the write-ahead log. Up to five times as much is used while
	// tables are written. Default 64 MiB.
	MemtableBytes int64
	// SegmentBytes is how much is appended, over all logs, before the next segment
	// begins; one also begins with each memtable. Space is freed by whole segments.
	// Each is in tables of its own: small ones make many. Default: MemtableBytes.
	SegmentBytes int64
	// CloseTimeout bounds how long Close waits for queued groups, and then again
	// for the files to be released. Default 10 s.
	CloseTimeout time.Duration
	// Logger gets what a human should know: a failure at Error, damage at Warn, the
	// engine's own words at Debug. Default: none.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = 16 << 20
	}
	if o.MemtableBytes <= 0 {
		o.MemtableBytes = 64 << 20
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = o.MemtableBytes
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}
