package tidemark

import (
	"context"
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
// to, over a network that delivers when told to, in virtual time. Nothing happens
// in it by itself, and nothing is left to chance: what is done to it decides all.
type simWorld struct {
	t       testing.TB // nil: of no single test
	ctx     context.Context
	ids     *rand.Rand // for identifiers
	now     time.Duration
	wall    time.Duration // what the hosts' wall clocks are off by
	coord   *memory.Store
	reader  coordination.Store // for checks; never cut off
	records *simRecords
	brokers map[int32]*simBroker
	flights []simFlight
	past    []simFlight // the last ones sent, delivered or not
	cut     map[[2]int32]bool

	outage   bool                     // the coordination store answers nobody
	sessions map[string]time.Duration // when each was last renewed
	late     []coordination.Txn       // given up by whoever sent them, and not arrived yet

	wire       bool // messages travel as bytes
	maxMessage int
	lossy      bool // the fault budget is off: what is lost has to be said
	background bool // topics do not wait for the disk
	producers  map[simProducerKey]*simProducer
	asked      map[protocol.PartitionID]bool // for an unclean election
	given      map[string]bool               // topics that somebody had deleted
	healing    bool                          // faults have ended
	chatter    *protocol.Message             // what was sent last and is no heartbeat
	commands   []*simCommand                 // not answered yet

	verbs   map[string]simVerb
	planted planted
	check   *simCheck
	values  int
	trace   func(format string, args ...any)
	adjust  func(*Config)
}

type simFlight struct {
	to  int32
	msg *protocol.Message
}

// simTransport puts what a broker sends into the world's network.
type simTransport struct{ w *simWorld }

func (s simTransport) Start(transport.Handler) error { return nil }
func (s simTransport) MaxMessageBytes() int          { return s.w.maxMessage }
func (s simTransport) Close() error                  { return nil }
func (s simTransport) Send(to transport.Peer, m *protocol.Message) error {
	w := s.w
	if w.wire {
		m = w.overTheWire(m)
	}
	if !m.Payload.Empty() || len(m.Fragment) > 0 {
		w.chatter = m
	}
	f := simFlight{to.ID, m}
	if len(w.past) == simPast {
		w.past = w.past[1:]
	}
	w.past = append(w.past, f)
	if !w.cut[[2]int32{m.From, to.ID}] {
		w.flights = append(w.flights, f)
	}
	return nil
}

// overTheWire returns a message as it arrives when it is sent as bytes.
func (w *simWorld) overTheWire(m *protocol.Message) *protocol.Message {
	data, err := m.MarshalBinary()
	w.must(err)
	if len(data) > m.Size() || len(data) > w.maxMessage {
		w.must(fmt.Errorf("a message of %d bytes, said to be %d, over a transport of %d", len(data), m.Size(), w.maxMessage))
	}
	if len(m.Fragment) > 0 {
		w.check.stats.fragments++
	}
	m, err = protocol.Parse(data)
	w.must(err)
	return m
}

const (
	simSession = time.Second
	simPast    = 64 // messages that the network can bring once more
)

// newSimWorld starts a cluster. The seed decides its identifiers, and nothing else.
func newSimWorld(t testing.TB, seed uint64, brokers int) *simWorld {
	w := startSimWorld(t.Context(), seed, brokers, nil, func(w *simWorld) { w.t = t })
	t.Cleanup(w.close)
	return w
}

// startSimWorld is newSimWorld with a planted bug, and what else is to be set before
// the first broker starts.
func startSimWorld(ctx context.Context, seed uint64, brokers int, bug planted, set func(*simWorld)) *simWorld {
	w := &simWorld{
		ctx: ctx, verbs: newSimVerbs(), maxMessage: 4 << 20, ids: rand.New(rand.NewPCG(seed, 1)), coord: memory.New(memory.Options{Manual: true}),
		brokers: make(map[int32]*simBroker), cut: make(map[[2]int32]bool), sessions: make(map[string]time.Duration),
		producers: make(map[simProducerKey]*simProducer), asked: make(map[protocol.PartitionID]bool), given: make(map[string]bool), planted: bug, trace: func(string, ...any) {}, adjust: func(*Config) {},
	}
	w.reader = w.coord.Connect()
	w.records = newSimRecords(w)
	w.check = newSimCheck(w)
	set(w)
	for id := int32(1); id <= int32(brokers); id++ {
		w.brokers[id] = newSimBroker(w, id)
	}
	for _, b := range w.all() {
		b.start()
	}
	return w
}

// close ends what a world that is looked at no more has left under way.
func (w *simWorld) close() {
	for _, b := range w.all() {
		b.giveUpCalls()
	}
}

// must ends the run: the world itself does not work, and nothing it shows counts.
func (w *simWorld) must(err error) {
	if err != nil {
		panic(fmt.Errorf("the simulated world is broken: %w", err))
	}
}

func (w *simWorld) uuid() (u protocol.UUID) {
	for i := range u {
		u[i] = byte(w.ids.Uint32())
	}
	return u
}

func (w *simWorld) all() []*simBroker {
	all := make([]*simBroker, 0, len(w.brokers))
	for id := int32(1); id <= int32(len(w.brokers)); id++ {
		all = append(all, w.brokers[id])
	}
	return all
}

// up returns the brokers that run; one that is paused does.
func (w *simWorld) up() []*simBroker {
	return slices.DeleteFunc(w.all(), func(b *simBroker) bool { return b.broker == nil })
}

// advance moves time on. Sessions that nobody renews expire.
func (w *simWorld) advance(d time.Duration) {
	w.now += d
	for _, b := range w.up() {
		if b.session == nil || !b.canRenew() {
			continue
		}
		if _, alive := w.sessions[b.session.ID()]; alive {
			w.sessions[b.session.ID()] = w.now
		}
	}
	if w.outage {
		w.askAgain()
		return
	}
	for _, id := range slices.Sorted(maps.Keys(w.sessions)) {
		if w.now-w.sessions[id] >= simSession {
			w.trace("session %s expires", id)
			w.expire(id)
		}
	}
	for _, b := range w.up() {
		b.keepRegistered()
	}
	w.askAgain()
}

// expire ends a session in the coordination store. Whose it was learns of it later.
func (w *simWorld) expire(session string) {

	w.coord.ExpireSession(session)
	delete(w.sessions, session)
	w.records.follow()
}

// outageOver brings the coordination store back: every session has a full term.
func (w *simWorld) outageOver() {
	w.outage = false
	for id := range w.sessions {
		w.sessions[id] = w.now
	}
}

// deliver hands the i-th message in flight to its addressee. One that is paused
// does not take it yet.
func (w *simWorld) deliver(i int) {
	f := w.flights[i]
	if b := w.brokers[f.to]; b.paused && !w.cut[[2]int32{f.msg.From, f.to}] {
		return
	}
	w.flights = slices.Delete(w.flights, i, i+1)
	w.hand(f)
}

// hand gives a message to a broker, unless it is down or cut off from the sender.
func (w *simWorld) hand(f simFlight) {
	if b := w.brokers[f.to]; b.broker != nil && !b.paused && !w.cut[[2]int32{f.msg.From, f.to}] {
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
		b.readCold()
		b.tick()
	}
	for range len(w.flights) {
		at := slices.IndexFunc(w.flights, func(f simFlight) bool { return !w.brokers[f.to].paused })
		if at < 0 {
			break
		}
		w.deliver(at)
	}
}

// arrive lets the i-th of the late transactions reach the coordination store.
func (w *simWorld) arrive(i int) {
	txn := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	_, _ = w.reader.Do(w.ctx, txn) // nobody waits for the answer
	w.records.follow()
}

// command has the Controller, as far as a broker knows it, carry out a command. done
// gets the answer; it does not come when the command could not be sent.
func (w *simWorld) command(via *simBroker, cmd protocol.Command, done func(protocol.CommandAnswer)) {
	w.noteOrder(&cmd)
	b := via.broker
	id := b.controllerID()
	if id < 0 {
		return
	}
	cmd.Request = b.commands.add(id, done)
	if !b.send(id, &protocol.Payload{Commands: []protocol.Command{cmd}}) {
		b.commands.drop(cmd.Request)
	}
	via.run()
}

// noteOrder notes what somebody asked for that takes records away.
func (w *simWorld) noteOrder(cmd *protocol.Command) {
	switch cmd.Kind {
	case protocol.ElectUnclean:
		w.asked[protocol.PartitionID{Topic: cmd.Topic.ID, Partition: cmd.Partition}] = true
	case protocol.DeleteTopic:
		w.given[cmd.Topic.Name] = true
	}
}

// createTopic creates a topic and waits until it exists.
func (w *simWorld) createTopic(name string, cfg TopicConfig) protocol.Topic {
	topic := protocol.Topic{ID: w.uuid(), Name: name, Config: cfg}
	answer := protocol.CommandAnswer{Code: protocol.NotController}
	for range 1000 {
		w.settle(20 * time.Millisecond)
		if answer.Code == protocol.OK {
			return topic
		}
		if via := w.up()[0]; via.broker.controllerID() >= 0 && answer.Code == protocol.NotController {
			answer = protocol.CommandAnswer{Code: protocol.Canceled}
			w.command(via, protocol.Command{Kind: protocol.CreateTopic, Topic: topic}, func(a protocol.CommandAnswer) { answer = a })
		}
	}
	w.must(fmt.Errorf("topic %s was not created: %+v", name, answer))
	return topic
}

// stored is a partition's state as the coordination store has it.
func (w *simWorld) stored(topic string, n int32) protocol.PartitionState {
	id := protocol.PartitionID{Topic: w.records.topics[topic].ID, Partition: n}
	s := w.records.states[id]
	if s == nil {
		w.must(fmt.Errorf("no state of %s/%d", topic, n))
	}
	return s.PartitionState
}

// replica returns a broker's replica; nil: it is down or has none.
func (w *simWorld) replica(broker int32, id protocol.PartitionID) *replicaState {
	if b := w.brokers[broker]; b != nil && b.broker != nil {
		return b.broker.loops[0].shard.replicas[id]
	}
	return nil
}

// append sends one record, whose value is unique, through the given broker to
// the leader that it knows of.
func (w *simWorld) append(via *simBroker, id protocol.PartitionID, acks Acks) {
	w.values++
	w.send(via, id, &simAppend{value: fmt.Sprintf("v%d", w.values), acks: acks})
}

// memDisk returns an empty disk.
func (w *simWorld) memDisk(directory protocol.UUID) *memstore.Disk {
	return memstore.NewDisk(memstore.Manual(), memstore.Directory(directory))
}
