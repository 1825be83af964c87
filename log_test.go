package tidemark

import (
	"context"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// logKeys are the keys of everything that is logged by this package. docs/observing.md
// says what they mean.
var logKeys = []string{
	"age", "broker", "broker_epoch", "bytes", "controller_epoch", "error", "from", "isr", "items", "leader", "leader_epoch",
	"log", "partition", "peer", "reason", "stack", "to", "topic", "was",
}

func TestLogKeysAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("docs/observing.md")
	require.NoError(t, err)
	for _, key := range logKeys {
		require.Contains(t, string(doc), "`"+key+"`")
	}
}

// recorder is a slog.Handler that keeps every record.
type recorder struct {
	mu    sync.Mutex
	lines []slog.Record
	with  []slog.Attr
	root  *recorder
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	root := r
	if r.root != nil {
		root = r.root
	}
	root.mu.Lock()
	defer root.mu.Unlock()
	rec = rec.Clone()
	rec.AddAttrs(r.with...)
	root.lines = append(root.lines, rec)
	return nil
}

func (r *recorder) WithAttrs(attrs []slog.Attr) slog.Handler {
	root := r
	if r.root != nil {
		root = r.root
	}
	return &recorder{root: root, with: append(slices.Clone(r.with), attrs...)}
}

func (r *recorder) WithGroup(string) slog.Handler { return r }

func (r *recorder) all() []slog.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func attrs(rec slog.Record) map[string]any {
	all := make(map[string]any)
	rec.Attrs(func(a slog.Attr) bool {
		all[a.Key] = a.Value.Any()
		return true
	})
	return all
}

// What is logged has constant texts, keys from one list, the broker in every line,
// and the level that it deserves; and what goes on for long is said once a minute.
func TestLogLines(t *testing.T) {
	rec := &recorder{}
	attack(t, 3, func(c *Config) { c.Logger = slog.New(rec) }, func(t *testing.T, r *attackRig) {
		n := r.create("t", 3)
		_, err := r.client.Partition("t", n).Append(r.within(time.Second), Record{Value: []byte("x")})
		require.NoError(t, err)
		r.kill(1, 0)
		pause(3 * time.Second)
		r.start(1)
		r.healthy("t", 3)
		r.node(2).coord.SetUnavailable(true)
		pause(3 * time.Minute)
		r.node(2).coord.SetUnavailable(false)
		r.healthy("t", 3)
		r.node(3).store.failAt.Store(1)
		_, _ = r.client.Partition("t", 0).Append(r.within(time.Second), Record{Value: []byte("x")})
		_, _ = r.client.Partition("t", 1).Append(r.within(time.Second), Record{Value: []byte("x")})
		_, _ = r.client.Partition("t", 2).Append(r.within(time.Second), Record{Value: []byte("x")})
		pause(3 * time.Second)
	})
	levels := map[string]slog.Level{
		"became leader": slog.LevelInfo, "became follower": slog.LevelDebug, "broker registered": slog.LevelInfo,
		"controller elected": slog.LevelInfo, "isr expanded": slog.LevelInfo, "isr shrunk": slog.LevelWarn,
		"link is up": slog.LevelInfo, "link is down": slog.LevelWarn, "broker session ended": slog.LevelWarn,
		"broker is unfit": slog.LevelError,
	}
	text := regexp.MustCompile(`^[a-z][a-z ]+$`)
	said, warned := make(map[string]int), make(map[string]int)
	for _, line := range rec.all() {
		a := attrs(line)
		require.Regexp(t, text, line.Message)
		require.Contains(t, a, "broker", line.Message)
		for key := range a {
			require.Contains(t, logKeys, key, line.Message)
		}
		if want, ok := levels[line.Message]; ok {
			require.Equal(t, want, line.Level, line.Message)
		}
		said[line.Message]++
		if line.Level >= slog.LevelWarn {
			warned[line.Message]++
		}
	}
	for msg := range levels {
		require.NotZero(t, said[msg], msg)
	}
	for msg, most := range map[string]int{"could not register": 5, "watch on the coordination store ended": 5, "could not renew session": 5} {
		require.Greater(t, said[msg], warned[msg], "%s: said rarely", msg)
		require.LessOrEqual(t, warned[msg], most, msg)
		require.NotZero(t, warned[msg], msg)
	}
}

// Every key that the sources log with is in the list, those that no test comes by too.
func TestLogKeysInTheSources(t *testing.T) {
	call := regexp.MustCompile(`(?:log|b|r\.b|c\.b|s\.b)\.(?:Debug|Info|Warn|Error|With|warn|logEvent)\(([^\n]*)`)
	key := regexp.MustCompile(`"([a-z_]+)",`)
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	found := 0
	for _, f := range files {
		if name := f.Name(); len(name) < 4 || name[len(name)-3:] != ".go" || regexp.MustCompile(`_test\.go$`).MatchString(name) {
			continue
		}
		source, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		for _, m := range call.FindAllStringSubmatch(string(source), -1) {
			for _, k := range key.FindAllStringSubmatch(m[1], -1) {
				require.Contains(t, logKeys, k[1], "%s: %s", f.Name(), m[0])
				found++
			}
		}
	}
	require.Greater(t, found, 20)
}
