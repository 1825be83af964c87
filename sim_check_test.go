package tidemark

import (
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"slices"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// simCheck watches a world. It keeps what has happened in a form that invariants
// can be checked against, and shows every change to the checkers, one type per
// invariant. The first violation ends the run.
type simCheck struct {
	w          *simWorld
	only       []string // the rules that count; nil: all
	violation  *simViolation
	checkers   []simChecker
	replicas   []simReplicaChecker
	states     []simStateChecker
	answers    []simAnswerChecker
	reads      []simReadChecker
	stats      simStats
	logs       map[int32]map[protocol.PartitionID]*simLog // of brokers that are up, as applied; of others, as on disk
	partitions map[protocol.PartitionID]*simPartition
	appends    map[string]*simAppend
	seen       map[string]bool // values that some log held
	looked     map[protocol.PartitionID]map[int32]simSnapshot
}

// simViolation says which rule did not hold.
type simViolation struct {
	rule string
	text string
}

func (v *simViolation) Error() string { return v.rule + ": " + v.text }

// simChecker is one invariant. It implements those of the interfaces below that
// show it what it needs.
type simChecker interface {
	rule() string
}

// simReplicaChecker sees a replica after each turn that changed it, and after each
// change of what is recorded of its partition.
type simReplicaChecker interface {
	replica(c *simCheck, v *simView)
}

// simStateChecker sees every partition state that is recorded; was is nil for the first.
type simStateChecker interface {
	state(c *simCheck, id protocol.PartitionID, was, is *simState)
}

// simAnswerChecker sees how an append ended.
type simAnswerChecker interface {
	answer(c *simCheck, p *simPartition, a *simAppend, ans *protocol.AppendAnswer)
}

// simReadChecker sees every record that a client read.
type simReadChecker interface {
	read(c *simCheck, p *simPartition, rec *Record, ans *protocol.ReadAnswer)
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

// simPartition is what is known of a partition over all its replicas.
type simPartition struct {
	id        protocol.PartitionID
	committed []simEntry       // what some leader's high watermark covered
	by        int32            // leader epoch of the last one that covered more
	acked     map[int64]string // with acks=all
	newest    int32            // the highest epoch that anybody led
	leader    int32            // who did
	unclean   int32            // the leader epoch of the last unclean election
}

// inOrder goes through what was acknowledged, by offset.
func (p *simPartition) inOrder() iter.Seq2[int64, string] {
	return func(yield func(int64, string) bool) {
		for _, o := range slices.Sorted(maps.Keys(p.acked)) {
			if !yield(o, p.acked[o]) {
				return
			}
		}
	}
}

// simView is a replica after a turn.
type simView struct {
	b   *simBroker
	r   *replicaState
	p   *simPartition
	log *simLog
	was simSnapshot
	now simSnapshot
}

// leads reports whether the view is of a leader that may hand out records, of an
// epoch that counts: what was led before an unclean election was given up.
func (v *simView) leads() bool {
	return v.now.role == roleLeader && v.now.epoch >= v.p.unclean
}

// goesOn reports whether the replica has the same role in the same epoch, on the same
// log, as it had before the turn.
func (v *simView) goesOn() bool {
	return v.was.open == v.now.open && v.was.role == v.now.role && v.was.epoch == v.now.epoch && v.was.gen == v.now.gen
}

func (v *simView) String() string {
	return fmt.Sprintf("broker %d (life %d), %v of %s in epoch %d", v.b.id, v.b.broker.epoch.Load(), v.now.role, v.r.id, v.now.epoch)
}

// simSnapshot is what of a replica the invariants are about.
type simSnapshot struct {
	open                   *Broker // the process
	life                   int64
	role                   role
	epoch, partitionEpoch  int32
	gen                    uint64
	start, end, stored, hw int64
	ledStored, fetching    bool
	linked, throttled      bool
	pending                *pendingISR
	known, agreed          bool
}

func snapshot(b *simBroker, r *replicaState) simSnapshot {
	return simSnapshot{
		open: b.broker, life: r.env.brokerEpoch, role: r.role, epoch: r.state.LeaderEpoch, partitionEpoch: r.state.PartitionEpoch,
		gen: r.gen, start: r.start, end: r.end, stored: r.stored, hw: r.hw, ledStored: r.ledStored, fetching: r.fetching,
		linked:    r.role == roleFollower && r.env.linked(r.state.Leader, r.state.LeaderBrokerEpoch),
		throttled: r.throttled || r.unstoredBytes() > r.env.cfg.MaxUnstoredBytes,
		pending:   r.isr.pending, known: r.known, agreed: r.agreed,
	}
}

func newSimCheck(w *simWorld) *simCheck {
	c := &simCheck{
		w: w, logs: make(map[int32]map[protocol.PartitionID]*simLog), partitions: make(map[protocol.PartitionID]*simPartition),
		appends: make(map[string]*simAppend), seen: make(map[string]bool), looked: make(map[protocol.PartitionID]map[int32]simSnapshot),
		checkers: newSimCheckers(),
	}
	for _, k := range c.checkers {
		if x, ok := k.(simReplicaChecker); ok {
			c.replicas = append(c.replicas, x)
		}
		if x, ok := k.(simStateChecker); ok {
			c.states = append(c.states, x)
		}
		if x, ok := k.(simAnswerChecker); ok {
			c.answers = append(c.answers, x)
		}
		if x, ok := k.(simReadChecker); ok {
			c.reads = append(c.reads, x)
		}
	}
	return c
}

// err is the first violation; nil: there was none.
func (c *simCheck) err() error {
	if c.violation == nil {
		return nil
	}
	return c.violation
}

// fail notes a violation of a checker's rule.
func (c *simCheck) fail(k simChecker, format string, args ...any) {
	if c.violation == nil && (c.only == nil || slices.Contains(c.only, k.rule())) {
		c.violation = &simViolation{k.rule(), fmt.Sprintf(format, args...)}
	}
}

func (c *simCheck) partition(id protocol.PartitionID) *simPartition {
	p := c.partitions[id]
	if p == nil {
		p = &simPartition{id: id, acked: make(map[int64]string), leader: -1}
		c.partitions[id] = p
	}
	return p
}

// opened takes note of a broker's new process. Nothing of the old one's logs in
// memory counts: they are read anew.
func (c *simCheck) opened(b *simBroker) { delete(c.logs, b.id) }

// after looks at all replicas that a turn of a broker changed.
func (c *simCheck) after(b *simBroker) {
	c.takeCounts(b)
	for _, r := range b.broker.loops[0].shard.ordered() {
		if !r.known && r.end == 0 || r.deleting || c.w.records.deleted[r.id.Topic] {
			continue
		}
		c.look(b, r, false)
	}
}

// lookAt looks at one replica: an answer that its own broker gets comes before the
// turn that gave it is over.
func (c *simCheck) lookAt(broker int32, id protocol.PartitionID) {
	if r := c.w.replica(broker, id); r != nil && !c.w.records.deleted[id.Topic] {
		c.look(c.w.brokers[broker], r, false)
	}
}

// look shows a replica to the checkers, if anything of it changed.
func (c *simCheck) look(b *simBroker, r *replicaState, always bool) {
	before := c.looked[r.id]
	if before == nil {
		before = make(map[int32]simSnapshot)
		c.looked[r.id] = before
	}
	was, now := before[b.id], snapshot(b, r)
	if was == now && !always {
		return
	}
	before[b.id] = now
	noticed, damaged := b.damaged[r.id]
	_, flipped := b.flipped[r.id]
	if r.role == roleFailed {
		if !damaged && !flipped && (!c.w.lossy || c.partition(r.id).unclean == 0) {
			c.fail(foundBroken{}, "broker %d finds a fault in %s that is not there: %v", b.id, r.id, r.fault)
		}
		if b.damaged[r.id] = true; was.role != roleFailed {
			b.faults[r.id]++
		}
	} else if noticed && len(r.inflight) == 0 {
		delete(b.damaged, r.id) // emptied
	}
	v := &simView{b: b, r: r, p: c.partition(r.id), log: c.log(b, r), was: was, now: now}
	if now.role == roleLeader && now.ledStored && now.epoch >= v.p.newest {
		v.p.newest, v.p.leader = now.epoch, b.id
	}
	for _, k := range c.replicas {
		k.replica(c, v)
	}
	if n := len(v.p.committed); v.leads() && int(now.hw) > n && int(now.hw) <= len(v.log.entries) {
		v.p.committed, v.p.by = append(v.p.committed, v.log.entries[n:now.hw]...), now.epoch
	}
}

// recorded takes a partition state that was written.
func (c *simCheck) recorded(id protocol.PartitionID, was, is *simState) {
	if c.w.records.deleted[id.Topic] {
		return // what is left of it is cleared away in steps
	}
	if is.UncleanEpoch > c.partition(id).unclean {
		c.givenUp(id, is)
	}
	c.w.trace("recorded %s-%d: leader %d (%d) epoch %d isr %v of %v min %d, partition epoch %d", is.topic, id.Partition, is.Leader, is.LeaderBrokerEpoch, is.LeaderEpoch, is.ISR, is.Replicas, is.MinISR, is.PartitionEpoch)
	for _, k := range c.states {
		k.state(c, id, was, is)
	}
	for _, b := range c.w.up() {
		if r := b.broker.loops[0].shard.replicas[id]; r != nil && r.role == roleLeader {
			c.look(b, r, true)
		}
	}
}

// givenUp draws the consequences of an unclean election: what the new leader does
// not have is gone, and the state says so.
func (c *simCheck) givenUp(id protocol.PartitionID, is *simState) {
	p := c.partition(id)
	var left []simEntry
	if l := c.onDisk(is.Leader, id); l != nil {
		left = l
	}
	n := 0
	for n < len(left) && n < len(p.committed) && left[n] == p.committed[n] {
		n++
	}
	c.stats.lost += len(p.committed) - n
	p.committed = p.committed[:n:n]
	for o := range p.acked {
		if o >= int64(n) {
			delete(p.acked, o)
		}
	}
	p.unclean = is.UncleanEpoch
}

// onDisk returns what of a log is on a broker's disk: for a broker that runs, what
// its store has completed.
func (c *simCheck) onDisk(broker int32, id protocol.PartitionID) []simEntry {
	l := c.logs[broker][id]
	if r := c.w.replica(broker, id); r != nil {
		if r.deleting || r.role == roleFailed {
			return nil
		}
		l = c.log(c.w.brokers[broker], r)
		return l.entries[:min(int(c.w.brokers[broker].durable[id]), len(l.entries))]
	}
	if l == nil {
		return nil
	}
	return l.entries
}

// excused reports whether a broker's copy may lack what its membership vouches for:
// the cluster knows that, or is about to find out.
func (c *simCheck) excused(broker int32, id protocol.PartitionID) bool {
	b, background := c.w.brokers[broker], c.background(id)
	if b.isDamaged(id) || c.w.records.doubtful(b, background) {
		return true
	}
	return background && (b.broker == nil || c.w.records.last[b.id].Incarnation != b.reg.incarnation)
}

// background reports whether the partition's topic does not wait for the disk.
func (c *simCheck) background(id protocol.PartitionID) bool {
	return c.w.records.topics[c.topicOf(id)].Config.Background
}

func (c *simCheck) topicOf(id protocol.PartitionID) string {
	if s := c.w.records.states[id]; s != nil {
		return s.topic
	}
	return ""
}

// log brings the checker's copy of a log up to date and returns it.
func (c *simCheck) log(b *simBroker, r *replicaState) *simLog {
	if c.logs[b.id] == nil {
		c.logs[b.id] = make(map[protocol.PartitionID]*simLog)
	}
	l := c.logs[b.id][r.id]
	if l == nil || l.gen != r.gen || int64(len(l.entries)) > r.end {
		l = &simLog{gen: r.gen}
		c.logs[b.id][r.id] = l
	}
	if int64(len(l.entries)) >= r.end || r.role == roleFailed {
		return l
	}
	// What the store was not given yet is in memory only.
	c.readStore(b, r.id, l, r.tail.start(r.end))
	for int64(len(l.entries)) < r.end && len(l.entries) >= int(r.tail.start(r.end)) {
		batches, ok := r.tail.read(int64(len(l.entries)), r.end, 1<<20)
		if !ok {
			c.fail(foundBroken{}, "broker %d: memory lacks %s at %d", b.id, r.id, len(l.entries))
			return l
		}
		for _, run := range batches {
			c.decode(b, l, run)
		}
	}
	return l
}

// readStore appends what the store has up to end. Of a log that something was done
// to it takes what can be read.
func (c *simCheck) readStore(b *simBroker, id protocol.PartitionID, l *simLog, end int64) {
	for int64(len(l.entries)) < end {
		res, err := b.store.Read(id, int64(len(l.entries)), 1<<20)
		if err != nil || len(res.Batches) == 0 {
			if !b.isDamaged(id) {
				c.fail(foundBroken{}, "broker %d cannot read %s at %d below its end %d: %v", b.id, id, len(l.entries), end, err)
			}
			return
		}
		// Beyond end the store may have what is about to be cut.
		batches, err := splitBatches(res.Batches, end, 1<<30)
		if err != nil || len(batches) == 0 {
			c.fail(foundBroken{}, "broker %d: %s at %d: %v", b.id, id, len(l.entries), err)
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
			c.fail(foundBroken{}, "broker %d: %v", b.id, err)
			return
		}
		c.push(l, &rec)
	}
}

func (c *simCheck) push(l *simLog, rec *Record) {
	e := simEntry{epoch: rec.LeaderEpoch, value: string(rec.Value)}
	h := fnv.New64a()
	_, _ = h.Write(rec.Value)
	e.prefix = h.Sum64() ^ uint64(e.epoch)
	if n := len(l.entries); n > 0 {
		e.prefix += l.entries[n-1].prefix * 1099511628211
	}
	l.entries = append(l.entries, e)
	c.seen[e.value] = true
	if a := c.appends[e.value]; a != nil && a.refused() {
		c.fail(abortedRead{}, "%s was refused, and is at offset %d of a log", e.value, len(l.entries)-1)
	}
}

// crashed notes what a crash is about to take away.
func (c *simCheck) crashed(b *simBroker, keep int) {
	if !c.w.healing {
		c.stats.crashes++
	}
	switch n := len(c.w.up()); {
	case n == 1:
		c.stats.allDown++
	case n <= len(c.w.brokers)-1:
		c.stats.twoDown++
	}
	if b.store.Pending() > keep {
		c.stats.lostTails++
	}
}

// down reads what is left on the disk of a broker that is down.
func (c *simCheck) down(b *simBroker) {
	store, err := b.disk.Open()
	c.w.must(err)
	b.store = store
	logs, err := store.Logs()
	c.w.must(err)
	c.logs[b.id] = make(map[protocol.PartitionID]*simLog)
	for id, state := range logs {
		l := &simLog{gen: ^uint64(0)}
		c.logs[b.id][id] = l
		c.readStore(b, id, l, state.End)
	}
	b.disk.Crash(0)
	b.store = nil
	for id := range c.looked {
		delete(c.looked[id], b.id)
	}
}

// takeCounts adds what the broker has counted since.
func (c *simCheck) takeCounts(b *simBroker) {
	b.broker.mu.Lock()
	defer b.broker.mu.Unlock()
	n := b.broker.counts
	b.broker.counts = counters{}
	c.stats.elections += int(n.elections)
	c.stats.truncations += int(n.truncations)
	c.stats.shrinks += int(n.shrinks)
	c.stats.expansions += int(n.expansions)
}

// answered takes the end of an append.
func (c *simCheck) answered(id protocol.PartitionID, a *simAppend, ans *protocol.AppendAnswer) {
	c.lookAt(a.leader, id)
	p := c.partition(id)
	a.under--
	if ans.Code != protocol.OK {
		c.w.trace("%s at broker %d: %v, %v", a.value, a.leader, ans.Code, ans.Outcome)
	}
	switch {
	case ans.Code != protocol.OK && ans.Outcome == Unknown:
		a.unknown = true
		c.stats.unknown++
	case ans.Code != protocol.OK:
		c.stats.refused++
		if c.seen[a.value] && a.refused() {
			c.fail(abortedRead{}, "%s is in a log, and was refused", a.value)
		}
	case a.acks == AcksNone:
		a.unknown = true // that is all that is said of it
	default:
		a.offset, a.acked = ans.Base, true
		if a.acks == AcksAll {
			c.stats.acks++
		}
	}
	if ans.Code != protocol.OK || a.acks == AcksNone || ans.LeaderEpoch < p.unclean || c.w.records.deleted[id.Topic] {
		return
	}
	for _, k := range c.answers {
		k.answer(c, p, a, ans)
	}
	if a.acks == AcksAll {
		c.w.trace("acked %s at %d in epoch %d", a.value, ans.Base, ans.LeaderEpoch)
		p.acked[ans.Base] = a.value
	}
}

// wasRead takes what a client read.
func (c *simCheck) wasRead(leader int32, id protocol.PartitionID, from int64, ans *protocol.ReadAnswer) {
	c.lookAt(leader, id)
	p := c.partition(id)
	if ans.Code != protocol.OK || ans.LeaderEpoch < p.unclean || c.w.records.deleted[id.Topic] {
		return
	}
	next := from
	for _, run := range ans.Batches {
		for rec, err := range record.All(run) {
			if err != nil {
				c.fail(foundBroken{}, "a reader got %v", err)
				return
			}
			if rec.Offset < from {
				continue
			}
			if rec.Offset != next {
				c.fail(inconsistentOffset{}, "%s: a reader that began at %d got offset %d where %d comes next", id, from, rec.Offset, next)
			}
			next++
			c.stats.reads++
			for _, k := range c.reads {
				k.read(c, p, &rec, ans)
			}
		}
	}
}

// sweep compares all disks once everybody is down: records, high watermarks and
// epoch histories of all copies are the same.
func (c *simCheck) sweep() {
	type copyOf struct {
		broker int32
		text   string
	}
	first := make(map[protocol.PartitionID]copyOf)
	for _, b := range c.w.all() {
		b.store.Sync(1 << 20)
		b.crash(0)
		store, err := b.disk.Open()
		c.w.must(err)
		logs, err := store.Logs()
		c.w.must(err)
		for id, s := range logs {
			if b.isDamaged(id) {
				continue // damaged once more, in a way that a recovery does not touch
			}
			if c.w.records.states[id] == nil {
				c.fail(finalSweep{}, "broker %d has a log of %s, which does not exist", b.id, id)
				continue
			}
			l := c.logs[b.id][id]
			text := fmt.Sprintf("[%d, %d) epochs %v %v", s.Start, s.End, s.Epochs, describeLog(l.entries))
			if was, ok := first[id]; ok && was.text != text {
				c.fail(finalSweep{}, "%s: broker %d has %s, broker %d has %s", id, was.broker, was.text, b.id, text)
			}
			first[id] = copyOf{b.id, text}
			if s.HW > s.End {
				c.fail(finalSweep{}, "%s: broker %d saved HW %d above its end %d", id, b.id, s.HW, s.End)
			}
		}
		b.disk.Crash(0)
	}
}

// allPartitions lists the partitions that exist, in order.
func (c *simCheck) allPartitions() []protocol.PartitionID {
	ids := make([]protocol.PartitionID, 0, len(c.w.records.states))
	for id := range c.w.records.states {
		if !c.w.records.deleted[id.Topic] {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b protocol.PartitionID) int {
		if a.Less(b) {
			return -1
		}
		return 1
	})
	return ids
}
