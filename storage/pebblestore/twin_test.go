package pebblestore_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

// twins are a store in memory and one on Pebble that are told the same.
type twins struct {
	t *rapid.T

	disk *memstore.Disk
	mem  *memstore.Store

	fs   *crashMem
	real *pebblestore.Store

	dones *dones
	// models[i] is what is there after i groups of this life.
	models []*storagetest.Model
	asked  int // groups up to here are to be durable: the last synced one, and those before it
	synced int // ... and are, in mem
}

func (w *twins) open() {
	var err error
	w.mem, err = w.disk.Open()
	require.NoError(w.t, err)
	w.real, err = pebblestore.Open("d", small(w.fs))
	require.NoError(w.t, err)
	w.dones, w.asked, w.synced = &dones{}, 0, 0
	w.models = w.models[len(w.models)-1:]
	w.models[0].Reopen()
	require.Equal(w.t, w.mem.Node().Unclean, w.real.Node().Unclean)
	w.compare()
}

// write gives both the same group and compares what becomes of it.
func (w *twins) write(ops []storage.Op, synced bool) {
	m := w.models[len(w.models)-1].Clone()
	m.Apply(ops)
	w.models = append(w.models, m)
	var mem, real storage.Result
	done := w.dones.expect(w.dones.count(), synced)
	w.mem.Write(ops, synced, func(r storage.Result) { mem = r })
	w.real.Write(ops, synced, func(r storage.Result) { real = r; done(r) })
	if !synced {
		return
	}
	w.asked = len(w.models) - 1
	w.wait()
	require.NoError(w.t, real.Err)
	require.Len(w.t, real.Refused, len(mem.Refused))
	for id, err := range mem.Refused {
		same(w.t, err, real.Refused[id])
	}
}

// wait waits for all dones. What was not asked to be durable may not be.
func (w *twins) wait() {
	w.synced += w.mem.Sync(w.asked - w.synced)
	w.mem.Complete()
	w.dones.all.Wait()
}

// same tells two errors apart as a caller would.
func same(t require.TestingT, a, b error) {
	require.Equal(t, a == nil, b == nil, "%v, %v", a, b)
	for _, kind := range []error{storage.ErrClosed, storage.ErrPoisoned, storage.ErrInUse, storage.ErrUnknownLog, storage.ErrOutOfRange, storage.ErrDamaged} {
		require.Equal(t, errors.Is(a, kind), errors.Is(b, kind), "%v, %v", a, b)
	}
}

// compare looks at all that both show.
func (w *twins) compare() {
	w.wait()
	require.Equal(w.t, w.mem.Node(), w.real.Node())
	same(w.t, w.mem.Health().Err, w.real.Health().Err)
	mem, err := w.mem.Logs()
	require.NoError(w.t, err)
	real, err := w.real.Logs()
	require.NoError(w.t, err)
	require.Equal(w.t, len(mem), len(real))
	for id, a := range mem {
		b := real[id]
		same(w.t, a.Damaged, b.Damaged)
		require.Equal(w.t, a.Led, b.Led)
		if a.Damaged != nil {
			continue // nothing else is promised
		}
		require.Equal(w.t, a.Bytes == 0, b.Bytes == 0)
		a.Bytes, b.Bytes = 0, 0 // approximate
		require.Equal(w.t, a, b)
		w.read(id, a)
	}
}

// read compares a few reads, inside of the log and beside it.
func (w *twins) read(id storage.LogID, s storage.State) {
	for range 4 {
		from := rapid.Int64Range(s.Start-1, s.End+1).Draw(w.t, "from")
		most := rapid.IntRange(-1, 3000).Draw(w.t, "most")
		a, aerr := w.mem.Read(id, from, most)
		b, berr := w.real.Read(id, from, most)
		same(w.t, aerr, berr)
		require.Equal(w.t, a, b)
	}
}

func (w *twins) close() {
	require.NoError(w.t, w.mem.Close())
	require.NoError(w.t, w.real.Close())
	w.dones.all.Wait()
	require.Empty(w.t, w.dones.problem)
	require.NoError(w.t, w.dones.failed)
}

// crash takes the same from both: what the power cut leaves of the real one.
func (w *twins) crash() {
	promised := max(w.dones.promised(), w.synced)
	after := w.fs.cut(rapid.SampledFrom([]int{0, 50, 100}).Draw(w.t, "kept"), rand.New(rand.NewPCG(rapid.Uint64().Draw(w.t, "seed"), 0)))
	require.NoError(w.t, w.real.Fence())
	s, err := pebblestore.Open("d", small(after.cut(100, rand.New(rand.NewPCG(0, 0)))))
	require.NoError(w.t, err)
	found := len(w.models) - 1
	for ; found >= promised; found-- {
		if shows(s, w.models[found]) == "" {
			break
		}
	}
	require.GreaterOrEqual(w.t, found, promised, "no prefix")
	require.NoError(w.t, s.Close())
	w.fs = after
	w.disk.Crash(found - w.synced)
	w.models = w.models[:found+1]
}

// A store in memory and one on Pebble that are told the same are the same, in all that
// they show and answer, over closing and crashing.
func TestTwins(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := newCrashMem()
		s, err := pebblestore.Open("d", small(fs))
		require.NoError(rt, err)
		directory := s.Node().Directory
		require.NoError(rt, s.Close())
		w := &twins{t: rt, fs: fs,
			disk:   memstore.NewDisk(memstore.Manual(), memstore.Directory(directory)),
			models: []*storagetest.Model{storagetest.NewModel()}}
		w.open()
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				w.close()
				w.open()
			case 1:
				w.crash()
				w.open()
			case 2:
				w.setNode()
			case 3:
				w.compare()
			default:
				w.write(w.models[len(w.models)-1].DrawGroup(rt), rapid.IntRange(0, 2).Draw(rt, "unsynced") > 0)
			}
		}
		w.close()
		_, err = w.mem.Logs()
		require.ErrorIs(rt, err, storage.ErrClosed)
		_, err = w.real.Logs()
		require.ErrorIs(rt, err, storage.ErrClosed)
	})
}

func (w *twins) setNode() {
	n := w.mem.Node()
	n.BrokerID = rapid.Int32Range(0, 3).Draw(w.t, "broker")
	n.BrokerEpoch += rapid.Int64Range(0, 2).Draw(w.t, "epochs")
	n.Cluster = protocol.UUID{rapid.Byte().Draw(w.t, "cluster")}
	if rapid.IntRange(0, 9).Draw(w.t, "another directory") == 0 {
		n.Directory[0] ^= 1
	}
	if n.Directory == w.mem.Node().Directory { // it waits for the groups before it
		w.asked = len(w.models) - 1
		w.wait()
	}
	same(w.t, w.mem.SetNode(n), w.real.SetNode(n))
	require.Equal(w.t, w.mem.Node(), w.real.Node())
}
