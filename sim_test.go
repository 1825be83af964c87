package tidemark

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport"
)

// simWorld is a whole cluster in one goroutine: real brokers whose loops, links
// and Controllers are stepped by hand, on disks that complete writes when told
// to, over a network that delivers when told to, in virtual time. Everything that
// happens follows from the seed.
type simWorld struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Duration
	coord   *memory.Store
	reader  coordination.Store // for checks; never cut off
	brokers map[int32]*simBroker
	flights []simFlight
	orphans map[string]time.Duration // sessions that nobody renews, and when they end
	cut     map[[2]int32]bool
	planted plantedBugs
	check   *simCheck
	values  int
	trace   func(format string, args ...any)
}

// simBroker is one broker and what it stands on.
type simBroker struct {
	w       *simWorld
	id      int32
	disk    *memstore.Disk
	store   *memstore.Store
	client  *memory.Client
	session coordination.Session
	broker  *Broker // nil: down
	reg     *registrar

	directory protocol.UUID
}

type simFlight struct {
	to  int32
	msg *protocol.Message
}

// simTransport puts what a broker sends into the world's network.
type simTransport struct{ w *simWorld }

func (s simTransport) Start(transport.Handler) error { return nil }
func (s simTransport) MaxMessageBytes() int          { return 4 << 20 }
func (s simTransport) Close() error                  { return nil }
func (s simTransport) Send(to transport.Peer, m *protocol.Message) error {
	if !s.w.cut[[2]int32{m.From, to.ID}] {
		s.w.flights = append(s.w.flights, simFlight{to.ID, m})
	}
	return nil
}

const simSession = time.Second

func newSimWorld(t testing.TB, seed uint64, brokers int) *simWorld {
	w := &simWorld{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), coord: memory.New(memory.Options{Manual: true}),
		brokers: make(map[int32]*simBroker), cut: make(map[[2]int32]bool), orphans: make(map[string]time.Duration), trace: func(string, ...any) {},
	}
	w.reader = w.coord.Connect()
	w.check = newSimCheck(w)
	for id := int32(1); id <= int32(brokers); id++ {
		w.brokers[id] = &simBroker{w: w, id: id, disk: memstore.NewDisk(memstore.Manual(), memstore.Directory(w.uuid()))}
	}
	for _, b := range w.all() {
		b.start()
	}
	return w
}

func (w *simWorld) uuid() (u protocol.UUID) {
	for i := range u {
		u[i] = byte(w.rng.Uint32())
	}
	return u
}

func (w *simWorld) all() []*simBroker {
	var all []*simBroker
	for _, id := range slices.Sorted(maps.Keys(w.brokers)) {
		all = append(all, w.brokers[id])
	}
	return all
}

func (w *simWorld) up() []*simBroker {
	return slices.DeleteFunc(w.all(), func(b *simBroker) bool { return b.broker == nil })
}

func (b *simBroker) config() Config {
	return Config{
		ID: b.id, Store: b.store, Coordination: b.client, Transport: simTransport{b.w}, Loops: 1,
		SessionTimeout: simSession, MaxLag: 2 * simSession, ProposalTimeout: simSession / 2, MemoryBudget: 1 << 20,
	}.withDefaults()
}

// start opens the broker on what its disk has, and registers it.
func (b *simBroker) start() {
	store, err := b.disk.Open()
	if err != nil {
		b.w.t.Fatalf("open disk of broker %d: %v", b.id, err)
	}
	b.store, b.client, b.directory = store, b.w.coord.Connect(), store.Node().Directory
	b.broker = newBroker(b.config())
	b.broker.clock = func() time.Duration { return b.w.now }
	b.broker.random = func(p []byte) {
		for i := range p {
			p[i] = byte(b.w.rng.Uint32())
		}
	}
	b.broker.loops[0].shard.env.planted = b.w.planted
	if err := b.broker.loadLogs(); err != nil {
		b.w.t.Fatal(err)
	}
	b.reg = newRegistrar(b.broker)
	b.register()
}

// register makes one attempt, as the registrar's goroutine does.
func (b *simBroker) register() {
	s, epoch, err := b.reg.register()
	if err != nil {
		b.w.trace("broker %d could not register: %v", b.id, err)
		b.session = nil
		return
	}
	b.w.trace("broker %d registered, epoch %d", b.id, epoch)
	b.session = s
	b.broker.epoch.Store(epoch)
	b.broker.control.onRegistered(s, epoch)
	b.notice()
}

// notice shows the broker what the coordination store says now, as its watches do.
func (b *simBroker) notice() {
	if b.broker == nil || b.session == nil {
		return
	}
	keys := make(map[string]coordination.KV)
	for _, prefix := range []string{brokerIDsPrefix, brokerLastPrefix, controllerKey} {
		kvs, _, err := b.client.List(b.broker.ctx, prefix)
		if err != nil {
			return
		}
		for _, kv := range kvs {
			keys[kv.Key] = kv
		}
	}
	reg, err := parseRegistry(keys)
	if err != nil {
		b.w.t.Fatal(err)
	}
	b.broker.control.post(func(time.Duration) { b.broker.control.onRegistry(reg) })
	b.run()
}

// run lets the broker's loops do everything that is waiting for them, short of
// calls to the coordination store.
func (b *simBroker) run() {
	if b.broker == nil {
		return
	}
	loop, control := b.broker.loops[0], b.broker.control
	for again := true; again; {
		again = false
		for _, job := range b.broker.cold.jobs.take(nil) {
			job()
		}
		events := loop.inbox.take(nil)
		if len(events) > 0 || loop.next != 0 && loop.next <= b.broker.now() {
			loop.turn(events)
			again = true
		}
		if steps := control.inbox.take(nil); len(steps) > 0 || (control.next() != 0 && control.next() <= b.broker.now()) {
			for _, step := range steps {
				step(b.broker.now())
				if control.meta != nil {
					control.meta.planted = b.w.planted
				}
			}
			control.finish(b.broker.now())
			again = true
		}
	}
	b.w.check.after(b)
}

// callCoordination runs the calls to the coordination store that are waiting.
func (b *simBroker) callCoordination() {
	if b.broker == nil {
		return
	}
	for _, job := range b.broker.control.pool.jobs.take(nil) {
		job()
	}
	b.run()
}

// tick gives the broker's links and replicas their time.
func (b *simBroker) tick() {
	if b.broker != nil {
		b.broker.links.tick()
		b.run()
	}
}

// crash ends the broker's process: of the write groups that its disk had not
// completed, the first keep survive.
func (b *simBroker) crash(keep int) {
	b.w.check.crashed(b, keep)
	b.disk.Crash(keep)
	b.client.Fence()
	b.broker.cancel()
	b.broker, b.reg = nil, nil
	if b.session != nil {
		b.w.orphans[b.session.ID()] = b.w.now + simSession
		b.session = nil
	}
	b.w.check.down(b)
}

// loseSession ends the broker's session behind its back.
func (b *simBroker) loseSession() {
	if b.session == nil {
		return
	}
	b.w.coord.ExpireSession(b.session.ID())
	b.session = nil
	if b.broker != nil {
		b.broker.control.onSessionLost()
		b.run()
	}
}

// advance moves time on; sessions of the dead expire.
func (w *simWorld) advance(d time.Duration) {
	w.now += d
	for _, id := range slices.Sorted(maps.Keys(w.orphans)) {
		if w.orphans[id] <= w.now {
			w.trace("session %s expires", id)
			w.coord.ExpireSession(id)
			delete(w.orphans, id)
		}
	}
	for _, b := range w.all() {
		if b.broker != nil && b.session == nil {
			b.register()
		}
	}
}

// deliver hands the i-th message in flight to its addressee.
func (w *simWorld) deliver(i int) {
	f := w.flights[i]
	w.flights = slices.Delete(w.flights, i, i+1)
	if b := w.brokers[f.to]; b.broker != nil && !w.cut[[2]int32{f.msg.From, f.to}] {
		b.broker.links.receive(f.msg)
		b.run()
	}
}

// settle runs the world without faults for a while: what is sent arrives, disks
// complete, watches fire.
func (w *simWorld) settle(d time.Duration) {
	for end := w.now + d; w.now < end; {
		w.round()
		w.advance(5 * time.Millisecond)
	}
}

// round lets everything that is under way arrive.
func (w *simWorld) round() {
	for _, b := range w.up() {
		b.notice()
		b.callCoordination()
		b.store.Sync(1 << 20)
		b.run()
		b.tick()
	}
	for range len(w.flights) {
		w.deliver(0)
	}
}

// createTopic creates a topic and waits until it exists.
func (w *simWorld) createTopic(name string, cfg TopicConfig) protocol.Topic {
	topic := protocol.Topic{ID: w.uuid(), Name: name, Config: cfg}
	var answer *protocol.CommandAnswer
	for range 1000 {
		w.settle(20 * time.Millisecond)
		if answer != nil && answer.Code == protocol.OK {
			return topic
		}
		b := w.up()[0].broker
		if id := b.controllerID(); id >= 0 && (answer == nil || answer.Code == protocol.NotController) {
			answer = &protocol.CommandAnswer{Code: protocol.Canceled}
			got := answer
			req := b.commands.add(id, func(a protocol.CommandAnswer) { *got = a })
			b.send(id, &protocol.Payload{Commands: []protocol.Command{{Request: req, Kind: protocol.CreateTopic, Topic: topic}}})
		}
	}
	w.t.Fatalf("topic %s was not created: %+v", name, answer)
	return topic
}

// stored is a partition's state as the coordination store has it.
func (w *simWorld) stored(topic string, n int32) (s protocol.PartitionState) {
	kv, ok, err := w.reader.Get(w.t.Context(), partitionKey(topic, n))
	if err != nil || !ok {
		w.t.Fatalf("no state of %s/%d: %v", topic, n, err)
	}
	mustUnmarshal(w.t, kv.Value, &s)
	return s
}

// replaced reports whether the broker's disk is not the one that its memberships
// rest on, as far as the cluster has not yet drawn the consequence.
func (w *simWorld) replaced(b *simBroker) bool {
	kv, ok, err := w.reader.Get(w.t.Context(), brokerLastKey(b.id))
	if err != nil || !ok {
		return true
	}
	var last lastLife
	mustUnmarshal(w.t, kv.Value, &last)
	return last.Replaced || last.Directory != b.directory
}

// append sends one record, whose value is unique, through the given broker to
// the leader that it knows of.
func (w *simWorld) append(via *simBroker, id protocol.PartitionID, acks Acks) {
	s, ok, _ := via.broker.view.state(id)
	if !ok || s.Leader == protocol.NoLeader {
		return
	}
	w.values++
	value := fmt.Sprintf("v%d", w.values)
	batch, err := encodeBatch(&via.broker.cfg, &TopicConfig{}, NoCompression, []Record{{Value: []byte(value), Timestamp: time.UnixMilli(int64(w.values))}})
	if err != nil {
		w.t.Fatal(err)
	}
	r := route{via: via.broker, leader: s.Leader, epoch: s.LeaderEpoch, id: id}
	r.append(protocol.Append{LeaderEpoch: -1, Acks: acks, Batch: batch}, nil, func(a protocol.AppendAnswer) {
		w.check.answered(id, value, acks, a)
	})
	via.run()
}
