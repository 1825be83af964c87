package tidemark

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

func mustUnmarshal(t testing.TB, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

// simEntry is one record of a log: what it is, and a hash over everything up to it.
type simEntry struct {
	epoch  int32
	value  string
	prefix uint64
}

// simLog is a log as a checker sees it; offsets begin at 0.
type simLog struct {
	gen     uint64
	entries []simEntry
}

// simStats counts what a walk went through.
type simStats struct {
	acks, elections, truncations, lostTails, shrinks, expansions, unknown, refused, crashes, restarts, wipes int
}

func (s *simStats) add(o simStats) {
	s.acks += o.acks
	s.elections += o.elections
	s.truncations += o.truncations
	s.lostTails += o.lostTails
	s.shrinks += o.shrinks
	s.expansions += o.expansions
	s.unknown += o.unknown
	s.refused += o.refused
	s.crashes += o.crashes
	s.restarts += o.restarts
	s.wipes += o.wipes
}

// simCheck holds the invariants over everything that has happened in a world.
type simCheck struct {
	w         *simWorld
	stats     simStats
	logs      map[int32]map[protocol.PartitionID]*simLog // of brokers that are up, as applied; of others, as on disk
	committed map[protocol.PartitionID][]simEntry        // what some leader's high watermark covered
	acked     map[protocol.PartitionID]map[int64]string
	leaders   map[simTerm]string
	err       error
}

type simTerm struct {
	id    protocol.PartitionID
	epoch int32
}

func newSimCheck(w *simWorld) *simCheck {
	return &simCheck{
		w: w, logs: make(map[int32]map[protocol.PartitionID]*simLog), committed: make(map[protocol.PartitionID][]simEntry),
		acked: make(map[protocol.PartitionID]map[int64]string), leaders: make(map[simTerm]string),
	}
}

func (c *simCheck) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// log brings the checker's copy of a log up to date and returns it.
func (c *simCheck) log(b *simBroker, r *replicaState) *simLog {
	if c.logs[b.id] == nil {
		c.logs[b.id] = make(map[protocol.PartitionID]*simLog)
	}
	l := c.logs[b.id][r.id]
	if l == nil || l.gen != r.gen {
		l = &simLog{gen: r.gen}
		c.logs[b.id][r.id] = l
	}
	// What the store was not given yet is in memory only.
	c.read(b, r.id, l, r.tail.start(r.end))
	for int64(len(l.entries)) < r.end {
		batches, ok := r.tail.read(int64(len(l.entries)), r.end, 1<<20)
		if !ok {
			c.fail("broker %d: memory lacks %s at %d", b.id, r.id, len(l.entries))
			return l
		}
		for _, run := range batches {
			c.decode(b, l, run)
		}
	}
	return l
}

// read appends what the store has up to end.
func (c *simCheck) read(b *simBroker, id protocol.PartitionID, l *simLog, end int64) {
	for int64(len(l.entries)) < end {
		res, err := b.store.Read(id, int64(len(l.entries)), 1<<20)
		if err != nil || len(res.Batches) == 0 {
			c.fail("broker %d cannot read %s at %d below its end %d: %v", b.id, id, len(l.entries), end, err)
			return
		}
		// Beyond end the store may have what is about to be cut.
		batches, err := splitBatches(res.Batches, end, 1<<30)
		if err != nil || len(batches) == 0 {
			c.fail("broker %d: %s at %d: %v", b.id, id, len(l.entries), err)
			return
		}
		for _, run := range batches {
			c.decode(b, l, run)
		}
	}
}

func (c *simCheck) decode(b *simBroker, l *simLog, run []byte) {
	for rec, err := range record.All(run) {
		if err != nil {
			c.fail("broker %d: %v", b.id, err)
			return
		}
		c.push(l, rec)
	}
}

func (c *simCheck) push(l *simLog, rec Record) {
	e := simEntry{epoch: rec.LeaderEpoch, value: string(rec.Value)}
	h := fnv.New64a()
	if n := len(l.entries); n > 0 {
		last := l.entries[n-1]
		fmt.Fprint(h, last.prefix)
		if e.epoch < last.epoch {
			c.fail("INV-12: epoch falls from %d to %d at offset %d", last.epoch, e.epoch, n)
		}
	}
	fmt.Fprint(h, e.epoch, e.value)
	e.prefix = h.Sum64()
	l.entries = append(l.entries, e)
}

// after checks what can have changed by a step of one broker.
func (c *simCheck) after(b *simBroker) {
	s := b.broker.loops[0].shard
	c.stats.add(c.takeCounts(b))
	for _, r := range s.ordered() {
		if !r.known && r.end == 0 {
			continue
		}
		l := c.log(b, r)
		if r.hw > r.end || r.stored > r.end {
			c.fail("broker %d: HW %d, stored %d above the log end %d", b.id, r.hw, r.stored, r.end)
		}
		if r.role == roleFailed {
			c.fail("broker %d: replica failed: %v", b.id, r.fault)
		}
		if r.role != roleLeader {
			continue
		}
		c.leader(b, r, l)
	}
	c.matching(b)
}

func (c *simCheck) takeCounts(b *simBroker) simStats {
	b.broker.mu.Lock()
	defer b.broker.mu.Unlock()
	n := b.broker.counts
	b.broker.counts = counters{}
	return simStats{elections: int(n.elections), truncations: int(n.truncations), shrinks: int(n.shrinks), expansions: int(n.expansions)}
}

// leader checks what a leader claims.
func (c *simCheck) leader(b *simBroker, r *replicaState, l *simLog) {
	term := simTerm{r.id, r.state.LeaderEpoch}
	me := fmt.Sprintf("broker %d in life %d", b.id, b.broker.epoch.Load())
	if r.ledStored {
		if who, ok := c.leaders[term]; ok && who != me {
			c.fail("INV-11: %s and %s both lead %s in epoch %d", who, me, r.id, term.epoch)
		}
		c.leaders[term] = me
	}
	committed := c.committed[r.id]
	for o := 0; o < len(committed) && o < int(r.hw); o++ {
		if l.entries[o] != committed[o] {
			c.fail("INV-5: %s has %v committed at %d, it was %v", me, l.entries[o], o, committed[o])
			return
		}
	}
	if int(r.hw) > len(committed) {
		c.committed[r.id] = append(committed, l.entries[len(committed):r.hw]...)
	}
	if c.newest(r.id) == term.epoch {
		for o, value := range c.acked[r.id] {
			if o >= r.end || l.entries[o].value != value {
				c.fail("INV-6: %s leads epoch %d without the acknowledged %s at offset %d: log end %d, has %v", me, term.epoch, value, o, r.end, l.entries[min(o, r.end-1)])
			}
		}
		if int(r.end) < len(c.committed[r.id]) {
			c.fail("INV-7: %s leads epoch %d with log end %d, %d were committed", me, term.epoch, r.end, len(c.committed[r.id]))
		}
	}
	c.members(r, l)
}

// newest is the highest epoch that anybody led a partition in.
func (c *simCheck) newest(id protocol.PartitionID) (epoch int32) {
	for t := range c.leaders {
		if t.id == id {
			epoch = max(epoch, t.epoch)
		}
	}
	return epoch
}

// members checks INV-1: whoever the Controller holds to be in sync has, on its
// disk, everything below the high watermark of anybody who presumes to lead.
func (c *simCheck) members(r *replicaState, l *simLog) {
	name, ok := c.w.brokers[r.env.self].broker.view.topicName(r.id.Topic)
	if !ok || r.hw == 0 {
		return
	}
	for _, id := range c.w.stored(name, r.id.Partition).ISR {
		m := c.w.brokers[id]
		if c.w.replaced(m) {
			continue // known to lack what its membership vouches for, and never elected (D15)
		}
		have, stored := c.logs[id][r.id], int64(0)
		if have != nil {
			stored = int64(len(have.entries))
		}
		if m.broker != nil {
			if mr := m.broker.loops[0].shard.replicas[r.id]; mr != nil {
				have, stored = c.log(m, mr), mr.stored
			}
		}
		if stored < r.hw || have.entries[r.hw-1] != l.entries[r.hw-1] {
			c.fail("INV-1: broker %d is in sync and stored %d, broker %d leads epoch %d with HW %d", id, stored, r.env.self, r.state.LeaderEpoch, r.hw)
		}
	}
}

// matching checks INV-3 between one broker's logs and all others.
func (c *simCheck) matching(b *simBroker) {
	for id, l := range c.logs[b.id] {
		for other, logs := range c.logs {
			o := logs[id]
			if o == nil || other == b.id {
				continue
			}
			for i := min(len(l.entries), len(o.entries)) - 1; i >= 0; i-- {
				if l.entries[i].epoch != o.entries[i].epoch {
					continue
				}
				if l.entries[i].prefix != o.entries[i].prefix {
					c.fail("INV-3: brokers %d and %d have epoch %d at offset %d of %s, and differ at or before it", b.id, other, l.entries[i].epoch, i, id)
				}
				break
			}
		}
	}
}

// answered takes the end of an append.
func (c *simCheck) answered(id protocol.PartitionID, value string, acks Acks, a protocol.AppendAnswer) {
	switch {
	case a.Code != protocol.OK && a.Outcome == Unknown:
		c.stats.unknown++
	case a.Code != protocol.OK:
		c.stats.refused++
	case acks == AcksAll:
		c.w.trace("acked %s at %d in epoch %d", value, a.Base, a.LeaderEpoch)
		c.stats.acks++
		if c.acked[id] == nil {
			c.acked[id] = make(map[int64]string)
		}
		if was, ok := c.acked[id][a.Base]; ok {
			c.fail("two appends acknowledged at offset %d: %s and %s", a.Base, was, value)
		}
		c.acked[id][a.Base] = value
	}
}

// crashed notes what a crash is about to take away.
func (c *simCheck) crashed(b *simBroker, keep int) {
	c.stats.crashes++
	if b.store.Pending() > keep {
		c.stats.lostTails++
	}
}

// down reads what is left on the disk of a broker that is down.
func (c *simCheck) down(b *simBroker) {
	store, err := b.disk.Open()
	if err != nil {
		c.w.t.Fatal(err)
	}
	b.store = store
	logs, err := store.Logs()
	if err != nil {
		c.w.t.Fatal(err)
	}
	c.logs[b.id] = make(map[protocol.PartitionID]*simLog)
	for id, state := range logs {
		l := &simLog{gen: ^uint64(0)}
		c.logs[b.id][id] = l
		c.read(b, id, l, state.End)
	}
	if err := store.Close(); err != nil {
		c.w.t.Fatal(err)
	}
	b.store = nil
}
