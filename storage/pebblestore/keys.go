package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// The layout (D23). All integers are big-endian. A "local" is the number that a
// log has within this store: it is new after a Reset and when a log is created
// again, so that nothing an older life left behind can be taken for the new one's.
//
//	01 'f'                        format version (u32)
//	01 'n'                        node: cluster, directory, broker id, broker epoch
//	01 'c'                        counters: next local, newest segment
//	02 topic partition            state: local, start, end, hw, total bytes
//	03 topic partition            led epoch, epoch history
//	04 local segment              index entry: first offset, total bytes before it
//	08 segment local base         one record batch
//
// Appended data goes to the newest segment; segments have no end of their own, the
// number just rises once about SegmentBytes were written, and with each memtable, so
// that what is flushed together lies together and tables do not overlap. Per log, the
// index says from which offset on a segment holds it: up to the next entry's offset,
// or the log's end. It is authoritative: a batch key outside its entry's interval does
// not exist.
const (
	prefixMeta   = 1
	prefixState  = 2
	prefixEpochs = 3
	prefixIndex  = 4
	prefixData   = 8
)

// formatVersion is what this code writes. A reader refuses a higher one.
const formatVersion = 1

var (
	keyFormat   = []byte{prefixMeta, 'f'}
	keyNode     = []byte{prefixMeta, 'n'}
	keyCounters = []byte{prefixMeta, 'c'}
)

var be = binary.BigEndian

const logKeySize = 1 + 16 + 4

func logKey(prefix byte, id storage.LogID) []byte {
	k := make([]byte, 0, logKeySize)
	k = append(k, prefix)
	k = append(k, id.Topic[:]...)
	return be.AppendUint32(k, uint32(id.Partition))
}

func parseLogKey(k []byte) (id storage.LogID, err error) {
	if len(k) != logKeySize {
		return id, fmt.Errorf("key %x", k)
	}
	copy(id.Topic[:], k[1:])
	id.Partition = int32(be.Uint32(k[17:]))
	return id, nil
}

func indexKey(local, segment uint64) []byte {
	k := make([]byte, 0, 1+16)
	k = append(k, prefixIndex)
	k = be.AppendUint64(k, local)
	return be.AppendUint64(k, segment)
}

// segmentKey is before all data of a segment and behind that of earlier ones.
func segmentKey(segment uint64) []byte { return be.AppendUint64([]byte{prefixData}, segment) }

const dataKeySize = 1 + 24

func dataKey(segment, local uint64, base int64) []byte {
	return appendDataKey(make([]byte, 0, dataKeySize), segment, local, base)
}

func appendDataKey(k []byte, segment, local uint64, base int64) []byte {
	k = append(k, prefixData)
	k = be.AppendUint64(k, segment)
	k = be.AppendUint64(k, local)
	return be.AppendUint64(k, uint64(base))
}

var errSize = errors.New("value has the wrong size")

// logRecord is the value of a state key.
type logRecord struct {
	local          uint64
	start, end, hw int64
	total          int64
}

func (r logRecord) encode() []byte {
	v := make([]byte, 0, 40)
	v = be.AppendUint64(v, r.local)
	v = be.AppendUint64(v, uint64(r.start))
	v = be.AppendUint64(v, uint64(r.end))
	v = be.AppendUint64(v, uint64(r.hw))
	return be.AppendUint64(v, uint64(r.total))
}

func decodeLogRecord(v []byte) (r logRecord, err error) {
	if len(v) != 40 {
		return r, errSize
	}
	r.local = be.Uint64(v)
	r.start = int64(be.Uint64(v[8:]))
	r.end = int64(be.Uint64(v[16:]))
	r.hw = int64(be.Uint64(v[24:]))
	r.total = int64(be.Uint64(v[32:]))
	return r, nil
}

func encodeEpochs(led int32, history []storage.EpochEntry) []byte {
	v := make([]byte, 0, 4+12*len(history))
	v = be.AppendUint32(v, uint32(led))
	for _, e := range history {
		v = be.AppendUint32(v, uint32(e.Epoch))
		v = be.AppendUint64(v, uint64(e.Start))
	}
	return v
}

func decodeEpochs(v []byte) (led int32, history []storage.EpochEntry, err error) {
	if len(v) < 4 || (len(v)-4)%12 != 0 {
		return -1, nil, errSize
	}
	led = int32(be.Uint32(v))
	for v = v[4:]; len(v) > 0; v = v[12:] {
		history = append(history, storage.EpochEntry{Epoch: int32(be.Uint32(v)), Start: int64(be.Uint64(v[4:]))})
	}
	return led, history, nil
}

func encodeEntry(e entry) []byte {
	v := make([]byte, 0, 16)
	v = be.AppendUint64(v, uint64(e.first))
	return be.AppendUint64(v, uint64(e.before))
}

func decodeEntry(k, v []byte) (local uint64, e entry, err error) {
	if len(k) != 17 {
		return 0, e, errSize
	}
	if len(v) != 16 {
		return be.Uint64(k[1:]), e, errSize
	}
	e = entry{segment: be.Uint64(k[9:]), first: int64(be.Uint64(v)), before: int64(be.Uint64(v[8:]))}
	return be.Uint64(k[1:]), e, nil
}

func encodeNode(n storage.Node) []byte {
	v := make([]byte, 0, 44)
	v = append(v, n.Cluster[:]...)
	v = append(v, n.Directory[:]...)
	v = be.AppendUint32(v, uint32(n.BrokerID))
	return be.AppendUint64(v, uint64(n.BrokerEpoch))
}

func decodeNode(v []byte) (n storage.Node, err error) {
	if len(v) != 44 {
		return n, errSize
	}
	n.Cluster, n.Directory = protocol.UUID(v[:16]), protocol.UUID(v[16:32])
	n.BrokerID, n.BrokerEpoch = int32(be.Uint32(v[32:])), int64(be.Uint64(v[36:]))
	return n, nil
}

// counters hand out numbers that never repeat.
type counters struct {
	local   uint64 // next one
	segment uint64 // newest one
}

func (c counters) encode() []byte {
	return be.AppendUint64(be.AppendUint64(make([]byte, 0, 16), c.local), c.segment)
}

func decodeCounters(v []byte) (c counters, err error) {
	if len(v) != 16 {
		return c, errSize
	}
	return counters{be.Uint64(v), be.Uint64(v[8:])}, nil
}
