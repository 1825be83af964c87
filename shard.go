package tidemark

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// shard is the part of a broker's replicas that one event loop owns. It routes
// what happens to the replica concerned and gathers what they want done, so that
// a turn ends in one store write and one payload per broker.
type shard struct {
	env      env
	replicas map[protocol.PartitionID]*replicaState
	topics   map[protocol.UUID]protocol.Topic
	ofTopic  map[protocol.UUID]map[int32]*replicaState // the replicas of each, by partition
	sorted   []*replicaState                           // of ordered; stale when it is shorter than replicas, emptied when one goes
	touched  []*replicaState
	wakes    wakeQueue
	starved  map[int32][]*replicaState // parked fetches that wait for link credit
	cache    cacheQueue

	strangers int // replicas that only messages have named so far
	tombs     tombs

	lagging   []*replicaState // led partitions with a member that misses something
	lagPassAt time.Duration   // when the next look at them is due; 0: not needed
	lagLate   bool            // the last pass was given up because this loop was late
	storeAge  time.Duration   // age of the store's oldest incomplete group
	storeFull bool            // too much waits for the store
	throttled []*replicaState // followers that would fetch if it were less
}

func newShard(cfg coreConfig, self int32) *shard {
	s := &shard{
		replicas: make(map[protocol.PartitionID]*replicaState),
		topics:   make(map[protocol.UUID]protocol.Topic),
		ofTopic:  make(map[protocol.UUID]map[int32]*replicaState),
		starved:  make(map[int32][]*replicaState),
	}
	s.env = env{
		cfg: cfg, self: self, shard: s,
		brokers: make(map[int32]int64), links: make(map[int32]*linkView),
	}
	return s
}

// load adds a replica as the store showed it at the open.
func (s *shard) load(id protocol.PartitionID, state storage.State) {
	s.add(id, state)
}

func (s *shard) add(id protocol.PartitionID, state storage.State) *replicaState {
	r := newReplica(&s.env, id, state)
	r.topic = s.topics[id.Topic].Config
	s.replicas[id] = r
	if s.ofTopic[id.Topic] == nil {
		s.ofTopic[id.Topic] = make(map[int32]*replicaState)
	}
	s.ofTopic[id.Topic][id.Partition] = r
	return r
}

// maxStrangers bounds the replicas that a shard makes for partitions which it
// knows from messages only.
const maxStrangers = 1 << 14

// stranger returns the replica of a partition that a message names. A client or a
// follower may have heard of it before this broker did: the empty replica made
// for it refuses appends and holds fetches until the Controller tells. nil: there
// are too many of those, or the topic was deleted.
func (s *shard) stranger(id protocol.PartitionID) *replicaState {
	r := s.replicas[id]
	if r == nil && s.strangers < maxStrangers && !s.tombs.hold(id.Topic) {
		r = s.add(id, storage.State{Led: noEpoch})
		r.stranger = true
		s.strangers++
	}
	return r
}

// onState takes up a partition state.
func (s *shard) onState(now time.Duration, id protocol.PartitionID, state *protocol.PartitionState) {
	r := s.replicas[id]
	switch {
	case s.tombs.hold(id.Topic), r == nil && !state.Assigned(s.env.self):
		return
	case r == nil:
		r = s.add(id, storage.State{Led: noEpoch})
	case r.stranger:
		r.stranger = false
		s.strangers--
	}
	r.setState(now, state)
}

// onPayload handles what another broker, or this one, sent.
func (s *shard) onPayload(now time.Duration, from int32, fromEpoch int64, p *protocol.Payload) {
	for i := range p.Appends {
		a := &p.Appends[i]
		if r := s.stranger(a.ID); r != nil {
			r.onAppend(now, from, a)
			continue
		}
		out := s.env.eff.to(from)
		out.AppendAnswers = append(out.AppendAnswers, protocol.AppendAnswer{
			Request: a.Request, Code: protocol.UnknownPartition, Outcome: protocol.NotAppended, Base: -1, Last: -1,
		})
	}
	for i := range p.Reads {
		q := &p.Reads[i]
		if r := s.replicas[q.ID]; r != nil {
			r.onRead(now, from, q)
		} else {
			out := s.env.eff.to(from)
			out.ReadAnswers = append(out.ReadAnswers, protocol.ReadAnswer{Request: q.Request, Code: protocol.UnknownPartition})
		}
	}
	for i := range p.Fetches {
		if r := s.stranger(p.Fetches[i].ID); r != nil {
			r.onFetch(now, from, fromEpoch, &p.Fetches[i])
		}
	}
	for i := range p.FetchAnswers {
		if r := s.replicas[p.FetchAnswers[i].ID]; r != nil {
			r.onFetchAnswer(now, from, fromEpoch, &p.FetchAnswers[i])
		}
	}
	for i := range p.Reports {
		if r := s.replicas[p.Reports[i].ID]; r != nil {
			r.onReportFrom(from, fromEpoch, &p.Reports[i])
		}
	}
	for i := range p.Watermarks {
		if r := s.replicas[p.Watermarks[i].ID]; r != nil {
			r.onWatermark(from, fromEpoch, &p.Watermarks[i])
		}
	}
	for i := range p.Verdicts {
		if r := s.replicas[p.Verdicts[i].ID]; r != nil {
			r.verdict(now, &p.Verdicts[i])
		}
	}
}

// onStored handles the completion of n ops of a log; err is why the store
// refused them, which poisons that log alone (D7).
func (s *shard) onStored(id protocol.PartitionID, n int, err error) {
	r := s.replicas[id]
	if r == nil {
		return
	}
	if err != nil {
		r.opsRefused(n, err)
		return
	}
	r.opsStored(n)
}

// readDone handles the result of a cold read.
func (s *shard) readDone(c coldRead, run []byte, err error) {
	r := s.replicas[c.id]
	if r == nil || r.role != roleLeader {
		return
	}
	if c.fetch {
		r.fetchRead(c, run, err)
	} else {
		r.clientRead(c, run, err)
	}
}

// onLink handles the begin or end of a link's session.
func (s *shard) onLink(peer int32, epoch int64, up bool) {
	if l := s.env.links[peer]; l != nil && !up && l.epoch != epoch {
		return // the end of an earlier life's link, told late
	}
	s.env.links[peer] = &linkView{up: up, epoch: epoch, credit: firstWindow}
	delete(s.env.eff.out, peer) // of this turn so far: for the session before
	if !up {
		s.feedStarved(peer)
	}
	for _, r := range s.ordered() {
		if !up {
			r.linkDown(peer)
		} else if r.role == roleFollower && r.state.Leader == peer {
			r.resetFetching()
			r.touch()
		}
	}
}

// peerLife is the broker epoch of the life that this shard speaks to: what it has for a
// broker must not reach that broker's next life, whose requests may have the same
// numbers, before the shard has heard of that life (D14). 0: it has heard of none.
func (s *shard) peerLife(peer int32) int64 {
	if l := s.env.links[peer]; l != nil {
		return l.epoch
	}
	return 0
}

// onCredit tells how much bulk a link takes in this turn.
func (s *shard) onCredit(peer int32, credit int) {
	l := s.env.links[peer]
	if l == nil {
		return
	}
	l.credit = credit
	if credit > 0 && len(s.starved[peer]) > 0 {
		s.feedStarved(peer)
	}
}

// onStoreLoad tells how the store keeps up: the age of its oldest incomplete
// group, and whether so much waits for it that nothing may be added.
func (s *shard) onStoreLoad(age time.Duration, full bool) {
	s.storeAge, s.storeFull = age, full
	if full {
		return
	}
	for _, r := range s.throttled {
		r.throttled = false
		r.touch()
	}
	clear(s.throttled)
	s.throttled = s.throttled[:0]
}

// throttlePause is how often a shard looks whether the store has caught up.
const throttlePause = 10 * time.Millisecond

// onBrokers installs the registrations in force: broker id to broker epoch.
func (s *shard) onBrokers(now time.Duration, brokers map[int32]int64) {
	s.env.brokers = brokers
	for _, r := range s.ordered() {
		if r.role == roleLeader {
			r.forgetEarlierLives(now)
			r.touch() // an eligible candidate may have appeared or gone
		}
	}
}

// onController installs what is known of the Controller. Pending proposals go
// to a new one at once (D17).
func (s *shard) onController(now time.Duration, c controllerView) {
	s.env.controller = c
	for _, r := range s.ordered() {
		if r.role == roleLeader {
			r.resend(now)
			r.touch()
		}
	}
}

// onBrokerEpoch begins another life of this broker under a new registration.
func (s *shard) onBrokerEpoch(now time.Duration, epoch int64) {
	s.env.brokerEpoch = epoch
	for _, r := range s.ordered() {
		r.newBrokerEpoch(now)
	}
}

// onUnfit ends every role for good (D16).
func (s *shard) onUnfit() {
	s.env.unfit = true
	for _, r := range s.ordered() {
		r.endRole(protocol.Unfit)
	}
}

// onStop refuses appends from now on. It returns how many partitions this shard leads,
// and how many appends it took that are not answered.
func (s *shard) onStop() (led, waiting int) {
	s.env.stopping = true
	for _, r := range s.replicas {
		waiting += len(r.onStored) + len(r.onCommit)
		if r.role == roleLeader {
			led++
		}
	}
	return led, waiting
}

// ordered returns the replicas in a fixed order, so that the same events give
// the same effects.
func (s *shard) ordered() []*replicaState {
	if len(s.sorted) == len(s.replicas) {
		return s.sorted
	}
	s.sorted = make([]*replicaState, 0, len(s.replicas))
	for _, r := range s.replicas {
		s.sorted = append(s.sorted, r)
	}
	slices.SortFunc(s.sorted, func(a, b *replicaState) int {
		if a.id.Less(b.id) {
			return -1
		}
		return 1
	})
	return s.sorted
}

// next is when the shard wants a turn though nothing happens; 0: never.
func (s *shard) next(now time.Duration) time.Duration {
	at := s.lagPassAt
	if len(s.throttled) > 0 && (at == 0 || now+throttlePause < at) {
		at = now + throttlePause
	}
	if len(s.wakes) > 0 && (at == 0 || s.wakes[0].at < at) {
		at = s.wakes[0].at
	}
	return at
}

// finish ends a turn: whatever is due, then every replica that something
// happened to. The caller takes the effects and carries them out.
func (s *shard) finish(now time.Duration) effects {
	for len(s.wakes) > 0 && s.wakes[0].at <= now {
		w := heap.Pop(&s.wakes).(wake)
		if w.r.wake == w.at {
			w.r.wake = 0
			w.r.onWake(now)
		}
	}
	if s.lagPassAt != 0 && s.lagPassAt <= now {
		s.lagPass(now)
	}
	// finish may touch a replica again only through a wake, which is a later turn.
	for i := 0; i < len(s.touched); i++ {
		s.touched[i].finish(now)
	}
	s.touched = s.touched[:0]
	s.trimCache()
	eff := s.env.eff
	s.env.eff = effects{}
	return eff
}

// wake is one entry of the wake queue; an entry is void when the replica has
// asked for another time since.
type wake struct {
	at time.Duration
	r  *replicaState
}

type wakeQueue []wake

func (q wakeQueue) Len() int { return len(q) }
func (q wakeQueue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].r.id.Less(q[j].r.id)
}
func (q wakeQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *wakeQueue) Push(x any)   { *q = append(*q, x.(wake)) }
func (q *wakeQueue) Pop() any {
	old := *q
	w := old[len(old)-1]
	*q = old[:len(old)-1]
	return w
}

func (s *shard) schedule(r *replicaState, at time.Duration) {
	if r.wake != 0 && r.wake <= at {
		return
	}
	r.wake = at
	heap.Push(&s.wakes, wake{at, r})
}

// watchLag has the members' lag of a led partition looked at from time to time.
func (s *shard) watchLag(now time.Duration, r *replicaState) {
	if r.queued {
		return
	}
	r.queued = true
	s.lagging = append(s.lagging, r)
	if s.lagPassAt == 0 {
		s.lagPassAt = now + s.env.cfg.MaxLag/4
	}
}

// lagPass looks at the lag of all members. When this loop or its store was late
// itself, the marks move instead, so that a slow leader does not blame its
// followers; but never twice running (D10).
func (s *shard) lagPass(now time.Duration) {
	late := max(now-s.lagPassAt, s.storeAge)
	s.lagLate = late > s.env.cfg.MaxLag/4 && !s.lagLate
	kept := s.lagging[:0]
	for _, r := range s.lagging {
		switch {
		case r.role != roleLeader || !r.lagging():
			r.queued = false
			continue
		case s.lagLate:
			// A hang that lasts counts once: only what passed since the last look.
			by := min(late, now-s.lagPassAt+s.env.cfg.MaxLag/4)
			r.marks.shift(by, now)
			r.leadSince = min(r.leadSince+by, now)
		default:
			r.maybeShrink(now)
		}
		kept = append(kept, r)
	}
	clear(s.lagging[len(kept):])
	s.lagging = kept
	s.lagPassAt = 0
	if len(s.lagging) > 0 {
		s.lagPassAt = now + s.env.cfg.MaxLag/4
	}
}

// starve has a replica served again once the link to peer takes more bulk.
func (s *shard) starve(peer int32, r *replicaState) {
	if !slices.Contains(r.starving, peer) {
		r.starving = append(r.starving, peer)
		s.starved[peer] = append(s.starved[peer], r)
	}
}

// feedStarved has what waits for a link looked at again.
func (s *shard) feedStarved(peer int32) {
	for _, r := range s.starved[peer] {
		r.starving = slices.DeleteFunc(r.starving, func(p int32) bool { return p == peer })
		r.touch()
	}
	delete(s.starved, peer)
}

// cacheQueue remembers in which order batches came into memory, over all
// replicas of the shard, so that the oldest leave first.
type cacheQueue struct {
	order   []*replicaState
	head    int
	bytes   int64
	sieveAt int // how long order may become before those that have nothing in memory are taken out
}

func (s *shard) cached(r *replicaState, size int64) {
	s.cache.order = append(s.cache.order, r)
	s.cache.bytes += size
}

func (s *shard) uncached(size int64) { s.cache.bytes -= size }

// trimCache drops the oldest batches in memory that are stored, until the rest fits.
func (s *shard) trimCache() {
	q := &s.cache
	for q.head < len(q.order) {
		if r := q.order[q.head]; len(r.tail.live()) > 0 {
			if q.bytes <= s.env.cfg.CacheBytes {
				break
			}
			size, ok := r.tail.evict(r.stored)
			if !ok {
				break // not stored yet: it will be, and then leave
			}
			q.bytes -= size
		}
		q.order[q.head] = nil
		q.head++
	}
	if n := len(q.order) - q.head; n > max(q.sieveAt, 4096) {
		q.order = slices.DeleteFunc(q.order[q.head:], func(r *replicaState) bool { return len(r.tail.live()) == 0 })
		q.head, q.sieveAt = 0, 2*len(q.order)
	}
	if q.head > 1024 && q.head*2 > len(q.order) {
		q.order = append(q.order[:0:0], q.order[q.head:]...)
		q.head = 0
	}
}
