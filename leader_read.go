package tidemark

import (
	"errors"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// errEmptyRead is the damage of a store that has nothing where the log says it has.
var errEmptyRead = errors.New("tidemark: store holds no batch inside the log")

// maxReaders bounds the reads that wait at one partition.
const maxReaders = 4096

// parkedRead is a client's read that waits for records, or for a valid high watermark.
type parkedRead struct {
	peer     int32
	request  uint64
	kind     protocol.ReadKind
	from     int64
	maxBytes int
	deadline time.Duration
	reading  bool
}

// onRead takes a client's read. Only committed records are ever given out (RD-1, M8).
func (r *replicaState) onRead(now time.Duration, peer int32, q *protocol.Read) {
	switch {
	case q.Kind == protocol.ReadWritable:
		r.answerWritable(now, peer, q)
	case r.env.unfit:
		r.refuseRead(peer, q.Request, protocol.Unfit)
	case r.role == roleFailed:
		r.refuseRead(peer, q.Request, protocol.StorageFailed)
	case r.role != roleLeader:
		r.refuseRead(peer, q.Request, protocol.NotLeader)
	case len(r.readers) >= maxReaders:
		r.refuseRead(peer, q.Request, protocol.Overloaded)
	case q.Kind == protocol.ReadRecords && (q.From < r.start || q.From > r.end):
		// Between the high watermark and the end it waits instead (RD-2).
		r.refuseRead(peer, q.Request, protocol.OutOfRange)
	default:
		rd := parkedRead{
			peer: peer, request: q.Request, kind: q.Kind, from: q.From, maxBytes: int(min(q.MaxBytes, r.env.cfg.FetchBytes)),
			deadline: now + time.Duration(q.MaxWaitMs)*time.Millisecond,
		}
		r.readers = append(r.readers, rd)
		r.touch()
	}
}

// answerWritable says what would become of an append with AcksAll (B5).
func (r *replicaState) answerWritable(now time.Duration, peer int32, q *protocol.Read) {
	smallest := make([]byte, record.HeaderSize)
	code := r.admit(now, &protocol.Append{LeaderEpoch: -1, Acks: protocol.AcksAll, Batch: smallest})
	switch {
	case code == protocol.OK && r.env.shard.storeAge > r.env.cfg.StoreSlow:
		r.refuseRead(peer, q.Request, protocol.StoreStalled)
	case code == protocol.OK:
		r.answerRead(peer, q.Request, protocol.OK, nil)
	default:
		r.refuseRead(peer, q.Request, code)
	}
}

// serveReads answers the reads that can be answered.
func (r *replicaState) serveReads() {
	kept := r.readers[:0]
	for _, rd := range r.readers {
		if !r.serveRead(&rd) {
			kept = append(kept, rd)
		}
	}
	clear(r.readers[len(kept):])
	r.readers = kept
}

func (r *replicaState) serveRead(rd *parkedRead) (done bool) {
	if rd.kind == protocol.ReadEnds {
		// Until the epoch's own start is committed the high watermark may be lower
		// than what an earlier leader showed (RD-8).
		if r.hw < r.epochStart {
			return false
		}
		r.answerRead(rd.peer, rd.request, protocol.OK, nil)
		return true
	}
	limit := r.hw
	if r.env.planted.has(bugReadsUncommitted) {
		limit = r.end
	}
	if rd.reading || rd.from >= limit {
		return false
	}
	if !r.roomFor(rd.peer) {
		r.env.shard.starve(rd.peer, r)
		return false
	}
	batches, ok := r.tail.read(rd.from, limit, rd.maxBytes)
	if !ok {
		rd.reading = true
		r.env.eff.reads = append(r.env.eff.reads, coldRead{
			id: r.id, gen: r.gen, from: rd.from, limit: min(limit, r.tail.start(r.end)),
			maxBytes: rd.maxBytes, peer: rd.peer, request: rd.request,
		})
		return false
	}
	r.answerRead(rd.peer, rd.request, protocol.OK, batches)
	return true
}

// roomFor reports whether the way to a broker takes more bulk (D14).
func (r *replicaState) roomFor(peer int32) bool {
	link := r.env.links[peer]
	return peer == r.env.self || link != nil && link.credit > 0
}

// clientRead goes on with a read whose batches came from the store.
func (r *replicaState) clientRead(c coldRead, run []byte, err error) {
	for i := range r.readers {
		rd := &r.readers[i]
		if rd.peer != c.peer || rd.request != c.request || !rd.reading {
			continue
		}
		rd.reading = false
		r.touch()
		if c.gen != r.gen {
			return
		}
		batches, splitErr := splitBatches(run, c.limit, c.maxBytes)
		if err != nil || splitErr != nil || len(batches) == 0 {
			r.fail(firstError(err, splitErr, errEmptyRead))
			return
		}
		r.answerRead(rd.peer, rd.request, protocol.OK, batches)
		r.readers = append(r.readers[:i], r.readers[i+1:]...)
		return
	}
}

// expireReads ends the reads that have waited long enough with an empty answer.
func (r *replicaState) expireReads(now time.Duration) {
	kept := r.readers[:0]
	for _, rd := range r.readers {
		switch {
		case rd.deadline > now || rd.reading:
			kept = append(kept, rd)
		case rd.kind == protocol.ReadEnds:
			r.refuseRead(rd.peer, rd.request, protocol.Canceled)
		default:
			r.answerRead(rd.peer, rd.request, protocol.OK, nil)
		}
	}
	clear(r.readers[len(kept):])
	r.readers = kept
}

func (r *replicaState) answerRead(peer int32, request uint64, code protocol.Code, batches [][]byte) {
	if link := r.env.links[peer]; link != nil {
		for _, b := range batches {
			link.credit -= len(b)
		}
	}
	p := r.env.eff.to(peer)
	p.ReadAnswers = append(p.ReadAnswers, protocol.ReadAnswer{
		Request: request, Code: code, Batches: batches,
		HW: r.hw, LogStart: r.start, LogEnd: r.end, LeaderEpoch: r.state.LeaderEpoch,
	})
}

func (r *replicaState) refuseRead(peer int32, request uint64, code protocol.Code) {
	p := r.env.eff.to(peer)
	p.ReadAnswers = append(p.ReadAnswers, protocol.ReadAnswer{
		Request: request, Code: code, HW: r.hw, LogStart: r.start, LogEnd: r.end,
		LeaderEpoch: r.state.LeaderEpoch, State: r.stateHint(),
	})
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
