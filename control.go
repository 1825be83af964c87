package tidemark

import (
	"context"
	"encoding/json"
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
	links    map[int32]int64 // peers with a session, and their broker epochs
	shown    controllerView  // what the shards were last told

	meta     *metadata // nil: not the Controller
	claiming bool
	standAt  time.Duration // when to stand again after a campaign that led to nothing; 0: not
	claims   uint64        // counts claims and losses: results of earlier ones are void
}

func newControlLoop(b *Broker) *controlLoop {
	return &controlLoop{
		b: b, inbox: newMailbox[func(time.Duration)](), pool: newPool(b),
		lookups: newPool(b), looking: make(map[protocol.PartitionID]bool),
		member: newMember(), links: make(map[int32]int64),
	}
}

func (c *controlLoop) post(step func(now time.Duration)) { c.inbox.put(step) }

func (c *controlLoop) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	health := time.NewTicker(c.b.cfg.SessionTimeout / 4)
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
			if err := c.b.checkStore(); err != nil {
				c.b.becomeUnfit(err)
			}
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
				c.b.log.Warn("could not become controller", "error", err)
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
		_, err := store.Do(ctx, coordination.Txn{
			Guards: []coordination.Guard{{Key: controllerKey, Revision: stale.Revision}},
			Ops:    []coordination.Op{{Key: controllerKey, Delete: true}},
		})
		if err != nil {
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
	kvs, _, err := store.List(ctx, topicsPrefix)
	if err != nil {
		return nil, err
	}
	return newMetadata(c.b.cfg.ID, current.Epoch, now.Revision, kvs), nil
}

// take begins to act as the Controller (CE-7).
func (c *controlLoop) take(meta *metadata) {
	c.meta = meta
	c.b.log.Info("controller elected", "broker", c.b.cfg.ID, "controller_epoch", meta.epoch)
	for _, err := range meta.unreadable {
		c.b.log.Error("left alone what cannot be read", "error", err)
	}
	c.member.onController(c.b.cfg.ID, meta.epoch)
	meta.meet(c.b.now(), c.b.cfg.SessionTimeout/2, c.brokerViews())
	meta.onLink(c.b.cfg.ID, true)
	for _, peer := range slices.Sorted(maps.Keys(c.links)) {
		meta.onLink(peer, true)
	}
}

// resign stops acting as the Controller. What it led as a broker goes on (CE-11).
func (c *controlLoop) resign(why error) {
	c.b.log.Info("controller resigned", "broker", c.b.cfg.ID, "controller_epoch", c.meta.epoch, "reason", why)
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
	case c.links[peer] != epoch:
		return // the end of an earlier life's link, told late
	default:
		delete(c.links, peer)
	}
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
	c.b.view.apply(c.member, u, completed)
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

// showController tells the shards about the Controller when something changed.
func (c *controlLoop) showController() {
	id := c.member.controller
	_, linked := c.links[id]
	v := controllerView{
		epoch: c.member.controllerEpoch, storeOK: c.member.storeOK,
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
// state exists (D6).
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
		c.b.loops[c.b.loopOf(id)].inbox.put(loopEvent{step: func(now time.Duration, sh *shard) { sh.onState(now, id, &s) }})
	})
}
