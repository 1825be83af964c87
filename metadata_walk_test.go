package tidemark

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// adminWalk is a random walk over commands on a few topic names: answers and
// requests get lost, writes arrive late, brokers come and go, Controllers follow one
// another. What the store holds is checked after every write.
type adminWalk struct {
	*metaBench
	rng     *rand.Rand
	late    []coordination.Txn // of which nobody knows whether they will arrive
	asks    map[uint64]*adminAsk
	brokers map[int32]*adminBroker
	seen    map[protocol.UUID]protocol.Topic // as last recorded
	gone    map[protocol.UUID]bool           // were deleted
	epochs  map[protocol.PartitionID]int32   // partition epochs, as last recorded
	named   map[protocol.UUID]deletedRecord  // deleted, and not cleared away yet
	stats   map[string]int
}

// adminAsk is a command, sent again until it is answered.
type adminAsk struct {
	kind  protocol.CommandKind
	topic protocol.Topic
}

// adminBroker is what a broker has of the cluster: its image, and topics on its disk.
type adminBroker struct {
	member *member
	disk   map[protocol.UUID]bool
	words  []protocol.UUID // to delete
}

func newAdminWalk(t *testing.T, seed uint64) *adminWalk {
	w := &adminWalk{
		metaBench: newMetaBench(t, 1, 2, 3, 4), rng: rand.New(rand.NewPCG(seed, 7)), asks: make(map[uint64]*adminAsk),
		brokers: make(map[int32]*adminBroker), seen: make(map[protocol.UUID]protocol.Topic), gone: make(map[protocol.UUID]bool),
		epochs: make(map[protocol.PartitionID]int32), named: make(map[protocol.UUID]deletedRecord), stats: make(map[string]int),
	}
	for id := range w.metaBench.epochs {
		w.brokers[id] = &adminBroker{member: newMember(), disk: make(map[protocol.UUID]bool)}
	}
	w.m.perWrite = 1 + w.rng.IntN(3)
	return w
}

func (w *adminWalk) registered() []int32 { return slices.Sorted(maps.Keys(w.metaBench.epochs)) }

func (w *adminWalk) step() {
	switch n := w.rng.IntN(100); {
	case n < 12:
		w.newCommand()
	case n < 20:
		w.resend()
	case n < 50:
		w.writeOne()
	case n < 60:
		w.rereadOne()
	case n < 65:
		w.now += rereadAfter
	case n < 75:
		w.accept()
	case n < 85:
		w.broker(w.rng.IntN(4) == 0)
	case n < 89 && len(w.late) > 0:
		i := w.rng.IntN(len(w.late))
		w.do(w.late[i])
		w.late = slices.Delete(w.late, i, i+1)
	case n < 95:
		w.comeAndGo()
	case n < 97:
		w.fail()
	}
	w.turn()
	w.check()
	w.deliver()
}

// newCommand asks for something about one of three names.
func (w *adminWalk) newCommand() {
	name := string(rune('a' + w.rng.IntN(3)))
	rec, exists := w.record(name)
	topic := rec.Topic
	kind := []protocol.CommandKind{protocol.AlterTopic, protocol.AddPartitions, protocol.DeleteTopic}[w.rng.IntN(3)]
	if !exists || w.rng.IntN(4) == 0 {
		kind = protocol.CreateTopic
		topic = protocol.Topic{Name: name, Config: TopicConfig{Partitions: 1 + w.rng.Int32N(4), ReplicationFactor: 1 + w.rng.Int32N(3), MinISR: 2}}
		for i := range topic.ID {
			topic.ID[i] = byte(w.rng.IntN(256))
		}
	}
	switch kind {
	case protocol.AlterTopic:
		topic.Config.MinISR = 1 + w.rng.Int32N(4)
		topic.Config.UncleanElection = w.rng.IntN(2) == 0
		topic.Version -= w.rng.Int32N(2) / 2
	case protocol.AddPartitions:
		topic.Config.Partitions += w.rng.Int32N(3)
	}
	w.send(&adminAsk{kind, topic})
}

func (w *adminWalk) send(a *adminAsk) {
	from := w.registered()
	if len(from) == 0 {
		return
	}
	id := from[w.rng.IntN(len(from))]
	w.request++
	w.asks[w.request] = a
	w.m.onCommand(id, w.metaBench.epochs[id], protocol.Command{Request: w.request, Kind: a.kind, Topic: a.topic})
}

// resend sends one of the commands again that have no answer yet.
func (w *adminWalk) resend() {
	if len(w.asks) > 0 {
		open := slices.Sorted(maps.Keys(w.asks))
		w.send(w.asks[open[w.rng.IntN(len(open))]])
	}
}

// writeOne carries out a write that waits, or not.
func (w *adminWalk) writeOne() {
	if len(w.writes) == 0 {
		return
	}
	i := w.rng.IntN(len(w.writes))
	tx := w.writes[i]
	w.writes = slices.Delete(w.writes, i, i+1)
	switch w.rng.IntN(8) {
	case 0:
		w.do(tx.txn)
		w.m.onWritten(w.now, tx.token, coordination.TxnResult{}, coordination.ErrUnavailable)
	case 1:
		w.late = append(w.late, tx.txn)
		w.m.onWritten(w.now, tx.token, coordination.TxnResult{}, coordination.ErrUnavailable)
	default:
		w.m.onWritten(w.now, tx.token, w.do(tx.txn), nil)
	}
}

func (w *adminWalk) rereadOne() {
	if len(w.rereads) == 0 {
		return
	}
	r := w.rereads[0]
	w.rereads = w.rereads[1:]
	if w.rng.IntN(6) == 0 {
		w.m.onReread(w.now, r.token, nil, coordination.ErrUnavailable)
		return
	}
	kvs := make(map[string]coordination.KV)
	for _, key := range r.keys {
		if len(w.late) > 0 && w.rng.IntN(10) == 0 { // arrives between two keys
			w.do(w.late[0])
			w.late = w.late[1:]
		}
		if kv, ok, _ := w.store.Get(w.t.Context(), key); ok {
			kvs[key] = kv
		}
	}
	w.m.onReread(w.now, r.token, kvs, nil)
}

// broker has a broker carry out a word to delete, and say so, or lose that.
func (w *adminWalk) broker(lose bool) {
	for _, id := range w.registered() {
		b := w.brokers[id]
		if len(b.words) == 0 {
			continue
		}
		topic := b.words[0]
		b.words = b.words[1:]
		delete(b.disk, topic)
		if !lose {
			w.m.onRemoval(id, w.metaBench.epochs[id], protocol.Removal{Topic: topic})
		}
		return
	}
}

func (w *adminWalk) comeAndGo() {
	id := 1 + w.rng.Int32N(4)
	if _, up := w.metaBench.epochs[id]; up && len(w.metaBench.epochs) > 2 {
		w.unregister(id)
		w.m.onLink(id, false)
	} else {
		w.up(id)
	}
	w.observe()
}

func (w *adminWalk) up(id int32) {
	if _, up := w.metaBench.epochs[id]; !up {
		w.register(id)
		w.brokers[id].words = nil // its memory is gone, its disk is not
	}
	w.m.onLink(id, true)
}

// fail ends a Controller: what it has under way may still arrive.
func (w *adminWalk) fail() {
	w.stats["failovers"]++
	for _, tx := range w.writes {
		w.late = append(w.late, tx.txn)
	}
	clear(w.out)
	w.successor()
	w.m.perWrite = 1 + w.rng.IntN(3)
}

// deliver brings everything that was sent to the brokers.
func (w *adminWalk) deliver() {
	for id, b := range w.brokers {
		p := w.took(id)
		if _, up := w.metaBench.epochs[id]; !up {
			continue
		}
		for i := range p.Updates {
			u := &p.Updates[i]
			if ack, taken, _ := b.member.onUpdate(1, u); !taken {
				w.m.onUpdateAck(id, ack)
				continue
			}
			b.words = append(b.words, u.Deleted...)
			for _, s := range u.States {
				if s.State.Assigned(id) {
					b.disk[s.ID.Topic] = true
				}
			}
		}
		for _, a := range p.CommandAnswers {
			w.answered(a)
		}
	}
}

// answered checks what an answer claims against the store.
func (w *adminWalk) answered(a protocol.CommandAnswer) {
	ask, open := w.asks[a.Request]
	if !open {
		return // it was sent again since
	}
	if a.Code != protocol.NotController {
		delete(w.asks, a.Request)
	}
	w.stats[fmt.Sprint(ask.kind, " ", a.Code)]++
	if a.Code != protocol.OK {
		return
	}
	now, exists := w.seen[ask.topic.ID]
	switch ask.kind {
	case protocol.DeleteTopic:
		require.True(w.t, w.gone[ask.topic.ID])
	case protocol.AddPartitions:
		require.True(w.t, !exists || now.Config.Partitions >= ask.topic.Config.Partitions)
	case protocol.AlterTopic:
		if exists && now.Version == a.Topic.Version && !w.gone[ask.topic.ID] {
			for n := range now.Config.Partitions {
				s := w.stored(now.Name, n)
				require.Equal(w.t, min(now.Config.MinISR, int32(len(s.Replicas))), s.MinISR, "answered before it is in force")
			}
		}
	}
}

// check holds what is true of the store after every write.
func (w *adminWalk) check() {
	var kvs []coordination.KV
	for _, prefix := range metadataPrefixes {
		some, _, err := w.store.List(w.t.Context(), prefix)
		require.NoError(w.t, err)
		kvs = append(kvs, some...)
	}
	topics, named, states := make(map[string]topicRecord), make(map[protocol.UUID]deletedRecord), make(map[string]int32)
	for _, kv := range kvs {
		if name, _, ok := parsePartitionKey(kv.Key); ok {
			states[name]++
		} else if strings.HasPrefix(kv.Key, topicsPrefix) {
			var rec topicRecord
			require.NoError(w.t, readTopic(kv, &rec))
			topics[rec.Name] = rec
		} else if kv.Key != clearedKey {
			var id protocol.UUID
			var rec deletedRecord
			require.NoError(w.t, id.UnmarshalText([]byte(kv.Key[len(deletedPrefix):])))
			mustUnmarshal(w.t, kv.Value, &rec)
			named[id] = rec
		}
	}
	present := make(map[protocol.UUID]bool)
	for name, rec := range topics {
		present[rec.ID] = true
		require.Equal(w.t, rec.Config.Partitions-rec.Unmade, states[name], "half a topic %s", name)
		require.Len(w.t, rec.Assignment, int(rec.Config.Partitions))
		if rec.Unmade > 0 {
			w.stats["still growing"]++
		}
		require.False(w.t, w.gone[rec.ID], "a deleted topic is back")
		require.NotContains(w.t, named, rec.ID)
		if before, ok := w.seen[rec.ID]; ok {
			require.GreaterOrEqual(w.t, rec.Version, before.Version, "the version fell")
			require.GreaterOrEqual(w.t, rec.Config.Partitions, before.Config.Partitions)
			require.True(w.t, rec.Version > before.Version || rec.Topic == before, "changed under the same version")
		}
		w.seen[rec.ID] = rec.Topic
		for n := range rec.Config.Partitions - rec.Unmade {
			id, s := protocol.PartitionID{Topic: rec.ID, Partition: n}, w.stored(name, n)
			require.NoError(w.t, s.Valid())
			require.GreaterOrEqual(w.t, s.PartitionEpoch, w.epochs[id])
			w.epochs[id] = s.PartitionEpoch
		}
		delete(states, name)
	}
	for name := range states {
		require.True(w.t, slices.ContainsFunc(slices.Collect(maps.Values(named)), func(d deletedRecord) bool {
			return d.Name == name
		}), "state keys of no topic %s", name)
	}
	for id := range w.seen {
		if !present[id] && !w.gone[id] {
			require.Contains(w.t, named, id, "a topic went without a word")
			w.gone[id] = true
		}
	}
	for id, rec := range w.named {
		if _, left := named[id]; !left {
			w.stats["cleared"]++
			for _, b := range rec.Brokers {
				require.False(w.t, w.brokers[b].disk[id], "forgotten while broker %d has it", b)
			}
		}
	}
	w.named = named
}

// heal ends all faults: everything under way has to come to its end.
func (w *adminWalk) heal() {
	for _, txn := range w.late {
		w.do(txn)
	}
	w.late = nil
	for id := range w.brokers {
		w.up(id)
	}
	w.observe()
	for range 300 {
		for _, r := range slices.Sorted(maps.Keys(w.asks)) {
			w.send(w.asks[r])
			delete(w.asks, r)
		}
		w.now += rereadAfter
		w.settle()
		w.accept()
		w.check()
		w.deliver()
		for range 100 {
			w.broker(false)
		}
		w.turn()
		w.check()
		w.deliver()
		if len(w.asks)+len(w.named)+len(w.m.writes) == 0 {
			break
		}
	}
	require.Empty(w.t, w.asks, "commands without an answer")
	require.Empty(w.t, w.named, "not cleared away")
	require.Empty(w.t, w.m.writes)
	var states int
	for id, b := range w.brokers {
		require.True(w.t, b.member.whole)
		for topic := range b.disk {
			require.False(w.t, w.gone[topic], "broker %d keeps what was deleted", id)
		}
		states = 0
		for _, name := range []string{"a", "b", "c"} {
			rec, ok := w.record(name)
			if !ok {
				continue
			}
			require.Equal(w.t, rec.Topic, b.member.topics[rec.ID])
			require.Zero(w.t, rec.Unmade)
			for n := range rec.Config.Partitions {
				s := w.stored(name, n)
				require.Equal(w.t, s, *b.member.states[protocol.PartitionID{Topic: rec.ID, Partition: n}])
				require.Equal(w.t, min(rec.Config.MinISR, int32(len(s.Replicas))), s.MinISR)
				states++
			}
		}
		require.Len(w.t, b.member.states, states)
	}
}

func TestAdminWalk(t *testing.T) {
	sum := make(map[string]int)
	for seed := range uint64(60) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newAdminWalk(t, seed)
			for range 400 {
				w.step()
			}
			w.heal()
			for k, n := range w.stats {
				sum[k] += n
			}
		}) {
			return
		}
	}
	t.Log(sum)
	for _, what := range []string{"1 ok", "2 ok", "3 ok", "4 ok", "2 topic version conflict", "1 topic exists", "cleared", "failovers", "still growing"} {
		require.NotZero(t, sum[what], "the walk is blind to: %s", what)
	}
}
