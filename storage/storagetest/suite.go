// Package storagetest is the conformance suite of storage.Store: what every
// implementation must do, whatever it keeps logs in.
//
// It holds a Store to its contract: the order of groups and of their dones, that a
// group is atomic and that of one log all ops of it fit or none is applied, what
// each kind of op does and when it is refused, that logs and the node survive, that
// reads give whole, consecutive batches, and the end of a store. With what the
// Place can do beyond Open (Crasher, Damager, Faults) it tests also what a crash may
// take, the difference between synced and unsynced groups, Unclean, damaged logs,
// and a Close that the disk does not answer; without, these tests are skipped, and
// the host must make sure of them by itself.
//
// What it cannot see: whether synced data is on a medium that survives a power cut.
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
// store before it has kept. The suite closes a store, or has it crash, before it
// opens the next.
type Place interface {
	Open() (storage.Store, error)
}

// Crasher is a Place that can play the end of a process together with a power cut.
type Crasher interface {
	// Crash ends the open store, if one is, without a word to it, and loses what is
	// not durable, or any suffix of it. The suite does not use that store again, not
	// even to close it. Crash returns when Open may be called.
	Crash()
}

// Damager is a Place that can damage a log while no store is open, so that the next
// open finds out (storage.State): with led in a way that leaves Led unreadable,
// without in one that leaves it readable.
type Damager interface {
	Damage(log storage.LogID, led bool)
}

// Faults is a Place whose disk can hang and fail. Stores that it opens must bound
// their Close to some seconds.
type Faults interface {
	// Hang makes writes and syncs of the open store wait, or ends that.
	Hang(on bool)
	// Fail makes writes and syncs of the open store fail, those that are waiting too,
	// until the next Open.
	Fail()
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
	for _, test := range examples() {
		t.Run(test.name, func(t *testing.T) {
			e := &env{t: t, place: new(t)}
			if !test.possible(e.place) {
				t.Skip("the place cannot play this")
			}
			test.on(e)
		})
	}
}

// example is one test of the suite. What it needs beyond Place is said by needs.
type example struct {
	name  string
	run   func(t require.TestingT, e *env)
	needs need
}

type need uint8

const (
	crashes need = 1 << iota
	damage
	faults
)

func examples() []example {
	return []example{
		{"DonesInOrder", testDonesInOrder, 0},
		{"EmptyGroup", testEmptyGroup, 0},
		{"DoneNotInsideWrite", testDoneNotInsideWrite, 0},
		{"GroupOverLogs", testGroupOverLogs, 0},
		{"RefusedOps", testRefusedOps, 0},
		{"RefusedStaysRefused", testRefusedStaysRefused, 0},
		{"DeleteEndsRefusal", testDeleteEndsRefusal, 0},
		{"LogsOpsTogether", testLogsOpsTogether, 0},
		{"Truncate", testTruncate, 0},
		{"TruncateWithinGroup", testTruncateWithinGroup, 0},
		{"Trim", testTrim, 0},
		{"Reset", testReset, 0},
		{"Delete", testDelete, 0},
		{"Meta", testMeta, 0},
		{"Bytes", testBytes, 0},
		{"ReadBoundaries", testReadBoundaries, 0},
		{"ReadIsACopy", testReadIsACopy, 0},
		{"Node", testNode, 0},
		{"InUse", testInUse, 0},
		{"AfterClose", testAfterClose, 0},
		{"CloseWhileWriting", testCloseWhileWriting, 0},
		{"Concurrent", testConcurrent, 0},
		{"CleanClose", testCleanClose, 0},
		{"UncleanAfterCrash", testUncleanAfterCrash, crashes},
		{"CloseMakesDurable", testCloseMakesDurable, crashes},
		{"SyncedSurvivesCrash", testSyncedSurvivesCrash, crashes},
		{"CrashLosesSuffix", testCrashLosesSuffix, crashes},
		{"UnsyncedDoesNotWait", testUnsyncedDoesNotWait, faults},
		{"FailedWrite", testFailedWrite, faults},
		{"UnsyncedFailsLater", testUnsyncedFailsLater, faults},
		{"CloseOnHungDisk", testCloseOnHungDisk, faults},
		{"DamagedLog", testDamagedLog, damage},
		{"DamagedLogReplaced", testDamagedLogReplaced, damage},
		{"DamagedLogReset", testDamagedLogReset, damage},
	}
}

func (x example) possible(p Place) bool {
	_, crasher := p.(Crasher)
	_, damager := p.(Damager)
	_, faulty := p.(Faults)
	return (x.needs&crashes == 0 || crasher) && (x.needs&damage == 0 || damager) && (x.needs&faults == 0 || faulty)
}

// on runs the test in e and closes the store that it leaves open.
func (x example) on(e *env) {
	e.open()
	defer func() {
		if e.store != nil {
			require.NoError(e.t, e.store.Close())
		}
	}()
	x.run(e.t, e)
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

// crash loses what is not durable and opens what is left.
func (e *env) crash() {
	e.store = nil
	e.place.(Crasher).Crash()
	e.open()
}

// damage damages the log between two opens.
func (e *env) damage(id storage.LogID, led bool) {
	require.NoError(e.t, e.store.Close())
	e.place.(Damager).Damage(id, led)
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

// settle is how long the suite waits for what must come.
const settle = time.Minute

func wait[T any](t require.TestingT, c <-chan T) (v T) {
	select {
	case v = <-c:
	case <-time.After(settle):
		require.FailNow(t, "nothing came within "+settle.String())
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
		if len(c.got) == c.want {
			return // one too many: got has one twice
		}
		c.got, c.errs = append(c.got, i), append(c.errs, r.Err)
		if len(c.got) == c.want {
			close(c.all)
		}
	}
}
