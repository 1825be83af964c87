package storagetest

import (
	"bytes"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

func testReadBoundaries(t require.TestingT, e *env) {
	id := logID(0)
	op := appendOp(id, 0, 2, 3, 4)
	b := op.Batches
	size := len(join(b...))
	e.must(op)
	for range 2 {
		for _, c := range []struct {
			from int64
			max  int
			want []byte
		}{
			{0, 1 << 20, join(b...)},
			{1, 1 << 20, join(b...)},
			{2, 1 << 20, join(b[1:]...)},
			{4, 1 << 20, join(b[1:]...)},
			{8, 1 << 20, b[2]},
			{9, 1 << 20, nil},
			{0, 0, b[0]},
			{0, -1, b[0]},
			{0, 1, b[0]},
			{3, 1, b[1]},
			{0, len(b[0]), b[0]},
			{0, len(b[0]) + len(b[1]) - 1, b[0]},
			{0, len(b[0]) + len(b[1]), join(b[:2]...)},
			{0, size - 1, join(b[:2]...)},
			{0, size, join(b...)},
		} {
			r, err := e.store.Read(id, c.from, c.max)
			require.NoError(t, err)
			require.Equal(t, [2]int64{0, 9}, [2]int64{r.Start, r.End})
			require.True(t, bytes.Equal(c.want, r.Batches), "from %d, at most %d", c.from, c.max)
		}
		for _, from := range []int64{-1, 10, 1 << 40} {
			_, err := e.store.Read(id, from, 10)
			require.ErrorIs(t, err, storage.ErrOutOfRange)
		}
		_, err := e.store.Read(logID(1), 0, 10)
		require.ErrorIs(t, err, storage.ErrUnknownLog)
		e.reopen()
	}
}

func testReadIsACopy(t require.TestingT, e *env) {
	id := logID(0)
	op := appendOp(id, 0, 2, 3)
	want := join(op.Batches...)
	e.must(op)
	clear(op.Batches[0]) // free after done
	r, err := e.store.Read(id, 0, 1000)
	require.NoError(t, err)
	require.Equal(t, want, r.Batches)
	clear(r.Batches)
	require.Equal(t, want, e.all(id))
}

func testNode(t require.TestingT, e *env) {
	n := e.store.Node()
	require.False(t, n.Directory.IsZero())
	require.True(t, n.Cluster.IsZero())
	require.EqualValues(t, -1, n.BrokerID)
	require.Zero(t, n.BrokerEpoch)
	e.reopen()
	require.Equal(t, n, e.store.Node())
	n.Cluster[3], n.BrokerID, n.BrokerEpoch = 9, 4, 1<<40
	require.NoError(t, e.store.SetNode(n))
	require.Equal(t, n, e.store.Node())
	e.reopen()
	require.Equal(t, n, e.store.Node())
	other := n
	other.Directory[0] ^= 1
	require.Error(t, e.store.SetNode(other))
	require.Equal(t, n, e.store.Node())
}

func testInUse(t require.TestingT, e *env) {
	_, err := e.place.Open()
	require.ErrorIs(t, err, storage.ErrInUse)
	e.must(appendOp(logID(0), 0, 1))
	e.reopen()
	require.EqualValues(t, 1, e.state(logID(0)).End)
}

func testAfterClose(t require.TestingT, e *env) {
	id := logID(0)
	e.must(appendOp(id, 0, 1))
	s := e.store
	var closers sync.WaitGroup
	for range 8 {
		closers.Go(func() { require.NoError(t, s.Close()) })
	}
	closers.Wait()
	_, err := s.Logs()
	require.ErrorIs(t, err, storage.ErrClosed)
	_, err = s.Read(id, 0, 1)
	require.ErrorIs(t, err, storage.ErrClosed)
	require.ErrorIs(t, s.SetNode(s.Node()), storage.ErrClosed)
	require.ErrorIs(t, s.Health().Err, storage.ErrClosed)
	require.ErrorIs(t, e.write(appendOp(id, 1, 1)).Err, storage.ErrClosed)
	require.NoError(t, s.Close())
	e.open()
	require.EqualValues(t, 1, e.state(id).End)
	require.NoError(t, e.store.Health().Err)
}

// Writers go on while the store is closed: every done comes once, in order, and
// what was promised is there.
func testCloseWhileWriting(t require.TestingT, e *env) {
	const n = 300
	c := collect(n)
	s := e.store
	closed := make(chan error, 1)
	at := int64(0)
	for i := range n {
		if i == n/2 {
			go func() { closed <- s.Close() }()
		}
		op := appendOp(logID(0), at, 1)
		at = op.End
		s.Write([]storage.Op{op}, true, c.done(i))
	}
	require.NoError(t, wait(t, closed))
	wait(t, c.all)
	promised := int64(0)
	for i := range n {
		require.Equal(t, i, c.got[i])
		if c.errs[i] == nil {
			require.EqualValues(t, i, promised, "a success after a failure")
			promised++
		} else {
			require.ErrorIs(t, c.errs[i], storage.ErrClosed)
		}
	}
	require.GreaterOrEqual(t, promised, int64(n/2))
	e.open()
	require.Equal(t, promised, e.state(logID(0)).End)
}

// Readers at work while logs grow, shrink and begin anew see whole, consecutive
// batches that belong together.
func testConcurrent(t require.TestingT, e *env) {
	const logs, rounds = 3, 60
	for i := range logs {
		e.must(storage.Op{Log: logID(i), Kind: storage.Meta})
	}
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for i := range 2 * logs {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				readAll(t, e.store, logID(i%logs))
			}
		})
	}
	for i := range logs {
		writers.Go(func() {
			at := int64(0)
			for r := range rounds {
				op := appendOp(logID(i), at, 3, 1+r%5)
				e.must(op)
				at = op.End
				switch r % 6 {
				case 2:
					at = op.Offset + 3
					e.must(storage.Op{Log: logID(i), Kind: storage.Truncate, Offset: at, Epochs: epochs()})
				case 4:
					e.must(storage.Op{Log: logID(i), Kind: storage.Trim, Offset: at - 1})
				case 5:
					e.must(storage.Op{Log: logID(i), Kind: storage.Reset, Offset: at, Epochs: epochs()})
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

func readAll(t require.TestingT, s storage.Store, id storage.LogID) {
	states, err := s.Logs()
	require.NoError(t, err)
	_ = s.Health()
	from := states[id].Start
	for {
		r, err := s.Read(id, from, 300)
		if err != nil {
			require.ErrorIs(t, err, storage.ErrOutOfRange) // moved under our feet
			return
		}
		require.LessOrEqual(t, r.Start, from)
		if len(r.Batches) == 0 {
			require.Equal(t, r.End, from)
			return
		}
		for rest, first := r.Batches, true; len(rest) > 0; first = false {
			info, err := record.Check(rest)
			require.NoError(t, err)
			if first {
				require.LessOrEqual(t, info.Base, from)
			} else {
				require.Equal(t, from, info.Base)
			}
			require.LessOrEqual(t, info.End(), r.End)
			from, rest = info.End(), rest[info.Size:]
		}
	}
}
