package pebblecoord

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
)

// logger passes on what Pebble logs. Pebble takes Fatalf for the end of the process;
// here it poisons the store instead.
type logger struct {
	out  *slog.Logger
	fail func(error)
}

var _ pebble.Logger = (*logger)(nil)

func (l *logger) Infof(format string, args ...any) { l.out.Debug(fmt.Sprintf(format, args...)) }

func (l *logger) Errorf(format string, args ...any) { l.out.Warn(fmt.Sprintf(format, args...)) }

func (l *logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf("pebblecoord: database failed: "+format, args...)
	l.out.Error(err.Error())
	l.fail(err)
}
