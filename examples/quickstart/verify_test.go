package main

import (
	"bytes"
	"errors"
	"iter"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// What the three brokers left on disk is opened without any broker: every copy of
// every partition must be the same bytes, sound, and together the file.
func TestCopiesOnDisk(t *testing.T) {
	t.Parallel()
	const lines, partitions = 3000, 3
	file, dir := write(t, sample(lines)), t.TempDir()
	quickstartRun(t, "-in", file, "-dir", dir).requireGood(t, lines)
	want := bytes.Split(bytes.TrimSuffix(sample(lines), []byte("\n")), []byte("\n"))

	var copies []map[storage.LogID][]byte
	for _, broker := range []string{"broker-1", "broker-2", "broker-3"} {
		copies = append(copies, logsOf(t, filepath.Join(dir, broker)))
	}
	require.Len(t, copies[0], partitions)
	require.Equal(t, copies[0], copies[1])
	require.Equal(t, copies[0], copies[2])

	found := make([]bool, lines)
	for id, log := range copies[0] {
		latest := -1
		for rest := log; len(rest) > 0; {
			info, err := record.Check(rest)
			require.NoError(t, err)
			rest = rest[info.Size:]
		}
		next := int64(0)
		for rec, err := range record.All(log) {
			require.NoError(t, err)
			require.Equal(t, next, rec.Offset)
			next++
			line := lineOf(t, rec.Key)
			require.Equal(t, want[line], rec.Value, "line %d", line+1)
			require.Equal(t, int(id.Partition), tidemark.PartitionFor(rec.Key, partitions))
			if !found[line] {
				require.Greater(t, line, latest, "lines of one partition are in the order of the file")
				found[line], latest = true, line
			}
		}
	}
	require.NotContains(t, found, false)
}

// logsOf reads all logs of one broker's directory.
func logsOf(t *testing.T, dir string) map[storage.LogID][]byte {
	t.Helper()
	store, err := pebblestore.Open(dir, pebblestore.Options{})
	require.NoError(t, err)
	defer store.Close()
	states, err := store.Logs()
	require.NoError(t, err)
	logs := make(map[storage.LogID][]byte)
	for id, state := range states {
		for next := state.Start; next < state.End; {
			got, err := store.Read(id, next, 64<<10)
			require.NoError(t, err)
			require.NotEmpty(t, got.Batches)
			for rest := got.Batches; len(rest) > 0; {
				var batch []byte
				batch, rest, err = record.Split(rest)
				require.NoError(t, err)
				info, err := record.Peek(batch)
				require.NoError(t, err)
				next = info.End()
			}
			logs[id] = append(logs[id], got.Batches...)
		}
	}
	return logs
}

func lineOf(t *testing.T, key []byte) int {
	t.Helper()
	n := 0
	for _, c := range key {
		require.True(t, c >= '0' && c <= '9')
		n = n*10 + int(c-'0')
	}
	return n - 1
}

func TestReading(t *testing.T) {
	for name, c := range map[string]struct {
		read []int // lines of partition 0, counted from 0, in the order of the log
		want summary
	}{
		"all":                   {[]int{0, 1, 2, 3}, summary{Read: 4}},
		"lost":                  {[]int{0, 3}, summary{Read: 2, Lost: 2}},
		"duplicates":            {[]int{0, 1, 0, 1, 2, 1, 3}, summary{Read: 7, Duplicated: 3}},
		"order of first ones":   {[]int{0, 2, 1, 3}, summary{Read: 4, OutOfOrder: 1}},
		"one early, three late": {[]int{3, 0, 1, 2}, summary{Read: 4, OutOfOrder: 3}},
		"nothing":               {nil, summary{Lost: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReading(4, 1)
			for _, line := range c.read {
				r.add(0, line)
			}
			c.want.Lines, c.want.Acked = 4, 4
			require.Equal(t, c.want, r.summary([]bool{true, true, true, true}))
		})
	}
	t.Run("what was not acknowledged is not lost", func(t *testing.T) {
		require.Equal(t, summary{Lines: 2, Acked: 1, Lost: 1}, newReading(2, 1).summary([]bool{true, false}))
	})
	t.Run("each partition has its own order", func(t *testing.T) {
		r := newReading(4, 2)
		r.add(0, 2)
		r.add(1, 1)
		require.Zero(t, r.outOfOrder)
	})
}

func TestVerdict(t *testing.T) {
	good := summary{Lines: 2, Acked: 2, Read: 3, Duplicated: 1, ReplicasEqual: true}
	for name, c := range map[string]struct {
		spoil       func(*summary)
		all, leader bool
	}{
		"good":         {func(*summary) {}, true, true},
		"lost":         {func(s *summary) { s.Lost = 1 }, false, true},
		"not acked":    {func(s *summary) { s.Acked = 1 }, false, false},
		"out of order": {func(s *summary) { s.OutOfOrder = 1 }, false, false},
		"copies":       {func(s *summary) { s.ReplicasEqual = false }, false, false},
	} {
		s := good
		c.spoil(&s)
		require.Equal(t, c.all, s.good(tidemark.AcksAll), name)
		require.Equal(t, c.leader, s.good(tidemark.AcksLeader), name)
		require.Equal(t, c.leader, s.good(tidemark.AcksNone), name)
	}
}

func TestSameBatches(t *testing.T) {
	bad := errors.New("bad")
	batches := func(err error, all ...string) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for _, b := range all {
				if !yield([]byte(b), nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
			}
		}
	}
	for name, c := range map[string]struct {
		a, b  iter.Seq2[[]byte, error]
		equal bool
		err   error
	}{
		"empty":             {batches(nil), batches(nil), true, nil},
		"equal":             {batches(nil, "x", "y"), batches(nil, "x", "y"), true, nil},
		"differs":           {batches(nil, "x", "y"), batches(nil, "x", "z"), false, nil},
		"shorter":           {batches(nil, "x"), batches(nil, "x", "y"), false, nil},
		"longer":            {batches(nil, "x", "y"), batches(nil, "x"), false, nil},
		"error in first":    {batches(bad, "x"), batches(nil, "x"), false, bad},
		"error in second":   {batches(nil, "x", "y"), batches(bad, "x"), false, bad},
		"error at both end": {batches(nil, "x"), batches(bad, "x"), false, bad},
	} {
		equal, err := sameBatches(c.a, c.b)
		require.ErrorIs(t, err, c.err, name)
		require.Equal(t, c.equal, equal, name)
	}
}
