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

	Replicas []int32 // AR, in order of preference; none: not told yet
	ISR, OSR []int32 // AR = ISR + OSR
	MinISR   int     // in force

	// The rest is of a leader only.

	// Lags are how long each other replica has been missing what it misses; of a
	// replica that has not reported in this epoch there is none.
	Lags map[int32]time.Duration
	// CommitLag is how long the oldest record above the high watermark has been there.
	CommitLag time.Duration
	// PendingISR is the ISR that was proposed and not decided yet, and PendingFor for
	// how long it has not been.
	PendingISR []int32
	PendingFor time.Duration
	// UncommittedBytes are above the high watermark; see Config.MaxUncommittedBytes.
	UncommittedBytes int64
	// WaitingAppends and WaitingReads are the calls that wait for an answer of this leader.
	WaitingAppends, WaitingReads int

	b  *Broker
	id protocol.PartitionID
}

// Replica returns a snapshot of this broker's copy of a partition. It fails with
// ErrUnknownPartition when it has none.
func (b *Broker) Replica(ctx context.Context, topic string, n int) (*Replica, error) {
	ctx = given(ctx)
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
		rep.Replicas, rep.MinISR = slices.Clone(r.state.Replicas), int(r.state.MinISR)
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
	if r.hw < r.end {
		rep.CommitLag = now - r.marks.appendedAt(r.hw, r.leadSince)
	}
	rep.UncommittedBytes = r.uncommittedBytes
	rep.WaitingAppends, rep.WaitingReads = len(r.onStored)+len(r.onCommit), len(r.readers)
	if p := r.isr.pending; p != nil {
		rep.PendingFor = now - p.since
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
	ctx = given(ctx)
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
