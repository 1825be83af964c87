package tidemark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// registered is a broker's registration in force.
type registered struct {
	registration
	epoch int64
}

// registry is what the coordination store says of brokers and the Controller.
type registry struct {
	live       map[int32]registered
	last       map[int32]brokerView // lastLife and its revision only
	controller coordination.KV      // zero: there is none
	features   coordination.KV      // zero: not seen
	term       int32
}

// controlLoop is the broker's control plane in one goroutine: its view of the
// cluster and, when this broker was elected, the Controller. Everything else
// puts steps into its mailbox; what may block goes to the pool.
type controlLoop struct {
	b     *Broker
	inbox *mailbox[func(now time.Duration)]
	pool  *pool

	lookups *pool // apart, so that they do not delay the Controller
	looking map[protocol.PartitionID]bool

	member   *member
	registry registry
	live     map[int32]int64      // what the shards were last told of the registrations
	session  coordination.Session // nil: not registered
	epoch    int64
	links    map[int32]int64                // peers with a session, and their broker epochs
	shown    controllerView                 // what the shards were last told
	clearing map[protocol.UUID]map[int]bool // deleted topics, and the loops that have nothing of them

	meta     *metadata // nil: not the Controller
	claiming bool
	standAt  time.Duration // when to stand again after a campaign that led to nothing; 0: not
	tookAt   time.Duration // when meta became it
	aside    time.Duration // for how long this broker stood aside the last time that it was cut off
	asideTo  time.Duration // until when it does not stand
	claims   uint64        // counts claims and losses: results of earlier ones are void
}

func newControlLoop(b *Broker) *controlLoop {
	return &controlLoop{
		b: b, inbox: newMailbox[func(time.Duration)](), pool: newPool(b),
		lookups: newPool(b), looking: make(map[protocol.PartitionID]bool),
		member: newMember(), links: make(map[int32]int64), clearing: make(map[protocol.UUID]map[int]bool),
	}
}

func (c *controlLoop) post(step func(now time.Duration)) { c.inbox.put(step) }

func (c *controlLoop) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	health := time.NewTicker(c.b.cfg.lookEvery())
	defer health.Stop()
	var steps []func(time.Duration)
	for {
		timer.Stop()
		if at := c.next(); at != 0 {
			timer.Reset(max(at-c.b.now(), 0))
		}
		select {
		case <-c.b.stopping:
			return
		case <-timer.C:
		case <-c.inbox.ready:
		case <-health.C:
			c.b.checkStore()
		}
		steps = c.inbox.take(steps)
		now := c.b.now()
		for _, step := range steps {
			step(now)
		}
		c.finish(now)
	}
}

// next is when the loop wants a turn though nothing happens; 0: never.
func (c *controlLoop) next() time.Duration {
	if c.meta != nil {
		return c.meta.nextWake()
	}
	return c.standAt
}

// finish ends a turn: the Controller's effects, then what the shards should know.
func (c *controlLoop) finish(now time.Duration) {
	if meta := c.meta; meta != nil {
		eff := meta.finish(now)
		for _, w := range eff.writes {
			c.write(meta, w)
		}
		for _, r := range eff.rereads {
			c.reread(meta, r)
		}
		for _, peer := range slices.Sorted(maps.Keys(eff.out)) {
			c.b.send(peer, eff.out[peer])
		}
		for _, e := range eff.unclean {
			c.b.log.Warn("unclean election", "broker", c.b.cfg.ID, "topic", e.topic, "partition", e.partition,
				"leader", e.leader, "leader_epoch", e.leaderEpoch, "was", e.was)
		}
		if eff.resign != nil {
			c.resign(eff.resign)
		}
	}
	if c.standAt != 0 && c.standAt <= now {
		c.stand()
	}
	c.showController()
}

// call runs a call to the coordination store on the pool, with a time limit, and
// puts what follows from it back into this loop.
func (c *controlLoop) call(f func(ctx context.Context) func(now time.Duration)) {
	c.pool.submit(func() {
		ctx, cancel := context.WithTimeout(c.b.ctx, c.b.cfg.SessionTimeout)
		defer cancel()
		if then := f(ctx); then != nil {
			c.post(then)
		}
	})
}

func (c *controlLoop) write(meta *metadata, w metaTxn) {
	c.call(func(ctx context.Context) func(time.Duration) {
		res, err := c.b.cfg.Coordination.Do(ctx, w.txn)
		return func(now time.Duration) {
			if c.meta == meta {
				meta.onWritten(now, w.token, res, err)
			}
		}
	})
}

func (c *controlLoop) reread(meta *metadata, r metaReread) {
	c.call(func(ctx context.Context) func(time.Duration) {
		kvs := make(map[string]coordination.KV, len(r.keys))
		var err error
		for _, key := range r.keys {
			kv, ok, getErr := c.b.cfg.Coordination.Get(ctx, key)
			if getErr != nil {
				err = getErr
				break
			}
			if ok {
				kvs[key] = kv
			}
		}
		if r.prefix != "" && err == nil {
			var listed []coordination.KV
			listed, _, err = c.b.cfg.Coordination.List(ctx, r.prefix)
			for _, kv := range listed {
				kvs[kv.Key] = kv
			}
		}
		return func(now time.Duration) {
			if c.meta == meta {
				meta.onReread(now, r.token, kvs, err)
			}
		}
	})
}

// onRegistered begins a life under a new broker epoch. Every role held before ends (D11).
func (c *controlLoop) onRegistered(s coordination.Session, epoch int64) {
	c.session, c.epoch = s, epoch
	c.b.eachLoop(loopEvent{step: func(now time.Duration, s *shard) { s.onBrokerEpoch(now, epoch) }})
}

// onSessionLost stops acting as Controller at once (CE-8). Data flows on: what
// this broker leads is fenced by epochs, not by the session (CE-11).
func (c *controlLoop) onSessionLost() {
	c.session = nil
	c.claims++
	c.claiming = false
	if c.meta != nil {
		c.resign(coordination.ErrSessionExpired)
	}
}

// onRegistry takes what the coordination store says now.
func (c *controlLoop) onRegistry(r registry) {
	c.registry = r
	live := make(map[int32]int64, len(r.live))
	for id, reg := range r.live {
		live[id] = reg.epoch
	}
	c.b.links.rebuild(c.epoch, r.live)
	c.b.others.Store(int32(len(live)) - 1)
	if !maps.Equal(live, c.live) {
		c.live = live
		c.b.eachLoop(loopEvent{step: func(now time.Duration, s *shard) { s.onBrokers(now, live) }})
	}
	holder := int32(-1)
	if claim, ok := c.claim(); ok {
		holder = claim.Broker
	}
	c.member.onController(holder, r.term)
	c.showLevels()
	if c.meta != nil {
		if r.term > c.meta.epoch {
			c.resign(errControllerMoved)
		} else {
			c.meta.onRegistry(c.brokerViews())
		}
	}
	c.stand()
}

// claim is the Controller's key, if someone holds it. One that cannot be read is
// held by somebody unknown, not by nobody (D3).
func (c *controlLoop) claim() (controllerClaim, bool) {
	claim := controllerClaim{Broker: -1}
	if c.registry.controller.Key == "" {
		return claim, false
	}
	if json.Unmarshal(c.registry.controller.Value, &claim) != nil {
		return controllerClaim{Broker: -1}, true
	}
	return claim, true
}

func (c *controlLoop) brokerViews() map[int32]brokerView {
	views := make(map[int32]brokerView, len(c.registry.last))
	for id, v := range c.registry.last {
		views[id] = v
	}
	for id, r := range c.registry.live {
		v := views[id]
		// Both keys are written at once and come by watches of their own. Until the
		// second one is here, whether the directory was replaced is not known.
		if v.lastRevision >= r.epoch {
			v.epoch = r.epoch
		}
		views[id] = v
	}
	return views
}

// stand races for the Controller's key when nobody else holds it (M12, CE-1).
func (c *controlLoop) stand() {
	c.standAt = 0
	if c.session == nil || c.meta != nil || c.claiming || c.b.unfitReason() != nil {
		return
	}
	if now := c.b.now(); now < c.asideTo {
		c.standAt = c.asideTo
		c.release()
		return
	}
	// A claim of this broker without its being the Controller is stale: of an earlier
	// life, or of a campaign whose end it did not learn.
	if claim, held := c.claim(); held && claim.Broker != c.b.cfg.ID {
		return
	}
	c.claiming = true
	c.claims++
	round, session, epoch, stale := c.claims, c.session, c.epoch, c.registry.controller
	c.pool.submit(func() {
		meta, err := c.campaign(session, epoch, stale)
		c.post(func(time.Duration) {
			if round != c.claims {
				return
			}
			c.claiming = false
			if err != nil {
				c.b.warn("could not become controller", "error", err)
			}
			if meta != nil && c.b.unfitReason() == nil {
				c.take(meta)
				return
			}
			c.standAt = c.b.now() + c.b.cfg.SessionTimeout/10
		})
	})
}

// campaign makes one attempt, and loads the cluster's state when it won. nil
// without an error means that another broker won.
func (c *controlLoop) campaign(session coordination.Session, epoch int64, stale coordination.KV) (*metadata, error) {
	store := c.b.cfg.Coordination
	ctx, cancel := context.WithTimeout(c.b.ctx, c.b.cfg.SessionTimeout)
	defer cancel()
	if stale.Key != "" { // this broker's own, of an earlier life or campaign (D15)
		if _, err := store.Do(ctx, withoutKey(stale)); err != nil {
			return nil, err
		}
	}
	kv, _, err := store.Get(ctx, controllerEpochKey)
	if err != nil {
		return nil, err
	}
	var term controllerTerm
	if kv.Key != "" {
		if err := json.Unmarshal(kv.Value, &term); err != nil {
			return nil, fmt.Errorf("tidemark: key %s: %w", controllerEpochKey, err)
		}
	}
	term.Epoch++
	claim := marshal(controllerClaim{Broker: c.b.cfg.ID, BrokerEpoch: epoch})
	_, err = store.Do(ctx, coordination.Txn{
		Guards: []coordination.Guard{{Key: controllerKey}, {Key: controllerEpochKey, Revision: kv.Revision}},
		Ops: []coordination.Op{
			{Key: controllerKey, Value: claim, Session: session.ID()},
			{Key: controllerEpochKey, Value: marshal(term)},
		},
	})
	// Whatever the answer was, what the store has now is the truth (CE-2).
	held, ok, getErr := store.Get(ctx, controllerKey)
	if getErr != nil {
		return nil, firstError(err, getErr)
	}
	now, _, getErr := store.Get(ctx, controllerEpochKey)
	if getErr != nil {
		return nil, firstError(err, getErr)
	}
	var current controllerTerm
	if !ok || string(held.Value) != string(claim) || json.Unmarshal(now.Value, &current) != nil || held.Revision != now.Revision {
		return nil, err
	}
	var kvs []coordination.KV
	for _, prefix := range metadataPrefixes {
		some, _, err := store.List(ctx, prefix)
		if err != nil {
			return nil, err
		}
		kvs = append(kvs, some...)
	}
	return newMetadata(c.b.cfg.ID, current.Epoch, now.Revision, kvs), nil
}

// take begins to act as the Controller (CE-7).
func (c *controlLoop) take(meta *metadata) {
	c.meta = meta
	meta.planted = c.b.planted
	c.b.log.Info("controller elected", "broker", c.b.cfg.ID, "controller_epoch", meta.epoch)
	c.b.observer.controller(ControllerEvent{Acting: true, ControllerEpoch: meta.epoch})
	for _, err := range meta.unreadable {
		c.b.log.Error("left alone what cannot be read", "broker", c.b.cfg.ID, "error", err)
	}
	c.member.onController(c.b.cfg.ID, meta.epoch)
	c.tookAt = c.b.now()
	meta.meet(c.tookAt, c.b.cfg.SessionTimeout, c.brokerViews())
	meta.onLink(c.b.cfg.ID, true)
	for _, peer := range slices.Sorted(maps.Keys(c.links)) {
		meta.onLink(peer, true)
	}
}

// resign stops acting as the Controller. What it led as a broker goes on (CE-11).
func (c *controlLoop) resign(why error) {
	c.b.log.Info("controller resigned", "broker", c.b.cfg.ID, "controller_epoch", c.meta.epoch, "reason", why)
	c.b.observer.controller(ControllerEvent{ControllerEpoch: c.meta.epoch, Err: why})
	if errors.Is(why, errCutOff) {
		now := c.b.now()
		c.aside = standAside(c.aside, now-c.tookAt, c.b.cfg.SessionTimeout)
		c.asideTo, c.standAt = now+c.aside, now
	}
	out := c.meta.abdicate()
	c.meta = nil
	c.claims++
	c.claiming = false
	for _, peer := range slices.Sorted(maps.Keys(out)) {
		c.b.send(peer, out[peer])
	}
}

// onLink handles the begin or end of a session with another broker.
func (c *controlLoop) onLink(peer int32, epoch int64, up bool) {
	switch {
	case up:
		c.links[peer] = epoch
		c.b.log.Info("link is up", "broker", c.b.cfg.ID, "peer", peer)
	case c.links[peer] != epoch:
		return // the end of an earlier life's link, told late
	default:
		delete(c.links, peer)
		c.b.log.Warn("link is down", "broker", c.b.cfg.ID, "peer", peer)
	}
	c.b.observer.link(LinkEvent{Broker: peer, Up: up})
	if c.meta != nil {
		c.meta.onLink(peer, up)
	}
}

// onPayload takes the control items of a payload.
func (c *controlLoop) onPayload(from int32, fromEpoch int64, p *protocol.Payload) {
	for i := range p.Updates {
		c.onUpdate(from, &p.Updates[i])
	}
	if c.meta == nil {
		c.refuse(from, p)
		return
	}
	for _, a := range p.UpdateAcks {
		c.meta.onUpdateAck(from, a)
	}
	for _, r := range p.OrderReplies {
		c.meta.onReply(from, fromEpoch, r)
	}
	for _, r := range p.Removals {
		c.meta.onRemoval(from, fromEpoch, r)
	}
	for _, prop := range p.Proposals {
		c.meta.onProposal(from, fromEpoch, prop)
	}
	for _, cmd := range p.Commands {
		c.meta.onCommand(from, fromEpoch, cmd)
	}
}

// refuse answers what only the Controller can do.
func (c *controlLoop) refuse(from int32, p *protocol.Payload) {
	var out protocol.Payload
	for _, prop := range p.Proposals {
		out.Verdicts = append(out.Verdicts, protocol.Verdict{
			ID: prop.ID, ControllerEpoch: c.member.controllerEpoch, LeaderEpoch: prop.LeaderEpoch,
			PartitionEpoch: prop.PartitionEpoch, Attempt: prop.Attempt, Code: protocol.NotController,
		})
	}
	for _, cmd := range p.Commands {
		out.CommandAnswers = append(out.CommandAnswers, protocol.CommandAnswer{Request: cmd.Request, Code: protocol.NotController})
	}
	if !out.Empty() {
		c.b.send(from, &out)
	}
}

// onUpdate takes a part of the cluster image, or a change of it.
func (c *controlLoop) onUpdate(from int32, u *protocol.Update) {
	ack, taken, completed := c.member.onUpdate(from, u)
	c.b.send(from, &protocol.Payload{UpdateAcks: []protocol.UpdateAck{ack}})
	if !taken {
		return
	}
	c.showController() // first: what follows is answered to it
	c.b.view.apply(c.member, u, completed)
	if completed {
		topics := make(map[protocol.UUID]bool, len(c.member.topics))
		for id := range c.member.topics {
			topics[id] = true
		}
		c.b.eachLoop(loopEvent{step: func(_ time.Duration, s *shard) { s.onImage(topics) }})
	}
	for _, id := range u.Deleted {
		c.clearing[id] = make(map[int]bool)
	}
	if len(u.Topics)+len(u.Deleted) > 0 {
		c.b.eachLoop(loopEvent{step: func(_ time.Duration, s *shard) {
			for _, t := range u.Topics {
				s.onTopic(t)
			}
			for _, id := range u.Deleted {
				s.onDeleted(id)
			}
		}})
	}
	perLoop := make([][]protocol.PartitionUpdate, len(c.b.loops))
	for _, s := range u.States {
		i := c.b.loopOf(s.ID)
		perLoop[i] = append(perLoop[i], s)
	}
	for i, states := range perLoop {
		if len(states) == 0 {
			continue
		}
		c.b.loops[i].inbox.put(loopEvent{step: func(now time.Duration, s *shard) {
			for j := range states {
				s.onState(now, states[j].ID, &states[j].State)
			}
		}})
	}
}

// onCleared notes that a loop has nothing of a deleted topic any more. When none
// has, the Controller is told, which asks again with every whole image (D21).
func (c *controlLoop) onCleared(loop int, topic protocol.UUID) {
	cleared := c.clearing[topic]
	if cleared == nil {
		return
	}
	cleared[loop] = true
	if len(cleared) < len(c.b.loops) {
		return
	}
	delete(c.clearing, topic)
	if id := c.member.controller; id >= 0 {
		c.b.send(id, &protocol.Payload{Removals: []protocol.Removal{{Topic: topic}}})
	}
}

// showLevels tells clients about the feature levels. A broker that does not
// support the one in force must not go on (B12).
func (c *controlLoop) showLevels() {
	kv := c.registry.features
	if kv.Key == "" {
		return
	}
	f, err := readFeatures(kv)
	v := levelView{known: true, err: err, inForce: f.Level, supported: c.b.levels}
	for _, r := range c.registry.live {
		v.supported.min = max(v.supported.min, r.MinLevel)
		v.supported.max = min(v.supported.max, r.MaxLevel)
	}
	c.b.view.setLevels(v)
	if err == nil && !c.b.levels.include(f.Level) {
		c.b.becomeUnfit(unsupportedLevel(f.Level, c.b.levels))
	}
}

// showController tells the shards about the Controller when something changed.
func (c *controlLoop) showController() {
	id := c.member.controller
	_, linked := c.links[id]
	v := controllerView{
		id: id, epoch: c.member.controllerEpoch, storeOK: c.member.storeOK,
		reachable: id >= 0 && (linked || id == c.b.cfg.ID),
	}
	c.b.controller.Store(id)
	c.b.controllerTerm.Store(v.epoch)
	if v != c.shown {
		c.shown = v
		c.b.eachLoop(loopEvent{step: func(now time.Duration, s *shard) { s.onController(now, v) }})
	}
}

// lookup reads a partition's own state key, because a message showed that newer
// state exists (D6). The key has the topic's name: it counts only if the topic of
// that name is the same one afterwards.
func (c *controlLoop) lookup(id protocol.PartitionID) {
	name, ok := c.b.view.topicName(id.Topic)
	if !ok || c.looking[id] {
		return
	}
	c.looking[id] = true
	c.lookups.submit(func() {
		ctx, cancel := context.WithTimeout(c.b.ctx, c.b.cfg.SessionTimeout)
		defer cancel()
		kv, ok, err := c.b.cfg.Coordination.Get(ctx, partitionKey(name, id.Partition))
		c.post(func(time.Duration) { delete(c.looking, id) })
		var s protocol.PartitionState
		if err != nil || !ok || json.Unmarshal(kv.Value, &s) != nil || s.Valid() != nil {
			return
		}
		var rec topicRecord
		if kv, _, err := c.b.cfg.Coordination.Get(ctx, topicKey(name)); err != nil || readTopic(kv, &rec) != nil || rec.ID != id.Topic {
			return
		}
		c.b.loops[c.b.loopOf(id)].inbox.put(loopEvent{step: func(now time.Duration, sh *shard) { sh.onState(now, id, &s) }})
	})
}
