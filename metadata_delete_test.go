package tidemark

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

func (b *metaBench) remove(broker int32, topic protocol.UUID) {
	b.m.onRemoval(broker, b.epochs[broker], protocol.Removal{Topic: topic})
	b.settle()
}

// D21: the topic goes and is named as deleted in one write; then its state keys go;
// then, once every assigned broker has confirmed, what names it.
func TestDeleteTopic(t *testing.T) {
	const partitions = partitionsPerWrite + 50
	b := newMetaBench(t, 1, 2, 3, 4)
	topic := topicNamed("t", 1, partitions, 3, 2)
	b.unregister(4)
	b.observe()
	b.made(topic) // on 1, 2 and 3
	b.register(4)
	b.observe()
	b.settle()
	other := b.made(topicNamed("u", 2, 1, 3, 2))
	clear(b.out)

	b.ask(protocol.DeleteTopic, protocol.Topic{ID: topic.ID})
	b.turn()
	w := b.write()
	require.Len(t, w.txn.Ops, 2)
	require.Empty(t, b.codes())
	b.answer(w)
	require.Equal(t, protocol.OK, b.took(1).CommandAnswers[0].Code)
	for _, broker := range []int32{2, 3, 4} {
		updates := b.took(broker).Updates
		require.Len(t, updates, 1)
		require.Equal(t, []protocol.UUID{topic.ID}, updates[0].Deleted)
		require.Empty(t, updates[0].Topics)
	}
	require.Len(t, b.writes, 2, "in batches")
	require.Len(t, b.keys(topicsPrefix+"t/"), partitions)
	b.settle()
	require.Empty(t, b.keys(topicsPrefix+"t"))
	require.Equal(t, []string{deletedKey(topic.ID)}, b.keys(deletedPrefix))

	b.ask(protocol.DeleteTopic, topic)
	b.turn()
	require.Equal(t, protocol.OK, b.answered().Code, "again")

	b.remove(1, topic.ID)
	b.remove(2, topic.ID)
	b.m.onRemoval(3, b.epochs[3]-1, protocol.Removal{Topic: topic.ID}) // of an earlier life
	b.m.onRemoval(4, b.epochs[4], protocol.Removal{Topic: topic.ID})   // has none
	b.m.onRemoval(3, b.epochs[3], protocol.Removal{Topic: other.ID})   // that one exists
	b.m.onRemoval(9, 1, protocol.Removal{Topic: topic.ID})             // nobody
	b.settle()
	require.Len(t, b.keys(deletedPrefix), 1, "broker 3 has not confirmed")
	b.remove(3, topic.ID)
	require.Empty(t, b.keys(deletedPrefix))
	require.Empty(t, b.m.deleted)
	b.remove(3, topic.ID) // again

	b.ask(protocol.DeleteTopic, topic)
	b.turn()
	require.Equal(t, protocol.UnknownTopic, b.answered().Code)
	require.Len(t, b.m.parts, 1)
	require.Equal(t, other, func() protocol.Topic { r, _ := b.record("u"); return r.Topic }())
}

// A broker that is away keeps the key, and is told when it comes, in the whole image
// and also by a later Controller.
func TestDeleteTopicWhileABrokerIsAway(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := b.made(topicNamed("t", 1, 1, 3, 2))
	b.unregister(3)
	b.m.onLink(3, false)
	b.observe()
	b.settle()
	b.ask(protocol.DeleteTopic, topic)
	b.settle()
	b.remove(1, topic.ID)
	b.remove(2, topic.ID)
	require.Empty(t, b.took(3).Updates)
	b.successor()
	b.settle()
	require.Len(t, b.keys(deletedPrefix), 1)
	clear(b.out)
	b.register(3)
	b.observe()
	b.m.onLink(3, true)
	b.turn()
	updates := b.took(3).Updates
	require.Len(t, updates, 1)
	require.True(t, updates[0].Full)
	require.Equal(t, []protocol.UUID{topic.ID}, updates[0].Deleted)
	b.remove(3, topic.ID)
	require.Len(t, b.keys(deletedPrefix), 1, "this Controller has heard of one broker only")
	b.remove(1, topic.ID)
	b.remove(2, topic.ID)
	require.Empty(t, b.keys(deletedPrefix))
}

// The Controller dies after each of the writes; the next one goes on.
func TestDeleteTopicContinued(t *testing.T) {
	const partitions = partitionsPerWrite + 1
	for done := range 4 {
		b := newMetaBench(t, 1, 2, 3)
		topic := b.made(topicNamed("t", 1, partitions, 3, 2))
		b.ask(protocol.DeleteTopic, topic)
		b.turn()
		for range done {
			w := b.writes[0]
			b.writes = b.writes[1:]
			b.answer(w)
		}
		b.successor()
		require.Equal(t, done == 0, len(b.m.parts) > 0)
		b.took(1)
		b.ask(protocol.DeleteTopic, topic)
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
		require.Empty(t, b.keys(topicsPrefix), "after %d writes", done)
		for id := range b.epochs {
			b.remove(id, topic.ID)
		}
		require.Empty(t, b.keys(deletedPrefix))
	}
}

// A write to a partition that was under way when its topic went is decided first.
func TestDeleteTopicOverAWriteUnderWay(t *testing.T) {
	for name, how := range map[string]func(b *metaBench, w metaTxn){
		"applied": func(b *metaBench, w metaTxn) { b.answer(w) },
		"applied, the answer is lost": func(b *metaBench, w metaTxn) {
			b.do(w.txn)
			b.noAnswer(w)
		},
		"lost": func(b *metaBench, w metaTxn) { b.noAnswer(w) },
		"refused": func(b *metaBench, w metaTxn) {
			b.register(3) // the member that joins
			b.answer(w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBench(t, 1, 2, 3)
			id := b.topic()
			b.propose(id, 1, 2)
			b.settle()
			b.propose(id, 1, 2, 3)
			late := b.write()
			b.ask(protocol.DeleteTopic, protocol.Topic{ID: id.Topic})
			b.turn()
			b.answer(b.write())
			require.Empty(t, b.writes, "its key is touched while a write to it is open")
			how(b, late)
			b.pause()
			b.settle()
			require.Empty(t, b.keys(topicsPrefix))
			require.Empty(t, b.m.dirty)
			require.Empty(t, b.m.changed)
			for _, u := range b.took(2).Updates {
				require.LessOrEqual(t, len(u.States), 1)
			}
		})
	}
}

// Two topics of one name: the second one's keys have the same names, so it waits
// until those of the first are gone, but not until every broker has confirmed.
func TestRecreateTopic(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	first := b.made(topicNamed("t", 1, 5, 3, 2))
	second, third := topicNamed("t", 2, 2, 3, 2), topicNamed("t", 3, 1, 1, 1)
	deleting := b.ask(protocol.DeleteTopic, first)
	creating := b.command(second) // while the deletion is under way
	b.turn()
	require.Len(t, b.writes, 1)
	b.answer(b.write())
	require.Equal(t, map[uint64]protocol.Code{deleting: protocol.OK}, b.codes())
	clash := b.command(third)
	again := b.command(second)
	b.turn()
	require.Len(t, b.writes, 1, "the state keys")
	b.answer(b.write())
	b.answer(b.write()) // the creation
	b.settle()
	require.Equal(t, map[uint64]protocol.Code{clash: protocol.TopicExists}, b.codes())
	b.accept()
	require.Equal(t, map[uint64]protocol.Code{creating: protocol.OK, again: protocol.OK}, b.codes())
	require.Len(t, b.keys(topicsPrefix+"t/"), 2)
	require.Len(t, b.keys(deletedPrefix), 1)

	// A later Controller does not mistake the keys for left ones.
	b.successor()
	b.settle()
	require.Len(t, b.m.parts, 2)
	require.Len(t, b.keys(topicsPrefix+"t/"), 2)
	for id := range b.epochs {
		b.remove(id, first.ID)
	}
	require.Empty(t, b.keys(deletedPrefix))
	require.Len(t, b.keys(topicsPrefix+"t/"), 2)

	// A command that names the first does not hit the second.
	b.took(1)
	b.ask(protocol.DeleteTopic, first)
	b.ask(protocol.AddPartitions, total(first, 9))
	b.turn()
	for _, code := range b.codes() {
		require.Equal(t, protocol.UnknownTopic, code)
	}
}

// A creation that waits for what is left of an earlier topic, under the next Controller.
func TestRecreateTopicUnderTheNextController(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	first := b.made(topicNamed("t", 1, 5, 3, 2))
	b.ask(protocol.DeleteTopic, first)
	b.turn()
	b.answer(b.write())
	b.took(1)
	b.successor()
	r := b.command(topicNamed("t", 2, 1, 3, 2))
	b.turn()
	require.Len(t, b.writes, 1)
	require.True(t, b.writes[0].txn.Ops[0].Delete)
	b.settle()
	b.accept()
	require.Equal(t, map[uint64]protocol.Code{r: protocol.OK}, b.codes())
	require.Len(t, b.keys(topicsPrefix+"t/"), 1)
}

// Commands that wait for a topic which is deleted meanwhile end, and a copy of its
// creation does not bring it back.
func TestDeleteTopicThatIsWaitedFor(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := topicNamed("t", 1, 1, 3, 2)
	creating := b.command(topic)
	deleting := b.ask(protocol.DeleteTopic, topic)
	b.turn()
	require.Len(t, b.writes, 1)
	b.settle()
	require.Equal(t, map[uint64]protocol.Code{creating: protocol.UnknownTopic, deleting: protocol.OK}, b.codes())
	again := b.command(topic)
	b.settle()
	require.Equal(t, map[uint64]protocol.Code{again: protocol.UnknownTopic}, b.codes())
	require.Empty(t, b.keys(topicsPrefix))
}

func TestDeleteTopicAnswers(t *testing.T) {
	start := func(t *testing.T) (*metaBench, metaTxn) {
		b := newMetaBench(t, 1, 2, 3)
		b.ask(protocol.DeleteTopic, b.made(topicNamed("t", 1, 3, 3, 2)))
		b.turn()
		return b, b.write()
	}
	t.Run("lost", func(t *testing.T) {
		b, w := start(t)
		b.do(w.txn)
		b.noAnswer(w)
		b.pause()
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
		require.Empty(t, b.keys(topicsPrefix))
		for id := range b.epochs {
			b.remove(id, protocol.UUID{1})
		}
		require.Empty(t, b.keys(deletedPrefix))
	})
	t.Run("absent, and then it arrives late", func(t *testing.T) {
		b, w := start(t)
		b.noAnswer(w)
		b.pause()
		b.reread()
		again := b.write()
		require.Equal(t, w, again)
		require.True(t, b.do(w.txn).Applied)
		b.answer(again)
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
		require.Empty(t, b.keys(topicsPrefix))
	})
	t.Run("the re-read sees it arrive", func(t *testing.T) {
		b, w := start(t)
		b.noAnswer(w)
		b.pause()
		r := b.rereads[0]
		b.rereads = nil
		kvs := make(map[string]coordination.KV)
		for i, key := range r.keys {
			if i == 2 { // the topic's key was read
				b.do(w.txn)
			}
			if kv, ok, _ := b.store.Get(t.Context(), key); ok {
				kvs[key] = kv
			}
		}
		require.Len(t, kvs, 3)
		b.m.onReread(b.now, r.token, kvs, nil)
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
	})
	t.Run("of the state keys' removal, lost", func(t *testing.T) {
		b, w := start(t)
		b.answer(w)
		sweep := b.write()
		b.do(sweep.txn)
		b.noAnswer(sweep)
		b.pause()
		b.settle()
		require.Empty(t, b.m.deleted[protocol.UUID{1}].left)
	})
	t.Run("of the state keys' removal, and somebody else changed one and removed one", func(t *testing.T) {
		b, w := start(t)
		b.answer(w)
		sweep := b.write()
		b.put(partitionKey("t", 0), protocol.PartitionState{})
		b.do(coordination.Txn{Ops: []coordination.Op{{Key: partitionKey("t", 1), Delete: true}}})
		b.answer(sweep)
		b.settle()
		require.Empty(t, b.keys(topicsPrefix))
		require.Empty(t, b.m.deleted[protocol.UUID{1}].left)
	})
	t.Run("of the last removal, lost", func(t *testing.T) {
		b, w := start(t)
		b.answer(w)
		b.settle()
		for id := range b.epochs {
			b.m.onRemoval(id, b.epochs[id], protocol.Removal{Topic: protocol.UUID{1}})
		}
		b.turn()
		last := b.write()
		b.do(last.txn)
		b.noAnswer(last)
		b.pause()
		b.settle()
		require.Empty(t, b.m.deleted)
	})
	t.Run("of the last removal, and somebody else changed the key", func(t *testing.T) {
		b, w := start(t)
		b.answer(w)
		b.settle()
		b.put(deletedKey(protocol.UUID{1}), deletedRecord{Name: "t"})
		for id := range b.epochs {
			b.remove(id, protocol.UUID{1})
		}
		require.Empty(t, b.keys(deletedPrefix))
		require.Empty(t, b.m.deleted)
	})
	t.Run("somebody else changed the topic's key", func(t *testing.T) {
		b, w := start(t)
		b.put(topicKey("t"), topicRecord{Topic: topicNamed("t", 1, 3, 3, 1)})
		b.answer(w)
		b.settle()
		require.Equal(t, protocol.Conflict, b.answered().Code)
		require.Len(t, b.keys(topicsPrefix), 4)
		require.Empty(t, b.keys(deletedPrefix))
	})
}

// States that cannot be read go with their topic; what cannot be read about a
// deletion deletes nothing (D3).
func TestDeleteTopicAndUnreadableKeys(t *testing.T) {
	load := func(b *metaBench) {
		var kvs []coordination.KV
		for _, prefix := range metadataPrefixes {
			some, _, err := b.store.List(b.t.Context(), prefix)
			require.NoError(b.t, err)
			kvs = append(kvs, some...)
		}
		b.m = newMetadata(1, 1, b.m.epochRevision, kvs)
		b.observe()
	}
	raw := func(b *metaBench, key, value string) {
		b.do(coordination.Txn{Ops: []coordination.Op{{Key: key, Value: []byte(value)}}})
	}
	t.Run("a state", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		topic := b.made(topicNamed("t", 1, 3, 3, 2))
		raw(b, partitionKey("t", 1), "{")
		load(b)
		require.Len(t, b.m.unreadable, 1)
		b.ask(protocol.DeleteTopic, topic)
		b.settle()
		require.Empty(t, b.keys(topicsPrefix))
		require.Equal(t, []int32{1, 2, 3}, b.m.deleted[topic.ID].record.Brokers)
	})
	for name, c := range map[string]struct{ key, value string }{
		"no id":             {deletedPrefix + "x", string(marshal(deletedRecord{Name: "t", Partitions: 3}))},
		"no value":          {deletedKey(protocol.UUID{1}), "{"},
		"topic that exists": {deletedKey(protocol.UUID{2}), string(marshal(deletedRecord{Name: "t", Partitions: 3}))},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBench(t, 1, 2, 3)
			b.made(topicNamed("t", 1, 3, 3, 2))
			b.made(topicNamed("u", 2, 1, 3, 2))
			b.do(coordination.Txn{Ops: []coordination.Op{{Key: topicKey("t"), Delete: true}}}) // states of no topic
			before := b.keys(topicsPrefix)
			raw(b, c.key, c.value)
			load(b)
			require.Len(t, b.m.unreadable, 4)
			for _, err := range b.m.unreadable {
				require.ErrorContains(t, err, "tidemark: key /")
			}
			b.m.onLink(2, true)
			b.settle()
			require.Equal(t, before, b.keys(topicsPrefix))
			for _, u := range b.took(2).Updates {
				require.Empty(t, u.Deleted)
			}
			require.Equal(t, []string{c.key}, b.keys(deletedPrefix))
		})
	}
}

// An image leaves out what was deleted, at once and when it comes whole (D21), and
// keeps what has the same name.
func TestImageWithoutDeletedTopics(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.turn()
	m, v := newMember(), newView()
	feed := func() (deleted []protocol.UUID) {
		for _, u := range b.took(2).Updates {
			ack, taken, completed := m.onUpdate(1, &u)
			require.Equal(t, protocol.OK, ack.Code)
			if taken {
				v.apply(m, &u, completed)
			}
			deleted = append(deleted, u.Deleted...)
		}
		require.Equal(t, len(m.states), len(v.states))
		require.Equal(t, len(m.topics), len(v.topics))
		require.Equal(t, len(m.topics)+len(v.dropped), len(v.names), "the names of deleted topics stay for a while")
		return deleted
	}
	first := topicNamed("t", 1, 4, 3, 2)
	b.made(first)
	b.made(topicNamed("u", 2, 2, 3, 2))
	b.m.onUpdateAck(2, protocol.UpdateAck{ControllerEpoch: b.m.epoch, Code: protocol.Gap})
	b.turn()
	require.Empty(t, feed())
	require.Len(t, m.states, 6)
	id := protocol.PartitionID{Topic: first.ID, Partition: 3}
	stale := *m.states[id]

	b.ask(protocol.DeleteTopic, first)
	b.turn()
	b.answer(b.write())
	second := topicNamed("t", 3, 1, 3, 2)
	b.command(second)
	b.settle()
	require.Equal(t, []protocol.UUID{first.ID}, feed())
	require.Len(t, m.states, 3)
	require.Equal(t, second.ID, v.topics["t"].ID)
	_, known := v.topicName(first.ID)
	require.True(t, known, "for what ends with it")
	stale.PartitionEpoch++
	v.learn(id, &stale) // an answer that was on its way
	_, known, _ = v.state(id)
	require.False(t, known)

	b.m.onUpdateAck(2, protocol.UpdateAck{ControllerEpoch: b.m.epoch, Code: protocol.Gap})
	b.turn()
	require.Equal(t, []protocol.UUID{first.ID}, feed(), "again in every whole image")
	require.Len(t, m.states, 3)
	require.Equal(t, []string{"t", "u"}, v.topicNames())
}

// Many deleted topics travel in parts, like everything else.
func TestManyDeletedTopics(t *testing.T) {
	b := newMetaBench(t, 1)
	const n = updateBytes/16 + 100
	for i := range n {
		id := protocol.UUID{1, byte(i), byte(i >> 8), byte(i >> 16)}
		b.m.deleted[id] = newDeleted(id, deletedRecord{Brokers: []int32{1}})
	}
	image := b.m.image()
	require.Len(t, image, 2)
	all := slices.Concat(image[0].Deleted, image[1].Deleted)
	require.Len(t, all, n)
	require.True(t, slices.IsSortedFunc(all, func(a, b protocol.UUID) int { return slices.Compare(a[:], b[:]) }))
}

// A topic that was created and deleted stays deleted, whatever copy of its creation
// is still under way: of the command, or of the write.
func TestDeletedTopicStaysDeleted(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	topic := topicNamed("t", 1, 2, 3, 2)
	b.command(topic)
	b.turn()
	late := b.write()
	b.noAnswer(late)
	b.pause()
	b.reread()
	b.answer(b.write())
	b.ask(protocol.DeleteTopic, topic)
	b.settle()
	require.Empty(t, b.keys(topicsPrefix))
	require.False(t, b.do(late.txn).Applied, "before the brokers have confirmed")
	for id := range b.epochs {
		b.remove(id, topic.ID)
	}
	require.Empty(t, b.m.deleted)
	require.False(t, b.do(late.txn).Applied, "after that")
	for range 2 {
		b.took(1)
		b.command(topic)
		b.settle()
		a := b.answered()
		require.Equal(t, protocol.UnknownTopic, a.Code)
		require.NotEmpty(t, a.Detail)
		b.successor()
	}
	b.made(topicNamed("t", 2, 2, 3, 2))

	// What is remembered is bounded.
	for i := range maxCleared + 5 {
		id := protocol.UUID{9, byte(i), 1}
		d := newDeleted(id, deletedRecord{Name: "x", Brokers: []int32{1}})
		d.revision = b.put(deletedKey(id), d.record)
		b.m.deleted[id] = d
		b.remove(1, id)
	}
	require.Empty(t, b.m.deleted)
	require.Len(t, b.m.cleared.record.Topics, maxCleared)
	require.Equal(t, protocol.UUID{9, maxCleared + 4, 1}, b.m.cleared.record.Topics[maxCleared-1])
	b.successor()
	require.Len(t, b.m.cleared.record.Topics, maxCleared)
}

// A creation that meets the last write of a deletion is tried again.
func TestCreateTopicMeetsTheEndOfADeletion(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.ask(protocol.DeleteTopic, b.made(topicNamed("t", 1, 1, 3, 2)))
	b.settle()
	b.took(1)
	for id := range b.epochs {
		b.m.onRemoval(id, b.epochs[id], protocol.Removal{Topic: protocol.UUID{1}})
	}
	b.turn()
	retire := b.write()
	topic := topicNamed("u", 2, 1, 3, 2)
	r1 := b.command(topic)
	b.turn()
	create := b.write()
	r2 := b.command(topic)
	b.answer(retire)
	b.answer(create)
	b.reread()
	again := b.write()
	require.NotEqual(t, create, again)
	b.answer(again)
	b.accept()
	require.Equal(t, map[uint64]protocol.Code{r1: protocol.OK, r2: protocol.OK}, b.codes())
}

// While it cannot be read which topics were cleared away, none is (D3).
func TestClearedTopicsUnreadable(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.ask(protocol.DeleteTopic, b.made(topicNamed("t", 1, 1, 3, 2)))
	b.settle()
	b.do(coordination.Txn{Ops: []coordination.Op{{Key: clearedKey, Value: []byte("{")}}})
	for range 2 { // found by a conflict, then at the beginning of a term
		for id := range b.epochs {
			b.remove(id, protocol.UUID{1})
		}
		require.Len(t, b.keys(deletedPrefix), 1)
		kv, _, err := b.store.Get(t.Context(), clearedKey)
		require.NoError(t, err)
		require.Equal(t, "{", string(kv.Value))
		deleted, _, err := b.store.List(t.Context(), "/")
		require.NoError(t, err)
		b.m = newMetadata(1, 1, b.m.epochRevision, deleted)
		require.Len(t, b.m.unreadable, 1)
		b.observe()
	}
	clear(b.out)
	b.made(topicNamed("u", 2, 1, 3, 2)) // the rest goes on
}
