package node

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark"
)

// Outcome is what is known of an append.
type Outcome uint8

const (
	Unknown  Outcome = iota // it may be in the log, now or later
	Refused                 // it is not, and will not be
	Appended                // it is
)

// AppendArgs ask for one record to be appended with acks=all.
type AppendArgs struct {
	Partition int
	Value     []byte
	Timeout   time.Duration
}

// AppendReply says what became of it.
type AppendReply struct {
	Outcome Outcome
	Offset  int64  // if Appended; -1: not known
	Err     string // "": none
}

// FetchArgs ask for committed records.
type FetchArgs struct {
	Partition     int
	Offset        int64
	MaxBytes      int
	Wait, Timeout time.Duration
}

// FetchReply has some, or none.
type FetchReply struct {
	Records       []Record
	HighWatermark int64
	Err           string
}

// Record is a record that was read.
type Record struct {
	Offset int64
	Value  []byte
}

// StatusReply is how a broker is.
type StatusReply struct {
	Open       bool   // it was opened; the rest is empty otherwise
	NotReady   string // "": it is ready
	Unfit      string
	Registered bool
	Controller int32 // -1: not known
	// What may never have happened here.
	Losses, Damaged, UncleanElections, ObserverPanics uint64
	Replicas                                          []Replica // of the topic's partitions
}

// Replica is one partition as a broker knows it.
type Replica struct {
	Partition                                  int
	Role, Fault                                string
	Leader                                     int32 // -1: none
	LeaderEpoch                                int32
	ISR                                        []int32
	LogStart, LogEnd, StoredEnd, HighWatermark int64
}

// TopicArgs ask for the topic to be there.
type TopicArgs struct {
	Partitions, ReplicationFactor, MinISR int
	Timeout                               time.Duration
}

// None is no argument and no answer.
type None struct{}

// control is the interface as package rpc serves it. Calls wait for nothing but what
// they are about: each has a goroutine of its own.
type control struct {
	listener net.Listener
	server   *rpc.Server
	disk     func(Disk)
	stop     context.CancelFunc

	callers sync.WaitGroup // connections

	mu     sync.Mutex
	broker *tidemark.Broker // nil: not open yet
}

// serviceName is the name of the interface.
const serviceName = "Node"

// errNotOpen is what calls get before the broker is there.
var errNotOpen = errors.New("broker is not open yet")

// service has the methods that are served, and no other.
type service struct{ c *control }

func newControl(disk func(Disk), stop context.CancelFunc) (*control, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &control{listener: l, server: rpc.NewServer(), disk: disk, stop: stop}
	if err := c.server.RegisterName(serviceName, &service{c}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	go c.serve()
	return c, nil
}

// serve ends with the listener. Connections end with the process.
func (c *control) serve() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.callers.Go(func() { c.server.ServeConn(conn) })
	}
}

// farewell answers on, with refusals, until all callers have hung up: else they would not
// know what became of the calls that were on their way.
func (c *control) farewell(limit time.Duration) {
	_ = c.listener.Close()
	gone := make(chan struct{})
	go func() {
		c.callers.Wait()
		close(gone)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	}
}

func (c *control) set(b *tidemark.Broker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broker = b
}

func (c *control) get() (*tidemark.Broker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broker == nil {
		return nil, errNotOpen
	}
	return c.broker, nil
}

// Append implements the interface.
func (s *service) Append(a AppendArgs, r *AppendReply) error {
	b, err := s.c.get()
	if err != nil {
		*r = AppendReply{Outcome: Refused, Offset: -1, Err: err.Error()}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.Timeout)
	defer cancel()
	res, err := b.Partition(Topic, a.Partition).Append(ctx, tidemark.Record{Value: a.Value})
	r.Offset = res.Base
	switch tidemark.OutcomeOf(err) {
	case tidemark.Appended:
		r.Outcome = Appended
	case tidemark.NotAppended:
		r.Outcome = Refused
	}
	if err != nil {
		r.Err = err.Error()
	}
	return nil
}

// Fetch implements the interface.
func (s *service) Fetch(a FetchArgs, r *FetchReply) error {
	b, err := s.c.get()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.Timeout)
	defer cancel()
	f, err := b.Partition(Topic, a.Partition).Fetch(ctx, a.Offset, tidemark.FetchOptions{MaxBytes: a.MaxBytes, MaxWait: a.Wait})
	if err != nil {
		r.Err = err.Error()
		return nil
	}
	r.HighWatermark = f.HighWatermark
	for _, rec := range f.Records {
		r.Records = append(r.Records, Record{rec.Offset, rec.Value})
	}
	return nil
}

// EnsureTopic implements the interface.
func (s *service) EnsureTopic(a TopicArgs, _ *None) error {
	b, err := s.c.get()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.Timeout)
	defer cancel()
	return b.Controller().EnsureTopic(ctx, Topic, tidemark.TopicConfig{
		Partitions: int32(a.Partitions), ReplicationFactor: int32(a.ReplicationFactor), MinISR: int32(a.MinISR),
	})
}

// Status implements the interface.
func (s *service) Status(_ None, r *StatusReply) error {
	b, err := s.c.get()
	if err != nil {
		return nil
	}
	st := b.Status()
	*r = StatusReply{
		Open: true, NotReady: text(st.NotReady), Unfit: text(st.Unfit), Registered: st.Registered, Controller: st.Controller,
		Losses: st.Losses, Damaged: st.Damaged, UncleanElections: st.UncleanElections, ObserverPanics: st.ObserverPanics,
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n, err := b.Topic(Topic).Partitions(ctx)
	if err != nil {
		return nil
	}
	for i := range n {
		x, err := b.Replica(ctx, Topic, i)
		if err != nil {
			continue
		}
		r.Replicas = append(r.Replicas, Replica{
			Partition: i, Role: x.Role, Fault: text(x.Fault), Leader: x.Leader, LeaderEpoch: x.LeaderEpoch, ISR: x.ISR,
			LogStart: x.LogStart, LogEnd: x.LogEnd, StoredEnd: x.StoredEnd, HighWatermark: x.HighWatermark,
		})
	}
	return nil
}

// SetDisk implements the interface.
func (s *service) SetDisk(d Disk, _ *None) error {
	s.c.disk(d)
	return nil
}

// Stop implements the interface: it begins a graceful shutdown.
func (s *service) Stop(None, *None) error {
	s.c.stop()
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
