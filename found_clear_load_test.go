package tidemark

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// A log that failed once is cleared and in sync again within a bound, also while
// appends never pause.
func TestRepairUnderLoad(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		// The disk of broker 3 is slower than the leader's: the leader hands out records
		// of its new epoch before broker 3 has stored that its log is empty.
		r.kill(3, 0)
		r.disks[2] = memstore.NewDisk(memstore.SyncDelay(15 * time.Millisecond))
		r.start(3)
		n := r.create("t", 3)
		_, topic, err := r.client.topicOf(r.within(time.Second), "t", 0)
		require.NoError(t, err)
		stop, end := context.WithCancel(context.Background())
		var work sync.WaitGroup
		for w := range 20 { // one append per millisecond
			work.Go(func() {
				pause(time.Duration(w) * time.Millisecond)
				for ; stop.Err() == nil; pause(20 * time.Millisecond) {
					_, _ = r.client.Partition("t", n).AppendWith(stop, AppendOptions{Acks: AcksNone}, Record{Value: []byte("v")})
				}
			})
		}
		inSync := func() int {
			s, err := r.client.Partition("t", n).Status(r.within(time.Second))
			require.NoError(t, err)
			return len(s.ISR)
		}
		pause(time.Second)
		disk, id := r.node(3).store, protocol.PartitionID{Topic: topic.ID, Partition: int32(n)}
		disk.once.Store(&id)
		r.until("the log failed", func() bool { return r.broker(3).Status().Damaged == 1 })
		began := time.Now()
		back := false
		for !back && time.Since(began) < 30*time.Second {
			pause(10 * time.Millisecond)
			rep, err := r.broker(3).Replica(r.within(time.Second), "t", n)
			back = err == nil && rep.Role == "follower" && rep.LogEnd > 0 && inSync() == 3
		}
		took := time.Since(began)
		end()
		work.Wait()
		r.until("back when the load ends", func() bool { return inSync() == 3 })
		require.True(t, back, "not in sync again within %v of load", took)
	})
}
