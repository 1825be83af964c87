package tidemark

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// simBroker is one broker and what it stands on.
type simBroker struct {
	w       *simWorld
	id      int32
	disk    *memstore.Disk
	store   *memstore.Store
	client  *simCoord
	session coordination.Session // nil: not registered, as far as the broker knows
	broker  *Broker              // nil: down
	reg     *registrar
	paused  bool
	healed  bool   // started when faults had ended
	hung    bool   // its disk does not answer
	severed bool   // it cannot reach the coordination store
	behind  string // which of its loops does not get to run: "loop", "control"; "": none

	directory protocol.UUID
	damaged   map[protocol.PartitionID]bool  // logs that the next open found damaged, until they are filled anew; true: the broker knows
	durable   map[protocol.PartitionID]int64 // where each log ends in what its store has completed
	flipped   map[protocol.PartitionID]int64 // offsets of records with a flipped bit
	faults    map[protocol.PartitionID]int   // times that this process found a log damaged
	seen      map[string]coordination.KV     // what its watches have told
	seenAt    [len(simWatches)]int64         // and as of which change of the records
	calls     []*simCall                     // to the coordination store, not at their end
	calling   *simCall                       // the one that runs
	cold      []func()                       // reads of the store, waiting
	refusal   string                         // why it could not register
	later     []func()                       // what its clients do next
}

// simWatches are what a broker watches, each on its own.
var simWatches = [...]string{brokerIDsPrefix, brokerLastPrefix, controllerKey, featuresKey}

func newSimBroker(w *simWorld, id int32) *simBroker {
	b := &simBroker{w: w, id: id, damaged: make(map[protocol.PartitionID]bool), flipped: make(map[protocol.PartitionID]int64), directory: w.uuid()}
	b.disk = w.memDisk(b.directory)
	return b
}

func (b *simBroker) config() Config {
	cfg := Config{
		ID: b.id, Store: simStore{b.store, b}, Coordination: b.client, Transport: simTransport{b.w}, Loops: 1,
		SessionTimeout: simSession, MaxLag: 2 * simSession, ProposalTimeout: simSession / 2, MemoryBudget: 1 << 20,
	}
	b.w.adjust(&cfg)
	return cfg.withDefaults()
}

// start opens the broker on what its disk has, and registers it.
func (b *simBroker) start() {
	store, err := b.disk.Open()
	b.w.must(err)
	b.store, b.client, b.directory = store, &simCoord{Client: b.w.coord.Connect(), b: b}, store.Node().Directory
	b.broker = newBroker(b.config())
	b.broker.clock = func() time.Duration { return b.w.now }
	b.broker.random = func(p []byte) {
		for i := range p {
			p[i] = byte(b.w.ids.Uint32())
		}
	}
	b.broker.plant(b.w.planted)
	b.w.must(b.broker.loadLogs())
	b.reg = newRegistrar(b.broker)
	logs, err := store.Logs()
	b.w.must(err)
	b.durable = make(map[protocol.PartitionID]int64)
	for id, state := range logs {
		b.durable[id] = state.End
	}
	b.healed = b.w.healing
	b.faults = make(map[protocol.PartitionID]int)
	b.seen, b.seenAt = make(map[string]coordination.KV), [len(simWatches)]int64{}
	b.w.check.opened(b)
	b.register()
}

// register makes one attempt, as the registrar's goroutine does.
func (b *simBroker) register() {
	s, epoch, err := b.reg.register()
	b.w.records.follow()
	if err != nil {
		if why := err.Error(); why != b.refusal {
			b.w.trace("broker %d could not register: %v", b.id, err)
			b.refusal = why
		}
		if fatal := errors.Is(err, ErrWrongCluster) || errors.Is(err, ErrCoordinationBehind) || errors.Is(err, ErrStorage); fatal {
			b.broker.becomeUnfit(err)
		}
		return
	}
	b.w.trace("broker %d registered, epoch %d", b.id, epoch)
	b.session, b.refusal = s, ""
	b.broker.epoch.Store(epoch)
	b.broker.attached.Store(true)
	b.broker.control.onRegistered(s, epoch)
	b.seenAt = [len(simWatches)]int64{}
	b.notice()
}

// canRenew reports whether the broker renews its session: it lives, reaches the
// coordination store, and its own store makes progress (D16).
func (b *simBroker) canRenew() bool {
	return !b.paused && b.reaches() && b.broker.unfitReason() == nil
}

func (b *simBroker) reaches() bool { return !b.severed && !b.w.outage }

// keepRegistered does what the registrar does over time: it learns that a session
// has ended, and begins another one.
func (b *simBroker) keepRegistered() {
	if b.paused || !b.reaches() {
		return
	}
	unfit := b.broker.unfitReason() != nil
	if b.session != nil {
		switch _, alive := b.w.sessions[b.session.ID()]; {
		case unfit && alive:
			_ = b.session.Close(b.w.ctx)
			b.w.records.follow()
		case alive:
			return
		}
		b.sessionOver()
	}
	if !unfit {
		b.register()
	}
}

// sessionOver tells the broker that its session has ended.
func (b *simBroker) sessionOver() {
	b.session = nil
	b.broker.attached.Store(false)
	b.broker.control.onSessionLost()
	b.run()
}

// loseSession ends the broker's session, and tells it.
func (b *simBroker) loseSession() {
	if b.session == nil {
		return
	}
	b.w.expire(b.session.ID())
	if b.broker != nil {
		b.sessionOver()
	}
}

// notice shows the broker what the coordination store says now, as its watches do.
func (b *simBroker) notice() {
	for i := range simWatches {
		b.look(i)
	}
	b.run()
}

// look lets one of the broker's watches tell what has changed.
func (b *simBroker) look(i int) {
	at := b.w.records.touched[i] + 1
	if b.broker == nil || b.paused || b.session == nil || b.seenAt[i] == at {
		return
	}
	kvs, _, err := b.client.List(b.broker.ctx, simWatches[i])
	if err != nil {
		return
	}
	b.seenAt[i] = at
	for key := range b.seen {
		if strings.HasPrefix(key, simWatches[i]) {
			delete(b.seen, key)
		}
	}
	for _, kv := range kvs {
		b.seen[kv.Key] = kv
	}
	reg, err := parseRegistry(b.seen)
	b.w.must(err)
	b.broker.control.post(func(time.Duration) { b.broker.control.onRegistry(reg) })
	b.run()
}

// simTurns is more than a broker has to do at one instant.
const simTurns = 10_000

// run lets the broker's loops do everything that is waiting for them, short of
// calls that may block.
func (b *simBroker) run() {
	if b.broker == nil || b.paused {
		return
	}
	for len(b.later) > 0 {
		next := b.later[0]
		b.later = b.later[1:]
		next()
	}
	loop, control := b.broker.loops[0], b.broker.control
	turns := 0
	for again := true; again; {
		if turns++; turns > simTurns {
			panic(fmt.Sprintf("broker %d has something to do again and again", b.id))
		}
		again = false
		b.cold = append(b.cold, b.broker.cold.jobs.take(nil)...)
		for _, job := range slices.Concat(control.pool.jobs.take(nil), control.lookups.jobs.take(nil)) {
			b.calls = append(b.calls, newSimCall(b, job))
		}
		if b.behind != "loop" {
			events := loop.inbox.take(nil)
			if len(events) > 0 || loop.next != 0 && loop.next <= b.broker.now() {
				loop.turn(events)
				b.w.check.after(b)
				again = true
			}
		}
		if b.store.Complete() > 0 {
			again = true
		}
		if b.behind == "control" {
			continue
		}
		if steps := control.inbox.take(nil); len(steps) > 0 || (control.next() != 0 && control.next() <= b.broker.now()) {
			for _, step := range steps {
				step(b.broker.now())
			}
			control.finish(b.broker.now())
			again = true
		}
	}
}

// simCall is a job that makes calls to the coordination store. It stops after each of
// them, so that anything can happen between two, and before the last one's answer is
// looked at.
type simCall struct {
	next func() (struct{}, bool)
	stop func()
	wait func(struct{}) bool // set while it runs
	over bool                // its process is gone: what it still asks for does not arrive
}

func newSimCall(b *simBroker, job func()) *simCall {
	c := &simCall{}
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.wait = yield
		job()
	})
	return c
}

// giveUpCalls ends the jobs of a process that is gone.
func (b *simBroker) giveUpCalls() {
	for _, c := range b.calls {
		c.over = true
		c.stop()
	}
	b.calls, b.calling = nil, nil
}

// callCoordination lets the calls to the coordination store that are waiting come to
// their end.
func (b *simBroker) callCoordination() {
	for n := len(b.calls); n > 0; n-- {
		for c := b.calls[0]; len(b.calls) > 0 && b.calls[0] == c; {
			if !b.call(0) {
				return
			}
		}
	}
	b.run()
}

// call lets the i-th of the jobs go on until it has made one call more, or is at its
// end; false when there is none.
func (b *simBroker) call(i int) bool {
	if b.broker == nil || b.paused || i >= len(b.calls) {
		return false
	}
	c, before := b.calls[i], b.calling
	b.calling = c
	_, more := c.next()
	if b.calling = before; !more {
		b.calls = slices.DeleteFunc(b.calls, func(x *simCall) bool { return x == c })
	}
	b.w.records.follow()
	b.run()
	return true
}

// readCold carries out the reads that wait for the store.
func (b *simBroker) readCold() {
	for b.broker != nil && !b.paused && len(b.cold) > 0 {
		jobs := b.cold
		b.cold = nil
		for _, job := range jobs {
			job()
		}
		b.run()
	}
}

// tick gives the broker's links and replicas their time.
func (b *simBroker) tick() {
	if b.broker != nil && !b.paused {
		b.broker.links.tick()
		b.broker.checkStore()
		b.run()
	}
}

// crash ends the broker's process: of the write groups that its disk had not
// completed, the first keep survive.
func (b *simBroker) crash(keep int) {
	b.w.check.crashed(b, keep)
	b.giveUpCalls()
	b.hang(false)
	b.disk.Crash(keep)
	b.disk.FailWrites(nil)
	b.client.Fence()
	b.broker.cancel()
	b.broker, b.reg, b.session, b.paused, b.severed, b.behind = nil, nil, nil, false, false, ""
	b.cold, b.later = nil, nil
	b.w.check.down(b)
}

func (b *simBroker) isDamaged(id protocol.PartitionID) bool {
	_, ok := b.damaged[id]
	return ok
}

// simStore is a store on which bits are flipped: whoever reads them finds out, but
// for the checkers, which do not read through it.
type simStore struct {
	*memstore.Store
	b *simBroker
}

func (s simStore) Read(log storage.LogID, from int64, maxBytes int) (storage.Read, error) {
	res, err := s.Store.Read(log, from, maxBytes)
	flipped, ok := s.b.flipped[log]
	if !ok || err != nil {
		return res, err
	}
	for rec, err := range record.All(res.Batches) {
		if err == nil && rec.Offset == flipped {
			return storage.Read{}, fmt.Errorf("%w: at offset %d", storage.ErrDamaged, flipped)
		}
	}
	return res, nil
}

// Write forgets the flipped bits of what is removed, and notes what is completed.
func (s simStore) Write(ops []storage.Op, synced bool, done func(storage.Result)) {
	for _, op := range ops {
		at, ok := s.b.flipped[op.Log]
		if ok && (op.Kind == storage.Delete || op.Kind == storage.Reset || op.Kind == storage.Truncate && op.Offset <= at) {
			delete(s.b.flipped, op.Log)
		}
	}
	s.Store.Write(ops, synced, func(res storage.Result) {
		for _, op := range ops {
			switch {
			case res.Err != nil || res.Refused[op.Log] != nil || op.Kind == storage.Trim || op.Kind == storage.Meta:
			case op.Kind == storage.Append:
				s.b.durable[op.Log] = op.End
			default:
				s.b.durable[op.Log] = op.Offset
			}
		}
		done(res)
	})
}

// hang makes the disk stop answering, or answer again.
func (b *simBroker) hang(on bool) {
	if b.hung = on; on {
		b.disk.Hang()
	} else {
		b.disk.Unhang()
	}
}

// simCoord is a broker's way to the coordination store, with its faults.
type simCoord struct {
	*memory.Client
	b      *simBroker
	faults []simCoordFault // of the next transactions
}

type simCoordFault uint8

const (
	coordFine simCoordFault = iota
	coordDrop               // the request does not arrive
	coordLose               // it is carried out, and the answer gets lost
	coordLate               // it arrives after its sender has given it up
	coordLast               // like coordLose, and the session ends with it
)

// away says why a call does not arrive.
func (c *simCoord) away() error {
	if call := c.b.calling; call != nil && call.over || !c.b.reaches() {
		return coordination.ErrUnavailable
	}
	return nil
}

// called ends a call. Its answer is on the way until the job gets to run again.
func (c *simCoord) called() {
	if call := c.b.calling; call != nil && !call.over {
		c.b.calling = nil
		call.wait(struct{}{})
		c.b.calling = call
	}
}

func (c *simCoord) Get(_ context.Context, key string) (coordination.KV, bool, error) {
	defer c.called()
	if err := c.away(); err != nil {
		return coordination.KV{}, false, err
	}
	return c.Client.Get(c.b.w.ctx, key)
}

func (c *simCoord) List(_ context.Context, prefix string) ([]coordination.KV, int64, error) {
	defer c.called()
	if err := c.away(); err != nil {
		return nil, 0, err
	}
	return c.Client.List(c.b.w.ctx, prefix)
}

func (c *simCoord) NewSession(ctx context.Context, ttl time.Duration) (coordination.Session, error) {
	if err := c.away(); err != nil {
		return nil, err
	}
	s, err := c.Client.NewSession(ctx, ttl)
	if err != nil {
		return nil, err
	}
	c.b.w.sessions[s.ID()] = c.b.w.now
	return simSessionOf{s, c}, nil
}

func (c *simCoord) Do(_ context.Context, t coordination.Txn) (coordination.TxnResult, error) {
	defer c.called()
	if err := c.away(); err != nil {
		return coordination.TxnResult{}, err
	}
	fault := coordFine
	if len(c.faults) > 0 {
		fault, c.faults = c.faults[0], c.faults[1:]
	}
	switch fault {
	case coordLose, coordLast:
		_, _ = c.Client.Do(c.b.w.ctx, t)
		if b := c.b; fault == coordLast && b.session != nil && b.w.mayDisturb(b) {
			b.w.expire(b.session.ID())
		}
		return coordination.TxnResult{}, coordination.ErrUnavailable
	case coordLate:
		c.b.w.late = append(c.b.w.late, t)
		return coordination.TxnResult{}, coordination.ErrUnavailable
	case coordDrop:
		return coordination.TxnResult{}, coordination.ErrUnavailable
	}
	return c.Client.Do(c.b.w.ctx, t)
}

// simSessionOf is a session whose end the world hears of.
type simSessionOf struct {
	coordination.Session
	c *simCoord
}

func (s simSessionOf) Close(ctx context.Context) error {
	if err := s.c.away(); err != nil {
		return err
	}
	delete(s.c.b.w.sessions, s.ID())
	return s.Session.Close(ctx)
}
