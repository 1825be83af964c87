package embedded

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger makes etcd's logger: warnings and errors go to the host's. What would end
// the process otherwise ends the goroutine that met it, and fatal is told. It must not
// go on: it may be about to tell others of something that is not on the disk. Once
// closing is closed nothing else is passed on: etcd calls it an error that its listeners
// end.
func newLogger(l *slog.Logger, why *reasons, closing <-chan struct{}, fatal func(what string)) *zap.Logger {
	hook := ender(fatal)
	c := core{l: l, why: why, closing: closing, said: &said{at: make(map[string]*saying)}}
	return zap.New(c, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

type ender func(what string)

func (e ender) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	what := entry.Message
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok {
			what += ": " + err.Error()
		}
	}
	e(what)
	runtime.Goexit()
}

// core passes entries on to a slog.Logger. etcd says the same again with every request
// while another member is away, so each message comes once a minute at most.
type core struct {
	l       *slog.Logger
	said    *said
	why     *reasons
	closing <-chan struct{}
}

const sayAgain = time.Minute

// said is which messages were passed on when, and how often since then they were not.
type said struct {
	mu sync.Mutex
	at map[string]*saying
}

type saying struct {
	at     time.Time
	unsaid int
}

// pointless are warnings about what is meant to be so.
var pointless = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"exceeded recommended request limit":                                                   true, // see maxRequestBytes
	"simple token is not cryptographically signed":                                         true, // it goes over TLS, or nothing is secret
}

func (c core) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel // also when the host's logger takes none: there is reasons
}

func (c core) With(fields []zapcore.Field) zapcore.Core {
	c.l = c.l.With(attrs(fields)...)
	return c
}

func (c core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	c.why.note(entry, fields)
	if c.isClosing() && entry.Level <= zapcore.ErrorLevel || !c.l.Enabled(context.Background(), slogLevel(entry.Level)) {
		return nil
	}
	unsaid, now := c.said.count(entry)
	if !now {
		return nil
	}
	out := attrs(fields)
	if unsaid > 0 {
		out = append(out, slog.Int("repeated", unsaid))
	}
	c.l.Log(context.Background(), slogLevel(entry.Level), "etcd: "+entry.Message, out...)
	return nil
}

func (core) Sync() error { return nil }

func (c core) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// count says whether a message is to be passed on now, and how often it was not before.
func (s *said) count(entry zapcore.Entry) (unsaid int, now bool) {
	if entry.Level > zapcore.ErrorLevel {
		return 0, true
	}
	if pointless[entry.Message] {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.at[entry.Message]
	if last == nil {
		s.at[entry.Message] = &saying{at: time.Now()} // there are as many as etcd's code has
		return 0, true
	}
	if time.Since(last.at) < sayAgain {
		last.unsaid++
		return 0, false
	}
	unsaid, last.at, last.unsaid = last.unsaid, time.Now(), 0
	return unsaid, true
}

func slogLevel(level zapcore.Level) slog.Level {
	if level <= zapcore.WarnLevel {
		return slog.LevelWarn
	}
	return slog.LevelError
}

func attrs(fields []zapcore.Field) (out []any) {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	for k, v := range enc.Fields {
		out = append(out, slog.Any(k, v))
	}
	return out
}
