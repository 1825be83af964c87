package record

import "time"

// HeaderSize is the size in bytes of a batch without its records.
const HeaderSize = 61

// Header is one of a record's headers: metadata that travels with it. Keys may
// repeat and their order is kept. A nil Value and an empty one are distinct.
// Tools made for Kafka expect keys in UTF-8; this package does not look.
type Header struct {
	Key   string
	Value []byte
}

// Record is one entry of a log. A nil Key or Value and an empty one are
// distinct; no headers are nil when read.
type Record struct {
	// Offset is the record's place in its partition. Filled when read, ignored
	// when encoded: the leader assigns it.
	Offset int64
	// LeaderEpoch is the epoch of the leader that took the record. Filled when
	// read, ignored when encoded.
	LeaderEpoch int32
	// Timestamp is kept to the millisecond (rounded down) and read back in UTC.
	// The zero time is replaced by the time of encoding. Years 1970 to 9999. A
	// batch from elsewhere may have records without a time (-1); they are read
	// back with the zero time.
	Timestamp time.Time
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Where the header's fields begin.
const (
	atBase          = 0
	atLength        = 8
	atEpoch         = 12
	atMagic         = 16
	atChecksum      = 17
	atAttributes    = 21 // the checksum covers everything from here on
	atLastDelta     = 23
	atFirstTime     = 27
	atMaxTime       = 35
	atProducer      = 43
	atProducerEpoch = 51
	atSequence      = 53
	atCount         = 57
)

const (
	magic = 2
	// lengthBias is what the batch length field does not count.
	lengthBias = atEpoch
	// compressionBits hold the Compression.
	compressionBits = 1<<3 - 1
	// logAppendTime marks a batch all of whose records have its max timestamp.
	logAppendTime = 1 << 3
	// noTimestamp stands for a record without a time.
	noTimestamp = -1
	// A record has at least a one-byte attribute and five one-byte varints, and
	// its own length before that; a header has two varints.
	minRecordBody = 6
	minRecord     = minRecordBody + 1
	minHeader     = 2
)
