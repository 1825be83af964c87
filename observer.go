package tidemark

import (
	"container/list"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Observer is told what happens at one broker. Every field may be nil; a struct
// may serve several brokers.
//
// One goroutine per broker calls it, one call after the other, in the order of
// what happened. It never holds up the broker: while a call takes its time, what
// happens meanwhile waits in memory. Of Leadership, ISR, Store, Link, Registration,
// Controller and Unfit only the newest per partition, peer or broker waits, for
// 16,384 of these; of the others at most 1,024. Status.ObserverDropped counts those
// beyond.
//
// A call may use the Broker, and may close it. Once Close has returned no call
// begins; one that was running goes on, and nothing else of the broker is left. A
// call that panics ends there: it is logged as an error with its stack, counted in
// Status.ObserverPanics, and the next one is made.
type Observer struct {
	// Leadership: this broker's replica of a partition began to lead, or ceased to.
	Leadership func(LeadershipEvent)
	// ISR: the Controller recorded another ISR of a partition that this broker leads.
	ISR func(ISREvent)
	// Truncated: a follower's log was cut back to where it agrees with its leader's,
	// or was emptied because the leader's begins behind its end.
	Truncated func(TruncationEvent)
	// Lost: what this replica knew to be committed was cut off. Only an unclean
	// election can bring that about. After a restart a replica may know less than was
	// committed, so that less is reported, or nothing: after an unclean election look
	// at Truncated too.
	Lost func(LossEvent)
	// UncleanElection: this broker heard of one.
	UncleanElection func(UncleanElectionEvent)
	// Damaged: a replica's log cannot be trusted any more, and takes no part.
	Damaged func(DamageEvent)
	// Store: the store began to hang, made progress again, or failed.
	Store func(StoreEvent)
	// Link: the session with another broker began or ended.
	Link func(LinkEvent)
	// Registration: the broker was registered, or its session ended.
	Registration func(RegistrationEvent)
	// Controller: this broker became the Controller, or ceased to be.
	Controller func(ControllerEvent)
	// Unfit: the broker gave up all its roles until it is opened again.
	Unfit func(reason error)
}

// LeadershipEvent is about this broker's replica of a partition.
type LeadershipEvent struct {
	Topic       string
	Partition   int
	Leading     bool
	LeaderEpoch int32   // that began, or ended
	ISR         []int32 // at its beginning
}

// ISREvent is a change of a partition's ISR.
type ISREvent struct {
	Topic       string
	Partition   int
	LeaderEpoch int32
	Old, New    []int32 // Old is what was told last, when changes in between were skipped
}

// TruncationEvent is a cut of a log. All records from offset To on were removed;
// of a reset log, all, and To is where it begins anew.
type TruncationEvent struct {
	Topic       string
	Partition   int
	LeaderEpoch int32
	From, To    int64 // log end before and after
	Reset       bool
}

// LossEvent is the loss of records that were committed: those at To and above,
// below From.
type LossEvent struct {
	Topic       string
	Partition   int
	LeaderEpoch int32
	From, To    int64 // high watermark before and after
}

// UncleanElectionEvent is an election of a leader that may lack committed records.
type UncleanElectionEvent struct {
	Topic       string
	Partition   int
	LeaderEpoch int32 // that began with it
	Leader      int32 // as of now; -1: none
}

// DamageEvent is the end of trust in a log.
type DamageEvent struct {
	Topic     string
	Partition int
	Err       error
}

// StoreState says how a broker's store is.
type StoreState uint8

const (
	StoreOK      StoreState = iota
	StoreStalled            // a write has been under way for more than half of Config.StoreStallLimit
	StoreFailed             // it takes no more writes, or a write was under way for too long: the broker is unfit
)

// String is "ok", "stalled" or "failed".
func (s StoreState) String() string {
	if int(s) < len(storeStates) {
		return storeStates[s]
	}
	return "unknown"
}

var storeStates = [...]string{StoreOK: "ok", StoreStalled: "stalled", StoreFailed: "failed"}

// StoreEvent is a change of the store's state.
type StoreEvent struct {
	State StoreState
	Age   time.Duration // how long its oldest write had been under way
	Err   error         // StoreFailed: why
}

// LinkEvent is the begin or end of a session with another broker.
type LinkEvent struct {
	Broker int32
	Up     bool
}

// RegistrationEvent is the begin or end of a registration.
type RegistrationEvent struct {
	Registered  bool
	BrokerEpoch int64
	Err         error // why it ended
}

// ControllerEvent is the begin or end of this broker's time as the Controller.
type ControllerEvent struct {
	Acting          bool
	ControllerEpoch int32
	Err             error // why it ended
}

// observerQueue bounds the events that a newer one does not replace.
const observerQueue = 1024

// observerKeys bounds the partitions, peers and so on of which the newest event waits.
const observerKeys = 16_384

// eventKey names what a newer event replaces: a kind, and a partition or a peer.
type eventKey struct {
	kind  eventKind
	topic string
	n     int32
}

type eventKind uint8

const (
	unreplaced eventKind = iota
	leadershipChanged
	isrChanged
	storeChanged
	linkChanged
	registrationChanged
	controllerChanged
	becameUnfit
)

// observing hands events to the host's Observer. A nil one does nothing.
type observing struct {
	to  Observer
	log *slog.Logger
	id  int32

	mu      sync.Mutex
	wake    *sync.Cond
	queue   list.List                  // of waitingEvent, in order
	newest  map[eventKey]*list.Element // those in the queue that a newer one replaces
	single  int                        // how many of the others are in the queue
	calling bool
	closed  bool
	ended   chan struct{}
	dropped uint64
	panics  uint64
}

type waitingEvent struct {
	key  eventKey
	call func()
	isr  ISREvent // isrChanged
}

func newObserving(o *Observer, id int32, log *slog.Logger) *observing {
	if o == nil {
		return nil
	}
	w := &observing{to: *o, log: log, id: id, newest: make(map[eventKey]*list.Element), ended: make(chan struct{})}
	w.wake = sync.NewCond(&w.mu)
	return w
}

// tell queues an event for the Observer's function f, which may be nil. With a key
// it takes the place of an older one, behind everything else.
func tell[E any](w *observing, key eventKey, f func(E), e E) {
	if f == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.put(waitingEvent{key: key, call: func() { f(e) }})
}

func (w *observing) put(ev waitingEvent) {
	if w.closed {
		return
	}
	if ev.key.kind == unreplaced {
		if w.single >= observerQueue {
			w.dropped++
			return
		}
		w.single++
		w.queue.PushBack(ev)
	} else {
		old := w.newest[ev.key]
		switch {
		case old != nil:
			w.queue.Remove(old)
		case len(w.newest) >= observerKeys:
			w.dropped++
			return
		}
		w.newest[ev.key] = w.queue.PushBack(ev)
	}
	w.wake.Signal()
}

func (w *observing) leadership(e LeadershipEvent) {
	if w != nil {
		tell(w, eventKey{leadershipChanged, e.Topic, int32(e.Partition)}, w.to.Leadership, e)
	}
}

// isr keeps the old ISR of an event that it replaces.
func (w *observing) isr(e ISREvent) {
	if w == nil || w.to.ISR == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := eventKey{isrChanged, e.Topic, int32(e.Partition)}
	if old := w.newest[key]; old != nil {
		e.Old = old.Value.(waitingEvent).isr.Old
	}
	w.put(waitingEvent{key: key, call: func() { w.to.ISR(e) }, isr: e})
}

func (w *observing) truncated(e TruncationEvent) {
	if w != nil {
		tell(w, eventKey{}, w.to.Truncated, e)
	}
}

func (w *observing) lost(e LossEvent) {
	if w != nil {
		tell(w, eventKey{}, w.to.Lost, e)
	}
}

func (w *observing) uncleanElection(e UncleanElectionEvent) {
	if w != nil {
		tell(w, eventKey{}, w.to.UncleanElection, e)
	}
}

func (w *observing) damaged(e DamageEvent) {
	if w != nil {
		tell(w, eventKey{}, w.to.Damaged, e)
	}
}

func (w *observing) store(e StoreEvent) {
	if w != nil {
		tell(w, eventKey{kind: storeChanged}, w.to.Store, e)
	}
}

func (w *observing) link(e LinkEvent) {
	if w != nil {
		tell(w, eventKey{kind: linkChanged, n: e.Broker}, w.to.Link, e)
	}
}

func (w *observing) registration(e RegistrationEvent) {
	if w != nil {
		tell(w, eventKey{kind: registrationChanged}, w.to.Registration, e)
	}
}

func (w *observing) controller(e ControllerEvent) {
	if w != nil {
		tell(w, eventKey{kind: controllerChanged}, w.to.Controller, e)
	}
}

func (w *observing) unfit(reason error) {
	if w != nil {
		tell(w, eventKey{kind: becameUnfit}, w.to.Unfit, reason)
	}
}

// take waits for the next event, and is false once the broker is closed.
func (w *observing) take() (call func(), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calling = false
	for w.queue.Len() == 0 && !w.closed {
		w.wake.Wait()
	}
	if w.closed {
		return nil, false
	}
	ev := w.queue.Remove(w.queue.Front()).(waitingEvent)
	if ev.key.kind == unreplaced {
		w.single--
	} else {
		delete(w.newest, ev.key)
	}
	w.calling = true
	return ev.call, true
}

// run calls the Observer until the broker is closed.
func (w *observing) run() {
	for {
		call, ok := w.take()
		if !ok {
			close(w.ended)
			return
		}
		w.do(call)
	}
}

// do makes one call. One that ends the goroutine (runtime.Goexit, as a test's
// FailNow does) is treated like one that panics: another goroutine goes on.
func (w *observing) do(call func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		why := recover()
		w.mu.Lock()
		w.panics++
		w.mu.Unlock()
		w.log.Error("observer panicked", "broker", w.id, "reason", why, "stack", string(debug.Stack()))
		if why == nil {
			go w.run()
		}
	}()
	call()
	returned = true
}

// close has no call begin any more, and waits for the goroutine to end unless it is
// in one: that may be the very call that closes the broker, or one that never returns.
func (w *observing) close() {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.closed = true
	calling := w.calling
	w.wake.Signal()
	w.mu.Unlock()
	if !calling {
		<-w.ended
	}
}

// counts are how many events were dropped, and how many calls panicked.
func (w *observing) counts() (dropped, panics uint64) {
	if w == nil {
		return 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped, w.panics
}
