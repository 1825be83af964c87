// Package history checks what clients of a cluster saw: it is given every append with
// its outcome, every record that a reader got, and every replica's log in the end, and
// tells what of it cannot have happened in a cluster that keeps its promises.
//
// It knows nothing of brokers. What it reports is seen from outside, whatever the cause.
package history

import (
	"sync"
	"time"
)

// Outcome is how an attempt to append ended.
type Outcome uint8

const (
	// Acked: the append was acknowledged, by all in-sync replicas, at Offset.
	Acked Outcome = iota
	// Refused: this attempt is certainly not in the log. Another attempt may append the same value.
	Refused
	// Unknown: it may be in the log, or may yet come into it.
	Unknown
)

func (o Outcome) String() string {
	switch o {
	case Acked:
		return "acked"
	case Refused:
		return "refused"
	case Unknown:
		return "unknown"
	}
	return "not an outcome"
}

// Append is one attempt to append one value.
type Append struct {
	Producer  int
	Attempt   int // unique within the producer
	Partition int32
	// Value tells this append from all others of the partition. A value that is sent
	// again, because an attempt was refused or to find out, is another attempt with
	// the same value; it may be in the log once for each attempt that was not refused.
	Value   string
	Offset  int64 // if Acked
	Outcome Outcome
	// Began is read before the append is sent, Ended when its outcome is known, from
	// one clock for all producers and readers.
	Began, Ended time.Duration
}

// Read is a record that a reader got.
type Read struct {
	// Reader is one reading of a partition, from an offset on: who goes back, or leaves
	// something out, on purpose, goes on as another reader.
	Reader    int
	Partition int32
	Offset    int64
	Value     string
	At        time.Duration // when the reader had it
}

// Record is a record of a replica's log.
type Record struct {
	Offset int64
	Value  string
	// Sum is a checksum of the raw batch that the record is in. 0 is for a log that was
	// not read from disk: its sums and epochs are not compared.
	Sum   uint32
	Epoch int32 // of the leader that appended it
}

// Final is what a replica's log was in the end, from its start on, which is offset 0.
type Final struct {
	Partition int32
	Replica   int32
	Records   []Record
}

// History is what was seen so far. The zero value is empty and ready. It may be used
// from several goroutines; the reads of one reader are taken to have happened in the
// order in which they were added.
//
// Of a value it keeps a digest and its first 40 bytes. With three replicas it needs
// about 220 bytes per value, and 24 more for every further read of it; Check takes
// about twice that in addition while it runs.
type History struct {
	mu         sync.Mutex
	values     valueTable
	partitions map[int32]*partition
}

// partition is what was seen of one partition.
type partition struct {
	appends []attempt
	readers map[int][]sighting
	reads   int
	finals  []replicaLog
}

type attempt struct {
	producer, number int
	offset           int64
	began, ended     time.Duration
	value            valueID
	outcome          Outcome
}

type sighting struct {
	offset int64
	at     time.Duration
	value  valueID
}

type replicaLog struct {
	replica int32
	records []record
}

type record struct {
	offset int64
	value  valueID
	sum    uint32
	epoch  int32
}

// AddAppend adds an attempt that has ended.
func (h *History) AddAppend(a Append) {
	d := digestOf(a.Value)
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.partition(a.Partition)
	p.appends = append(p.appends, attempt{
		producer: a.Producer, number: a.Attempt, offset: a.Offset, began: a.Began, ended: a.Ended,
		value: h.values.id(d, a.Value), outcome: a.Outcome,
	})
}

// AddRead adds a record that a reader got.
func (h *History) AddRead(r Read) {
	d := digestOf(r.Value)
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.partition(r.Partition)
	if p.readers == nil {
		p.readers = make(map[int][]sighting)
	}
	p.readers[r.Reader] = append(p.readers[r.Reader], sighting{r.Offset, r.At, h.values.id(d, r.Value)})
	p.reads++
}

// AddFinal adds a replica's log. Every partition that was appended to needs one at
// least, and each replica has one. f.Records stays the caller's.
func (h *History) AddFinal(f Final) {
	records := make([]record, len(f.Records))
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, r := range f.Records {
		records[i] = record{r.Offset, h.values.id(digestOf(r.Value), r.Value), r.Sum, r.Epoch}
	}
	p := h.partition(f.Partition)
	p.finals = append(p.finals, replicaLog{f.Replica, records})
}

func (h *History) partition(id int32) *partition {
	p := h.partitions[id]
	if p == nil {
		if h.partitions == nil {
			h.partitions = make(map[int32]*partition)
		}
		p = &partition{}
		h.partitions[id] = p
	}
	return p
}
