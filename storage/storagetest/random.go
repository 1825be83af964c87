package storagetest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// twin is one log as a naive person would keep it.
type twin struct {
	Start, End, HW int64
	Led            int32
	Epochs         []storage.EpochEntry
	Batches        [][]byte
}

func (l *twin) boundary(at int64) bool {
	ok := at == l.Start || at == l.End
	for _, b := range l.Batches {
		info, _ := record.Peek(b)
		ok = ok || info.Base == at && at > l.Start
	}
	return ok
}

// keep removes the batches for which f is false.
func (l *twin) keep(f func(record.Info) bool) {
	var out [][]byte
	for _, b := range l.Batches {
		if info, _ := record.Peek(b); f(info) {
			out = append(out, b)
		}
	}
	l.Batches = out
}

// Model is a Store without the store: it says what a sequence of groups must lead
// to. It is exported for the tests of implementations, which add crashes to it.
type Model struct {
	logs    map[storage.LogID]twin
	refused map[storage.LogID]bool
}

// NewModel is the model of an empty store.
func NewModel() *Model {
	return &Model{logs: map[storage.LogID]twin{}, refused: map[storage.LogID]bool{}}
}

// Clone copies the model.
func (m *Model) Clone() *Model {
	c := NewModel()
	for id, l := range m.logs {
		l.Batches = append([][]byte(nil), l.Batches...)
		c.logs[id] = l
	}
	for id := range m.refused {
		c.refused[id] = true
	}
	return c
}

// Len is the number of logs.
func (m *Model) Len() int { return len(m.logs) }

// Reopen forgets what a store forgets.
func (m *Model) Reopen() { m.refused = map[storage.LogID]bool{} }

// Apply applies a group made by DrawGroup and returns the logs that must be refused.
func (m *Model) Apply(ops []storage.Op) map[storage.LogID]bool {
	next := m.Clone()
	refused := map[storage.LogID]bool{}
	for _, op := range ops {
		if op.Kind == storage.Delete {
			delete(refused, op.Log)
			delete(m.refused, op.Log)
			delete(next.refused, op.Log)
		}
		if refused[op.Log] || m.refused[op.Log] || !next.applyOne(op) {
			refused[op.Log] = true
		}
	}
	for id := range refused {
		next.refused[id] = true
		delete(next.logs, id)
		if l, ok := m.logs[id]; ok {
			next.logs[id] = l
		}
	}
	*m = *next
	return refused
}

func (m *Model) applyOne(op storage.Op) bool {
	l, exists := m.logs[op.Log]
	if op.Kind == storage.Delete {
		delete(m.logs, op.Log)
		return true
	}
	if !exists {
		if op.Kind == storage.Truncate || op.Kind == storage.Trim {
			return false
		}
		l = twin{Led: -1}
	}
	switch op.Kind {
	case storage.Append:
		if op.Offset != l.End {
			return false
		}
		l.End = op.End
		l.Batches = append(l.Batches[:len(l.Batches):len(l.Batches)], op.Batches...)
	case storage.Truncate:
		if op.Offset < l.Start || op.Offset > l.End || !l.boundary(op.Offset) {
			return false
		}
		l.End = op.Offset
		l.keep(func(i record.Info) bool { return i.Last < op.Offset })
	case storage.Trim:
		if op.Offset < l.Start || op.Offset > l.End {
			return false
		}
		l.Start = op.Offset
		l.keep(func(i record.Info) bool { return i.Last >= op.Offset })
	case storage.Reset:
		l.Start, l.End, l.Batches = op.Offset, op.Offset, nil
	}
	if op.HW > l.End {
		return false
	}
	l.HW = op.HW
	if op.Epochs != nil {
		l.Epochs = op.Epochs
	}
	for _, e := range l.Epochs {
		if e.Start > l.End {
			return false
		}
	}
	if op.Led != nil {
		l.Led = *op.Led
	}
	m.logs[op.Log] = l
	return true
}

// Check compares all that a store shows with the model.
func (m *Model) Check(t require.TestingT, s storage.Store) {
	logs, err := s.Logs()
	require.NoError(t, err)
	require.Len(t, logs, len(m.logs))
	for id := range m.logs {
		require.Contains(t, logs, id)
		m.CheckLog(t, s, id, logs[id])
	}
}

// CheckLog compares what a store shows of one log, its state and all that can be
// read, with the model.
func (m *Model) CheckLog(t require.TestingT, s storage.Store, id storage.LogID, got storage.State) {
	want, exists := m.logs[id]
	require.True(t, exists, "%s", id)
	require.Equal(t, [4]int64{want.Start, want.End, want.HW, int64(want.Led)}, [4]int64{got.Start, got.End, got.HW, int64(got.Led)})
	require.Equal(t, len(want.Epochs), len(got.Epochs))
	for i := range want.Epochs {
		require.Equal(t, want.Epochs[i], got.Epochs[i])
	}
	if want.Start == want.End {
		require.Zero(t, got.Bytes)
	}
	r, err := s.Read(id, want.Start, 1<<30)
	require.NoError(t, err)
	require.True(t, bytes.Equal(join(want.Batches...), r.Batches), "contents of %s", id)
	for _, b := range want.Batches {
		info, _ := record.Peek(b)
		r, err := s.Read(id, max(info.Last, want.Start), 1)
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, r.Batches))
	}
}

// DrawGroup draws a group whose ops mostly fit the model.
func (m *Model) DrawGroup(t *rapid.T) []storage.Op {
	m = m.Clone()
	var ops []storage.Op
	for range rapid.IntRange(1, 4).Draw(t, "ops") {
		op := m.drawOp(t)
		if fits := m.applyOne(op); !fits || op.Kind == storage.Delete {
			m.refused[op.Log] = !fits
		}
		ops = append(ops, op)
	}
	return ops
}

func (m *Model) drawOp(t *rapid.T) storage.Op {
	id := logID(rapid.IntRange(0, 3).Draw(t, "log"))
	l, exists := m.logs[id]
	kinds := []storage.Kind{storage.Append, storage.Append, storage.Append, storage.Append, storage.Truncate, storage.Trim, storage.Reset, storage.Meta, storage.Delete}
	op := storage.Op{Log: id, Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	// What is refused is soon all that happens: most often one begins anew.
	if rapid.IntRange(0, 5).Draw(t, "whatever") > 0 {
		switch cuts := op.Kind == storage.Truncate || op.Kind == storage.Trim; {
		case m.refused[id]:
			op.Kind = storage.Delete
		case !exists && cuts:
			op.Kind = storage.Append
		}
	}
	end := l.End
	switch op.Kind {
	case storage.Append:
		op.Offset = l.End
		if rapid.IntRange(0, 40).Draw(t, "misfit") == 0 {
			op.Offset++
		}
		end = op.Offset
		for range rapid.IntRange(0, 4).Draw(t, "batches") {
			b := batch(end, rapid.IntRange(1, 4).Draw(t, "records"), rapid.IntRange(0, 300).Draw(t, "size"), rapid.Byte().Draw(t, "salt"))
			info, _ := record.Peek(b)
			op.Batches, end = append(op.Batches, b), info.End()
		}
		op.End = end
	case storage.Truncate:
		op.Offset = m.drawBoundary(t, l)
		end = op.Offset
	case storage.Trim:
		op.Offset = rapid.Int64Range(l.Start, l.End).Draw(t, "offset")
	case storage.Reset:
		op.Offset = rapid.Int64Range(0, l.End+10).Draw(t, "offset")
		end = op.Offset
	}
	op.HW = rapid.Int64Range(0, max(end, 0)).Draw(t, "hw")
	if op.Kind == storage.Truncate || op.Kind == storage.Reset || rapid.IntRange(0, 3).Draw(t, "with epochs") == 0 {
		op.Epochs = []storage.EpochEntry{}
		for e, at := int32(0), int64(0); at <= end && rapid.Bool().Draw(t, "another epoch"); e++ {
			op.Epochs = append(op.Epochs, storage.EpochEntry{Epoch: e, Start: at})
			at += rapid.Int64Range(1, 9).Draw(t, "epoch length")
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "with led") == 0 {
		op.Led = ptr(rapid.Int32Range(-1, 9).Draw(t, "led"))
	}
	return op
}

func (m *Model) drawBoundary(t *rapid.T, l twin) int64 {
	choices := []int64{l.Start, l.End, l.End}
	for _, b := range l.Batches {
		info, _ := record.Peek(b)
		if info.Base >= l.Start {
			choices = append(choices, info.Base)
		}
	}
	at := rapid.SampledFrom(choices).Draw(t, "offset")
	if at > l.Start && rapid.IntRange(0, 40).Draw(t, "misfit") == 0 {
		at--
	}
	return at
}

func testRandom(t *testing.T, new func(t testing.TB) Place) {
	rapid.Check(t, func(rt *rapid.T) {
		e := &env{t: rt, place: new(t)}
		e.open()
		defer func() { e.store.Close() }()
		m := NewModel()
		for range rapid.IntRange(1, 25).Draw(rt, "groups") {
			switch rapid.IntRange(0, 9).Draw(rt, "action") {
			case 0:
				m.Reopen()
				e.reopen()
				m.Check(rt, e.store)
			case 1:
				m.Check(rt, e.store)
			default:
				ops := m.DrawGroup(rt)
				refused := m.Apply(ops)
				r := e.write(ops...)
				require.NoError(rt, r.Err)
				require.Len(rt, r.Refused, len(refused))
				for id := range refused {
					require.Error(rt, r.Refused[id])
				}
			}
		}
		m.Check(rt, e.store)
		e.reopen()
		m.Check(rt, e.store)
	})
}
