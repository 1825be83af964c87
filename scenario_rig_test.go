package tidemark

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// rig is one broker's shard with one replica, stepped by hand: tests say what
// happens and look at what the turn wants done. The disk completes writes when
// told to. Broker n has broker epoch 10+n unless a test says otherwise.
type rig struct {
	t     testing.TB
	s     *shard
	r     *replicaState
	id    protocol.PartitionID
	disk  *memstore.Disk
	store *memstore.Store
	now   time.Duration
	state protocol.PartitionState
	eff   effects // of the last turn
	cold  []coldRead
	asked uint64
	fails error // what becomes of this log's writes; nil: they are done
}

const rigSelf int32 = 1

// life is the broker epoch of a broker in a rig.
func life(broker int32) int64 { return 10 + int64(broker) }

func rigConfig() coreConfig {
	return coreConfig{
		MaxLag: 10 * time.Second, JoinWindow: 200 * time.Millisecond, ProposalTimeout: 2 * time.Second,
		MaxBatchBytes: 1 << 20, MaxUncommittedBytes: 64 << 20, MaxUnstoredBytes: 8 << 20,
		FetchBytes: 1 << 20, CacheBytes: 1 << 20,
	}
}

// newRig makes a rig around broker 1 of three, in a cluster whose Controller can
// be reached. epochs has the leader epoch of each record that the disk holds; the
// log begins at offset start.
func newRig(t testing.TB, start, hw int64, epochs ...int32) *rig {
	return newRigOf(t, rigSelf, rigConfig(), start, hw, epochs...)
}

func newRigOf(t testing.TB, self int32, cfg coreConfig, start, hw int64, epochs ...int32) *rig {
	g := &rig{t: t, s: newShard(cfg, self), now: time.Hour, disk: memstore.NewDisk(memstore.Manual())}
	g.id = protocol.PartitionID{Topic: protocol.UUID{1}, Partition: 0}
	g.state = protocol.PartitionState{
		Version: 1, Leader: protocol.NoLeader, LeaderBrokerEpoch: -1, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, MinISR: 2,
	}
	store, err := g.disk.Open()
	require.NoError(t, err)
	g.store = store
	if n := int64(len(epochs)); start+n > 0 {
		g.fill(start, hw, epochs)
	}
	logs, err := store.Logs()
	require.NoError(t, err)
	for id, state := range logs {
		g.s.load(id, state)
	}
	g.r = g.s.stranger(g.id)
	for _, b := range []int32{1, 2, 3} {
		g.s.env.brokers[b] = life(b)
		if b != self {
			g.s.onLink(b, life(b), true)
			g.s.onCredit(b, 1<<20)
		}
	}
	g.s.env.brokerEpoch = life(self)
	g.s.env.controller = controllerView{epoch: 1, reachable: true, storeOK: true}
	return g
}

// fill writes a log to the disk, one batch per record.
func (g *rig) fill(start, hw int64, epochs []int32) {
	var h epochHistory
	op := storage.Op{Log: g.id, Kind: storage.Append, Offset: start, End: start + int64(len(epochs)), HW: hw}
	for i, epoch := range epochs {
		h.assign(epoch, start+int64(i))
		op.Batches = append(op.Batches, stamped(g.t, start+int64(i), epoch, 1))
	}
	op.Epochs = append([]storage.EpochEntry{}, h.entries...)
	led := noEpoch
	ops := []storage.Op{{Log: g.id, Kind: storage.Meta, Led: &led, Epochs: []storage.EpochEntry{}}}
	if start > 0 {
		ops = append(ops, storage.Op{Log: g.id, Kind: storage.Reset, Offset: start, HW: start, Epochs: []storage.EpochEntry{}})
	}
	g.store.Write(append(ops, op), true, func(res storage.Result) {
		require.NoError(g.t, res.Err)
		require.Empty(g.t, res.Refused)
	})
	g.store.Step()
}

// stamped is a batch as a leader of an epoch makes it.
func stamped(t testing.TB, base int64, epoch int32, records int) []byte {
	b := batchOf(t, records, fmt.Sprintf("%d@%d", epoch, base))
	record.Stamp(b, base, epoch)
	return b
}

func batchOf(t testing.TB, records int, value string) []byte {
	recs := make([]Record, records)
	for i := range recs {
		recs[i] = Record{Value: []byte(value), Timestamp: time.UnixMilli(1)}
	}
	b, err := record.Encode(nil, recs, time.UnixMilli(1))
	require.NoError(t, err)
	return b
}

// turn carries out one turn of the shard: what f does, then the end of the turn.
func (g *rig) turn(f func()) *effects {
	f()
	g.eff = g.s.finish(g.now)
	maps.DeleteFunc(g.eff.out, func(_ int32, p *protocol.Payload) bool { return p.Empty() }) // as the loop does
	if len(g.eff.ops) > 0 {
		byLog := make(map[protocol.PartitionID]int)
		for _, op := range g.eff.ops {
			byLog[op.Log]++
		}
		g.store.Write(g.eff.ops, true, func(res storage.Result) {
			for id, n := range byLog {
				g.s.onStored(id, n, firstError(res.Err, res.Refused[id], g.fails))
			}
		})
	}
	g.cold = append(g.cold, g.eff.reads...)
	return &g.eff
}

// stored has the disk complete everything, in a turn of its own.
func (g *rig) stored() *effects { return g.turn(func() { g.store.Sync(1 << 20) }) }

// read carries out the cold reads that were asked for.
func (g *rig) read() *effects {
	cold := g.cold
	g.cold = nil
	return g.turn(func() {
		for _, c := range cold {
			res, err := g.store.Read(c.id, c.from, c.maxBytes)
			g.s.readDone(c, res.Batches, err)
		}
	})
}

// tick lets time go on and gives the shard the turns that it asked for. It stops
// early at the first one that wants something proposed or sent.
func (g *rig) tick(d time.Duration) *effects {
	for end := g.now + d; ; {
		at := g.s.next(0)
		if at == 0 || at > end {
			g.now = end
			return g.turn(func() {})
		}
		g.now = max(at, g.now)
		if eff := g.turn(func() {}); len(eff.proposals)+len(eff.out) > 0 {
			return eff
		}
	}
}

// become installs the state after a change: another epoch, another ISR.
func (g *rig) become(change func(s *protocol.PartitionState)) *effects {
	g.state = g.state.Clone()
	g.state.PartitionEpoch++
	change(&g.state)
	return g.turn(func() {
		s := g.state.Clone()
		g.s.onState(g.now, g.id, &s)
	})
}

// leader makes a broker the leader in an epoch.
func (g *rig) leader(broker, epoch int32) *effects {
	return g.become(func(s *protocol.PartitionState) {
		s.Leader, s.LeaderBrokerEpoch, s.LeaderEpoch = broker, life(broker), epoch
	})
}

// lead makes this broker the leader in an epoch, with the write that precedes everything done.
func (g *rig) lead(epoch int32, isr ...int32) {
	g.state.ISR = isr
	g.leader(g.s.env.self, epoch)
	g.stored()
	require.Equal(g.t, roleLeader, g.r.role)
}

// append sends an append of some records in one batch, and returns the request's number.
func (g *rig) append(acks Acks, records int) uint64 {
	return g.appendOf(protocol.Append{Acks: acks, LeaderEpoch: -1, Batch: batchOf(g.t, records, "v")})
}

func (g *rig) appendOf(a protocol.Append) uint64 {
	g.asked++
	a.ID, a.Request = g.id, g.asked
	g.turn(func() { g.s.onPayload(g.now, rigSelf, life(rigSelf), &protocol.Payload{Appends: []protocol.Append{a}}) })
	return g.asked
}

// fetch is a follower's fetch from offset, with everything before it stored. It
// carries the last epoch that the leader's own history has there.
func (g *rig) fetch(from int32, offset int64) *effects {
	epoch := g.r.epochs.epochBefore(offset, g.r.start)
	return g.fetchOf(from, protocol.Fetch{Offset: offset, LastEpoch: epoch, Stored: offset, StoredEpoch: epoch})
}

func (g *rig) fetchOf(from int32, f protocol.Fetch) *effects {
	f.ID, f.MaxBytes = g.id, 1<<20
	if f.LeaderEpoch == 0 {
		f.LeaderEpoch = g.state.LeaderEpoch
	}
	return g.from(from, &protocol.Payload{Fetches: []protocol.Fetch{f}})
}

// from hands in what a broker sent.
func (g *rig) from(broker int32, p *protocol.Payload) *effects {
	return g.turn(func() { g.s.onPayload(g.now, broker, g.s.env.brokers[broker], p) })
}

// answer is the leader's answer to the fetch that this follower has under way.
func (g *rig) answer(a protocol.FetchAnswer) *effects {
	a.ID, a.LeaderEpoch, a.Offset = g.id, g.state.LeaderEpoch, g.r.end
	return g.from(g.state.Leader, &protocol.Payload{FetchAnswers: []protocol.FetchAnswer{a}})
}

// verdict is the Controller's answer to the proposal that is pending.
func (g *rig) verdict(code protocol.Code, state *protocol.PartitionState) *effects {
	p := g.r.isr.pending
	require.NotNil(g.t, p, "nothing is pending")
	return g.from(g.s.env.self, &protocol.Payload{Verdicts: []protocol.Verdict{{
		ID: g.id, ControllerEpoch: g.s.env.controller.epoch, LeaderEpoch: p.proposal.LeaderEpoch,
		PartitionEpoch: p.proposal.PartitionEpoch, Attempt: p.proposal.Attempt, Code: code, State: state,
	}}})
}

// granted has the Controller record what was proposed.
func (g *rig) granted() *effects {
	g.state = g.state.Clone()
	g.state.PartitionEpoch++
	g.state.ISR = nil
	for _, m := range g.r.isr.pending.proposal.ISR {
		g.state.ISR = append(g.state.ISR, m.ID)
	}
	s := g.state.Clone()
	return g.verdict(protocol.OK, &s)
}

// proposed are the members of the proposals that a turn sent.
func proposed(eff *effects) (isrs [][]int32) {
	for _, p := range eff.proposals {
		var isr []int32
		for _, m := range p.ISR {
			isr = append(isr, m.ID)
		}
		isrs = append(isrs, isr)
	}
	return isrs
}

// endedIn are the codes of the appends that a turn ended, by request.
func endedIn(eff *effects) map[uint64]protocol.AppendAnswer {
	answers := make(map[uint64]protocol.AppendAnswer)
	if p := eff.out[rigSelf]; p != nil {
		for _, a := range p.AppendAnswers {
			answers[a.Request] = a
		}
	}
	return answers
}

// fetchAnswer is the one fetch answer that a turn sent to a broker; nil when none.
func fetchAnswer(t testing.TB, eff *effects, to int32) *protocol.FetchAnswer {
	p := eff.out[to]
	if p == nil || len(p.FetchAnswers) == 0 {
		return nil
	}
	require.Len(t, p.FetchAnswers, 1)
	return &p.FetchAnswers[0]
}

// sentFetch is the one fetch that a turn sent to a broker; nil when none.
func sentFetch(t testing.TB, eff *effects, to int32) *protocol.Fetch {
	p := eff.out[to]
	if p == nil || len(p.Fetches) == 0 {
		return nil
	}
	require.Len(t, p.Fetches, 1)
	return &p.Fetches[0]
}

// entries is a short way to write an epoch history: epoch, start, epoch, start.
func entries(pairs ...int64) (out []storage.EpochEntry) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, storage.EpochEntry{Epoch: int32(pairs[i]), Start: pairs[i+1]})
	}
	return out
}

// repeated is n records of an epoch.
func repeated(epoch int32, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = epoch
	}
	return out
}

func joined(parts ...[]int32) (out []int32) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}
