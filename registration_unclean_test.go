package tidemark

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// lossyStore applies the registration and loses the answer, and all that is asked
// until the attempt is given up.
type lossyStore struct {
	coordination.Store
	lose, losing bool
}

var errLost = errors.New("the answer was lost")

func (l *lossyStore) Do(ctx context.Context, txn coordination.Txn) (coordination.TxnResult, error) {
	res, err := l.Store.Do(ctx, txn)
	for _, op := range txn.Ops {
		if l.lose && !op.Delete && strings.HasPrefix(op.Key, brokerIDsPrefix) {
			l.lose, l.losing = false, true
		}
	}
	if l.losing {
		return coordination.TxnResult{}, errLost
	}
	return res, err
}

func (l *lossyStore) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	if l.losing {
		return coordination.KV{}, false, errLost
	}
	return l.Store.Get(ctx, key)
}

// comer is a broker whose process comes and goes on one disk.
type comer struct {
	t     *testing.T
	coord *lossyStore
	disk  *memstore.Disk
	store *memstore.Store
	reg   *registrar
}

func newComer(t *testing.T) *comer {
	c := &comer{
		t: t, coord: &lossyStore{Store: memory.New(memory.Options{Manual: true}).Connect()},
		disk: memstore.NewDisk(memstore.Manual()),
	}
	c.open()
	return c
}

func (c *comer) open() {
	var err error
	c.store, err = c.disk.Open()
	require.NoError(c.t, err)
	b := newBroker(Config{ID: 1, Store: c.store, Coordination: c.coord, Loops: 1}.withDefaults())
	c.t.Cleanup(b.cancel)
	c.reg = newRegistrar(b)
}

func (c *comer) crash() {
	c.disk.Crash(0)
	c.open()
}

func (c *comer) reopen() {
	require.NoError(c.t, c.store.Close())
	c.open()
}

// register registers, with the answer lost first if lost says so.
func (c *comer) register(lost bool) {
	if lost {
		c.coord.lose = true
		_, _, err := c.reg.register()
		require.ErrorIs(c.t, err, errLost)
		c.coord.losing = false
	}
	_, _, err := c.reg.register()
	require.NoError(c.t, err)
}

// unclean is what the cluster knows.
func (c *comer) unclean() bool {
	kv, ok, err := c.coord.Get(c.t.Context(), brokerLastKey(1))
	require.NoError(c.t, err)
	require.True(c.t, ok)
	var last lastLife
	mustUnmarshal(c.t, kv.Value, &last)
	return last.Unclean
}

// clear is what the Controller does once the broker is out of every ISR and ELR.
func (c *comer) clear() {
	kv, _, err := c.coord.Get(c.t.Context(), brokerLastKey(1))
	require.NoError(c.t, err)
	var last lastLife
	mustUnmarshal(c.t, kv.Value, &last)
	last.Unclean = false
	res, err := c.coord.Do(c.t.Context(), coordination.Txn{
		Guards: []coordination.Guard{{Key: kv.Key, Revision: kv.Revision}},
		Ops:    []coordination.Op{{Key: kv.Key, Value: marshal(last)}},
	})
	require.NoError(c.t, err)
	require.True(c.t, res.Applied)
}

// D25, BR-3: the cluster learns of an unclean end with the first registration of the
// open that found it, whatever happens to the answers; only the Controller forgets it.
func TestUncleanRegistration(t *testing.T) {
	for name, lost := range map[string]bool{"answers come": false, "first answer lost": true} {
		t.Run(name, func(t *testing.T) {
			c := newComer(t)
			c.register(lost)
			require.False(t, c.unclean(), "new")
			c.reopen()
			c.register(lost)
			require.False(t, c.unclean(), "closed cleanly")

			c.crash()
			c.register(lost)
			require.True(t, c.unclean())
			c.register(lost)
			require.True(t, c.unclean(), "its session was lost")
			c.clear()
			c.register(lost)
			require.False(t, c.unclean(), "what was got since this open is not lost by the crash before")

			c.crash()
			c.register(lost)
			c.reopen()
			c.register(lost)
			require.True(t, c.unclean(), "closed cleanly since, but not cleared")
			c.clear()
			c.reopen()
			c.register(lost)
			require.False(t, c.unclean())
		})
	}
	t.Run("cleared while the answer was lost", func(t *testing.T) {
		c := newComer(t)
		c.register(false)
		c.crash()
		c.coord.lose = true
		_, _, err := c.reg.register()
		require.ErrorIs(t, err, errLost)
		c.coord.losing = false
		require.True(t, c.unclean())
		c.clear()
		c.register(false)
		require.False(t, c.unclean())
	})
	t.Run("not registered in between", func(t *testing.T) {
		c := newComer(t)
		c.register(false)
		c.crash()
		c.reopen() // closed cleanly, but nobody was told
		c.register(false)
		require.True(t, c.unclean())
	})
	t.Run("never seen before", func(t *testing.T) {
		c := newComer(t)
		c.crash()
		c.register(false)
		require.True(t, c.unclean())
	})
}
