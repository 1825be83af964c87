package storagetest

import (
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
)

func testDonesInOrder(t require.TestingT, e *env) {
	const n = 200
	c := collect(n)
	at := int64(0)
	for i := range n {
		op := appendOp(logID(0), at, 1+i%3)
		at = op.End
		e.store.Write([]storage.Op{op}, i%3 != 0, c.done(i))
	}
	wait(t, c.all)
	for i := range n {
		require.Equal(t, i, c.got[i])
		require.NoError(t, c.errs[i])
	}
	require.Equal(t, at, e.state(logID(0)).End)
}

func testDoneNotInsideWrite(t require.TestingT, e *env) {
	// A done that is called from inside Write keeps Write from returning.
	returned, done, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	defer close(over)
	go func() {
		defer close(returned)
		e.store.Write(nil, false, func(storage.Result) {
			select {
			case <-returned:
			case <-over:
			}
			close(done)
		})
	}()
	wait(t, returned)
	wait(t, done)
}

// A synced group that changes nothing tells when those before it are durable.
func testEmptyGroup(t require.TestingT, e *env) {
	c := collect(4)
	e.store.Write([]storage.Op{appendOp(logID(0), 0, 1)}, false, c.done(0))
	e.store.Write(nil, true, c.done(1))
	e.store.Write([]storage.Op{}, false, c.done(2))
	e.store.Write([]storage.Op{appendOp(logID(0), 7, 1)}, true, c.done(3)) // refused
	wait(t, c.all)
	require.Equal(t, []int{0, 1, 2, 3}, c.got)
	require.Equal(t, make([]error, 4), c.errs)
	e.reopen()
	require.EqualValues(t, 1, e.state(logID(0)).End)
}

func testGroupOverLogs(t require.TestingT, e *env) {
	var ops []storage.Op
	for i := range 6 {
		ops = append(ops, appendOp(logID(i), 0, i+1, 2))
	}
	e.must(ops...)
	e.must(appendOp(logID(1), 4, 1), storage.Op{Log: logID(2), Kind: storage.Delete}, appendOp(logID(6), 0, 1))
	for range 2 {
		logs, err := e.store.Logs()
		require.NoError(t, err)
		require.Len(t, logs, 6)
		require.EqualValues(t, 5, logs[logID(1)].End)
		require.NotContains(t, logs, logID(2))
		e.reopen()
	}
}

func testRefusedOps(t require.TestingT, e *env) {
	id, other := logID(0), logID(1)
	batches, end := run(10, 2, 3)
	for name, op := range map[string]storage.Op{
		"append below the end":   appendOp(id, 5, 1),
		"append above the end":   appendOp(id, 11, 1),
		"append with a gap":      {Kind: storage.Append, Offset: 10, Batches: [][]byte{batches[0], batch(13, 1, 1, 1)}, End: 14},
		"append, wrong end":      {Kind: storage.Append, Offset: 10, Batches: batches, End: end + 1},
		"append, wrong base":     {Kind: storage.Append, Offset: 10, Batches: [][]byte{batch(9, 1, 1, 1)}, End: 10},
		"append, no batch":       {Kind: storage.Append, Offset: 10, Batches: [][]byte{{1, 2, 3}}, End: 11},
		"append, half a batch":   {Kind: storage.Append, Offset: 10, Batches: [][]byte{batches[0][:len(batches[0])-1]}, End: 12},
		"truncate above the end": {Kind: storage.Truncate, Offset: 11, Epochs: epochs()},
		"truncate below start":   {Kind: storage.Truncate, Offset: 1, Epochs: epochs()},
		"truncate, no epochs":    {Kind: storage.Truncate, Offset: 7},
		"truncate in a batch":    {Kind: storage.Truncate, Offset: 8, Epochs: epochs()},
		"trim above the end":     {Kind: storage.Trim, Offset: 11},
		"trim below start":       {Kind: storage.Trim, Offset: 1},
		"reset, no epochs":       {Kind: storage.Reset, Offset: 3},
		"reset, negative":        {Kind: storage.Reset, Offset: -1, Epochs: epochs()},
		"epochs above the end":   {Kind: storage.Meta, Epochs: epochs(1, 11)},
		"epochs fall":            {Kind: storage.Meta, Epochs: epochs(2, 1, 1, 2)},
		"epochs repeat":          {Kind: storage.Meta, Epochs: epochs(1, 1, 1, 2)},
		"epoch starts repeat":    {Kind: storage.Meta, Epochs: epochs(1, 1, 2, 1)},
		"negative epoch":         {Kind: storage.Meta, Epochs: epochs(-1, 1)},
		"hw above the end":       {Kind: storage.Meta, HW: 11},
		"hw after truncation":    {Kind: storage.Truncate, Offset: 7, HW: 8, Epochs: epochs()},
		"negative hw":            {Kind: storage.Meta, HW: -1},
		"led below none":         {Kind: storage.Meta, Led: ptr(int32(-2))},
		"no kind":                {},
	} {
		op.Log = id
		e.must(storage.Op{Log: id, Kind: storage.Delete}, storage.Op{Log: other, Kind: storage.Delete})
		e.must(appendOp(id, 0, 2, 2, 3, 3), storage.Op{Log: id, Kind: storage.Trim, Offset: 2})
		before := e.state(id)
		r := e.write(appendOp(other, 0, 4), op)
		require.NoError(t, r.Err, name)
		require.Error(t, r.Refused[id], name)
		require.Len(t, r.Refused, 1, name)
		require.Equal(t, before, e.state(id), name)
		require.EqualValues(t, 4, e.state(other).End, name)
		e.reopen()
		require.Equal(t, before, e.state(id), name)
		require.EqualValues(t, 4, e.state(other).End, name)
	}
	for _, kind := range []storage.Kind{storage.Truncate, storage.Trim} {
		r := e.write(storage.Op{Log: logID(int(kind) + 10), Kind: kind, Epochs: epochs()})
		require.NoError(t, r.Err)
		require.ErrorIs(t, r.Refused[logID(int(kind)+10)], storage.ErrUnknownLog)
	}
	e.must(storage.Op{Log: logID(30), Kind: storage.Delete})
}

func testRefusedStaysRefused(t require.TestingT, e *env) {
	id := logID(0)
	e.must(appendOp(id, 0, 2))
	require.Error(t, e.write(appendOp(id, 3, 1)).Refused[id])
	require.Error(t, e.write(appendOp(id, 2, 1)).Refused[id], "would fit, had the one before been taken")
	require.Error(t, e.write(storage.Op{Log: id, Kind: storage.Reset, Epochs: epochs()}).Refused[id])
	require.Error(t, e.write(storage.Op{Log: id, Kind: storage.Meta}).Refused[id])
	require.EqualValues(t, 2, e.state(id).End)
	e.reopen()
	e.must(appendOp(id, 2, 1))
}

// Delete is never refused, and what comes after it finds no log.
func testDeleteEndsRefusal(t require.TestingT, e *env) {
	id, other := logID(0), logID(1)
	e.must(appendOp(id, 0, 2), appendOp(other, 0, 1))
	require.Error(t, e.write(appendOp(id, 3, 1)).Refused[id])
	e.must(storage.Op{Log: id, Kind: storage.Delete})
	e.must(appendOp(id, 0, 3))
	require.EqualValues(t, 3, e.state(id).End)
	e.reopen()
	require.EqualValues(t, 3, e.state(id).End)

	// In one group, in front of which nothing is known of the refusal yet.
	e.must(
		appendOp(id, 7, 1), appendOp(other, 1, 1),
		storage.Op{Log: id, Kind: storage.Delete},
		storage.Op{Log: id, Kind: storage.Reset, Offset: 5, HW: 5, Epochs: epochs(2, 5), Led: ptr(int32(2))},
		appendOp(id, 5, 2),
	)
	for range 2 {
		s := e.state(id)
		require.Equal(t, [4]int64{5, 7, 0, 2}, [4]int64{s.Start, s.End, s.HW, int64(s.Led)})
		require.Equal(t, appendOp(id, 5, 2).Batches[0], e.all(id))
		require.EqualValues(t, 2, e.state(other).End)
		e.reopen()
	}

	// What is refused behind it takes it along.
	before := e.state(id)
	r := e.write(storage.Op{Log: id, Kind: storage.Delete}, storage.Op{Log: id, Kind: storage.Meta, HW: 1})
	require.Error(t, r.Refused[id])
	require.Equal(t, before, e.state(id))
	require.Error(t, e.write(appendOp(id, 7, 1)).Refused[id])
	e.must(storage.Op{Log: id, Kind: storage.Delete}, storage.Op{Log: id, Kind: storage.Meta})
	e.reopen()
	require.Equal(t, storage.NewState(), e.state(id))
}

func testLogsOpsTogether(t require.TestingT, e *env) {
	id := logID(0)
	e.must(appendOp(id, 0, 2))
	r := e.write(appendOp(id, 2, 1), appendOp(id, 9, 1), appendOp(id, 3, 1))
	require.NoError(t, r.Err)
	require.Error(t, r.Refused[id])
	require.EqualValues(t, 2, e.state(id).End)
	r = e.write(appendOp(logID(1), 0, 1), appendOp(logID(1), 0, 1))
	require.Error(t, r.Refused[logID(1)])
	logs, err := e.store.Logs()
	require.NoError(t, err)
	require.NotContains(t, logs, logID(1))
}

func testTruncate(t require.TestingT, e *env) {
	id := logID(0)
	op := appendOp(id, 0, 2, 3, 4)
	op.Epochs, op.Led, op.HW = epochs(1, 0, 2, 5), ptr(int32(9)), 5
	e.must(op)
	e.must(appendOp(id, 9, 1))
	e.must(storage.Op{Log: id, Kind: storage.Truncate, Offset: 5, HW: 4, Epochs: epochs(1, 0)})
	for range 2 {
		s := e.state(id)
		require.Equal(t, [3]int64{0, 5, 4}, [3]int64{s.Start, s.End, s.HW})
		require.Equal(t, epochs(1, 0), s.Epochs)
		require.EqualValues(t, 9, s.Led)
		require.Equal(t, join(op.Batches[:2]...), e.all(id))
		_, err := e.store.Read(id, 6, 100)
		require.ErrorIs(t, err, storage.ErrOutOfRange)
		e.reopen()
	}
	// What comes next is not what was there.
	again := []byte(batch(5, 4, 10, 99))
	e.must(storage.Op{Log: id, Kind: storage.Append, Offset: 5, Batches: [][]byte{again}, End: 9})
	for range 2 {
		require.Equal(t, join(op.Batches[0], op.Batches[1], again), e.all(id))
		e.reopen()
	}
	e.must(storage.Op{Log: id, Kind: storage.Truncate, Offset: 0, Epochs: epochs()})
	for range 2 {
		s := e.state(id)
		require.Equal(t, [3]int64{}, [3]int64{s.Start, s.End, s.HW})
		require.Empty(t, s.Epochs)
		require.Zero(t, s.Bytes)
		require.EqualValues(t, 9, s.Led)
		require.Empty(t, e.all(id))
		e.reopen()
	}
	e.must(appendOp(id, 0, 1))
	e.must(storage.Op{Log: id, Kind: storage.Truncate, Offset: 1, Epochs: epochs()})
	require.EqualValues(t, 1, e.state(id).End)
}

func testTruncateWithinGroup(t require.TestingT, e *env) {
	id := logID(0)
	e.must(appendOp(id, 0, 2, 2))
	second := batch(6, 2, 10, 77)
	e.must(
		appendOp(id, 4, 2, 3),
		storage.Op{Log: id, Kind: storage.Truncate, Offset: 6, Epochs: epochs()},
		storage.Op{Log: id, Kind: storage.Append, Offset: 6, Batches: [][]byte{second}, End: 8},
		storage.Op{Log: id, Kind: storage.Truncate, Offset: 8, Epochs: epochs()},
	)
	first, _ := run(0, 2, 2)
	third, _ := run(4, 2)
	for range 2 {
		require.Equal(t, join(first[0], first[1], third[0], second), e.all(id))
		e.reopen()
	}
	e.must(
		storage.Op{Log: id, Kind: storage.Truncate, Offset: 2, Epochs: epochs()},
		appendOp(id, 2, 5),
		storage.Op{Log: id, Kind: storage.Truncate, Offset: 2, Epochs: epochs()},
		appendOp(id, 2, 3),
	)
	for range 2 {
		last, _ := run(2, 3)
		require.Equal(t, join(first[0], last[0]), e.all(id))
		e.reopen()
	}
	r := e.write(
		storage.Op{Log: id, Kind: storage.Truncate, Offset: 2, Epochs: epochs()},
		appendOp(id, 2, 4),
		storage.Op{Log: id, Kind: storage.Truncate, Offset: 5, Epochs: epochs()}, // a boundary before the first op only
	)
	require.Error(t, r.Refused[id])
	require.EqualValues(t, 5, e.state(id).End)
}

func testTrim(t require.TestingT, e *env) {
	id := logID(0)
	op := appendOp(id, 0, 2, 3, 4)
	op.Led = ptr(int32(3))
	e.must(op)
	e.must(storage.Op{Log: id, Kind: storage.Trim, Offset: 3, HW: 3})
	for range 2 {
		s := e.state(id)
		require.Equal(t, [3]int64{3, 9, 3}, [3]int64{s.Start, s.End, s.HW})
		require.Equal(t, join(op.Batches[1:]...), e.all(id), "the batch with the start stays whole")
		_, err := e.store.Read(id, 2, 100)
		require.ErrorIs(t, err, storage.ErrOutOfRange)
		e.reopen()
	}
	e.must(storage.Op{Log: id, Kind: storage.Trim, Offset: 3}, storage.Op{Log: id, Kind: storage.Trim, Offset: 9})
	for range 2 {
		s := e.state(id)
		require.Equal(t, [3]int64{9, 9, 0}, [3]int64{s.Start, s.End, s.HW})
		require.Zero(t, s.Bytes)
		require.Empty(t, e.all(id))
		e.reopen()
	}
	next := appendOp(id, 9, 1, 1)
	e.must(next)
	require.Equal(t, join(next.Batches...), e.all(id))
	e.must(storage.Op{Log: id, Kind: storage.Trim, Offset: 10}, storage.Op{Log: id, Kind: storage.Truncate, Offset: 10, Epochs: epochs()})
	require.Empty(t, e.all(id))
	require.EqualValues(t, 3, e.state(id).Led)
}

func testReset(t require.TestingT, e *env) {
	id := logID(0)
	e.must(storage.Op{Log: id, Kind: storage.Reset, Offset: 70, HW: 70, Epochs: epochs(4, 70)})
	for range 2 {
		require.Equal(t, storage.State{Start: 70, End: 70, HW: 70, Led: -1, Epochs: epochs(4, 70)}, e.state(id), "made by it")
		e.reopen()
	}
	e.must(storage.Op{Log: id, Kind: storage.Delete})
	op := appendOp(id, 0, 2, 3)
	op.Led, op.Epochs = ptr(int32(3)), epochs(3, 0)
	e.must(op)
	for _, at := range []int64{100, 3, 0} {
		e.must(storage.Op{Log: id, Kind: storage.Reset, Offset: at, HW: at, Epochs: epochs()})
		for range 2 {
			s := e.state(id)
			require.Equal(t, storage.State{Start: at, End: at, HW: at, Led: 3}, s)
			require.Empty(t, e.all(id))
			e.reopen()
		}
		next := appendOp(id, at, 1, 2)
		e.must(next)
		require.Equal(t, join(next.Batches...), e.all(id))
	}
}

func testDelete(t require.TestingT, e *env) {
	id := logID(0)
	op := appendOp(id, 0, 2, 3)
	op.Led, op.Epochs = ptr(int32(3)), epochs(3, 0)
	e.must(op, appendOp(logID(1), 0, 1))
	e.must(storage.Op{Log: id, Kind: storage.Delete})
	for range 2 {
		logs, err := e.store.Logs()
		require.NoError(t, err)
		require.NotContains(t, logs, id)
		_, err = e.store.Read(id, 0, 1)
		require.ErrorIs(t, err, storage.ErrUnknownLog)
		e.reopen()
	}
	e.must(storage.Op{Log: id, Kind: storage.Meta})
	for range 2 {
		require.Equal(t, storage.State{Led: -1}, e.state(id))
		require.Empty(t, e.all(id))
		e.reopen()
	}
	e.must(storage.Op{Log: id, Kind: storage.Delete}, appendOp(id, 0, 3), storage.Op{Log: id, Kind: storage.Delete}, appendOp(id, 0, 1))
	for range 2 {
		require.EqualValues(t, 1, e.state(id).End)
		e.reopen()
	}
}

func testMeta(t require.TestingT, e *env) {
	id := logID(0)
	e.must(storage.Op{Log: id, Kind: storage.Meta, Led: ptr(int32(2)), Epochs: epochs(2, 0)})
	e.must(appendOp(id, 0, 4))
	history := epochs(2, 0, 3, 4)
	e.must(storage.Op{Log: id, Kind: storage.Meta, Epochs: history, HW: 4})
	history[0].Epoch = 77 // the store must have its own
	for range 2 {
		s := e.state(id)
		require.Equal(t, epochs(2, 0, 3, 4), s.Epochs)
		require.EqualValues(t, 2, s.Led)
		require.EqualValues(t, 4, s.HW)
		s.Epochs[0].Epoch = 78 // and so must the caller
		e.reopen()
	}
	e.must(storage.Op{Log: id, Kind: storage.Meta, Epochs: epochs(), Led: ptr(int32(-1))})
	s := e.state(id)
	require.Empty(t, s.Epochs)
	require.Equal(t, [2]int64{-1, 0}, [2]int64{int64(s.Led), s.HW})
}

func testBytes(t require.TestingT, e *env) {
	id := logID(0)
	var want int64
	at := int64(0)
	for range 5 {
		op := appendOp(id, at, 1, 2, 3)
		at = op.End
		want += int64(len(join(op.Batches...)))
		e.must(op)
		require.Equal(t, want, e.state(id).Bytes)
	}
	e.reopen()
	require.Equal(t, want, e.state(id).Bytes)
	e.must(storage.Op{Log: id, Kind: storage.Truncate, Offset: 12, Epochs: epochs()})
	left := e.state(id).Bytes
	require.Positive(t, left)
	require.Less(t, left, want)
	e.reopen()
	require.Equal(t, left, e.state(id).Bytes)
}
