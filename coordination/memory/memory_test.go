package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/coordinationtest"
	"github.com/tidemark-log/tidemark/coordination/memory"
)

func TestConformance(t *testing.T) {
	coordinationtest.Run(t, coordinationtest.Config{New: func(testing.TB) *coordinationtest.Server {
		const history = 500
		s := memory.New(memory.Options{History: history})
		return &coordinationtest.Server{
			Connect:        func() coordination.Store { return s.Connect() },
			Close:          s.Close,
			History:        history,
			Fence:          func(c coordination.Store) { c.(*memory.Client).Fence() },
			Expire:         func(id string) { s.ExpireSession(id) },
			SetUnavailable: s.SetUnavailable,
			DropRequests:   s.DropRequests,
			LoseReplies:    s.LoseReplies,
			Pause:          s.Pause,
			Resume:         s.Resume,
		}
	}})
}

var ctx = context.Background()

func do(t *testing.T, c coordination.Store, op coordination.Op) int64 {
	t.Helper()
	res, err := c.Do(ctx, coordination.Txn{Ops: []coordination.Op{op}})
	require.NoError(t, err)
	require.True(t, res.Applied)
	return res.Revision
}

// TestManual: everything happens within the calls, and nothing by itself.
func TestManual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{Manual: true})
		a, b := s.Connect(), s.Connect()
		sess, err := a.NewSession(ctx, time.Second)
		require.NoError(t, err)
		watchCtx, cancel := context.WithCancel(ctx)
		ch, err := b.Watch(watchCtx, "", 0)
		require.NoError(t, err)
		for i := range 3 {
			require.Equal(t, int64(i+1), do(t, a, coordination.Op{Key: "e", Session: sess.ID()}))
		}
		require.Len(t, ch, 1, "all that happened, in one piece, at once")
		require.Len(t, (<-ch).Events, 3)
		time.Sleep(time.Hour)
		require.NoError(t, sess.Renew(ctx), "time does not count")

		a.Fence()
		time.Sleep(time.Hour)
		require.Empty(t, ch)
		require.True(t, s.ExpireSession(sess.ID()))
		require.False(t, s.ExpireSession(sess.ID()))
		require.Len(t, ch, 1)
		changes := <-ch
		require.True(t, changes.Events[0].Deleted)
		require.Equal(t, int64(4), changes.Revision)
		<-sess.Done()

		s.Pause()
		_, _, err = b.Get(ctx, "e")
		require.ErrorIs(t, err, coordination.ErrUnavailable, "a paused store must not block the only goroutine")
		s.Resume()

		cancel()
		do(t, b, coordination.Op{Key: "k"})
		_, more := <-ch
		require.False(t, more)
		require.NoError(t, s.Close())
	})
}

// TestCutClient: a cut connection is the client's trouble alone, and can be mended.
func TestCutClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		a, b := s.Connect(), s.Connect()
		short, err := a.NewSession(ctx, time.Second)
		require.NoError(t, err)
		long, err := a.NewSession(ctx, time.Minute)
		require.NoError(t, err)
		ch, err := a.Watch(ctx, "", 0)
		require.NoError(t, err)
		a.SetUnavailable(true)
		require.ErrorIs(t, (<-ch).Err, coordination.ErrUnavailable)
		_, _, err = a.Get(ctx, "k")
		require.ErrorIs(t, err, coordination.ErrUnavailable)
		do(t, b, coordination.Op{Key: "k"})
		time.Sleep(2 * time.Second)
		a.SetUnavailable(false)
		require.ErrorIs(t, short.Renew(ctx), coordination.ErrSessionExpired)
		require.NoError(t, long.Renew(ctx))
		_, ok, err := a.Get(ctx, "k")
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, s.Close())
	})
}

// TestServerClose ends everything that the clients hold.
func TestServerClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		c := s.Connect()
		sess, err := c.NewSession(ctx, time.Hour)
		require.NoError(t, err)
		ch, err := c.Watch(ctx, "", 0)
		require.NoError(t, err)
		s.Pause()
		stuck := make(chan error, 1)
		go func() { stuck <- sess.Renew(ctx) }()
		synctest.Wait()
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-stuck, coordination.ErrClosed)
		<-sess.Done()
		require.ErrorIs(t, (<-ch).Err, coordination.ErrClosed)
		_, more := <-ch
		require.False(t, more)
		require.ErrorIs(t, sess.Close(ctx), coordination.ErrClosed)
		_, err = s.Connect().NewSession(ctx, time.Second)
		require.ErrorIs(t, err, coordination.ErrClosed)
		s.Pause()
		s.Resume()
		s.SetUnavailable(true)
		require.False(t, s.ExpireSession(sess.ID()))
	})
}
