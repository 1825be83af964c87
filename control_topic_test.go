package tidemark

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// soleController is a broker whose loops do not run, and which is the Controller.
func soleController(t *testing.T, loops int) *Broker {
	disk, err := memstore.NewDisk(memstore.Manual()).Open()
	require.NoError(t, err)
	store := memory.New(memory.Options{Manual: true}).Connect()
	b := newBroker(Config{ID: 1, Store: disk, Coordination: store, Loops: loops}.withDefaults())
	t.Cleanup(b.cancel)
	b.control.meta = newMetadata(1, 1, 1, nil)
	b.control.meta.brokers[1] = &brokerEntry{id: 1}
	b.control.member.onController(1, 1)
	b.controller.Store(1)
	return b
}

// stepControl carries out what waits for the control loop.
func (b *Broker) stepControl() {
	for _, step := range b.control.inbox.take(nil) {
		step(b.now())
	}
	b.control.finish(b.now())
}

// D21: the Controller hears of a removal once every loop has nothing left, and again
// for every time it says so.
func TestRemovalIsToldWhenAllLoopsAreDone(t *testing.T) {
	b := soleController(t, 3)
	topic := protocol.UUID{7}
	d := newDeleted(topic, deletedRecord{Brokers: []int32{1, 2}})
	b.control.meta.deleted[topic] = d
	b.control.onCleared(0, topic) // nobody asked
	for seq := range uint64(2) {
		clear(d.confirmed)
		b.control.onUpdate(1, &protocol.Update{ControllerEpoch: 1, Full: true, Seq: seq, Deleted: []protocol.UUID{topic}})
		for _, l := range b.loops {
			for _, ev := range l.inbox.take(nil) {
				ev.step(b.now(), l.shard)
			}
			require.Equal(t, []protocol.UUID{topic}, l.shard.finish(b.now()).cleared)
		}
		for _, loop := range []int{0, 0, 2} {
			b.control.onCleared(loop, topic)
		}
		b.stepControl()
		require.Empty(t, d.confirmed)
		b.control.onCleared(1, topic)
		b.stepControl()
		require.Equal(t, map[int32]bool{1: true}, d.confirmed)
	}
}

// The answer to a deletion is lost, and by the next attempt the Controller has
// forgotten the topic.
func TestDeleteTopicAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := soleController(t, 1)
		topic := topicNamed("t", 1, 1, 1, 1)
		show := func(u protocol.Update) {
			_, taken, completed := b.control.member.onUpdate(1, &u)
			require.True(t, taken)
			b.view.apply(b.control.member, &u, completed)
		}
		remove := func(lost bool) error {
			show(protocol.Update{ControllerEpoch: 1, Full: true, Topics: []protocol.Topic{topic}})
			ended := make(chan error, 1)
			go func() { ended <- b.Controller().DeleteTopic(t.Context(), "t") }()
			synctest.Wait()
			if lost {
				assert.Len(t, b.control.inbox.take(nil), 1)
				pause(b.cfg.ProposalTimeout + retryPause)
				synctest.Wait()
			}
			b.stepControl()
			show(protocol.Update{ControllerEpoch: 1, Full: true})
			pause(time.Second)
			return <-ended
		}
		require.ErrorIs(t, remove(false), ErrUnknownTopic)
		require.NoError(t, remove(true))
	})
}
