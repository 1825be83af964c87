// Package storagetest is the conformance suite of storage.Store: what every
// implementation must do, whatever it keeps logs in.
package storagetest

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// Place is where stores are opened one after the other: each Open shows what the
// store before it has kept. The suite closes a store before it opens the next.
type Place interface {
	Open() (storage.Store, error)
}

// Run runs the suite. new returns a place that holds nothing yet; it is called
// many times.
func Run(t *testing.T, new func(t testing.TB) Place) {
	RunExamples(t, new)
	t.Run("Random", func(t *testing.T) { testRandom(t, new) })
}

// RunExamples runs the suite without its random part, which needs thousands of
// syncs: for a place on a real disk.
func RunExamples(t *testing.T, new func(t testing.TB) Place) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, e *env)
	}{
		{"DonesInOrder", testDonesInOrder},
		{"EmptyGroup", testEmptyGroup},
		{"DoneNotInsideWrite", testDoneNotInsideWrite},
		{"GroupOverLogs", testGroupOverLogs},
		{"RefusedOps", testRefusedOps},
		{"RefusedStaysRefused", testRefusedStaysRefused},
		{"LogsOpsTogether", testLogsOpsTogether},
		{"Truncate", testTruncate},
		{"TruncateWithinGroup", testTruncateWithinGroup},
		{"Trim", testTrim},
		{"Reset", testReset},
		{"Delete", testDelete},
		{"Meta", testMeta},
		{"Bytes", testBytes},
		{"ReadBoundaries", testReadBoundaries},
		{"ReadIsACopy", testReadIsACopy},
		{"Node", testNode},
		{"InUse", testInUse},
		{"AfterClose", testAfterClose},
		{"CloseWhileWriting", testCloseWhileWriting},
		{"Concurrent", testConcurrent},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := &env{t: t, place: new(t)}
			e.open()
			defer func() { require.NoError(t, e.store.Close()) }()
			test.run(t, e)
		})
	}
}

// env is one test's store.
type env struct {
	t     require.TestingT
	place Place
	store storage.Store
}

func (e *env) open() {
	s, err := e.place.Open()
	require.NoError(e.t, err)
	e.store = s
}

func (e *env) reopen() {
	require.NoError(e.t, e.store.Close())
	e.open()
}

// write writes one group and waits for it.
func (e *env) write(ops ...storage.Op) storage.Result {
	done := make(chan storage.Result, 1)
	e.store.Write(ops, true, func(r storage.Result) { done <- r })
	return wait(e.t, done)
}

// must is write for a group that is taken whole.
func (e *env) must(ops ...storage.Op) {
	r := e.write(ops...)
	require.NoError(e.t, r.Err)
	require.Empty(e.t, r.Refused)
}

func (e *env) state(id storage.LogID) storage.State {
	logs, err := e.store.Logs()
	require.NoError(e.t, err)
	require.Contains(e.t, logs, id)
	return logs[id]
}

// all reads the log from its start in one go.
func (e *env) all(id storage.LogID) []byte {
	r, err := e.store.Read(id, e.state(id).Start, 1<<30)
	require.NoError(e.t, err)
	return r.Batches
}

func wait[T any](t require.TestingT, c <-chan T) (v T) {
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		require.FailNow(t, "nothing came within a minute")
	}
	return v
}

// ID names one of the suite's logs.
func logID(n int) storage.LogID {
	return storage.LogID{Topic: protocol.UUID{0: 7, 15: byte(n / 2)}, Partition: int32(n % 2)}
}

// batch makes a batch of n records at base; salt makes its bytes differ.
func batch(base int64, n, size int, salt byte) []byte {
	recs := make([]record.Record, n)
	for i := range recs {
		v := make([]byte, size)
		for j := range v {
			v[j] = salt
		}
		recs[i].Value = v
	}
	b, err := record.Encode(nil, recs, time.Unix(1_000_000, 0))
	if err != nil {
		panic(err)
	}
	record.Stamp(b, base, 1)
	return b
}

// run makes consecutive batches with the given numbers of records.
func run(base int64, counts ...int) (batches [][]byte, end int64) {
	for _, n := range counts {
		batches = append(batches, batch(base, n, 10, byte(base)))
		base += int64(n)
	}
	return batches, base
}

// appendOp appends batches with the given numbers of records at offset.
func appendOp(id storage.LogID, at int64, counts ...int) storage.Op {
	batches, end := run(at, counts...)
	return storage.Op{Log: id, Kind: storage.Append, Offset: at, Batches: batches, End: end}
}

func join(batches ...[]byte) (out []byte) {
	for _, b := range batches {
		out = append(out, b...)
	}
	return out
}

func epochs(pairs ...int64) []storage.EpochEntry {
	out := []storage.EpochEntry{}
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, storage.EpochEntry{Epoch: int32(pairs[i]), Start: pairs[i+1]})
	}
	return out
}

func ptr[T any](v T) *T { return &v }

// collector gathers results in the order of the dones.
type collector struct {
	mu   sync.Mutex
	got  []int
	errs []error
	all  chan struct{}
	want int
}

func collect(want int) *collector { return &collector{want: want, all: make(chan struct{})} }

func (c *collector) done(i int) func(storage.Result) {
	return func(r storage.Result) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got, c.errs = append(c.got, i), append(c.errs, r.Err)
		if len(c.got) == c.want {
			close(c.all)
		}
	}
}
