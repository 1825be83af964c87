package tidemark

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// Each test here is the smallest reproduction of a fault that was once in the
// code and that no scenario names.

var foundID = protocol.PartitionID{Topic: protocol.UUID{1}, Partition: 0}

func foundConfig() coreConfig {
	return coreConfig{MaxLag: 10 * time.Second, JoinWindow: 200 * time.Millisecond, ProposalTimeout: 2 * time.Second,
		MaxBatchBytes: 1 << 20, MaxUncommittedBytes: 64 << 20, MaxUnstoredBytes: 8 << 20, FetchBytes: 1 << 20, CacheBytes: 1000}
}
func foundState(le, pe, leader int32, isr ...int32) *protocol.PartitionState {
	return &protocol.PartitionState{Version: 1, Leader: leader, LeaderEpoch: le, ISR: isr, PartitionEpoch: pe,
		LeaderBrokerEpoch: 10 + int64(leader), Replicas: []int32{1, 2, 3}, MinISR: 2}
}
func foundShard(self int32) *shard {
	s := newShard(foundConfig(), self)
	s.onBrokerEpoch(1, 10+int64(self))
	s.onBrokers(1, map[int32]int64{1: 11, 2: 12, 3: 13})
	for _, p := range []int32{1, 2, 3} {
		if p != self {
			s.onLink(p, 10+int64(p), true)
			s.onCredit(p, 1<<20)
		}
	}
	s.onController(1, controllerView{epoch: 1, reachable: true, storeOK: true})
	return s
}
func foundBatch() []byte {
	recs := []record.Record{{Value: []byte("x"), Timestamp: time.Unix(1, 0)}}
	b, _ := record.Encode(nil, recs, time.Unix(1, 0))
	return b
}
func foundAppend(a protocol.Acks) *protocol.Payload {
	return &protocol.Payload{Appends: []protocol.Append{{Request: 1, ID: foundID, LeaderEpoch: -1, Acks: a, Batch: foundBatch()}}}
}

// Fetch with MaxWait 0 over committed records.
func TestFoundReadNoWait(t *testing.T) {
	s := foundShard(1)
	st := foundState(1, 1, 1, 1)
	st.MinISR, st.Replicas = 1, []int32{1}
	s.onState(1, foundID, st)
	s.finish(1)
	s.onStored(foundID, 1, nil)
	s.finish(2)
	s.onPayload(3, 1, 11, foundAppend(protocol.AcksAll))
	s.finish(3)
	s.onStored(foundID, 1, nil)
	s.finish(4)
	require.EqualValues(t, 1, s.replicas[foundID].hw)
	s.onPayload(5, 1, 11, &protocol.Payload{Reads: []protocol.Read{{Request: 9, ID: foundID, From: 0, MaxBytes: 1000, MaxWaitMs: 0}}})
	eff := s.finish(5)
	require.Len(t, eff.out[1].ReadAnswers, 1)
	require.Len(t, eff.out[1].ReadAnswers[0].Batches, 1, "committed record not returned")
}

// A follower whose first fetch of the epoch is at the leader's end, with an op still in flight.
func TestFoundAgreed(t *testing.T) {
	f := foundShard(2)
	l := foundShard(1)
	// both hold one record of epoch 1, stored at the leader, in flight at the follower
	l.load(foundID, storage.State{End: 1, Led: 1, Epochs: []storage.EpochEntry{{Epoch: 1, Start: 0}}})
	f.load(foundID, storage.State{End: 0, Led: -1})
	st0 := foundState(1, 1, 3, 1, 2, 3)
	f.onState(1, foundID, st0)
	eff := f.finish(1)
	require.Len(t, eff.out[3].Fetches, 1)
	b := foundBatch()
	record.Stamp(b, 0, 1)
	f.onPayload(2, 3, 13, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{{ID: foundID, LeaderEpoch: 1, Offset: 0, Batches: [][]byte{b}}}})
	eff = f.finish(2)
	require.Len(t, eff.ops, 1) // in flight
	st := foundState(2, 2, 1, 1, 2)
	l.onState(3, foundID, st)
	l.finish(3)
	l.onStored(foundID, 1, nil)
	l.finish(3)
	f.onState(3, foundID, st)
	eff = f.finish(3)
	l.onPayload(4, 2, 12, eff.out[1])
	leff := l.finish(4)
	f.onPayload(5, 1, 11, leff.out[2])
	f.finish(5)
	f.onStored(foundID, 1, nil)
	eff = f.finish(6)
	if p := eff.out[1]; p != nil {
		l.onPayload(7, 2, 12, p)
		l.finish(7)
	}
	t.Log("leader hw", l.replicas[foundID].hw, "follower agreed", f.replicas[foundID].agreed, "stored", f.replicas[foundID].stored)
	require.EqualValues(t, 1, l.replicas[foundID].hw)
}

// A proposal whose answer is lost is sent again though an earlier wake-up was armed.
func TestFoundResend(t *testing.T) {
	s := foundShard(1)
	s.onState(1, foundID, foundState(1, 1, 1, 1, 2))
	s.finish(1)
	s.onStored(foundID, 1, nil)
	s.finish(2)
	ms := time.Millisecond
	s.onPayload(ms, 1, 11, &protocol.Payload{Reads: []protocol.Read{{Request: 9, ID: foundID, From: 0, MaxBytes: 1000, MaxWaitMs: 500}}})
	s.finish(ms)
	s.onPayload(2*ms, 3, 13, &protocol.Payload{Fetches: []protocol.Fetch{{ID: foundID, LeaderEpoch: 1, LastEpoch: -1, StoredEpoch: -1, MaxBytes: 1000}}})
	eff := s.finish(2 * ms)
	require.Len(t, eff.proposals, 1)
	n := 0
	for now := 3 * ms; now < time.Minute; now += ms {
		if at := s.next(0); at != 0 && at <= now {
			n += len(s.finish(now).proposals)
		}
	}
	require.NotZero(t, n, "never sent again")
}

// A failed log must not keep the cache of the others from being trimmed.
func TestFoundCache(t *testing.T) {
	s := foundShard(1)
	bad := protocol.PartitionID{Topic: protocol.UUID{1}, Partition: 7}
	st := foundState(1, 1, 1, 1)
	st.MinISR, st.Replicas = 1, []int32{1}
	for _, id := range []protocol.PartitionID{bad, foundID} {
		s.onState(1, id, st)
		s.finish(1)
		s.onStored(id, 1, nil)
	}
	p := foundAppend(protocol.AcksAll)
	p.Appends[0].ID = bad
	s.onPayload(2, 1, 11, p)
	s.finish(2)
	s.onStored(bad, 1, storage.ErrDamaged)
	s.finish(2)
	for i := 0; i < 1000; i++ {
		s.onPayload(3, 1, 11, foundAppend(protocol.AcksAll))
		s.finish(3)
		s.onStored(foundID, 1, nil)
		s.finish(3)
	}
	require.LessOrEqual(t, s.cache.bytes, int64(5000))
}

// Link up and first fetch in one turn.
func TestFoundCredit(t *testing.T) {
	s := newShard(foundConfig(), 1)
	s.onBrokerEpoch(1, 11)
	s.onBrokers(1, map[int32]int64{1: 11, 2: 12, 3: 13})
	s.onState(1, foundID, foundState(1, 1, 1, 1))
	s.finish(1)
	s.onStored(foundID, 1, nil)
	s.onPayload(2, 1, 11, foundAppend(protocol.AcksLeader))
	s.finish(2)
	s.onStored(foundID, 1, nil)
	s.finish(3)
	// one turn: credits first, as eventLoop.turn does, then the events
	s.onCredit(2, 1<<20)
	s.onLink(2, 12, true)
	s.onPayload(4, 2, 12, &protocol.Payload{Fetches: []protocol.Fetch{{ID: foundID, LeaderEpoch: 1, LastEpoch: -1, StoredEpoch: -1, MaxBytes: 1000}}})
	eff := s.finish(4)
	ok := eff.out[2] != nil && len(eff.out[2].FetchAnswers) == 1
	t.Log("next turn wanted at", s.next(0))
	require.True(t, ok, "starved although the link has credit")
}

// Lost refusal: a failed log told again of a leadership it was already told of.
func TestFoundFailedAgain(t *testing.T) {
	s := foundShard(1)
	st := foundState(1, 1, 1, 1, 2)
	s.onState(1, foundID, st)
	s.finish(1)
	s.onStored(foundID, 1, storage.ErrDamaged)
	eff := s.finish(2)
	require.Len(t, eff.replies, 1)
	s.onState(3, foundID, st) // a new Controller's whole image
	eff = s.finish(3)
	require.Len(t, eff.replies, 1, "the new Controller hears nothing")
}

// Fetch with MaxWait 0 over records that are not in memory.
func TestFoundColdNoWait(t *testing.T) {
	s := foundShard(1)
	s.load(foundID, storage.State{End: 1, HW: 1, Led: 1, Epochs: []storage.EpochEntry{{Epoch: 1, Start: 0}}})
	st := foundState(2, 2, 1, 1)
	st.MinISR, st.Replicas = 1, []int32{1}
	s.onState(1, foundID, st)
	s.finish(1)
	s.onStored(foundID, 1, nil)
	s.finish(2)
	s.onPayload(5, 1, 11, &protocol.Payload{Reads: []protocol.Read{{Request: 9, ID: foundID, From: 0, MaxBytes: 1000, MaxWaitMs: 0}}})
	eff := s.finish(5)
	require.Len(t, eff.reads, 1)
	t.Log("next", s.next(0))
	eff = s.finish(6)
	if eff.out[1] != nil && len(eff.out[1].ReadAnswers) == 1 {
		require.Len(t, eff.out[1].ReadAnswers[0].Batches, 1, "expired before the disk answered")
	}
}

// A state that names the new registration comes before the shard knows of it.
func TestFoundStateBeforeRegistration(t *testing.T) {
	s := foundShard(1)
	st := foundState(3, 3, 1, 1, 2)
	st.LeaderBrokerEpoch = 50
	s.onState(1, foundID, st) // a hint in an answer, or a lookup
	s.finish(1)
	s.onBrokerEpoch(2, 50)
	s.onState(2, foundID, st) // the Controller's image
	eff := s.finish(2)
	t.Log(s.replicas[foundID].role, eff.replies)
	require.True(t, s.replicas[foundID].role == roleLeader || len(eff.replies) > 0, "neither leads nor refuses")
}

// A late verdict for an earlier proposal of the same partition epoch.
func TestFoundLateVerdict(t *testing.T) {
	s := foundShard(1)
	st := foundState(1, 1, 1, 1)
	st.MinISR = 1
	s.onState(1, foundID, st)
	s.finish(1)
	s.onStored(foundID, 1, nil)
	s.finish(2)
	fetch := func(from int32, at time.Duration) effects {
		s.onPayload(at, from, 10+int64(from), &protocol.Payload{Fetches: []protocol.Fetch{{ID: foundID, LeaderEpoch: 1, LastEpoch: -1, StoredEpoch: -1, MaxBytes: 1000}}})
		return s.finish(at)
	}
	eff := fetch(2, 3)
	require.Len(t, eff.proposals, 1)
	s.onController(4, controllerView{epoch: 2, reachable: true, storeOK: true}) // sends it again
	eff = s.finish(4)
	require.Len(t, eff.proposals, 1)
	no := protocol.Verdict{ID: foundID, ControllerEpoch: 2, LeaderEpoch: 1, PartitionEpoch: 1, Attempt: 1, Code: protocol.Ineligible}
	fetch(3, 5)
	s.onPayload(6, 2, 12, &protocol.Payload{Verdicts: []protocol.Verdict{no}})
	eff = s.finish(6)
	require.Len(t, eff.proposals, 1)
	t.Log("second proposal", eff.proposals[0].ISR)
	s.onPayload(7, 2, 12, &protocol.Payload{Verdicts: []protocol.Verdict{no}}) // answers the copy of the first
	s.finish(7)
	// Meanwhile the Controller records {1,3}. Does HW still wait for 3?
	s.onPayload(8, 1, 11, foundAppend(protocol.AcksAll))
	s.finish(8)
	s.onStored(foundID, 1, nil)
	s.finish(9)
	require.EqualValues(t, 0, s.replicas[foundID].hw, "HW moved without a replica that the Controller may have added")
}

func foundMetadata(t *testing.T, states map[int32]protocol.PartitionState) *metadata {
	topic := protocol.Topic{ID: protocol.UUID{1}, Name: "t", Config: protocol.TopicConfig{Partitions: int32(len(states)), ReplicationFactor: 3, MinISR: 1}}
	kvs := []coordination.KV{{Key: topicKey("t"), Value: marshal(topicRecord{Topic: topic}), Revision: 5}}
	for n, s := range states {
		kvs = append(kvs, coordination.KV{Key: partitionKey("t", n), Value: marshal(s), Revision: 5})
	}
	m := newMetadata(1, 1, 7, kvs)
	require.Empty(t, m.unreadable)
	return m
}

// A broker that came back with an empty directory: its registration is seen
// before its `replaced` mark, because two watches bring them.
func TestFoundReplacedSeenLate(t *testing.T) {
	st := foundState(1, 1, -1, 2)
	st.LeaderBrokerEpoch, st.MinISR = -1, 1
	m := foundMetadata(t, map[int32]protocol.PartitionState{0: *st})
	c := &controlLoop{registry: registry{
		live: map[int32]registered{2: {epoch: 90, registration: registration{Directory: protocol.UUID{9}}}},
		last: map[int32]brokerView{2: {lastRevision: 12, last: lastLife{Directory: protocol.UUID{2}}}},
	}}
	m.onRegistry(c.brokerViews())
	eff := m.finish(1)
	for _, w := range eff.writes {
		for _, op := range w.txn.Ops {
			t.Log(string(op.Value))
		}
	}
	require.Empty(t, eff.writes, "an empty directory was elected")
}

// The re-read of an ambiguous write sees one key before and one after it.
func TestFoundTornReread(t *testing.T) {
	st := foundState(1, 1, 1, 1)
	st.MinISR = 1
	m := foundMetadata(t, map[int32]protocol.PartitionState{0: *st, 1: *st})
	view := map[int32]brokerView{1: {epoch: 11}, 2: {epoch: 12}, 3: {epoch: 13}}
	m.onRegistry(view)
	m.onLink(1, true)
	m.finish(1)
	id := func(n int32) protocol.PartitionID { return protocol.PartitionID{Topic: protocol.UUID{1}, Partition: n} }
	for n := int32(0); n < 2; n++ {
		m.onProposal(1, 11, protocol.Proposal{ID: id(n), ControllerEpoch: m.epoch, LeaderEpoch: 1, PartitionEpoch: 1, ISR: []protocol.Member{{ID: 1, Epoch: 11}, {ID: 2, Epoch: 12}}})
	}
	eff := m.finish(2)
	require.Len(t, eff.writes, 1)
	w := eff.writes[0]
	m.onWritten(3, w.token, coordination.TxnResult{}, coordination.ErrUnavailable)
	eff = m.finish(time.Second)
	require.Len(t, eff.rereads, 1)
	kvs := map[string]coordination.KV{controllerEpochKey: {Revision: 7},
		w.txn.Ops[0].Key: {Key: w.txn.Ops[0].Key, Value: marshal(*st), Revision: 5},        // read before
		w.txn.Ops[1].Key: {Key: w.txn.Ops[1].Key, Value: w.txn.Ops[1].Value, Revision: 20}} // read after it was applied
	// and broker 2's registration has gone meanwhile
	delete(view, 2)
	m.onRegistry(view)
	m.onReread(time.Second, w.token, kvs, nil)
	eff = m.finish(time.Second)
	for _, v := range eff.out[1].Verdicts {
		t.Log(v.ID, v.Code)
		require.NotEqual(t, protocol.Ineligible, v.Code, "refused although the store has it")
	}
}

// A store that hangs for long counts once as lateness, not anew at every look: a
// member that is dead as well still leaves the ISR in time.
func TestFoundLongHangCountsOnce(t *testing.T) {
	s := foundShard(1)
	st := foundState(1, 1, 1, 1, 2)
	st.MinISR = 1
	s.onState(1, foundID, st)
	s.finish(1)
	s.onStored(foundID, 1, nil)
	s.finish(2)
	s.onPayload(3, 1, 11, foundAppend(protocol.AcksLeader))
	s.finish(3)
	r := s.replicas[foundID]
	for range 12 {
		now := s.lagPassAt
		s.storeAge += s.env.cfg.MaxLag / 4
		s.finish(now)
		require.GreaterOrEqual(t, r.lag(now, r.remote(2)), time.Duration(0))
	}
	require.NotNil(t, r.isr.pending, "the dead member is proposed to leave")
}

// Every leader epoch counts its own attempts: what an earlier leader was refused
// says nothing about the present one's.
func TestFoundRefusalsOfAnEarlierLeader(t *testing.T) {
	p := &partEntry{}
	p.refuse(&protocol.Proposal{LeaderEpoch: 5, Attempt: 40})
	p.refuse(&protocol.Proposal{LeaderEpoch: 6, Attempt: 1})
	require.Equal(t, refusedAttempt{6, 1}, p.refused)
	p.refuse(&protocol.Proposal{LeaderEpoch: 6, Attempt: 3})
	p.refuse(&protocol.Proposal{LeaderEpoch: 6, Attempt: 2})
	require.Equal(t, refusedAttempt{6, 3}, p.refused)
}

// A cold start: the Controller is the only broker there of three. It gives the
// others a moment, and then does not wait for ever.
func TestFoundColdStartWaits(t *testing.T) {
	begin := func() *metadata {
		st := foundState(4, 4, 3, 1, 2, 3)
		m := foundMetadata(t, map[int32]protocol.PartitionState{0: *st})
		m.meet(time.Second, 200*time.Millisecond, map[int32]brokerView{
			1: {epoch: 91, lastRevision: 91}, 2: {lastRevision: 12}, 3: {lastRevision: 13},
		})
		require.Empty(t, m.finish(time.Second).writes, "it would take the leadership and shrink the ISR to itself")
		require.Equal(t, time.Second+100*time.Millisecond, m.nextWake())
		return m
	}
	m := begin()
	m.onRegistry(map[int32]brokerView{
		1: {epoch: 91, lastRevision: 91}, 2: {epoch: 92, lastRevision: 92}, 3: {epoch: 93, lastRevision: 93},
	})
	require.Len(t, m.finish(time.Second+1).writes, 1, "all are there")
	m = begin()
	require.Len(t, m.finish(time.Second+100*time.Millisecond).writes, 1, "they do not come")
}
