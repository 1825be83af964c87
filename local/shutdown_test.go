package local_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// openInBubble opens a cluster of three in virtual time, with a topic "t" whose
// records have to be on all three.
func openInBubble(t *testing.T, o local.Options) *local.Cluster {
	o.InMemory, o.MemoryBudget = true, 24<<20
	c, err := local.Open(t.Context(), "", o)
	require.NoError(t, err)
	require.NoError(t, c.Controller().EnsureTopic(t.Context(), "t", tidemark.TopicConfig{MinISR: 3}))
	_, err = c.Partition("t", 0).Append(t.Context(), tidemark.Record{})
	require.NoError(t, err)
	return c
}

// Appends under way when Shutdown begins need the followers, too: nobody closes
// before all is decided. What comes later is refused.
func TestShutdownFinishesWhatNeedsEveryBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openInBubble(t, local.Options{})
		c.Network().SetFaults(inproc.Any, inproc.Any, inproc.Faults{Delay: 30 * time.Millisecond})
		var work sync.WaitGroup
		for i := range 20 {
			work.Go(func() {
				_, err := c.Partition("t", 0).Append(t.Context(), tidemark.Record{Value: fmt.Append(nil, i)})
				if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ended := make(chan error, 2)
		for range 2 {
			go func() { ended <- c.Shutdown(t.Context()) }()
		}
		synctest.Wait()
		_, err := c.Partition("t", 0).Append(t.Context(), tidemark.Record{})
		require.ErrorIs(t, err, tidemark.ErrClosed)
		require.Equal(t, tidemark.NotAppended, tidemark.OutcomeOf(err))
		require.Empty(t, ended)
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
		work.Wait()
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Restart(t.Context(), 1), tidemark.ErrClosed)
	})
}

// What does not end in time is cut off, and Shutdown says so.
func TestShutdownIsBoundedByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openInBubble(t, local.Options{MaxLag: time.Hour, SessionTimeout: time.Hour})
		s, err := c.Partition("t", 0).Status(t.Context())
		require.NoError(t, err)
		c.Network().Isolate(s.ISR[1])
		ended := make(chan error, 1)
		go func() {
			_, err := c.Partition("t", 0).Append(t.Context(), tidemark.Record{})
			ended <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, c.Shutdown(ctx), context.DeadlineExceeded)
		require.Less(t, time.Since(began), 3*time.Second)
		err = <-ended
		require.Equal(t, tidemark.Unknown, tidemark.OutcomeOf(err))
		require.ErrorIs(t, err, tidemark.ErrClosed)
	})
}

// Every broker has its Observer, a restarted one too.
func TestClusterObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		lives := make(map[int32]int)
		c := openInBubble(t, local.Options{Observer: func(id int32) *tidemark.Observer {
			return &tidemark.Observer{Registration: func(e tidemark.RegistrationEvent) {
				mu.Lock()
				defer mu.Unlock()
				if e.Registered {
					lives[id]++
				}
			}}
		}})
		require.NoError(t, c.Kill(2))
		require.NoError(t, c.Restart(t.Context(), 2))
		require.NoError(t, c.Broker(2).Ready(t.Context()))
		synctest.Wait()
		require.NoError(t, c.Close())
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[int32]int{1: 1, 2: 2, 3: 1}, lives)
	})
}
