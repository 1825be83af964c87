package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// asProgram makes the test binary behave as the quickstart itself.
const asProgram = "TIDEMARK_TEST_QUICKSTART"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// result is what one run left behind.
type result struct {
	code           int
	sum            summary
	stdout, stderr string
}

func quickstartRun(t *testing.T, args ...string) result {
	t.Helper()
	return runWith(t, context.Background(), io.Discard, args...)
}

func runWith(t *testing.T, ctx context.Context, tee io.Writer, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	r := result{code: run(ctx, args, &stdout, io.MultiWriter(&stderr, tee))}
	r.stdout, r.stderr = stdout.String(), stderr.String()
	if r.stdout != "" {
		d := json.NewDecoder(&stdout)
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&r.sum), r.stdout)
		require.Zero(t, strings.Count(strings.TrimSuffix(r.stdout, "\n"), "\n"), "one line only")
	}
	return r
}

// requireGood checks what must hold after every run with acks=all.
func (r result) requireGood(t *testing.T, lines int) {
	t.Helper()
	require.Zero(t, r.code, "%s\n%s", r.stdout, r.stderr)
	require.Equal(t, lines, r.sum.Lines)
	require.Equal(t, lines, r.sum.Acked)
	require.Equal(t, lines+r.sum.Duplicated, r.sum.Read)
	require.Zero(t, r.sum.Lost)
	require.Zero(t, r.sum.OutOfOrder)
	require.True(t, r.sum.ReplicasEqual)
}

// sample is text with what tends to go wrong: empty lines, carriage returns, bytes
// that are no UTF-8, a line that fills more than a batch's share, equal lines.
func sample(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		switch i % 7 {
		case 0:
		case 1:
			b.WriteString("same\r")
		case 2:
			b.WriteString("\xff\x00\xfe")
		case 3:
			b.WriteString(strings.Repeat("long ", 200))
		default:
			fmt.Fprintf(&b, "line %d", i+1)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func write(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "input.txt")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}

func TestRunAndRunAgain(t *testing.T) {
	t.Parallel()
	const lines = 3000
	file, dir := write(t, sample(lines)), filepath.Join(t.TempDir(), "new", "dir")

	first := quickstartRun(t, "-in", file, "-dir", dir)
	first.requireGood(t, lines)
	require.Positive(t, first.sum.FailoverMs)
	require.LessOrEqual(t, first.sum.FailoverMs, first.sum.ElapsedMs)
	require.Contains(t, first.stderr, "killing broker")
	require.Regexp(t, `(?m)^partition +leader +epoch +ISR +LEO +HW$`, first.stderr)
	require.Regexp(t, `(?m)^0 +[123] +[1-9]\d* +\[[123] [123] [123]\] +\d+ +\d+$`, first.stderr)

	second := quickstartRun(t, "-in", file, "-dir", dir)
	second.requireGood(t, lines)
	require.Zero(t, second.sum.FailoverMs)
	require.Equal(t, first.sum.Read, second.sum.Read, "a second run appends nothing")
	require.NotContains(t, second.stderr, "killing broker")

	for what, other := range map[string][]string{
		"one more line":    {"-in", write(t, append(sample(lines), 'x')), "-dir", dir},
		"no last newline":  {"-in", write(t, bytes.TrimSuffix(sample(lines), []byte("\n"))), "-dir", dir},
		"fewer partitions": {"-in", file, "-dir", dir, "-partitions", "2"},
		"more partitions":  {"-in", file, "-dir", dir, "-partitions", "4"},
	} {
		r := quickstartRun(t, other...)
		require.Equal(t, 2, r.code, "%s: %s", what, r.stderr)
		require.Empty(t, r.stdout, what)
	}
	third := quickstartRun(t, "-in", file, "-dir", dir)
	third.requireGood(t, lines)
	require.Equal(t, first.sum.Read, third.sum.Read, "what was refused left no trace")
}

func TestOtherAcks(t *testing.T) {
	for _, acks := range []string{"leader", "none"} {
		t.Run(acks, func(t *testing.T) {
			t.Parallel()
			r := quickstartRun(t, "-in", write(t, sample(2000)), "-acks", acks)
			require.Zero(t, r.code, "%s\n%s", r.stdout, r.stderr)
			require.Equal(t, 2000, r.sum.Acked)
			require.Equal(t, 2000, r.sum.Read-r.sum.Duplicated+r.sum.Lost)
			require.Zero(t, r.sum.OutOfOrder)
			require.True(t, r.sum.ReplicasEqual)
			require.Positive(t, r.sum.FailoverMs)
			require.Equal(t, r.sum.Lost > 0, strings.Contains(r.stderr, "allows that"))
		})
	}
}

// cancelAt cancels when it is shown a text.
type cancelAt struct {
	text   string
	cancel context.CancelFunc
	mu     sync.Mutex
}

func (c *cancelAt) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes.Contains(b, []byte(c.text)) {
		c.cancel()
	}
	return len(b), nil
}

// A run that ends in the middle is continued by the next one: no line twice that
// was there before, none lost, none out of order.
func TestContinue(t *testing.T) {
	const lines = 6000
	interrupt := func(t *testing.T, args []string) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r := runWith(t, ctx, &cancelAt{text: "killing broker", cancel: cancel}, args...)
		require.Equal(t, 1, r.code, r.stderr)
		require.Contains(t, r.stderr, context.Canceled.Error())
		require.Empty(t, r.stdout)
	}
	kill := func(t *testing.T, args []string) {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		stderr, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		for s := bufio.NewScanner(stderr); s.Scan() && !strings.Contains(s.Text(), "killing broker"); {
		}
		require.NoError(t, cmd.Process.Kill())
		require.ErrorContains(t, cmd.Wait(), "killed")
	}
	for name, end := range map[string]func(*testing.T, []string){"interrupted": interrupt, "killed": kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"-in", write(t, sample(lines)), "-dir", t.TempDir()}
			end(t, args)

			next := quickstartRun(t, args...)
			next.requireGood(t, lines)
			var there, missing int
			for _, line := range strings.Split(next.stderr, "\n") {
				if n, _ := fmt.Sscanf(line, "%d lines are there, %d to append", &there, &missing); n == 2 {
					break
				}
			}
			require.Positive(t, there, next.stderr)
			require.Positive(t, missing, next.stderr)
			require.Equal(t, lines, there+missing)
			require.Positive(t, next.sum.FailoverMs)
		})
	}
}

// Wherever it is interrupted, it closes what it opened: the next run is not refused.
func TestInterruptedEarly(t *testing.T) {
	t.Parallel()
	args := []string{"-in", write(t, sample(10)), "-dir", t.TempDir()}
	for _, text := range []string{"10 lines", "brokers in", "to append"} {
		ctx, cancel := context.WithCancel(context.Background())
		r := runWith(t, ctx, &cancelAt{text: text, cancel: cancel}, args...)
		require.Equal(t, 1, r.code, r.stderr)
		require.Contains(t, r.stderr, context.Canceled.Error())
	}
	quickstartRun(t, args...).requireGood(t, 10)
}

func TestSmallInputs(t *testing.T) {
	for name, c := range map[string]struct {
		data  string
		lines int
	}{
		"empty":        {"", 0},
		"one line":     {"a", 1},
		"longest line": {strings.Repeat("x", maxRecordBytes-1) + "\nb\n", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := quickstartRun(t, "-in", write(t, []byte(c.data)), "-partitions", "1")
			r.requireGood(t, c.lines)
			require.Equal(t, c.lines > 0, r.sum.FailoverMs > 0)
		})
	}
}

// The checker must see what it is there to see: a log is prepared by hand.
func TestNoticesWhatIsWrong(t *testing.T) {
	const lines = 50
	rec := func(n int, value string) tidemark.Record {
		return tidemark.Record{Key: key(n - 1), Value: []byte(value)}
	}
	for name, c := range map[string]struct {
		before []tidemark.Record
		code   int
		sum    summary
		says   string
	}{
		"duplicate": {[]tidemark.Record{rec(1, ""), rec(2, "same\r"), rec(1, ""), rec(1, "")}, 0,
			summary{Lines: lines, Acked: lines, Read: lines + 2, Duplicated: 2, ReplicasEqual: true}, "every line is there"},
		"out of order": {[]tidemark.Record{rec(9, "same\r"), rec(1, ""), rec(8, "")}, 1,
			summary{Lines: lines, Acked: lines, Read: lines, OutOfOrder: 8, ReplicasEqual: true}, "OUT OF ORDER"},
		"not the file": {[]tidemark.Record{rec(1, "not so")}, 1, summary{}, "no line of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			file, dir := write(t, sample(lines)), t.TempDir()
			in, err := loadInput(ctx, file)
			require.NoError(t, err)
			cluster, err := local.Open(ctx, dir, local.Options{})
			require.NoError(t, err)
			defer cluster.Close()
			topic := topicPrefix + in.sum
			require.NoError(t, cluster.Controller().EnsureTopic(ctx, topic, tidemark.TopicConfig{Partitions: 1}))
			_, err = cluster.Partition(topic, 0).Append(ctx, c.before...)
			require.NoError(t, err)
			require.NoError(t, cluster.Close())

			r := quickstartRun(t, "-in", file, "-dir", dir, "-partitions", "1")
			require.Equal(t, c.code, r.code, "%s\n%s", r.stdout, r.stderr)
			require.Contains(t, r.stderr, c.says)
			r.sum.Duplicated -= r.sum.Read - c.sum.Read // those of the kill
			r.sum.Read = c.sum.Read
			r.sum.FailoverMs, r.sum.ElapsedMs = 0, 0
			require.Equal(t, c.sum, r.sum)
		})
	}
}
