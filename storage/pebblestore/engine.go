package pebblestore

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-log/tidemark/internal/pebblefs"
)

// engineFormat is Pebble's own format, pinned so that an upgrade of the module
// changes no store by itself. It is the first with a checksum over the footer of
// tables; it includes WAL sync chunks, with which Pebble tells a damaged WAL from
// one that ends in a torn write.
const engineFormat = pebble.FormatTableFormatV6

// memtable is the size of Pebble's memtables. Pebble takes no more than 4 GiB.
func memtable(o Options) int64 { return min(o.MemtableBytes+o.MemtableBytes/8, 4<<30-1) }

// engineOptions sets Pebble up for large values that are written once, in key order.
func engineOptions(o Options, fs *pebblefs.Guard, l engineLogger) *pebble.Options {
	opts := &pebble.Options{
		FS:                 fs,
		Logger:             l,
		EventListener:      l.events(),
		FormatMajorVersion: engineFormat,
		CacheSize:          o.CacheBytes,
		// Some more than flush lets it have, for the group that goes beyond that.
		MemTableSize:                uint64(memtable(o)),
		MemTableStopWritesThreshold: 4,
		// Only the tables that hold the small keys overlap and are merged, which is cheap;
		// the others are moved down as they are, once there are too many of them.
		// Stopping writes would help nobody.
		L0CompactionThreshold:     4,
		L0CompactionFileThreshold: 64,
		L0StopWritesThreshold:     1000,
		LBaseMaxBytes:             256 << 20,
		// Large values: fewer, larger tables keep the manifest and the file table short.
		FlushSplitBytes: 16 << 20,
		// Running out of file descriptors would fail the store: stay far below common
		// limits, also with several stores in one process.
		MaxOpenFiles: 256,
	}
	opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	// Below L0 only what was merged is in tables of that size. It is small because Pebble
	// merges tables that it could move as long as L0 has less than 25 times as much.
	for i := range opts.TargetFileSizes {
		opts.TargetFileSizes[i] = 4 << 20
	}
	opts.TargetFileSizes[0] = 16 << 20
	opts.Experimental.SpanPolicyFunc = tableEnd
	opts.CompactionConcurrencyRange = func() (int, int) { return 1, 2 }
	return opts
}

// tableEnd is where a table that begins at key has to end: the small keys are in tables
// of their own, and so is each segment, also what deletes parts of an old one. Otherwise
// tables of appended data would overlap, and be merged instead of moved.
func tableEnd(key []byte) (policy pebble.SpanPolicy, end []byte, err error) {
	switch {
	case len(key) > 0 && key[0] < prefixData:
		return policy, []byte{prefixData}, nil
	case len(key) < 1+8 || key[0] > prefixData: // not ours
		return policy, nil, nil
	}
	return policy, segmentKey(be.Uint64(key[1:]) + 1), nil
}

// engineLogger is where Pebble's words go. Pebble calls Fatalf where it expects
// the process to end; here only the store does.
type engineLogger struct {
	log  *slog.Logger
	fail func(error)
}

var _ pebble.Logger = engineLogger{}

func (l engineLogger) Infof(format string, args ...any) { l.say(slog.LevelDebug, format, args) }

func (l engineLogger) Errorf(format string, args ...any) { l.say(slog.LevelWarn, format, args) }

func (l engineLogger) Fatalf(format string, args ...any) {
	l.say(slog.LevelError, format, args)
	l.fail(fmt.Errorf("pebblestore: engine: "+format, args...))
}

func (l engineLogger) say(level slog.Level, format string, args []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprintf(format, args...))
	}
}

// events reports what Pebble would otherwise retry for ever, or take the process
// down for.
func (l engineLogger) events() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			l.fail(fmt.Errorf("pebblestore: background work: %w", err))
		},
		// A read that meets damage says so to its caller; other logs go on.
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			l.say(slog.LevelError, "%s", []any{i})
		},
	}
}

// panicError makes an error of what recover returned.
func panicError(r any) error {
	if err, ok := r.(error); ok {
		return fmt.Errorf("pebblestore: engine panicked: %w", err)
	}
	return fmt.Errorf("pebblestore: engine panicked: %v", r)
}
