package tidemark

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport"
)

// dice are random numbers that several goroutines share.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// pause lets virtual time pass.
func pause(d time.Duration) { <-time.After(d) }

// attackNet carries each message in a goroutine of its own, so it keeps no order.
// While it is rough it also refuses, loses, doubles, misdelivers and delays.
type attackNet struct {
	*dice
	rough  atomic.Bool
	way    atomic.Int64 // how long a message takes while it is not, in nanoseconds
	flying sync.WaitGroup

	hosts sync.Mutex
	at    map[int32]*attackEnd
}

// attackEnd is one broker's transport on an attackNet.
type attackEnd struct {
	net *attackNet
	id  int32

	mu     sync.RWMutex
	handle transport.Handler // nil: not started, or closed
}

func (e *attackEnd) Start(h transport.Handler) error {
	e.handle = h
	e.net.hosts.Lock()
	defer e.net.hosts.Unlock()
	e.net.at[e.id] = e
	return nil
}

func (e *attackEnd) MaxMessageBytes() int { return 8 << 20 }

func (e *attackEnd) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handle = nil
	return nil
}

func (e *attackEnd) take(m *protocol.Message) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.handle != nil {
		e.handle(m)
	}
}

func (e *attackEnd) Send(to transport.Peer, m *protocol.Message) error {
	n := e.net
	if !n.rough.Load() {
		n.carry(to.ID, m, time.Duration(n.way.Load()))
		return nil
	}
	switch k := n.roll(1000); {
	case k < 3:
		return errors.New("refused")
	case k < 6: // lost
		return nil
	case k < 10: // doubled, the second long after
		n.carry(to.ID, m, time.Duration(n.roll(400))*time.Millisecond)
	case k < 14: // to somebody else as well
		n.carry(int32(1+n.roll(3)), m, 0)
	case k < 100:
		n.carry(to.ID, m, time.Duration(n.roll(10))*time.Millisecond)
		return nil
	}
	n.carry(to.ID, m, 0)
	return nil
}

func (n *attackNet) carry(to int32, m *protocol.Message, after time.Duration) {
	n.hosts.Lock()
	e := n.at[to]
	n.hosts.Unlock()
	if e == nil {
		return
	}
	n.flying.Go(func() {
		if after > 0 {
			pause(after)
		}
		e.take(m)
	})
}

// attackDisk is a store whose faults begin when a test says so.
type attackDisk struct {
	storage.Store
	writes  atomic.Int64
	failAt  atomic.Int64 // the write from which on all fail; 0: none
	hangAt  atomic.Int64 // the write from which on none completes; 0: none
	refuse  atomic.Pointer[storage.LogID]
	once    atomic.Pointer[storage.LogID] // its next write is refused
	readErr atomic.Pointer[func(storage.LogID) error]
	setNode atomic.Pointer[chan struct{}] // SetNode returns when it is closed
}

func (s *attackDisk) Write(ops []storage.Op, synced bool, done func(storage.Result)) {
	n := s.writes.Add(1)
	if at := s.failAt.Load(); at > 0 && n >= at {
		go done(storage.Result{Err: errors.New("disk failed")})
		return
	}
	if at := s.hangAt.Load(); at > 0 && n >= at {
		return
	}
	id := s.refuse.Load()
	once := id == nil
	if once {
		id = s.once.Load()
	}
	if id == nil {
		s.Store.Write(ops, synced, done)
		return
	}
	kept := slices.DeleteFunc(slices.Clone(ops), func(op storage.Op) bool { return op.Log == *id })
	if len(kept) == len(ops) {
		s.Store.Write(ops, synced, done)
		return
	}
	if once {
		s.once.Store(nil)
	}
	s.Store.Write(kept, synced, func(r storage.Result) {
		r.Refused = map[storage.LogID]error{*id: errors.New("refused")}
		done(r)
	})
}

func (s *attackDisk) SetNode(n storage.Node) error {
	if hang := s.setNode.Load(); hang != nil {
		<-*hang
	}
	return s.Store.SetNode(n)
}

func (s *attackDisk) Read(l storage.LogID, from int64, limit int) (storage.Read, error) {
	if f := s.readErr.Load(); f != nil {
		if err := (*f)(l); err != nil {
			return storage.Read{}, err
		}
	}
	return s.Store.Read(l, from, limit)
}

// attackRig is a cluster of whole brokers in a bubble of virtual time.
type attackRig struct {
	t      *testing.T
	net    *attackNet
	dice   *dice
	coord  *memory.Store
	client *Client // over all brokers
	tweak  func(*Config)
	disks  []*memstore.Disk // of broker 1 at 0

	mu    sync.Mutex
	nodes map[int32]*attackNode
}

type attackNode struct {
	broker *Broker
	store  *attackDisk
	coord  *memory.Client
}

const attackSession = time.Second

// attack runs f over a cluster of n brokers, and holds that all end in time.
func attack(t *testing.T, n int, tweak func(*Config), f func(t *testing.T, r *attackRig)) {
	synctest.Test(t, func(t *testing.T) {
		d := &dice{rng: rand.New(rand.NewPCG(7, uint64(n)))}
		r := &attackRig{
			t: t, dice: d, net: &attackNet{dice: d, at: make(map[int32]*attackEnd)}, coord: memory.New(memory.Options{}),
			tweak: tweak, nodes: make(map[int32]*attackNode),
		}
		r.client = NewClient(r.open, ClientOptions{DefaultReplicationFactor: min(3, n)})
		for id := range int32(n) {
			r.disks = append(r.disks, memstore.NewDisk(memstore.SyncDelay(5*time.Millisecond)))
			r.start(id + 1)
		}
		defer r.close()
		f(t, r)
	})
}

// open lists the brokers that are up, by id.
func (r *attackRig) open() (all []*Broker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.disks {
		if n := r.nodes[int32(id+1)]; n != nil {
			all = append(all, n.broker)
		}
	}
	return all
}

func (r *attackRig) node(id int32) *attackNode {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[id]
}

func (r *attackRig) broker(id int32) *Broker {
	if n := r.node(id); n != nil {
		return n.broker
	}
	return nil
}

func (r *attackRig) start(id int32) {
	s, err := r.disks[id-1].Open()
	require.NoError(r.t, err)
	n := &attackNode{store: &attackDisk{Store: s}, coord: r.coord.Connect()}
	cfg := Config{ID: id, Store: n.store, Coordination: n.coord, Transport: &attackEnd{net: r.net, id: id},
		SessionTimeout: attackSession, MaxLag: 2 * attackSession}
	if r.tweak != nil {
		r.tweak(&cfg)
	}
	n.broker, err = Open(r.t.Context(), cfg)
	require.NoError(r.t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[id] = n
}

// take removes a broker from what the clients see.
func (r *attackRig) take(id int32) *attackNode {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[id]
	delete(r.nodes, id)
	return n
}

// kill ends a broker without warning: of the writes under way, keep survive.
func (r *attackRig) kill(id int32, keep int) {
	if n := r.take(id); n != nil {
		n.coord.Fence()
		r.disks[id-1].Crash(keep)
		r.end(id, n)
	}
}

func (r *attackRig) end(id int32, n *attackNode) {
	began := time.Now()
	if err := n.broker.Close(); err != nil || time.Since(began) > 2*time.Second {
		r.t.Errorf("close of %d: %v after %v", id, err, time.Since(began))
	}
}

func (r *attackRig) close() {
	for id := range r.disks {
		if n := r.take(int32(id + 1)); n != nil {
			r.end(int32(id+1), n)
			if err := errors.Join(n.store.Store.Close(), n.coord.Close()); err != nil {
				r.t.Error(err)
			}
		}
	}
	r.net.flying.Wait()
	if err := r.coord.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *attackRig) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	r.t.Cleanup(cancel)
	return ctx
}

// create makes a topic, waits until every replica is in sync, and returns the
// number of a partition that broker 1 leads, or 0.
func (r *attackRig) create(topic string, partitions int) (ledBy1 int) {
	r.t.Helper()
	for ctx := r.within(20 * time.Second); ; pause(10 * time.Millisecond) {
		err := r.client.Controller().EnsureTopic(ctx, topic, TopicConfig{Partitions: int32(partitions)})
		if err == nil {
			break
		}
		require.ErrorIs(r.t, err, ErrTooFewBrokers)
	}
	r.healthy(topic, partitions)
	for n := range partitions {
		if r.leader(r.client, topic, n) == 1 {
			return n
		}
	}
	return 0
}

func (r *attackRig) leader(c *Client, topic string, n int) int32 {
	ctx, cancel := context.WithTimeout(r.t.Context(), 300*time.Millisecond)
	defer cancel()
	s, err := c.Partition(topic, n).Status(ctx)
	if err != nil {
		return -1
	}
	return s.Leader
}

// healthy waits until all replicas of all partitions are in sync and equally long.
func (r *attackRig) healthy(topic string, partitions int) {
	r.t.Helper()
	var why string
	for range 3000 {
		why = ""
		for n := range partitions {
			why += r.unhealthy(topic, n)
		}
		if why == "" {
			return
		}
		pause(10 * time.Millisecond)
	}
	r.t.Fatalf("not healed within 30 s: %s", why)
}

// unhealthy says what is wrong with a partition; "" if nothing is.
func (r *attackRig) unhealthy(topic string, n int) string {
	var first *Replica
	for _, b := range r.open() {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		rep, err := b.Replica(ctx, topic, n)
		cancel()
		switch {
		case err != nil:
			return err.Error()
		case len(rep.OSR) > 0 || rep.Leader < 0 || rep.HighWatermark != rep.LogEnd || rep.StoredEnd != rep.LogEnd:
			return fmt.Sprintf("%+v", *rep)
		case first != nil && (rep.LogEnd != first.LogEnd || rep.LeaderEpoch != first.LeaderEpoch):
			return fmt.Sprintf("%d ends at %d in epoch %d, another at %d in %d", n, rep.LogEnd, rep.LeaderEpoch, first.LogEnd, first.LeaderEpoch)
		}
		first = rep
	}
	return ""
}

// holds checks the promise of AcksAll once all is well again: every replica has the
// same bytes, offsets have no gap, and what was acknowledged is where it was said to be.
func (r *attackRig) holds(topic string, acked []map[int64]string) {
	r.t.Helper()
	r.healthy(topic, len(acked))
	ctx := r.within(20 * time.Second)
	for n := range acked {
		var logs []string
		for _, b := range r.open() {
			rep, err := b.Replica(ctx, topic, n)
			require.NoError(r.t, err)
			var all []byte
			for batch, err := range rep.Batches(ctx, 0) {
				require.NoError(r.t, err)
				all = append(all, batch...)
			}
			logs = append(logs, string(all))
			require.True(r.t, logs[0] == string(all), "logs of partition %d differ", n)
		}
		off, err := r.client.Partition(topic, n).Offsets(ctx)
		require.NoError(r.t, err)
		got := make(map[int64]string)
		for next := int64(0); next < off.HighWatermark; {
			f, err := r.client.Partition(topic, n).Fetch(ctx, next, FetchOptions{})
			require.NoError(r.t, err)
			for _, rec := range f.Records {
				require.Equal(r.t, next, rec.Offset, "a gap")
				got[next] = string(rec.Value)
				next++
			}
		}
		for o, v := range acked[n] {
			require.Equal(r.t, v, got[o], "acknowledged at %d of partition %d", o, n)
		}
	}
}

// attackLoad appends and reads until it is ended.
type attackLoad struct {
	r     *attackRig
	topic string
	stop  context.Context
	end   func()
	work  sync.WaitGroup

	mu      sync.Mutex
	acked   []map[int64]string // by partition
	unknown int                // outcomes, though there was time left
}

// load appends with so many workers through any handle, and reads every partition.
func (r *attackRig) load(topic string, partitions, workers int) *attackLoad {
	l := &attackLoad{r: r, topic: topic}
	var cancel func()
	l.stop, cancel = context.WithCancel(r.t.Context())
	l.end = func() { cancel(); l.work.Wait() }
	for range partitions {
		l.acked = append(l.acked, make(map[int64]string))
	}
	for w := range workers {
		l.work.Go(func() {
			for i := 0; l.stop.Err() == nil; i++ {
				l.append(r.dice.roll(partitions), fmt.Sprintf("w%d-%d", w, i))
			}
		})
	}
	for n := range partitions {
		l.work.Go(func() { l.watchEnds(n) })
		l.work.Go(func() { l.read(n) })
	}
	return l
}

// handle is the client over all brokers, or one broker's own.
func (l *attackLoad) handle() *Client {
	if all := l.r.open(); len(all) > 0 && l.r.dice.roll(2) == 0 {
		return all[l.r.dice.roll(len(all))].Client
	}
	return l.r.client
}

// append appends once; the caller's bytes are overwritten at once, for the log
// must have its own, and the deadline is kept whatever happens.
func (l *attackLoad) append(n int, value string) {
	limit := time.Duration(1+l.r.dice.roll(2000)) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began, buf := time.Now(), []byte(value)
	res, err := l.handle().Partition(l.topic, n).Append(ctx, Record{Value: buf})
	clear(buf)
	if took := time.Since(began); took > limit+100*time.Millisecond {
		l.r.t.Errorf("append with a limit of %v took %v", limit, took)
	}
	if OutcomeOf(err) == NotAppended {
		pause(time.Millisecond)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		if o, ok := l.acked[n][res.Base]; ok {
			l.r.t.Errorf("two acks at %d: %s and %s", res.Base, o, value)
		}
		l.acked[n][res.Base] = value
	case OutcomeOf(err) == Unknown && ctx.Err() == nil:
		l.unknown++
	}
}

// watchEnds holds that the high watermark never goes back for who asks anew.
func (l *attackLoad) watchEnds(n int) {
	for last := int64(0); l.stop.Err() == nil; pause(3 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(l.stop, time.Second)
		o, err := l.r.client.Partition(l.topic, n).Offsets(ctx)
		cancel()
		if err == nil && o.HighWatermark < last {
			l.r.t.Errorf("high watermark %d after %d", o.HighWatermark, last)
		}
		last = max(last, o.HighWatermark)
	}
}

// read holds that a reader sees every offset once and in order.
func (l *attackLoad) read(n int) {
	for next := int64(0); l.stop.Err() == nil; pause(time.Millisecond) {
		for rec, err := range l.handle().Partition(l.topic, n).Records(l.stop, At(next)) {
			if err != nil {
				if l.stop.Err() == nil && !errors.Is(err, ErrUnknownTopic) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrUnfit) {
					l.r.t.Errorf("records: %v", err)
				}
				break
			}
			if rec.Offset != next {
				l.r.t.Errorf("reader wants %d, gets %d", next, rec.Offset)
			}
			next = rec.Offset + 1
		}
	}
}

// count is how many appends were acknowledged so far.
func (l *attackLoad) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.acked {
		n += len(a)
	}
	return n
}

// remoteAppends has many goroutines append at once through a broker that is not
// the leader, and holds that a sound network leaves no outcome unknown.
func remoteAppends(r *attackRig, appenders, each int) {
	r.create("t", 1)
	b := r.broker(1 + r.leader(r.client, "t", 0)%3)
	ctx := r.within(time.Minute)
	var work sync.WaitGroup
	for range appenders {
		work.Go(func() {
			for range each {
				if _, err := b.Partition("t", 0).Append(ctx, Record{Value: make([]byte, 100)}); err != nil {
					r.t.Errorf("%v: %v", OutcomeOf(err), err)
				}
			}
		})
	}
	work.Wait()
	for _, l := range b.links.all() {
		require.EqualValues(r.t, 1, l.link.count.sessions, "sessions with %d", l.peer.ID)
	}
}

// misuse is a call whose arguments make no sense.
type misuse struct {
	what string
	do   misuseCall
	want error
}

type misuseCall func(ctx context.Context, r *attackRig) error

func misuses() []misuse {
	appends := func(n int, o AppendOptions, recs ...Record) misuseCall {
		return func(ctx context.Context, r *attackRig) error {
			_, err := r.client.Partition("t", n).AppendWith(ctx, o, recs...)
			return err
		}
	}
	fetch := func(from int64, o FetchOptions) misuseCall {
		return func(ctx context.Context, r *attackRig) error {
			_, err := r.client.Partition("t", 0).Fetch(ctx, from, o)
			return err
		}
	}
	create := func(name string, cfg TopicConfig) misuseCall {
		return func(ctx context.Context, r *attackRig) error {
			return r.client.Controller().CreateTopic(ctx, name, cfg)
		}
	}
	replica := func(topic string, n int) misuseCall {
		return func(ctx context.Context, r *attackRig) error {
			_, err := r.broker(1).Replica(ctx, topic, n)
			return err
		}
	}
	return []misuse{
		{"no records", appends(0, AppendOptions{}), ErrInvalidRecord},
		{"partition -1", appends(-1, AppendOptions{}, Record{}), ErrUnknownPartition},
		{"partition 2^32", appends(1<<32, AppendOptions{}, Record{}), ErrUnknownPartition},
		{"acks 99", appends(0, AppendOptions{Acks: 99}, Record{}), ErrInvalidAcks},
		{"large record", appends(0, AppendOptions{}, Record{Value: make([]byte, 2<<20)}), ErrRecordTooLarge},
		{"many records", appends(0, AppendOptions{}, make([]Record, 1<<20)...), ErrBatchTooLarge},
		{"before 1970", appends(0, AppendOptions{}, Record{Timestamp: time.Unix(-5, 0)}), ErrInvalidRecord},
		{"from -1", fetch(-1, FetchOptions{}), ErrOffsetOutOfRange},
		{"from the highest", fetch(math.MaxInt64, FetchOptions{}), ErrOffsetOutOfRange},
		{"negative bounds", fetch(0, FetchOptions{MaxBytes: -1, MaxWait: -time.Hour}), nil},
		{"huge bounds", fetch(0, FetchOptions{MaxBytes: 1 << 60}), nil},
		{"name with a slash", create("a/b", TopicConfig{}), ErrInvalidTopic},
		{"-1 partitions", create("x", TopicConfig{Partitions: -1}), ErrInvalidTopic},
		{"replication factor 2^30", create("x", TopicConfig{ReplicationFactor: 1 << 30}), ErrTooFewBrokers},
		{"min ISR -1", create("x", TopicConfig{MinISR: -1}), ErrInvalidTopic},
		{"replica -7", replica("t", -7), ErrUnknownPartition},
		{"replica of nothing", replica("nope", 0), ErrUnknownTopic},
	}
}
