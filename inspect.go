package tidemark

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/storage"
)

// Replica is a snapshot of one copy of one partition on this broker. All fields
// are of one moment.
type Replica struct {
	Topic     string
	Partition int
	Broker    int32

	Role           string // "leader", "follower", "none" or "failed"
	Fault          error  // why it failed; nil otherwise
	Leader         int32  // -1: none known
	LeaderEpoch    int32  // -1: not told yet
	PartitionEpoch int32  // -1: not told yet
	Led            int32  // highest epoch that it ever led; -1: none

	LogStart      int64
	LogEnd        int64 // LEO: queued to the store
	StoredEnd     int64 // completed by the store; never above LogEnd
	HighWatermark int64

	ISR, OSR []int32
	// Lags are how long each other replica has been missing what it misses; of a
	// replica that has not reported in this epoch there is none. Only on a leader.
	Lags map[int32]time.Duration
	// PendingISR is the ISR that was proposed and not decided yet. Only on a leader.
	PendingISR []int32

	b  *Broker
	id protocol.PartitionID
}

// Replica returns a snapshot of this broker's copy of a partition. It fails with
// ErrUnknownPartition when it has none.
func (b *Broker) Replica(ctx context.Context, topic string, n int) (*Replica, error) {
	_, t, err := b.topicOf(ctx, topic, 0)
	if err != nil {
		return nil, err
	}
	id := protocol.PartitionID{Topic: t.ID, Partition: partitionNumber(n)}
	var rep *Replica
	ok := b.loops[b.loopOf(id)].do(func(now time.Duration, s *shard) {
		if r := s.replicas[id]; r != nil {
			rep = r.snapshot(now)
		}
	})
	if !ok {
		return nil, ErrClosed
	}
	if rep == nil {
		return nil, fmt.Errorf("%w: broker %d has no replica of %s/%d", ErrUnknownPartition, b.cfg.ID, topic, n)
	}
	rep.Topic, rep.b, rep.id = topic, b, id
	return rep, nil
}

// snapshot describes the replica as it is now.
func (r *replicaState) snapshot(now time.Duration) *Replica {
	rep := &Replica{
		Partition: int(r.id.Partition), Broker: r.env.self, Role: r.role.String(), Fault: r.fault,
		Leader: protocol.NoLeader, LeaderEpoch: noEpoch, PartitionEpoch: -1, Led: r.led,
		LogStart: r.start, LogEnd: r.end, StoredEnd: r.stored, HighWatermark: r.hw,
	}
	if r.known {
		rep.Leader, rep.LeaderEpoch, rep.PartitionEpoch = r.state.Leader, r.state.LeaderEpoch, r.state.PartitionEpoch
		rep.ISR, rep.OSR = slices.Clone(r.state.ISR), r.state.OSR()
	}
	if r.role != roleLeader {
		return rep
	}
	rep.Lags = make(map[int32]time.Duration)
	for i := range r.remotes {
		if lag := r.lag(now, &r.remotes[i]); lag != lagForever {
			rep.Lags[r.remotes[i].id] = lag
		}
	}
	if p := r.isr.pending; p != nil {
		for _, m := range p.proposal.ISR {
			rep.PendingISR = append(rep.PendingISR, m.ID)
		}
	}
	return rep
}

// Batches iterates over the stored record batches of this copy from the one that
// holds offset from on, committed or not, as the disk has them: for comparison
// and for tools. Each is one encoded batch, owned by the caller.
func (r *Replica) Batches(ctx context.Context, from int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for next := from; ; {
			if err := ctx.Err(); err != nil {
				yield(nil, context.Cause(ctx))
				return
			}
			res, err := r.b.cfg.Store.Read(r.id, next, 1<<20)
			if errors.Is(err, storage.ErrUnknownLog) {
				return // nothing was ever stored
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for rest := res.Batches; len(rest) > 0; {
				var batch []byte
				batch, rest, err = record.Split(rest)
				if err != nil {
					yield(nil, err)
					return
				}
				info, err := record.Peek(batch)
				if !yield(batch, err) || err != nil {
					return
				}
				next = info.End()
			}
			if len(res.Batches) == 0 {
				return
			}
		}
	}
}

// counters count what happened since the broker was opened.
type counters struct {
	elections, truncations, resets, expansions, shrinks, damaged uint64
}

// Status is what a broker knows of itself.
type Status struct {
	Broker          int32
	BrokerEpoch     int64 // of the last registration; 0: none yet
	Controller      int32 // -1: not known
	ControllerEpoch int32 // -1: not known
	Unfit           error // why it gave up its roles; nil: it did not
	Registration    error // why the last attempt to register failed; nil: it did not
	Linked          []int32
	StoreAge        time.Duration // how long the oldest write has been under way
	StoreQueue      int64         // bytes that wait for the store
	StoreBytes      uint64        // that the store takes on disk

	Elections, Truncations, Resets, Expansions, Shrinks, Damaged uint64
	// DroppedMessages and DroppedItems count what came and was refused before it
	// was looked at: of another cluster or life, or unsound.
	DroppedMessages, DroppedItems uint64
}

// Status does not wait.
func (b *Broker) Status() Status {
	b.mu.Lock()
	s := Status{
		Broker: b.cfg.ID, Unfit: b.unfitReason(), Registration: b.regError,
		Elections: b.counts.elections, Truncations: b.counts.truncations, Resets: b.counts.resets,
		Expansions: b.counts.expansions, Shrinks: b.counts.shrinks, Damaged: b.counts.damaged,
	}
	b.mu.Unlock()
	s.BrokerEpoch, s.Controller, s.ControllerEpoch = b.epoch.Load(), b.controllerID(), b.controllerTerm.Load()
	s.StoreAge, s.StoreQueue = b.writer.load()
	s.StoreBytes = b.cfg.Store.Health().Disk
	s.DroppedMessages, s.DroppedItems = b.links.dropped(), b.links.unsound.Load()
	for _, l := range b.links.all() {
		if b.links.isUp(l.peer.ID) {
			s.Linked = append(s.Linked, l.peer.ID)
		}
	}
	slices.Sort(s.Linked)
	return s
}

// noted counts and logs what the core found worth telling.
func (b *Broker) noted(n note) {
	topic, _ := b.view.topicName(n.id.Topic)
	log := b.log.With("broker", b.cfg.ID, "topic", topic, "partition", n.id.Partition, "leader_epoch", n.epoch)
	b.mu.Lock()
	switch n.kind {
	case noteLeader:
		b.counts.elections++
	case noteTruncated:
		b.counts.truncations++
	case noteReset:
		b.counts.resets++
	case noteExpanded:
		b.counts.expansions++
	case noteShrunk:
		b.counts.shrinks++
	case noteDamaged:
		b.counts.damaged++
	}
	b.mu.Unlock()
	switch n.kind {
	case noteLeader:
		log.Info("became leader")
	case noteFollower:
		log.Info("became follower")
	case noteResigned:
		log.Warn("resigned leadership")
	case noteTruncated:
		log.Warn("truncated log", "from", n.from, "to", n.to)
	case noteReset:
		log.Warn("reset log", "from", n.from, "to", n.to)
	case noteExpanded:
		log.Info("isr expanded")
	case noteShrunk:
		log.Warn("isr shrunk")
	case noteDamaged:
		log.Error("log is damaged", "error", n.err)
	}
}
