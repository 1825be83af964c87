package storagetest

import (
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
)

// spoiled makes two logs and damages the first.
func spoiled(t require.TestingT, e *env, led bool) (id, other storage.LogID) {
	id, other = logID(0), logID(1)
	op := appendOp(id, 0, 2, 3)
	op.Led, op.Epochs = ptr(int32(3)), epochs(3, 0)
	e.must(op, appendOp(other, 0, 1))
	e.damage(id, led)
	s := e.state(id)
	require.ErrorIs(t, s.Damaged, storage.ErrDamaged)
	if led {
		require.EqualValues(t, -1, s.Led)
	} else {
		require.EqualValues(t, 3, s.Led)
	}
	require.NoError(t, e.state(other).Damaged)
	_, err := e.store.Read(id, 0, 100)
	require.ErrorIs(t, err, storage.ErrDamaged)
	return id, other
}

// A damaged log refuses what needs what is there, and leaves the others alone.
// Delete ends it within the same open.
func testDamagedLog(t require.TestingT, e *env) {
	id, other := spoiled(t, e, false)
	for _, op := range []storage.Op{
		appendOp(id, 5, 1),
		{Log: id, Kind: storage.Truncate, Offset: 0, Epochs: epochs()},
		{Log: id, Kind: storage.Trim, Offset: 5},
		{Log: id, Kind: storage.Meta, Led: ptr(int32(5))},
		{Log: id, Kind: storage.Reset, Epochs: epochs()}, // was refused before
	} {
		r := e.write(appendOp(other, e.state(other).End, 1), op)
		require.NoError(t, r.Err)
		require.ErrorIs(t, r.Refused[id], storage.ErrDamaged)
		require.Len(t, r.Refused, 1)
	}
	require.EqualValues(t, 6, e.state(other).End)
	e.reopen()
	require.ErrorIs(t, e.state(id).Damaged, storage.ErrDamaged, "still")
	require.Error(t, e.write(appendOp(id, 5, 1)).Refused[id])
	e.must(storage.Op{Log: id, Kind: storage.Delete})
	_, err := e.store.Read(id, 0, 100)
	require.ErrorIs(t, err, storage.ErrUnknownLog)
	e.must(appendOp(id, 0, 1))
	e.sound(t, id, appendOp(id, 0, 1), -1)
}

// sound looks at a log that holds what op appended, now and after an open.
func (e *env) sound(t require.TestingT, id storage.LogID, op storage.Op, led int32) {
	for range 2 {
		s := e.state(id)
		require.NoError(t, s.Damaged)
		require.Equal(t, [3]int64{op.Offset, op.End, int64(led)}, [3]int64{s.Start, s.End, int64(s.Led)})
		require.Equal(t, join(op.Batches...), e.all(id))
		e.reopen()
	}
}

// One group replaces a damaged log by a new one with what must stay of it, or, when
// something in it does not fit, leaves it.
func testDamagedLogReplaced(t require.TestingT, e *env) {
	id, _ := spoiled(t, e, true)
	for name, with := range map[string]storage.Op{
		"meta":  {Log: id, Kind: storage.Meta, Led: ptr(int32(9))},
		"reset": {Log: id, Kind: storage.Reset, Offset: 40, HW: 40, Epochs: epochs(9, 40), Led: ptr(int32(9))},
	} {
		drop := storage.Op{Log: id, Kind: storage.Delete}
		r := e.write(drop, with, appendOp(id, with.Offset+1, 1))
		require.Error(t, r.Refused[id], name)
		require.ErrorIs(t, e.state(id).Damaged, storage.ErrDamaged, "all or nothing")
		e.must(drop, with)
		s := e.state(id)
		require.NoError(t, s.Damaged)
		require.Equal(t, [4]int64{with.Offset, with.Offset, with.HW, 9}, [4]int64{s.Start, s.End, s.HW, int64(s.Led)})
		require.Len(t, s.Epochs, len(with.Epochs))
		next := appendOp(id, with.Offset, 2)
		e.must(next)
		e.sound(t, id, next, 9)
		e.damage(id, true)
	}
	e.must(storage.Op{Log: id, Kind: storage.Delete})
}

// Reset alone ends the damage as well and keeps Led, where that could be read.
func testDamagedLogReset(t require.TestingT, e *env) {
	id, _ := spoiled(t, e, false)
	e.must(storage.Op{Log: id, Kind: storage.Reset, Offset: 7, Epochs: epochs()})
	next := appendOp(id, 7, 2)
	e.must(next)
	e.sound(t, id, next, 3)
}
