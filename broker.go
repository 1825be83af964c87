package tidemark

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
)

// errNoTransport says why a broker is not ready.
var errNoTransport = errors.New("tidemark: Config.Transport is nil, but the cluster has other brokers")

// errNotRegistered says why a broker is not ready.
var errNotRegistered = errors.New("tidemark: not registered at present")

// Broker is one process's share of a cluster. It hosts replicas, leads some of
// them, stands for Controller, and gives out handles that work for every topic of
// the cluster, wherever it is led. All methods may be called from any goroutine.
type Broker struct {
	*Client

	cfg    Config
	log    *slog.Logger
	clock  func() time.Duration // monotonic
	random func([]byte)         // for identifiers
	levels levelRange           // feature levels that it supports

	ctx      context.Context // ends when the broker stops
	cancel   context.CancelFunc
	stopping <-chan struct{}
	running  sync.WaitGroup
	closing  sync.Once
	closeErr error

	maxMessage int // of the transport

	loops   []*eventLoop
	seed    maphash.Seed
	writer  *storeWriter
	links   *linkSet
	control *controlLoop
	cold    *pool
	view    *view

	appends  *requests[protocol.AppendAnswer]
	reads    *requests[protocol.ReadAnswer]
	commands *requests[protocol.CommandAnswer]

	epoch      atomic.Int64 // broker epoch of the last registration; 0: none yet
	controller atomic.Int32 // -1: not known

	others         atomic.Int32 // registered brokers besides this one
	attached       atomic.Bool  // registered, in a session that is not known to have ended
	nodeWrite      atomic.Int64 // since when the store has been writing the node's record; 0: it does not
	controllerTerm atomic.Int32 // controller epoch; -1: not known
	unfit          atomic.Pointer[error]
	draining       atomic.Bool  // takes no more calls from clients
	cutOff         atomic.Bool  // Close ended something that was under way
	storeState     atomic.Int32 // a StoreState, as last told; written under storeTold
	storeTold      sync.Mutex
	storeLook      storeLook  // of the control loop only
	observer       *observing // nil: nobody is told
	planted        planted    // for the Controllers and links that it makes

	mu         sync.Mutex
	clusterID  protocol.UUID
	regError   error
	renewError error
	warned     map[string]time.Duration // when what was last said; see warn
	counts     counters
}

// Open starts a broker on what the configuration gives it. It loads the logs,
// then joins the cluster in the background: it does not fail, and does not wait,
// while the coordination store or the other brokers are away. See Ready.
//
// The context bounds Open alone; the broker lives until Close or Shutdown. When Open
// fails it has closed the Transport; Store and Coordination stay the host's, and are
// closed after the Broker.
//
// A broker whose store fails or hangs gives up for good: Observer.Unfit is called, and
// Status says why. Close it and open another one on a new Store, or end the process and
// have it started again.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	ctx = given(ctx)
	b, err := open(ctx, cfg)
	if err != nil && cfg.Transport != nil {
		err = errors.Join(err, cfg.Transport.Close())
	}
	return b, err
}

func open(ctx context.Context, cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if node := cfg.Store.Node(); !node.Cluster.IsZero() && node.BrokerID != cfg.ID {
		return nil, fmt.Errorf("%w: directory of broker %d, opened as %d", ErrWrongCluster, node.BrokerID, cfg.ID)
	}
	b := newBroker(cfg)
	if err := b.loadLogs(); err != nil {
		b.cancel()
		return nil, err
	}
	if cfg.Transport != nil {
		if err := cfg.Transport.Start(b.links.receive); err != nil {
			b.cancel()
			return nil, fmt.Errorf("tidemark: transport: %w", err)
		}
	}
	if b.observer != nil {
		go b.observer.run()
	}
	for _, l := range b.loops {
		b.spawn(l.run)
	}
	b.spawn(b.links.run)
	b.spawn(b.control.run)
	b.control.pool.start(4)
	b.control.lookups.start(1)
	b.cold.start(2)
	b.spawn(newRegistrar(b).run)
	return b, nil
}

// newBroker assembles a broker without starting anything.
func newBroker(cfg Config) *Broker {
	began := time.Now()
	b := &Broker{
		cfg: cfg, log: cfg.Logger, seed: maphash.MakeSeed(), view: newView(), levels: levelRange{minLevel, maxLevel}, warned: make(map[string]time.Duration),
		clock:  func() time.Duration { return time.Since(began) },
		random: func(p []byte) { _, _ = rand.Read(p) }, // never fails
	}
	b.appends = newRequests(b.randomUint64,
		protocol.AppendAnswer{Code: protocol.Disconnected, Outcome: protocol.Unknown, Base: -1, Last: -1},
		protocol.AppendAnswer{Code: protocol.Canceled, Outcome: protocol.Unknown, Base: -1, Last: -1})
	b.reads = newRequests(b.randomUint64, protocol.ReadAnswer{Code: protocol.Disconnected}, protocol.ReadAnswer{Code: protocol.Canceled})
	b.commands = newRequests(b.randomUint64, protocol.CommandAnswer{Code: protocol.Disconnected}, protocol.CommandAnswer{Code: protocol.Canceled})
	b.maxMessage = cfg.maxMessage()
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.stopping = b.ctx.Done()
	b.controller.Store(-1)
	b.controllerTerm.Store(-1)
	b.Client = NewClient(func() []*Broker { return []*Broker{b} }, ClientOptions{})
	b.observer = newObserving(cfg.Observer, cfg.ID, cfg.Logger)
	b.links = newLinkSet(b)
	b.control = newControlLoop(b)
	b.cold = newPool(b)
	b.writer = &storeWriter{store: cfg.Store, now: b.now, stored: b.groupStored, failed: func(err error) {
		b.becomeUnfit(because(ErrStorage, err))
	}}
	for i := range cfg.Loops {
		b.loops = append(b.loops, newEventLoop(b, i))
	}
	return b
}

// loadLogs gives every log that the store has to the loop that owns it.
func (b *Broker) loadLogs() error {
	logs, err := b.cfg.Store.Logs()
	if err != nil {
		return because(ErrStorage, err)
	}
	for id, state := range logs {
		b.loops[b.loopOf(id)].shard.load(id, state)
	}
	return nil
}

// ID is the broker's id.
func (b *Broker) ID() int32 { return b.cfg.ID }

// now is the broker's monotonic clock; it is never 0.
func (b *Broker) now() time.Duration { return b.clock() + 1 }

func (b *Broker) randomUUID() (u protocol.UUID) {
	b.random(u[:])
	return u
}

func (b *Broker) randomUint64() uint64 {
	var p [8]byte
	b.random(p[:])
	return binary.LittleEndian.Uint64(p[:])
}

// spawn starts a goroutine that Close waits for.
func (b *Broker) spawn(f func()) {
	b.running.Add(1)
	go func() {
		defer b.running.Done()
		f()
	}()
}

// sleep waits; false when the broker stopped meanwhile.
func (b *Broker) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.stopping:
		return false
	}
}

// loopOf says which loop owns a partition.
func (b *Broker) loopOf(id protocol.PartitionID) int {
	if len(b.loops) == 1 {
		return 0
	}
	return int(maphash.Comparable(b.seed, id) % uint64(len(b.loops)))
}

func (b *Broker) eachLoop(ev loopEvent) {
	for _, l := range b.loops {
		l.inbox.put(ev)
	}
}

// groupStored hands a completed group to the loops whose logs are in it.
func (b *Broker) groupStored(group storedGroup) {
	for i, l := range b.loops {
		for _, st := range group {
			if st.loop == i {
				l.inbox.put(loopEvent{stored: group})
				break
			}
		}
	}
}

// send gives a payload to another broker, or to this one. false: it was not taken.
func (b *Broker) send(peer int32, p *protocol.Payload) bool {
	return b.sendWith(peer, p, sendOptions{})
}

func (b *Broker) sendWith(peer int32, p *protocol.Payload, o sendOptions) bool {
	if peer == b.cfg.ID {
		b.deliver(peer, b.epoch.Load(), p)
		return true
	}
	return b.links.send(peer, p, o)
}

// deliver routes what a broker sent: answers to whoever asked, the data path to
// the loops, the rest to the control loop. It does not block.
func (b *Broker) deliver(from int32, fromEpoch int64, p *protocol.Payload) {
	if isFarewell(p) {
		b.appends.refuse(from, p.AppendAnswers[0])
		return
	}
	for i := range p.AppendAnswers {
		b.appends.finish(from, p.AppendAnswers[i].Request, p.AppendAnswers[i])
	}
	for i := range p.ReadAnswers {
		b.reads.finish(from, p.ReadAnswers[i].Request, p.ReadAnswers[i])
	}
	for i := range p.CommandAnswers {
		b.commands.finish(from, p.CommandAnswers[i].Request, p.CommandAnswers[i])
	}
	if len(p.Updates)+len(p.UpdateAcks)+len(p.OrderReplies)+len(p.Removals)+len(p.Proposals)+len(p.Commands) > 0 {
		control := protocol.Payload{
			Updates: p.Updates, UpdateAcks: p.UpdateAcks, OrderReplies: p.OrderReplies, Removals: p.Removals,
			Proposals: p.Proposals, Commands: p.Commands,
		}
		b.control.post(func(time.Duration) { b.control.onPayload(from, fromEpoch, &control) })
	}
	if len(p.Fetches)+len(p.FetchAnswers)+len(p.Reports)+len(p.Watermarks)+len(p.Appends)+len(p.Reads)+len(p.Verdicts) == 0 {
		return
	}
	if i, ok := b.oneLoop(p); ok {
		b.loops[i].inbox.put(loopEvent{from: from, fromEpoch: fromEpoch, payload: p})
	} else {
		b.spread(from, fromEpoch, p)
	}
}

// oneLoop finds the loop that owns all partitions of a payload, if there is one:
// the usual case of small payloads, which need not be cut.
func (b *Broker) oneLoop(p *protocol.Payload) (loop int, ok bool) {
	loop = -1
	for id := range p.Partitions {
		at := b.loopOf(id)
		if loop >= 0 && at != loop {
			return 0, false
		}
		loop = at
	}
	return loop, loop >= 0
}

// spread cuts a payload by the loops that own its partitions.
func (b *Broker) spread(from int32, fromEpoch int64, p *protocol.Payload) {
	parts := make([]protocol.Payload, len(b.loops))
	at := func(id protocol.PartitionID) *protocol.Payload { return &parts[b.loopOf(id)] }
	for _, x := range p.Fetches {
		q := at(x.ID)
		q.Fetches = append(q.Fetches, x)
	}
	for _, x := range p.FetchAnswers {
		q := at(x.ID)
		q.FetchAnswers = append(q.FetchAnswers, x)
	}
	for _, x := range p.Reports {
		q := at(x.ID)
		q.Reports = append(q.Reports, x)
	}
	for _, x := range p.Watermarks {
		q := at(x.ID)
		q.Watermarks = append(q.Watermarks, x)
	}
	for _, x := range p.Appends {
		q := at(x.ID)
		q.Appends = append(q.Appends, x)
	}
	for _, x := range p.Reads {
		q := at(x.ID)
		q.Reads = append(q.Reads, x)
	}
	for _, x := range p.Verdicts {
		q := at(x.ID)
		q.Verdicts = append(q.Verdicts, x)
	}
	for i := range parts {
		if !parts[i].Empty() {
			b.loops[i].inbox.put(loopEvent{from: from, fromEpoch: fromEpoch, payload: &parts[i]})
		}
	}
}

// linkChanged tells everybody that a session with a broker began or ended. What
// was asked in a session that ended gets no answer any more (D14).
func (b *Broker) linkChanged(peer int32, epoch int64, up bool) {
	b.eachLoop(loopEvent{step: func(_ time.Duration, s *shard) { s.onLink(peer, epoch, up) }})
	b.control.post(func(time.Duration) { b.control.onLink(peer, epoch, up) })
	if !up {
		b.appends.lose(peer)
		b.reads.lose(peer)
		b.commands.lose(peer)
	}
}

// coldRead reads batches that are no longer in memory, off the loop.
func (b *Broker) coldRead(l *eventLoop, c coldRead) {
	b.cold.submit(func() {
		res, err := b.cfg.Store.Read(c.id, c.from, c.maxBytes)
		l.inbox.put(loopEvent{step: func(_ time.Duration, s *shard) { s.readDone(c, res.Batches, err) }})
	})
}

func (b *Broker) controllerID() int32 { return b.controller.Load() }

func (b *Broker) cluster() protocol.UUID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clusterID
}

func (b *Broker) setCluster(id protocol.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clusterID = id
}

func (b *Broker) setRegistrationError(err error) {
	b.mu.Lock()
	b.regError, b.renewError = err, nil
	b.mu.Unlock()
	if err != nil {
		b.warn("could not register", "error", err)
	}
}

func (b *Broker) setRenewalError(err error) {
	b.mu.Lock()
	b.renewError = err
	b.mu.Unlock()
	if err != nil {
		b.warn("could not renew session", "error", err)
	}
}

// warnEvery is how often warn says the same again.
const warnEvery = time.Minute

// warn logs what may go on for long: as a warning at first and once a minute, for
// debugging in between.
func (b *Broker) warn(msg string, args ...any) {
	now, level := b.now(), slog.LevelWarn
	b.mu.Lock()
	if at, said := b.warned[msg]; said && now-at < warnEvery {
		level = slog.LevelDebug
	} else {
		b.warned[msg] = now
	}
	b.mu.Unlock()
	b.log.Log(b.ctx, level, msg, append([]any{"broker", b.cfg.ID}, args...)...)
}

// storeAge is how long the store's oldest write has been under way; 0: there is none.
func (b *Broker) storeAge() time.Duration {
	age, _ := b.writer.load()
	if since := b.nodeWrite.Load(); since != 0 {
		age = max(age, b.now()-time.Duration(since))
	}
	return age
}

// checkStore looks after the store, and holds the broker unfit when it fails or
// hangs (D16).
func (b *Broker) checkStore() {
	age := b.storeLook.fair(b.now(), b.storeAge(), b.cfg.lookEvery())
	switch err := b.cfg.Store.Health().Err; {
	case err != nil:
		b.becomeUnfit(because(ErrStorage, err))
	case age > b.cfg.StoreStallLimit:
		b.becomeUnfit(fmt.Errorf("%w: a write has been under way for %v", ErrStorage, age.Round(time.Millisecond)))
	case age > b.cfg.storeSlow():
		b.storeIs(StoreStalled, age, nil)
	default:
		b.storeIs(StoreOK, age, nil)
	}
}

// storeIs tells of a change of the store's state. One that failed stays so.
func (b *Broker) storeIs(state StoreState, age time.Duration, err error) {
	b.storeTold.Lock() // so that events come in the order of the changes
	was := StoreState(b.storeState.Load())
	changed := was != state && was != StoreFailed
	if changed {
		b.storeState.Store(int32(state))
		b.observer.store(StoreEvent{State: state, Age: age, Err: err})
	}
	b.storeTold.Unlock()
	if !changed {
		return
	}
	switch state {
	case StoreStalled:
		b.log.Warn("store stalled", "broker", b.cfg.ID, "age", age)
	case StoreOK:
		b.log.Info("store goes on", "broker", b.cfg.ID)
	}
}

// becomeUnfit ends every role for the rest of this open: a store that failed or
// hangs cannot be trusted again without a clean open (D16).
func (b *Broker) becomeUnfit(why error) {
	if !b.unfit.CompareAndSwap(nil, &why) {
		return
	}
	b.log.Error("broker is unfit", "broker", b.cfg.ID, "reason", why)
	if errors.Is(why, ErrStorage) {
		b.storeIs(StoreFailed, b.storeAge(), why)
	}
	b.observer.unfit(why)
	b.eachLoop(loopEvent{step: func(_ time.Duration, s *shard) { s.onUnfit() }})
	b.control.post(func(time.Duration) {
		if b.control.meta != nil {
			b.control.resign(why)
		}
	})
}

func (b *Broker) unfitReason() error {
	if why := b.unfit.Load(); why != nil {
		return *why
	}
	return nil
}

// Ready returns nil once the broker is registered, is fit, and holds the whole
// cluster image. It waits until then or until ctx ends, and then says what is missing.
func (b *Broker) Ready(ctx context.Context) error {
	ctx = given(ctx)
	for {
		_, _, whole, changed := b.view.topic("")
		why := b.notReady(whole)
		if why == nil || errors.Is(why, ErrUnfit) || errors.Is(why, ErrClosed) {
			return why
		}
		if err := wait(ctx, changed, b.stopping, 20*time.Millisecond); err != nil && ctx.Err() != nil {
			return ctxError(ctx, why)
		}
	}
}

func (b *Broker) notReady(whole bool) error {
	unfit := b.unfitReason()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ctx.Err() != nil || b.draining.Load():
		return ErrClosed
	case unfit != nil:
		return because(ErrUnfit, unfit)
	case b.regError != nil:
		return b.regError
	case !b.attached.Load():
		return errNotRegistered
	case !whole && b.cfg.Transport == nil && b.others.Load() > 0:
		return errNoTransport
	case !whole:
		return ErrNoController
	}
	return nil
}
