package tidemark

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
)

// metaBench is a Controller's state machine on a real coordination store, with
// every write and every re-read in the hands of the test.
type metaBench struct {
	t       *testing.T
	store   coordination.Store
	m       *metadata
	now     time.Duration
	epochs  map[int32]int64 // registrations in the store
	dirs    map[int32]protocol.UUID
	writes  []metaTxn
	rereads []metaReread
	out     map[int32]*protocol.Payload
	resign  error
	unclean []uncleanElection
	request uint64
	attempt uint64
}

func newMetaBench(t *testing.T, brokers ...int32) *metaBench {
	b := &metaBench{
		t: t, store: memory.New(memory.Options{Manual: true}).Connect(), now: time.Second, epochs: make(map[int32]int64),
		dirs: make(map[int32]protocol.UUID), out: make(map[int32]*protocol.Payload),
	}
	b.put(controllerEpochKey, controllerTerm{Epoch: 1})
	for _, id := range brokers {
		b.register(id)
	}
	b.load(1)
	return b
}

// load begins a controller epoch over what the store has, as campaign does.
func (b *metaBench) load(epoch int32) {
	kv, _, err := b.store.Get(b.t.Context(), controllerEpochKey)
	require.NoError(b.t, err)
	var kvs []coordination.KV
	for _, prefix := range metadataPrefixes {
		some, _, err := b.store.List(b.t.Context(), prefix)
		require.NoError(b.t, err)
		kvs = append(kvs, some...)
	}
	b.m = newMetadata(1, epoch, kv.Revision, kvs)
	require.Empty(b.t, b.m.unreadable)
	b.writes, b.rereads, b.resign = nil, nil, nil
	b.observe()
	for id := range b.epochs {
		b.m.onLink(id, true)
	}
}

func (b *metaBench) do(txn coordination.Txn) coordination.TxnResult {
	res, err := b.store.Do(b.t.Context(), txn)
	require.NoError(b.t, err)
	return res
}

func (b *metaBench) put(key string, v any) int64 {
	return b.do(coordination.Txn{Ops: []coordination.Op{{Key: key, Value: marshal(v)}}}).Revision
}

// register gives a broker a new registration, on the directory it had.
func (b *metaBench) register(id int32) int64 {
	kv, known, err := b.store.Get(b.t.Context(), brokerLastKey(id))
	require.NoError(b.t, err)
	var last lastLife
	if known {
		mustUnmarshal(b.t, kv.Value, &last)
	}
	dir := b.dirs[id]
	next := lastLife{
		Directory: dir, Rack: last.Rack, Replaced: known && (last.Replaced || last.Directory != dir), Unclean: last.Unclean,
	}
	next.Incarnation[0] = byte(kv.Revision) // differs from life to life
	b.epochs[id] = b.do(coordination.Txn{Ops: []coordination.Op{
		{Key: brokerIDKey(id), Value: marshal(registration{Directory: dir})}, {Key: brokerLastKey(id), Value: marshal(next)},
	}}).Revision
	return b.epochs[id]
}

// wipe gives a broker an empty directory, for its next registration.
func (b *metaBench) wipe(id int32) {
	dir := b.dirs[id]
	dir[0]++
	b.dirs[id] = dir
}

func (b *metaBench) unregister(ids ...int32) {
	for _, id := range ids {
		b.do(coordination.Txn{Ops: []coordination.Op{{Key: brokerIDKey(id), Delete: true}}})
		delete(b.epochs, id)
	}
}

// observe shows the Controller the registrations, as its watch does.
func (b *metaBench) observe() {
	kvs, _, err := b.store.List(b.t.Context(), brokersPrefix)
	require.NoError(b.t, err)
	keys := make(map[string]coordination.KV)
	for _, kv := range kvs {
		keys[kv.Key] = kv
	}
	reg, err := parseRegistry(keys)
	require.NoError(b.t, err)
	b.m.onRegistry((&controlLoop{registry: reg}).brokerViews())
}

// turn ends a turn and gathers what it wants done.
func (b *metaBench) turn() {
	eff := b.m.finish(b.now)
	for _, w := range eff.writes {
		requireTakenByAll(b.t, w.txn)
	}
	b.writes = append(b.writes, eff.writes...)
	b.rereads = append(b.rereads, eff.rereads...)
	for id, p := range eff.out {
		if b.out[id] == nil {
			b.out[id] = &protocol.Payload{}
		}
		o := b.out[id]
		o.Updates = append(o.Updates, p.Updates...)
		o.Verdicts = append(o.Verdicts, p.Verdicts...)
		o.CommandAnswers = append(o.CommandAnswers, p.CommandAnswers...)
	}
	b.unclean = append(b.unclean, eff.unclean...)
	if eff.resign != nil {
		b.resign = eff.resign
	}
}

// requireTakenByAll holds what any coordination.Store may refuse.
func requireTakenByAll(t *testing.T, txn coordination.Txn) {
	size := 0
	for _, op := range txn.Ops {
		size += len(op.Key) + len(op.Value)
	}
	require.LessOrEqual(t, len(txn.Guards), coordination.MaxTxnOps)
	require.LessOrEqual(t, len(txn.Ops), coordination.MaxTxnOps)
	require.LessOrEqual(t, size, coordination.MaxTxnBytes)
}

// write carries out the one write that waits. lost: the answer does not come.
// dropped: neither does the request.
func (b *metaBench) write() metaTxn {
	require.Len(b.t, b.writes, 1)
	w := b.writes[0]
	b.writes = nil
	return w
}

func (b *metaBench) answer(w metaTxn) {
	b.m.onWritten(b.now, w.token, b.do(w.txn), nil)
	b.turn()
}

func (b *metaBench) noAnswer(w metaTxn) {
	b.m.onWritten(b.now, w.token, coordination.TxnResult{}, coordination.ErrUnavailable)
	b.turn()
}

// reread carries out the one re-read that waits.
func (b *metaBench) reread() {
	require.Len(b.t, b.rereads, 1)
	r := b.rereads[0]
	b.rereads = nil
	kvs := make(map[string]coordination.KV)
	for _, key := range r.keys {
		kv, ok, err := b.store.Get(b.t.Context(), key)
		require.NoError(b.t, err)
		if ok {
			kvs[key] = kv
		}
	}
	if r.prefix != "" {
		listed, _, err := b.store.List(b.t.Context(), r.prefix)
		require.NoError(b.t, err)
		for _, kv := range listed {
			kvs[kv.Key] = kv
		}
	}
	b.m.onReread(b.now, r.token, kvs, nil)
	b.turn()
}

// pause lets the time pass after which a write is looked at again.
func (b *metaBench) pause() {
	b.now += rereadAfter
	b.turn()
}

// settle carries out everything that waits, until nothing does.
func (b *metaBench) settle() {
	b.turn()
	for range 100 {
		switch {
		case len(b.writes) > 0:
			w := b.writes[0]
			b.writes = b.writes[1:]
			b.answer(w)
		case len(b.rereads) > 0:
			r := b.rereads[0]
			rest := b.rereads[1:]
			b.rereads = []metaReread{r}
			b.reread()
			b.rereads = append(rest, b.rereads...)
		default:
			return
		}
	}
	b.t.Fatal("does not come to rest")
}

func (b *metaBench) stored(topic string, n int32) (s protocol.PartitionState) {
	kv, ok, err := b.store.Get(b.t.Context(), partitionKey(topic, n))
	require.NoError(b.t, err)
	require.True(b.t, ok)
	mustUnmarshal(b.t, kv.Value, &s)
	return s
}

// storeState puts a state into the store behind the Controller's back.
func (b *metaBench) storeState(topic string, n int32, s protocol.PartitionState) {
	b.put(partitionKey(topic, n), s)
}

// took returns what a broker was sent since the last time.
func (b *metaBench) took(id int32) protocol.Payload {
	p := b.out[id]
	delete(b.out, id)
	if p == nil {
		return protocol.Payload{}
	}
	return *p
}

// accept has the leaders of all partitions accept their orders.
func (b *metaBench) accept() {
	for id, p := range b.m.parts {
		if p.state.Leader != protocol.NoLeader {
			b.m.onReply(p.state.Leader, b.epochs[p.state.Leader], protocol.OrderReply{ID: id, LeaderEpoch: p.state.LeaderEpoch, Accepted: true})
		}
	}
	b.turn()
}

func (b *metaBench) command(topic protocol.Topic) uint64 {
	b.request++
	b.m.onCommand(1, b.epochs[1], protocol.Command{Request: b.request, Kind: protocol.CreateTopic, Topic: topic})
	return b.request
}

func topicNamed(name string, id byte, partitions, rf, minISR int32) protocol.Topic {
	return protocol.Topic{ID: protocol.UUID{id}, Name: name, Config: TopicConfig{Partitions: partitions, ReplicationFactor: rf, MinISR: minISR}}
}

// topic makes a topic with one partition of three replicas, led by broker 1.
func (b *metaBench) topic() protocol.PartitionID {
	topic := topicNamed("t", 1, 1, 3, 2)
	b.command(topic)
	b.settle()
	b.accept()
	clear(b.out)
	s := b.stored("t", 0)
	require.Equal(b.t, []int32{1, 2, 3}, s.ISR)
	require.Equal(b.t, int32(1), s.Leader)
	return protocol.PartitionID{Topic: topic.ID}
}

// propose has the leader propose an ISR, based on the state in force.
func (b *metaBench) propose(id protocol.PartitionID, isr ...int32) {
	s := b.m.parts[id].state
	prop := b.proposal(protocol.Proposal{ID: id, LeaderEpoch: s.LeaderEpoch, PartitionEpoch: s.PartitionEpoch})
	for _, m := range isr {
		prop.ISR = append(prop.ISR, protocol.Member{ID: m, Epoch: b.epochs[m]})
	}
	b.m.onProposal(s.Leader, b.epochs[s.Leader], prop)
	b.turn()
}

// proposal numbers a proposal, as its leader does.
func (b *metaBench) proposal(p protocol.Proposal) protocol.Proposal {
	b.attempt++
	p.Attempt, p.ControllerEpoch = b.attempt, b.m.epoch
	return p
}

func (b *metaBench) verdicts(broker int32) []protocol.Code {
	var codes []protocol.Code
	for _, v := range b.took(broker).Verdicts {
		codes = append(codes, v.Code)
	}
	return codes
}

// D17: a write whose answer is missing is read again and compared before
// anything else is done on that partition.
func TestAmbiguousWrite(t *testing.T) {
	start := func(t *testing.T) (*metaBench, protocol.PartitionID, metaTxn) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.propose(id, 1, 2)
		return b, id, b.write()
	}
	// blocked checks that nothing else is written meanwhile.
	blocked := func(b *metaBench, id protocol.PartitionID) {
		b.unregister(3)
		b.observe()
		b.turn()
		require.Empty(b.t, b.writes)
		require.Empty(b.t, b.rereads)
		require.Empty(b.t, b.took(1).Verdicts)
	}
	t.Run("applied, the answer was lost", func(t *testing.T) {
		b, id, w := start(t)
		b.do(w.txn)
		b.noAnswer(w)
		blocked(b, id)
		b.pause()
		b.reread()
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(1))
		require.Equal(t, []int32{1, 2}, b.stored("t", 0).ISR)
		require.Empty(t, b.writes)
	})
	t.Run("absent: only the same write is repeated", func(t *testing.T) {
		b, id, w := start(t)
		b.noAnswer(w)
		blocked(b, id)
		b.pause()
		b.reread()
		again := b.write()
		require.Equal(t, w, again)
		b.noAnswer(again)
		b.pause()
		b.reread()
		b.answer(b.write())
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(1))
		require.Equal(t, int32(1), b.stored("t", 0).PartitionEpoch)
	})
	t.Run("absent, and then it arrives late", func(t *testing.T) {
		b, _, w := start(t)
		b.noAnswer(w)
		b.pause()
		b.reread()
		again := b.write()
		require.True(t, b.do(w.txn).Applied)
		b.answer(again) // refused by its guard
		b.reread()
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(1))
		require.Equal(t, int32(1), b.stored("t", 0).PartitionEpoch)
		require.Equal(t, []int32{1, 2}, b.m.parts[protocol.PartitionID{Topic: protocol.UUID{1}}].state.ISR)
	})
	t.Run("the re-read fails too", func(t *testing.T) {
		b, _, w := start(t)
		b.do(w.txn)
		b.noAnswer(w)
		b.pause()
		require.Len(t, b.rereads, 1)
		r := b.rereads[0]
		b.rereads = nil
		b.m.onReread(b.now, r.token, nil, coordination.ErrUnavailable)
		b.turn()
		require.Empty(t, b.writes)
		require.NotZero(t, b.m.nextWake())
		b.pause()
		b.reread()
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(1))
	})
	t.Run("overtaken by another write", func(t *testing.T) {
		b, id, w := start(t)
		b.noAnswer(w)
		other := b.stored("t", 0)
		other.PartitionEpoch, other.ISR = 7, []int32{1, 3}
		b.storeState("t", 0, other)
		b.pause()
		b.reread()
		require.Equal(t, []protocol.Code{protocol.InvalidVersion}, b.verdicts(1))
		require.Equal(t, other, b.m.parts[id].state)
		b.settle()
		require.Equal(t, other, b.stored("t", 0))
	})
	t.Run("an answer of a write that is decided is ignored", func(t *testing.T) {
		b, id, w := start(t)
		b.answer(w)
		before := b.m.parts[id].state
		b.m.onWritten(b.now, w.token, coordination.TxnResult{}, errors.New("late"))
		b.m.onReread(b.now, w.token, nil, nil)
		b.turn()
		require.Equal(t, before, b.m.parts[id].state)
		require.Empty(t, b.writes)
	})
	t.Run("brokers hear that the store is away, and that it is back", func(t *testing.T) {
		b, _, w := start(t)
		b.took(2)
		b.noAnswer(w)
		away := b.took(2).Updates
		require.Len(t, away, 1)
		require.False(t, away[0].StoreOK)
		b.pause()
		b.reread()
		back := b.took(2).Updates
		require.Len(t, back, 1)
		require.True(t, back[0].StoreOK)
	})
}

// A guard that fails without a change of the controller epoch: what the store
// has is taken, and everything is judged anew.
func TestConflictingWrite(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topic()
	other := b.stored("t", 0)
	other.PartitionEpoch, other.ISR = 3, []int32{2, 1}
	b.storeState("t", 0, other)
	b.propose(id, 1, 2, 3) // the ISR in force: needs no write
	require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(1))
	b.propose(id, 1, 3)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.InvalidVersion}, b.verdicts(1))
	require.Equal(t, other, b.m.parts[id].state)

	b.unregister(1)
	b.observe()
	b.settle()
	s := b.stored("t", 0)
	require.Equal(t, []int32{2}, s.ISR)
	require.Equal(t, int32(2), s.Leader)
	require.Equal(t, int32(4), s.PartitionEpoch)
}

// CE-4: whoever finds the controller epoch moved resigns, and has changed nothing.
func TestControllerEpochMoved(t *testing.T) {
	for name, lost := range map[string]bool{"refused": false, "no answer": true} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBench(t, 1, 2, 3)
			b.topic()
			before := b.stored("t", 0)
			b.put(controllerEpochKey, controllerTerm{Epoch: 2})
			b.unregister(1)
			b.observe()
			b.turn()
			w := b.write()
			if lost {
				b.noAnswer(w)
				b.pause()
			} else {
				b.answer(w)
			}
			b.reread()
			require.ErrorIs(t, b.resign, errControllerMoved)
			require.Equal(t, before, b.stored("t", 0))
			clear(b.out)
			b.observe()
			b.m.onLink(2, true)
			b.turn()
			require.Empty(t, b.writes, "writes after it resigned")
			require.Empty(t, b.out, "speaks after it resigned")
		})
	}
	t.Run("a broker knows a newer one", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		b.m.onUpdateAck(2, protocol.UpdateAck{ControllerEpoch: 1, Code: protocol.StaleController})
		b.turn()
		require.NoError(t, b.resign)
		b.m.onUpdateAck(2, protocol.UpdateAck{ControllerEpoch: 2, Code: protocol.StaleController})
		b.turn()
		require.ErrorIs(t, b.resign, errControllerMoved)
	})
}

// CT-VAL: every proposal gets the verdict that it deserves, and changes nothing
// unless it is OK and new.
func TestProposalsJudged(t *testing.T) {
	member := func(b *metaBench, ids ...int32) (isr []protocol.Member) {
		for _, id := range ids {
			isr = append(isr, protocol.Member{ID: id, Epoch: b.epochs[id]})
		}
		return isr
	}
	// The state in force: leader 1, leader epoch 1, partition epoch 3, ISR {1, 2}.
	for name, c := range map[string]struct {
		from    int32 // 0: broker 1
		propose func(b *metaBench, p *protocol.Proposal)
		code    protocol.Code
		isr     []int32 // stored afterwards; nil: as before
	}{
		"expand":         {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 1, 2, 3) }, isr: []int32{1, 2, 3}},
		"shrink":         {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 1) }, isr: []int32{1}},
		"exchange":       {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 3, 1) }, isr: []int32{3, 1}},
		"as it is":       {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 2, 1) }},
		"as it is, late": {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR, p.PartitionEpoch = member(b, 1, 2), 1 }},
		"unknown epoch of a member": {propose: func(b *metaBench, p *protocol.Proposal) {
			p.ISR = append(member(b, 1, 3), protocol.Member{ID: 2, Epoch: -1})
		}, isr: []int32{1, 3, 2}},
		"unknown epoch of another": {propose: func(b *metaBench, p *protocol.Proposal) {
			p.ISR = append(member(b, 1, 2), protocol.Member{ID: 3, Epoch: -1})
		}, code: protocol.Ineligible},
		"earlier life of a member": {propose: func(b *metaBench, p *protocol.Proposal) {
			p.ISR = append(member(b, 1, 3), protocol.Member{ID: 2, Epoch: b.epochs[2] - 1})
		}, code: protocol.Ineligible},
		"earlier life of another": {propose: func(b *metaBench, p *protocol.Proposal) {
			p.ISR = append(member(b, 1, 2), protocol.Member{ID: 3, Epoch: b.epochs[3] - 1})
		}, code: protocol.Ineligible},
		"dead": {propose: func(b *metaBench, p *protocol.Proposal) {
			p.ISR = member(b, 1, 2, 3)
			b.unregister(3)
			b.observe()
		}, code: protocol.Ineligible},
		"newer leader epoch": {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR, p.LeaderEpoch = member(b, 1), 2 }, code: protocol.NotController},
		"newer partition epoch": {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR, p.PartitionEpoch = member(b, 1), 4 },
			code: protocol.NotController},
		"for another Controller": {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR, p.ControllerEpoch = member(b, 1), b.m.epoch-1 },
			code: protocol.NotController},
		"older leader epoch":    {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR, p.LeaderEpoch = member(b, 1), 0 }, code: protocol.FencedEpoch},
		"older partition epoch": {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR, p.PartitionEpoch = member(b, 1), 2 }, code: protocol.InvalidVersion},
		"both older": {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR, p.LeaderEpoch, p.PartitionEpoch = member(b, 1), 0, 2 },
			code: protocol.FencedEpoch},
		"not the leader":     {from: 2, propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 1, 2, 3) }, code: protocol.InvalidRequest},
		"without the leader": {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 2) }, code: protocol.InvalidRequest},
		"nobody":             {propose: func(*metaBench, *protocol.Proposal) {}, code: protocol.InvalidRequest},
		"twice the same":     {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 1, 2, 2) }, code: protocol.InvalidRequest},
		"not assigned":       {propose: func(b *metaBench, p *protocol.Proposal) { p.ISR = member(b, 1, 2, 4) }, code: protocol.InvalidRequest},
		"unknown partition":  {propose: func(_ *metaBench, p *protocol.Proposal) { p.ID.Partition = 5 }, code: protocol.UnknownPartition},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBench(t, 1, 2, 3, 4)
			topic := topicNamed("t", 1, 1, 3, 2)
			b.command(topic)
			b.settle()
			s := b.stored("t", 0)
			s.LeaderEpoch, s.PartitionEpoch, s.ISR = 1, 3, []int32{1, 2}
			require.Equal(t, []int32{1, 2, 3}, s.Replicas)
			b.storeState("t", 0, s)
			b.load(1)
			b.settle()
			clear(b.out)

			from := max(c.from, 1)
			p := b.proposal(protocol.Proposal{ID: protocol.PartitionID{Topic: topic.ID}, LeaderEpoch: 1, PartitionEpoch: 3})
			c.propose(b, &p)
			b.m.onProposal(from, b.epochs[from], p)
			b.settle()
			require.Equal(t, []protocol.Code{c.code}, b.verdicts(from))
			want := s
			if c.isr != nil {
				want.ISR, want.PartitionEpoch = c.isr, 4
			}
			require.Equal(t, want, b.stored("t", 0))
		})
	}
	t.Run("from an earlier life of the leader", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.m.onProposal(1, b.epochs[1]-1, protocol.Proposal{ID: id, ISR: []protocol.Member{{ID: 1, Epoch: b.epochs[1]}}})
		b.settle()
		require.Empty(t, b.verdicts(1))
		require.Len(t, b.stored("t", 0).ISR, 3)
	})
	t.Run("an election comes first", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.register(1) // the leader began another life
		b.observe()
		b.m.onProposal(1, b.epochs[1], protocol.Proposal{ID: id, ControllerEpoch: b.m.epoch, ISR: []protocol.Member{{ID: 1, Epoch: b.epochs[1]}}})
		b.settle()
		require.Equal(t, []protocol.Code{protocol.FencedEpoch}, b.verdicts(1))
		s := b.stored("t", 0)
		require.Equal(t, []int32{1, 2, 3}, s.ISR)
		require.Equal(t, int32(1), s.LeaderEpoch)
		require.Equal(t, b.epochs[1], s.LeaderBrokerEpoch)
	})
	t.Run("nothing is said before it is written", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.propose(id, 1, 2)
		require.Empty(t, b.out)
		w := b.write()
		b.answer(w)
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(1))
		require.Len(t, b.took(3).Updates, 1)
	})
}

// D15: a broker that came back with another directory is never elected, leaves
// every ISR, and is itself again only after a guarded write said so.
func TestReplacedDirectory(t *testing.T) {
	replaced := func(b *metaBench, id int32) bool {
		kv, _, err := b.store.Get(b.t.Context(), brokerLastKey(id))
		require.NoError(b.t, err)
		var last lastLife
		mustUnmarshal(b.t, kv.Value, &last)
		return last.Replaced
	}
	t.Run("leaves, then is cleared, then may join", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.wipe(1)
		b.register(1)
		require.True(t, replaced(b, 1))
		b.observe()
		b.turn()
		leave := b.write() // and nothing to clear it yet
		require.Equal(t, partitionKey("t", 0), leave.txn.Ops[0].Key)
		b.answer(leave)
		s := b.stored("t", 0)
		require.Equal(t, []int32{2, 3}, s.ISR)
		require.Equal(t, int32(2), s.Leader)

		b.propose(id, 2, 3, 1) // too early
		require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(2))
		clearing := b.write()
		require.Equal(t, brokerLastKey(1), clearing.txn.Ops[0].Key)
		require.Contains(t, clearing.txn.Guards, coordination.Guard{Key: controllerEpochKey, Revision: b.m.epochRevision})
		b.answer(clearing)
		require.False(t, replaced(b, 1))
		b.propose(id, 2, 3, 1)
		b.settle()
		require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(2))
		require.Equal(t, []int32{2, 3, 1}, b.stored("t", 0).ISR)
		require.Empty(t, b.writes)
	})
	t.Run("also a follower leaves", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		b.topic()
		b.wipe(3)
		b.register(3)
		b.observe()
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, []int32{1, 2}, s.ISR)
		require.Equal(t, int32(0), s.LeaderEpoch)
		require.False(t, replaced(b, 3))
	})
	t.Run("the sole member keeps its place and does not lead", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.propose(id, 1)
		b.settle()
		b.wipe(1)
		b.register(1)
		b.observe()
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, []int32{1}, s.ISR)
		require.Equal(t, protocol.NoLeader, s.Leader)
		require.Equal(t, int32(1), s.LeaderEpoch)
		require.True(t, replaced(b, 1))

		b.register(1) // the same directory again: still without the data
		b.observe()
		b.settle()
		require.Equal(t, s, b.stored("t", 0))
		require.True(t, replaced(b, 1))
	})
	t.Run("the other members are dead", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.propose(id, 1, 2)
		b.settle()
		b.unregister(2)
		b.wipe(1)
		b.register(1)
		b.observe()
		b.settle()
		s := b.stored("t", 0)
		require.Equal(t, []int32{2}, s.ISR, "who has the data stays")
		require.Equal(t, protocol.NoLeader, s.Leader)
		require.False(t, replaced(b, 1))
		b.register(2)
		b.observe()
		b.settle()
		require.Equal(t, int32(2), b.stored("t", 0).Leader)
	})
	t.Run("new partitions avoid it", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		id := b.topic()
		b.propose(id, 3, 1)
		b.settle()
		b.unregister(1)
		b.observe()
		b.settle()
		require.Equal(t, []int32{3}, b.stored("t", 0).ISR)
		b.wipe(3)
		b.register(3)
		b.register(1)
		b.observe()
		b.settle()
		b.command(topicNamed("u", 2, 4, 3, 2))
		b.settle()
		for n := range int32(4) {
			s := b.stored("u", n)
			require.NotContains(t, s.ISR, int32(3))
			require.NotEqual(t, int32(3), s.Replicas[0])
		}
	})
}

// D11: an order that was refused is followed by one in an epoch above all answers.
func TestRefusedOrders(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	id := b.topic()
	refuse := func(from int32, fromEpoch int64, epoch, above int32, code protocol.Code) {
		b.m.onReply(from, fromEpoch, protocol.OrderReply{ID: id, LeaderEpoch: epoch, Above: above, Code: code})
		b.settle()
	}
	state := func() protocol.PartitionState { return b.stored("t", 0) }

	refuse(1, b.epochs[1], 0, 8, protocol.LedBefore)
	require.Equal(t, int32(9), state().LeaderEpoch)
	require.Equal(t, int32(1), state().Leader)
	require.Equal(t, b.epochs[1], state().LeaderBrokerEpoch)

	refuse(1, b.epochs[1], 0, 20, protocol.LedBefore) // of an order that is over
	require.Equal(t, int32(9), state().LeaderEpoch)
	refuse(2, b.epochs[2]-1, 9, 20, protocol.BehindLog) // of an earlier life
	require.Equal(t, int32(9), state().LeaderEpoch)
	refuse(2, b.epochs[2], 9, 30, protocol.BehindLog) // a follower's log is ahead
	require.Equal(t, int32(31), state().LeaderEpoch)
	refuse(3, b.epochs[3], 31, 12, protocol.BehindLog) // lower than another answer
	require.Equal(t, int32(32), state().LeaderEpoch)
	require.Equal(t, []int32{1, 2, 3}, state().ISR)
	b.settle()
	require.Equal(t, int32(32), state().LeaderEpoch, "forced more than once")

	// D16: what cannot carry the partition counts as gone for this life.
	refuse(1, b.epochs[1], 32, 0, protocol.StorageFailed)
	require.Equal(t, int32(2), state().Leader)
	require.Equal(t, []int32{2, 3}, state().ISR)
	require.Equal(t, int32(33), state().LeaderEpoch)
	b.propose(id, 2, 3, 1)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.Ineligible}, b.verdicts(2))
	b.register(1)
	b.observe()
	b.propose(id, 2, 3, 1)
	b.settle()
	require.Equal(t, []protocol.Code{protocol.OK}, b.verdicts(2))

	// The last one that could: its data is still the only copy that counts.
	b.propose(id, 2)
	b.settle()
	refuse(2, b.epochs[2], 33, 0, protocol.StorageFailed)
	require.Equal(t, protocol.NoLeader, state().Leader)
	require.Equal(t, []int32{2}, state().ISR)
	b.register(2)
	b.observe()
	b.settle()
	require.Equal(t, int32(2), state().Leader)
}

// A change of one partition that cannot be carried by a broker leaves its others alone.
func TestStorageFailedConcernsOnePartition(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.command(topicNamed("t", 1, 2, 3, 2))
	b.settle()
	other := b.stored("t", 1)
	first := b.stored("t", 0)
	b.m.onReply(first.Leader, b.epochs[first.Leader], protocol.OrderReply{
		ID: protocol.PartitionID{Topic: protocol.UUID{1}}, Code: protocol.StorageFailed,
	})
	b.settle()
	require.Equal(t, other, b.stored("t", 1))
	require.NotContains(t, b.stored("t", 0).ISR, first.Leader)
}

// D17: the whole image comes first in a session, then changes with consecutive
// numbers; a gap brings the whole image again.
func TestFeed(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	first := b.took(2).Updates
	require.Empty(t, first, "before a turn")
	b.turn()
	first = b.took(2).Updates
	require.Len(t, first, 1)
	require.True(t, first[0].Full)
	require.False(t, first[0].More)

	id := b.topic()
	member := newMember()
	feed := func(updates []protocol.Update) (codes []protocol.Code) {
		for i := range updates {
			ack, _, _ := member.onUpdate(1, &updates[i])
			codes = append(codes, ack.Code)
		}
		return codes
	}
	b.m.onLink(2, false)
	b.propose(id, 1, 2)
	b.settle()
	require.Empty(t, b.took(2).Updates, "without a link")
	b.m.onLink(2, true)
	b.turn()
	whole := b.took(2).Updates
	require.Len(t, whole, 1)
	require.True(t, whole[0].Full)
	require.Equal(t, []protocol.Code{protocol.OK}, feed(whole))
	require.True(t, member.whole)
	require.Equal(t, []int32{1, 2}, member.states[id].ISR)

	b.propose(id, 1)
	b.settle()
	b.propose(id, 1, 3)
	b.settle()
	changes := b.took(2).Updates
	require.Len(t, changes, 2)
	for i, u := range changes {
		require.False(t, u.Full)
		require.Equal(t, whole[0].Seq+uint64(i)+1, u.Seq)
		require.Len(t, u.States, 1)
	}
	require.Equal(t, []protocol.Code{protocol.Gap}, feed(changes[1:]))
	require.False(t, member.whole)
	require.Equal(t, []protocol.Code{protocol.Gap}, feed(changes[:1]), "until the whole image comes")
	b.m.onUpdateAck(2, protocol.UpdateAck{ControllerEpoch: 0, Code: protocol.Gap}) // of an earlier Controller
	b.turn()
	require.Empty(t, b.took(2).Updates)
	b.m.onUpdateAck(2, protocol.UpdateAck{ControllerEpoch: 1, Code: protocol.Gap})
	b.turn()
	again := b.took(2).Updates
	require.Len(t, again, 1)
	require.Equal(t, []protocol.Code{protocol.OK}, feed(again))
	require.Equal(t, []int32{1, 3}, member.states[id].ISR)
	require.Len(t, b.took(3).Updates, 3, "others go on with changes")
	b.turn()
	require.Empty(t, b.took(2).Updates, "nothing changed")
}

// A large image travels in parts, and counts only when all of them have come.
func TestImageInParts(t *testing.T) {
	b := newMetaBench(t, 1)
	b.turn()
	b.command(topicNamed("big", 1, 2500, 1, 1))
	b.settle()
	b.command(topicNamed("a", 2, 1, 1, 1))
	b.settle()
	clear(b.out)
	b.register(2)
	b.observe()
	b.m.onLink(2, true)
	b.turn()
	parts := b.took(2).Updates
	require.Len(t, parts, 2)
	require.True(t, parts[0].Full && parts[0].More && !parts[1].Full && !parts[1].More)

	m, v := newMember(), newView()
	take := func(u protocol.Update) (protocol.Code, bool) {
		ack, taken, completed := m.onUpdate(1, &u)
		if taken {
			v.apply(m, &u, completed)
		}
		return ack.Code, completed
	}
	code, completed := take(parts[0])
	require.Equal(t, protocol.OK, code)
	require.False(t, completed || m.whole)
	_, ok, whole, _ := v.topic("big")
	require.False(t, ok || whole)
	code, completed = take(parts[1])
	require.Equal(t, protocol.OK, code)
	require.True(t, completed && m.whole)
	require.Len(t, m.states, 2501)
	require.Len(t, m.topics, 2)
	_, ok, whole, _ = v.topic("big")
	require.True(t, ok && whole)
	require.Equal(t, []string{"a", "big"}, v.topicNames())

	// A whole image that is interrupted is asked for again; the old one stays readable.
	code, _ = take(parts[0])
	require.Equal(t, protocol.OK, code)
	late := parts[1]
	late.Seq++
	code, _ = take(late)
	require.Equal(t, protocol.Gap, code)
	require.False(t, m.whole)
	code, _ = take(parts[1])
	require.Equal(t, protocol.Gap, code)
	_, ok, _, _ = v.topic("big")
	require.True(t, ok)

	// What a later whole image does not name is forgotten (D3: here, not on any disk).
	code, completed = take(protocol.Update{ControllerEpoch: 1, Seq: 90, Full: true})
	require.Equal(t, protocol.OK, code)
	require.True(t, completed)
	require.Empty(t, m.states)
	require.Empty(t, v.topicNames())
}

func TestMemberAndControllers(t *testing.T) {
	m := newMember()
	update := func(from, epoch int32, seq uint64, full bool) protocol.UpdateAck {
		ack, taken, _ := m.onUpdate(from, &protocol.Update{ControllerEpoch: epoch, Seq: seq, Full: full, StoreOK: true})
		require.Equal(t, ack.Code == protocol.OK, taken)
		return ack
	}
	require.Equal(t, protocol.UpdateAck{ControllerEpoch: 3, Seq: 1, Code: protocol.Gap}, update(1, 3, 1, false), "no image to change")
	require.Equal(t, protocol.OK, update(1, 3, 5, true).Code)
	require.True(t, m.whole && m.storeOK)
	require.Equal(t, int32(1), m.controller)
	require.Equal(t, protocol.OK, update(1, 3, 6, false).Code)
	require.Equal(t, protocol.Gap, update(1, 3, 6, false).Code, "the same number twice")
	require.Equal(t, protocol.OK, update(1, 3, 7, true).Code)

	require.Equal(t, protocol.UpdateAck{ControllerEpoch: 3, Seq: 9, Code: protocol.StaleController}, update(2, 2, 9, true))
	require.True(t, m.whole, "an older Controller changes nothing")
	require.Equal(t, int32(1), m.controller)

	require.Equal(t, protocol.Gap, update(2, 4, 8, false).Code, "numbers of another Controller")
	require.False(t, m.whole)
	require.Equal(t, int32(2), m.controller)
	require.Equal(t, protocol.OK, update(2, 4, 1, true).Code)

	m.onController(3, 9) // the coordination store knows first
	require.False(t, m.whole)
	require.Equal(t, protocol.StaleController, update(2, 4, 2, false).Code)
	require.Equal(t, int32(3), m.controller)
	m.onController(-1, 2)
	require.Equal(t, int32(9), m.controllerEpoch)
}

// CreateTopic ends when every leader accepted; the same topic id joins, another finds it there.
func TestCreateTopicCommands(t *testing.T) {
	answers := func(b *metaBench) map[uint64]protocol.Code {
		out := make(map[uint64]protocol.Code)
		for _, a := range b.took(1).CommandAnswers {
			out[a.Request] = a.Code
		}
		return out
	}
	b := newMetaBench(t, 1, 2, 3)
	topic := topicNamed("t", 1, 3, 3, 2)
	r1 := b.command(topic)
	b.turn()
	r2 := b.command(topic) // before it is written
	b.turn()
	require.Empty(t, answers(b))
	r3 := b.command(topicNamed("t", 9, 3, 3, 2))
	b.turn()
	require.Empty(t, answers(b), "whether the topic will exist is not decided")
	b.settle()
	require.Equal(t, map[uint64]protocol.Code{r3: protocol.TopicExists}, answers(b), "no leader accepted yet")
	accept := func(n int32) {
		id := protocol.PartitionID{Topic: topic.ID, Partition: n}
		s := b.m.parts[id].state
		follower := s.Replicas[1]
		b.m.onReply(follower, b.epochs[follower], protocol.OrderReply{ID: id, Accepted: true}) // means nothing
		b.m.onReply(s.Leader, b.epochs[s.Leader], protocol.OrderReply{ID: id, LeaderEpoch: s.LeaderEpoch, Accepted: true})
		b.turn()
	}
	accept(0)
	accept(2)
	require.Empty(t, answers(b), "two of three")
	accept(1)
	require.Equal(t, map[uint64]protocol.Code{r1: protocol.OK, r2: protocol.OK}, answers(b))
	r4 := b.command(topic)
	b.turn()
	require.Equal(t, map[uint64]protocol.Code{r4: protocol.OK}, answers(b), "it exists, and this is the same request")
	require.Empty(t, b.writes)

	// A new Controller waits for the leaders again, and then the repeated command ends.
	b.put(controllerEpochKey, controllerTerm{Epoch: 2})
	b.load(2)
	b.settle()
	r5 := b.command(topic)
	b.settle()
	require.Empty(t, answers(b))
	b.accept()
	require.Equal(t, map[uint64]protocol.Code{r5: protocol.OK}, answers(b))
}

// A leader that fails before it accepted does not hold the creation up for ever.
func TestCreateTopicWhileLeaderFails(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	r := b.command(topicNamed("t", 1, 1, 2, 1))
	b.turn()
	s := newPartition([]int32{1, 2}, 1, partView{b.m, &partEntry{topic: &topicEntry{}}})
	require.Equal(t, int32(1), s.Leader)
	w := b.write()
	b.unregister(2)
	b.observe()
	b.answer(w)
	b.settle()
	b.accept()
	got := b.took(1).CommandAnswers
	require.Len(t, got, 1)
	require.Equal(t, r, got[0].Request)
	require.Equal(t, []int32{1}, b.stored("t", 0).ISR)
}

// A partition without a leader does not hold the creation up: nobody is there to accept.
func TestCreateTopicWhileItsOnlyLeaderGoes(t *testing.T) {
	b := newMetaBench(t, 1, 2)
	b.unregister(1)
	b.observe()
	b.m.onCommand(2, b.epochs[2], protocol.Command{Request: 1, Kind: protocol.CreateTopic, Topic: topicNamed("t", 1, 1, 1, 1)})
	b.settle() // led by 2
	b.register(1)
	b.observe()
	b.settle()
	b.m.onCommand(1, b.epochs[1], protocol.Command{Request: 2, Kind: protocol.CreateTopic, Topic: topicNamed("t", 1, 1, 1, 1)})
	b.settle()
	b.unregister(2)
	b.observe()
	b.settle()
	require.Equal(t, protocol.NoLeader, b.stored("t", 0).Leader)
	require.NotEmpty(t, b.took(1).CommandAnswers)
}

func TestCreateTopicConflicts(t *testing.T) {
	t.Run("the topic's keys are there", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		there := topicNamed("t", 7, 1, 1, 1)
		b.put(topicKey("t"), topicRecord{Topic: there})
		r := b.command(topicNamed("t", 1, 2, 3, 2))
		b.settle()
		got := b.took(1).CommandAnswers
		require.Equal(t, []protocol.CommandAnswer{{Request: r, Code: protocol.TopicExists, Topic: &there}}, got)
		require.Empty(t, b.m.parts)
		require.Empty(t, b.m.topics)
	})
	t.Run("a partition's key is there", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		b.put(partitionKey("t", 1), protocol.PartitionState{Version: 1})
		b.command(topicNamed("t", 1, 2, 3, 2))
		b.settle()
		got := b.took(1).CommandAnswers
		require.Len(t, got, 1)
		require.Equal(t, protocol.Failed, got[0].Code)
		require.NotEmpty(t, got[0].Detail)
		_, ok, err := b.store.Get(t.Context(), topicKey("t"))
		require.NoError(t, err)
		require.False(t, ok, "half a topic")
	})
	t.Run("the answer was lost", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		b.command(topicNamed("t", 1, 2, 3, 2))
		b.turn()
		w := b.write()
		b.do(w.txn)
		b.noAnswer(w)
		b.pause()
		b.reread()
		b.settle()
		b.accept()
		got := b.took(1).CommandAnswers
		require.Len(t, got, 1)
		require.Equal(t, protocol.OK, got[0].Code)
	})
	t.Run("another life of the broker that asked", func(t *testing.T) {
		b := newMetaBench(t, 1, 2, 3)
		b.command(topicNamed("t", 1, 1, 1, 1))
		b.settle()
		b.register(1)
		b.observe()
		b.settle()
		b.accept()
		require.Empty(t, b.took(1).CommandAnswers)
	})
}

func TestCreateTopicRefused(t *testing.T) {
	for name, c := range map[string]struct {
		topic protocol.Topic
		code  protocol.Code
	}{
		"no id":            {topicNamed("t", 0, 1, 1, 1), protocol.InvalidRequest},
		"no name":          {topicNamed("", 1, 1, 1, 1), protocol.InvalidRequest},
		"dot":              {topicNamed(".", 1, 1, 1, 1), protocol.InvalidRequest},
		"slash":            {topicNamed("a/b", 1, 1, 1, 1), protocol.InvalidRequest},
		"no partitions":    {topicNamed("t", 1, 0, 1, 1), protocol.InvalidRequest},
		"many partitions":  {topicNamed("t", 1, maxPartitions+1, 1, 1), protocol.InvalidRequest},
		"no replicas":      {topicNamed("t", 1, 1, 0, 1), protocol.InvalidRequest},
		"no min isr":       {topicNamed("t", 1, 1, 1, 0), protocol.InvalidRequest},
		"too few brokers":  {topicNamed("t", 1, 1, 4, 1), protocol.TooFewBrokers},
		"min isr above rf": {topicNamed("t", 1, 1, 2, 3), protocol.OK},
		"dead ones help":   {topicNamed("t", 1, 1, 3, 1), protocol.OK},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBench(t, 1, 2, 3)
			b.unregister(2)
			b.observe()
			r := b.command(c.topic)
			b.settle()
			b.accept()
			got := b.took(1).CommandAnswers
			require.Len(t, got, 1)
			require.Equal(t, r, got[0].Request)
			require.Equal(t, c.code, got[0].Code)
			if c.code == protocol.OK {
				s := b.stored("t", 0)
				require.LessOrEqual(t, s.MinISR, c.topic.Config.ReplicationFactor)
				require.NotContains(t, s.ISR, int32(2))
				return
			}
			require.NotEmpty(t, got[0].Detail)
			require.Empty(t, b.m.topics)
		})
	}
	b := newMetaBench(t, 1)
	b.m.onCommand(1, b.epochs[1], protocol.Command{Request: 5, Kind: 77})
	b.turn()
	require.Equal(t, protocol.InvalidRequest, b.took(1).CommandAnswers[0].Code)
}

// A large failover is written in parts, each under the controller epoch's guard.
func TestFailoverInParts(t *testing.T) {
	const partitions = 2*partitionsPerWrite + 50
	b := newMetaBench(t, 1, 2)
	b.command(topicNamed("t", 1, partitions, 2, 1))
	b.settle()
	b.unregister(2)
	b.observe()
	b.turn()
	require.Len(t, b.writes, 3)
	for _, w := range b.writes {
		require.LessOrEqual(t, len(w.txn.Ops), partitionsPerWrite)
		require.Contains(t, w.txn.Guards, coordination.Guard{Key: controllerEpochKey, Revision: b.m.epochRevision})
	}
	b.settle()
	for n := range int32(partitions) {
		s := b.stored("t", n)
		require.Equal(t, int32(1), s.Leader)
		require.Equal(t, []int32{1}, s.ISR)
	}
}

// What cannot be read is left alone, and so is what it is about: it is never taken for
// absent (D3), and the rest goes on (D7).
func TestUnreadableKeys(t *testing.T) {
	start := func(t *testing.T) *metaBench {
		b := newMetaBench(t, 1, 2, 3)
		b.command(topicNamed("t", 1, 3, 3, 2))
		b.settle()
		b.command(topicNamed("u", 2, 1, 3, 2))
		b.settle()
		return b
	}
	for name, c := range map[string]struct {
		key, value string
		left       int // partitions that are known
	}{
		"topic":               {topicKey("t"), "{", 1},
		"another topic":       {topicKey("t"), string(marshal(topicRecord{Topic: topicNamed("v", 1, 3, 3, 2)})), 1},
		"impossible topic":    {topicKey("t"), string(marshal(topicRecord{Topic: topicNamed("t", 1, 0, 3, 2)})), 1},
		"state":               {partitionKey("t", 1), "[]", 3},
		"state of no topic":   {partitionKey("v", 0), "{}", 4},
		"state beyond topic":  {partitionKey("t", 3), "{}", 4},
		"something unrelated": {topicsPrefix + "t/other", "x", 4},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			b.do(coordination.Txn{Ops: []coordination.Op{{Key: c.key, Value: []byte(c.value)}}})
			kvs, _, err := b.store.List(t.Context(), topicsPrefix)
			require.NoError(t, err)
			epoch := b.m.epochRevision
			b.m = newMetadata(1, 1, epoch, kvs)
			require.NotEmpty(t, b.m.unreadable)
			require.Len(t, b.m.parts, c.left)
			b.unregister(1)
			b.observe()
			b.settle()
			require.NotEqual(t, int32(1), b.stored("u", 0).Leader, "the rest goes on")
			kv, ok, err := b.store.Get(t.Context(), c.key)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, c.value, string(kv.Value), "it was touched")
		})
	}
}

func TestKeys(t *testing.T) {
	for _, name := range []string{"t", "a.b-c_d", "partitions", "state"} {
		topic, n, ok := parsePartitionKey(partitionKey(name, 12))
		require.True(t, ok)
		require.Equal(t, name, topic)
		require.Equal(t, int32(12), n)
		_, _, ok = parsePartitionKey(topicKey(name))
		require.False(t, ok)
	}
	for _, key := range []string{"", topicsPrefix, "/brokers/topics/t/partitions/x/state", "/brokers/topics/t/partitions/-1/state",
		"/brokers/topics/t/partitions/1", "/other/t/partitions/1/state", fmt.Sprint("/brokers/topics/t/partitions/", 1<<40, "/state")} {
		_, _, ok := parsePartitionKey(key)
		require.False(t, ok, key)
	}
	id, ok := parseBrokerKey(brokerIDKey(7), brokerIDsPrefix)
	require.True(t, ok)
	require.Equal(t, int32(7), id)
	_, ok = parseBrokerKey(brokerIDsPrefix+"x", brokerIDsPrefix)
	require.False(t, ok)
}

// A broker whose registration the Controller has seen by one watch and not yet by the
// other is linked. It must not get the image, and so call itself ready, before the
// Controller counts on it: else Open, CreateTopic, Append ends with ErrNotEnoughReplicas.
func TestReadyBeforeTheControllerKnowsIt(t *testing.T) {
	b := newMetaBench(t, 1, 2)
	view := map[int32]brokerView{1: {epoch: b.epochs[1], lastRevision: b.epochs[1]}, 3: {}} // 3: ids seen, last not yet
	b.m.onRegistry(view)
	b.m.onLink(3, true)
	b.turn()
	require.Empty(t, b.took(3).Updates)
	view[3] = brokerView{epoch: 99, lastRevision: 99}
	b.m.onRegistry(view)
	b.turn()
	require.NotEmpty(t, b.took(3).Updates)
}

// The answer to the write that clears `replaced` comes after the watch showed that the
// broker came back once more with yet another directory.
func TestClearedOverNewerRegistration(t *testing.T) {
	b := newMetaBench(t, 1, 2, 3)
	b.topic()
	b.wipe(3)
	b.register(3)
	b.observe()
	b.turn()
	b.answer(b.write()) // leaves the ISR
	w := b.write()      // the clearing
	require.Equal(t, brokerLastKey(3), w.txn.Ops[0].Key)
	res := b.do(w.txn)
	require.True(t, res.Applied)
	b.wipe(3)
	b.register(3)
	b.observe()
	b.m.onWritten(b.now, w.token, res, nil)
	require.True(t, b.m.brokers[3].last.Replaced, "the newer registration says that it was replaced again")
}
