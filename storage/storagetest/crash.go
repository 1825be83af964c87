package storagetest

import (
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
)

// A store is clean when it is new, and after each Close that had nothing to regret.
func testCleanClose(t require.TestingT, e *env) {
	require.False(t, e.store.Node().Unclean, "new")
	e.reopen()
	require.False(t, e.store.Node().Unclean, "nothing was written")
	c := collect(1)
	e.store.Write([]storage.Op{appendOp(logID(0), 0, 1)}, false, c.done(0))
	e.reopen()
	require.False(t, e.store.Node().Unclean)
	require.EqualValues(t, 1, e.state(logID(0)).End)
	n := e.store.Node()
	n.Unclean, n.BrokerID = true, 4
	require.NoError(t, e.store.SetNode(n))
	require.False(t, e.store.Node().Unclean, "only the store knows")
	require.EqualValues(t, 4, e.store.Node().BrokerID)
	require.Error(t, e.write(appendOp(logID(0), 9, 1)).Refused[logID(0)])
	e.reopen()
	require.False(t, e.store.Node().Unclean, "a refused op is no failure of the store")
}

// An open is unclean for the next one as soon as it has begun, and until it is
// closed: one clean Close is good for one open. And what was lost stays known, over
// clean Closes too, until the broker has registered.
func testUncleanAfterCrash(t require.TestingT, e *env) {
	e.reopen()
	require.False(t, e.store.Node().Unclean)
	for range 2 {
		e.crash() // nothing was written
		require.True(t, e.store.Node().Unclean)
	}
	n := e.store.Node()
	n.Unclean, n.BrokerID = false, 3
	require.NoError(t, e.store.SetNode(n))
	require.True(t, e.store.Node().Unclean, "only the store knows")
	e.reopen()
	require.True(t, e.store.Node().Unclean, "nobody has been told")
	n.BrokerEpoch = 7
	require.NoError(t, e.store.SetNode(n))
	require.True(t, e.store.Node().Unclean, "told, but true of this open")
	e.reopen()
	require.False(t, e.store.Node().Unclean)
	require.EqualValues(t, 7, e.store.Node().BrokerEpoch)
	c := collect(1)
	e.store.Write([]storage.Op{appendOp(logID(0), 0, 1)}, false, c.done(0))
	wait(t, c.all)
	e.crash()
	require.True(t, e.store.Node().Unclean)
}

// What was written without sync is durable after Close.
func testCloseMakesDurable(t require.TestingT, e *env) {
	const n = 20
	c := collect(n)
	at := int64(0)
	for i := range n {
		op := appendOp(logID(0), at, 1, 2)
		at = op.End
		e.store.Write([]storage.Op{op}, false, c.done(i))
	}
	require.NoError(t, e.store.Close())
	wait(t, c.all)
	require.Equal(t, make([]error, n), c.errs)
	e.crash()
	require.Equal(t, at, e.state(logID(0)).End)
	require.False(t, e.store.Node().Unclean)
}

// A synced group is durable when its done comes, and so is all that was before it.
func testSyncedSurvivesCrash(t require.TestingT, e *env) {
	at := int64(0)
	for range 10 {
		c := collect(4)
		for i := range 4 {
			op := appendOp(logID(0), at, 1, 2)
			at = op.End
			e.store.Write([]storage.Op{op}, i == 3, c.done(i))
		}
		wait(t, c.all)
		require.Equal(t, make([]error, 4), c.errs)
		e.crash()
		require.Equal(t, at, e.state(logID(0)).End)
		require.Len(t, e.all(logID(0)), int(e.state(logID(0)).Bytes))
	}
	n := e.store.Node()
	n.BrokerEpoch = 5
	require.NoError(t, e.store.SetNode(n))
	e.crash()
	require.EqualValues(t, 5, e.store.Node().BrokerEpoch)
	e.must(storage.Op{Log: logID(0), Kind: storage.Delete}, storage.Op{Log: logID(0), Kind: storage.Reset, Offset: 8, Epochs: epochs(), Led: ptr(int32(3))})
	e.crash()
	s := e.state(logID(0))
	require.Equal(t, [3]int64{8, 8, 3}, [3]int64{s.Start, s.End, int64(s.Led)})
}

// A crash takes a suffix of the groups, each of them wholly, and none that was
// promised.
func testCrashLosesSuffix(t require.TestingT, e *env) {
	const logs, groups = 3, 9
	base := int64(0)
	for life := range 6 {
		promised := make(chan int, groups)
		c := collect(groups)
		for i := range groups {
			var ops []storage.Op
			for l := range logs {
				ops = append(ops, appendOp(logID(l), base+int64(i), 1))
			}
			synced, done := i == life, c.done(i)
			e.store.Write(ops, synced, func(r storage.Result) {
				if done(r); synced && r.Err == nil {
					promised <- i + 1
				}
			})
		}
		if life%2 == 0 {
			wait(t, c.all)
		}
		least := 0
		select {
		case least = <-promised:
		default:
		}
		e.crash()
		end := int64(0)
		states, err := e.store.Logs()
		require.NoError(t, err)
		for l := range logs {
			s := states[logID(l)]
			if l == 0 {
				end = s.End
			}
			require.Equal(t, end, s.End, "a group is there in part")
			if end > 0 {
				require.Len(t, e.all(logID(l)), int(s.Bytes))
			}
		}
		require.GreaterOrEqual(t, end, base+int64(least))
		require.LessOrEqual(t, end, base+groups)
		base = end
	}
}

// The done of an unsynced group does not wait for the disk, and still comes in turn.
func testUnsyncedDoesNotWait(t require.TestingT, e *env) {
	f := e.place.(Faults)
	e.must(appendOp(logID(0), 0, 1))
	f.Hang(true)
	defer f.Hang(false)
	first := collect(1)
	e.store.Write([]storage.Op{appendOp(logID(0), 1, 1)}, false, first.done(0))
	wait(t, first.all)
	require.Equal(t, []error{nil}, first.errs)
	r, err := e.store.Read(logID(0), 1, 1)
	require.NoError(t, err)
	require.NotEmpty(t, r.Batches)

	rest := collect(3)
	e.store.Write([]storage.Op{appendOp(logID(0), 2, 1)}, true, rest.done(1))
	e.store.Write([]storage.Op{appendOp(logID(0), 3, 1)}, false, rest.done(2))
	e.store.Write(nil, false, rest.done(3))
	f.Hang(false)
	wait(t, rest.all)
	require.Equal(t, []int{1, 2, 3}, rest.got)
	require.Equal(t, make([]error, 3), rest.errs)
	e.reopen()
	require.EqualValues(t, 4, e.state(logID(0)).End)
}

// The first failure ends the store: it says so, and so does every later group.
func testFailedWrite(t require.TestingT, e *env) {
	f := e.place.(Faults)
	e.must(appendOp(logID(0), 0, 1))
	f.Fail()
	require.ErrorIs(t, e.write(appendOp(logID(0), 1, 1)).Err, storage.ErrPoisoned)
	e.poisoned(t)
	require.GreaterOrEqual(t, e.state(logID(0)).End, int64(1))
}

// poisoned looks whether the store knows that it is, ends it, and opens the next.
func (e *env) poisoned(t require.TestingT) {
	require.ErrorIs(t, e.store.Health().Err, storage.ErrPoisoned)
	c := collect(2)
	e.store.Write([]storage.Op{appendOp(logID(5), 0, 1)}, false, c.done(0))
	e.store.Write(nil, true, c.done(1))
	wait(t, c.all)
	for _, err := range c.errs {
		require.ErrorIs(t, err, storage.ErrPoisoned)
	}
	require.ErrorIs(t, e.store.SetNode(e.store.Node()), storage.ErrPoisoned)
	require.Error(t, e.store.Close(), "not everything is durable")
	e.open()
	require.True(t, e.store.Node().Unclean)
	require.NoError(t, e.store.Health().Err)
}

// An unsynced group whose done has come and that then does not reach the disk.
func testUnsyncedFailsLater(t require.TestingT, e *env) {
	f := e.place.(Faults)
	e.must(appendOp(logID(0), 0, 1))
	f.Hang(true)
	c := collect(1)
	e.store.Write([]storage.Op{appendOp(logID(0), 1, 1)}, false, c.done(0))
	wait(t, c.all)
	require.Equal(t, []error{nil}, c.errs)
	f.Fail()
	f.Hang(false)
	// A synced group that changes nothing asks for the ones before it.
	require.ErrorIs(t, e.write().Err, storage.ErrPoisoned)
	e.poisoned(t)
	require.GreaterOrEqual(t, e.state(logID(0)).End, int64(1))
}

// A disk that does not answer holds up Close for a bounded time. Groups that are
// not done learn that they are not.
func testCloseOnHungDisk(t require.TestingT, e *env) {
	f := e.place.(Faults)
	e.must(appendOp(logID(0), 0, 1))
	f.Hang(true)
	defer f.Hang(false)
	c := collect(2)
	e.store.Write([]storage.Op{appendOp(logID(0), 1, 1)}, true, c.done(0))
	e.store.Write([]storage.Op{appendOp(logID(0), 2, 1)}, false, c.done(1))
	closed := make(chan error, 1)
	s := e.store
	go func() { closed <- s.Close() }()
	require.Error(t, wait(t, closed))
	wait(t, c.all)
	require.Equal(t, []int{0, 1}, c.got)
	for _, err := range c.errs {
		require.ErrorIs(t, err, storage.ErrClosed)
	}
	f.Hang(false)
	e.open()
	require.True(t, e.store.Node().Unclean)
	require.GreaterOrEqual(t, e.state(logID(0)).End, int64(1))
	require.Len(t, e.all(logID(0)), int(e.state(logID(0)).Bytes))
}
