package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// The planted bug does what it is for: a crash loses what was called stored, but a
// clean end loses nothing.
func TestEarlyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := storage.LogID{Topic: protocol.UUID{1}}
		write := func(s storage.Store) {
			done := make(chan error, 1)
			s.Write([]storage.Op{{Log: id, Kind: storage.Meta}}, true, func(r storage.Result) { done <- r.Err })
			require.NoError(t, <-done)
		}
		has := func(s storage.Store) bool {
			logs, err := s.Logs()
			require.NoError(t, err)
			_, ok := logs[id]
			return ok
		}
		disk := memstore.NewDisk()
		inner, err := disk.Open()
		require.NoError(t, err)
		e := newEarlyStore(inner, time.Second)
		began := time.Now()
		write(e)
		require.Zero(t, time.Since(began))
		require.False(t, has(e))
		_, err = e.Read(id, 0, 1)
		require.NoError(t, err, "a read waits until the store has it")
		require.True(t, has(e))
		n := e.Node()
		n.BrokerEpoch = 7
		require.NoError(t, e.SetNode(n))
		require.EqualValues(t, 7, e.Node().BrokerEpoch)
		time.Sleep(2 * time.Second)
		id.Partition = 1
		write(e)
		time.Sleep(999 * time.Millisecond)
		require.False(t, has(e))
		time.Sleep(2 * time.Millisecond)
		require.True(t, has(e))
		id.Partition = 2
		write(e)
		require.NoError(t, e.Close())
		inner, err = disk.Open()
		require.NoError(t, err)
		require.True(t, has(inner))
		require.NoError(t, inner.Close())
	})
}
