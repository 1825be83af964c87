package tidemark

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// A broker that was away from the Controller while topics were deleted of which it
// has no replica: the deletion is over without it, and the whole image does not name
// them. Its loops must forget their configurations all the same.
func TestMissedDeletionsLeaveNothing(t *testing.T) {
	attack(t, 3, nil, func(t *testing.T, r *attackRig) {
		r.create("t", 1)
		ctx, c := r.admin()
		who := r.controllerID()%3 + 1
		for i := range 30 {
			require.NoError(t, c.CreateTopic(ctx, fmt.Sprint("x", i), TopicConfig{Partitions: 1, ReplicationFactor: 1, MinISR: 1}))
		}
		pause(time.Second)
		// The link between the Controller and this broker ends, and begins again.
		b := r.broker(who)
		var left []protocol.UUID
		for i := range 30 {
			_, topic, err := r.client.topicOf(ctx, fmt.Sprint("x", i), 0)
			require.NoError(t, err)
			if r.logs(who, topic.ID) == 0 {
				left = append(left, topic.ID)
			}
		}
		down := func(up bool) {
			ctl := r.broker(r.controllerID())
			done := make(chan bool)
			ctl.control.post(func(time.Duration) { ctl.control.meta.onLink(who, up); close(done) })
			<-done
		}
		down(false)
		for i := range 30 {
			_, topic, _ := r.client.topicOf(ctx, fmt.Sprint("x", i), 0)
			if r.logs(who, topic.ID) == 0 {
				require.NoError(t, c.DeleteTopic(ctx, fmt.Sprint("x", i)))
			}
		}
		r.until("deleted", func() bool { return len(r.storeKeys(deletedPrefix)) == 0 })
		down(true)
		pause(time.Second)
		for _, l := range b.loops {
			held := make(chan int)
			l.inbox.put(loopEvent{step: func(_ time.Duration, s *shard) {
				n := 0
				for _, id := range left {
					if _, ok := s.topics[id]; ok {
						n++
					}
				}
				held <- n
			}})
			require.Zero(t, <-held, "of %d deleted topics", len(left))
		}
	})
}
