package memstore_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var id = storage.LogID{Topic: protocol.UUID{1}}

func appendOne(at int64) []storage.Op {
	b, err := record.Encode(nil, []record.Record{{Value: []byte("v")}}, time.Unix(1, 0))
	if err != nil {
		panic(err)
	}
	record.Stamp(b, at, 1)
	return []storage.Op{{Log: id, Kind: storage.Append, Offset: at, Batches: [][]byte{b}, End: at + 1}}
}

func open(t require.TestingT, d *memstore.Disk) *memstore.Store {
	s, err := d.Open()
	require.NoError(t, err)
	return s
}

func end(t require.TestingT, s *memstore.Store) int64 {
	logs, err := s.Logs()
	require.NoError(t, err)
	return logs[id].End
}

// results gathers what dones were told.
type results []error

func (r *results) done(x storage.Result) { *r = append(*r, x.Err) }

func TestManual(t *testing.T) {
	d := memstore.NewDisk(memstore.Manual(), memstore.Directory(protocol.UUID{9}))
	s := open(t, d)
	require.Equal(t, protocol.UUID{9}, s.Node().Directory)
	var r results
	for i := range int64(6) {
		s.Write(appendOne(i), i >= 2, r.done)
	}
	require.EqualValues(t, 6, end(t, s), "reads see what was written")
	require.Equal(t, 6, s.Pending())
	require.Empty(t, r)
	require.Equal(t, 2, s.Complete(), "the unsynced ones at the head")
	require.Zero(t, s.Complete())
	require.Len(t, r, 2)
	require.Equal(t, 6, s.Pending())
	require.True(t, s.Step())
	require.Len(t, r, 2, "its done was called already")
	require.Equal(t, 3, s.Sync(3))
	require.Len(t, r, 4)
	d.Hang()
	require.Zero(t, s.Sync(9))
	require.False(t, s.Step())
	d.Unhang()
	require.Equal(t, 2, s.Sync(9))
	require.Equal(t, results{nil, nil, nil, nil, nil, nil}, r)
	n := s.Node()
	n.BrokerID = 5
	require.NoError(t, s.SetNode(n))
	s.Write(appendOne(6), true, r.done)
	require.NoError(t, s.Close())
	require.Len(t, r, 7, "Close makes the rest durable")
	s.Write(appendOne(7), true, r.done)
	require.Len(t, r, 7, "never from inside Write")
	s.Step()
	require.ErrorIs(t, r[7], storage.ErrClosed)
	s = open(t, d)
	require.EqualValues(t, 7, end(t, s))
	require.Equal(t, n, s.Node())
	require.NoError(t, s.Close())
}

func TestCrash(t *testing.T) {
	for keep := -1; keep < 6; keep++ {
		d := memstore.NewDisk(memstore.Manual())
		s := open(t, d)
		var r results
		for i := range int64(5) {
			s.Write(appendOne(i), true, r.done)
		}
		s.Step()
		d.Crash(keep)
		require.Len(t, r, 1)
		_, err := s.Logs()
		require.ErrorIs(t, err, storage.ErrClosed)
		_, err = s.Read(id, 0, 1)
		require.ErrorIs(t, err, storage.ErrClosed)
		require.ErrorIs(t, s.SetNode(s.Node()), storage.ErrClosed)
		again := open(t, d)
		require.EqualValues(t, 1+min(max(keep, 0), 4), end(t, again))
		s.Step()
		require.NoError(t, s.Close())
		require.Len(t, r, 1, "dones of the dead are not called")
		_, err = d.Open()
		require.ErrorIs(t, err, storage.ErrInUse)
		require.NoError(t, again.Close())
	}
}

func TestFailWrites(t *testing.T) {
	boom := errors.New("boom")
	d := memstore.NewDisk(memstore.Manual())
	s := open(t, d)
	var r results
	s.Write(appendOne(0), true, r.done)
	s.Step()
	s.Write(appendOne(1), true, r.done)
	d.FailWrites(boom)
	s.Write(appendOne(2), true, r.done)
	require.Len(t, r, 1)
	require.False(t, s.Step())
	require.Len(t, r, 3)
	for _, err := range r[1:] {
		require.ErrorIs(t, err, boom)
		require.ErrorIs(t, err, storage.ErrPoisoned)
	}
	require.ErrorIs(t, s.Health().Err, boom)
	require.ErrorIs(t, s.SetNode(s.Node()), boom)
	d.FailWrites(nil)
	s.Write(appendOne(1), true, r.done)
	s.Step()
	require.ErrorIs(t, r[3], storage.ErrPoisoned, "for this store it stays so")
	require.ErrorIs(t, s.Close(), boom)
	require.ErrorIs(t, s.Close(), boom)
	s = open(t, d)
	require.EqualValues(t, 1, end(t, s))
	require.NoError(t, s.Health().Err)
	require.NoError(t, s.Close())
}

func TestCorrupt(t *testing.T) {
	d := memstore.NewDisk()
	s := open(t, d)
	done := make(chan storage.Result, 1)
	s.Write(append(appendOne(0), appendOne(1)...), true, func(r storage.Result) { done <- r })
	require.NoError(t, (<-done).Err)
	require.False(t, d.Corrupt(id, 2))
	require.True(t, d.Corrupt(id, 1))
	for range 2 {
		_, err := s.Read(id, 0, 1)
		require.NoError(t, err)
		_, err = s.Read(id, 0, 1000)
		require.ErrorIs(t, err, storage.ErrDamaged)
		require.NoError(t, s.Close())
		s = open(t, d)
	}
	require.NoError(t, s.Close())
}

// In virtual time: groups share a sync, a hung disk holds them, Close is bounded.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memstore.NewDisk(memstore.SyncDelay(time.Second), memstore.CloseTimeout(time.Minute))
		s := open(t, d)
		start := time.Now()
		took := make(chan time.Duration, 9)
		done := func(r storage.Result) {
			require.NoError(t, r.Err)
			took <- time.Since(start)
		}
		s.Write(appendOne(0), true, done)
		synctest.Wait()
		s.Write(appendOne(1), true, done)
		s.Write(appendOne(2), true, done)
		require.Equal(t, time.Second, <-took)
		require.Equal(t, 2*time.Second, <-took)
		require.Equal(t, 2*time.Second, <-took)
		s.Write(appendOne(3), false, done)
		require.Equal(t, 2*time.Second, <-took, "not synced: at once")
		time.Sleep(3 * time.Second)
		require.Zero(t, s.Pending())

		d.Hang()
		failed := make(chan error, 1)
		s.Write(appendOne(4), true, func(r storage.Result) { failed <- r.Err })
		time.Sleep(time.Hour)
		require.Equal(t, 1, s.Pending())
		start = time.Now()
		require.Error(t, s.Close())
		require.Equal(t, time.Minute, time.Since(start))
		require.ErrorIs(t, <-failed, storage.ErrClosed)
		d.Unhang()
		s = open(t, d)
		require.EqualValues(t, 4, end(t, s))

		var r results
		s.Write(appendOne(4), true, r.done)
		d.Crash(1)
		time.Sleep(time.Minute)
		require.Empty(t, r)
		s = open(t, d)
		require.EqualValues(t, 5, end(t, s))
		require.NoError(t, s.Close())
	})
}

// Crashes at random points of random groups leave a prefix, and an image that an
// older store went on writing to is not disturbed by it.
func TestRandomCrashes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := memstore.NewDisk(memstore.Manual())
		durable := storagetest.NewModel()
		for range rapid.IntRange(1, 5).Draw(rt, "lives") {
			s := open(rt, d)
			durable.Check(rt, s)
			models := []*storagetest.Model{durable}
			synced := 0
			for range rapid.IntRange(0, 12).Draw(rt, "groups") {
				m := models[len(models)-1].Clone()
				ops := m.DrawGroup(rt)
				m.Apply(ops)
				models = append(models, m)
				s.Write(ops, true, func(r storage.Result) { require.NoError(rt, r.Err) })
				m.Check(rt, s)
				synced += s.Sync(rapid.IntRange(0, 2).Draw(rt, "sync"))
			}
			keep := rapid.IntRange(0, len(models)-1-synced).Draw(rt, "keep")
			d.Crash(keep)
			durable = models[synced+keep]
			durable.Reopen()
		}
		s := open(rt, d)
		durable.Check(rt, s)
		require.NoError(rt, s.Close())
	})
}
