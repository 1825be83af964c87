// Package record reads and writes Kafka record batches of format version 2, the
// form in which records lie on disk and travel between brokers, so that tools
// made for Kafka's logs can read them.
//
// A batch is a header of [HeaderSize] bytes and then its records. All integers
// of the header are big-endian.
//
//	at  bytes  field                   here
//	 0    8    base offset             offset of the first record; 0 until [Stamp]
//	 8    4    batch length            bytes after this field: [Info.Size] - 12
//	12    4    partition leader epoch  -1 until [Stamp]
//	16    1    magic                   2
//	17    4    checksum                CRC-32C of everything from byte 21 on
//	21    2    attributes              bits 0-2 compression, 3 log append time, 4 transactional,
//	                                   5 control, 6 delete horizon; only bits 0-3 may be set
//	23    4    last offset delta       number of records - 1
//	27    8    first timestamp         milliseconds since 1970 UTC, of the first record
//	35    8    max timestamp           milliseconds since 1970 UTC, the latest of all records
//	43    8    producer id             -1: none
//	51    2    producer epoch          -1: none
//	53    4    base sequence           -1: none
//	57    4    number of records       at least 1
//	61    -    the records              when compressed, all of them together
//
// Base offset and leader epoch lie outside the checksum: a leader writes them
// into a finished batch and the checksum stays what it was.
//
// Each record is a run of varints (zigzag, seven bits a byte, low bits first)
// and bytes:
//
//	varint    length of the rest of this record
//	int8      attributes, unused
//	varlong   timestamp - first timestamp
//	varint    offset - base offset
//	varint    key length, -1: no key (nil)
//	bytes     key
//	varint    value length, -1: no value (nil)
//	bytes     value
//	varint    number of headers, each of them:
//	  varint    key length
//	  bytes     key
//	  varint    value length, -1: no value (nil)
//	  bytes     value
//
// Offsets in a batch are consecutive here. Kafka's compacted logs have batches
// with gaps; they are refused, and so is what this package does not know:
// transactions, control records, delete horizons and other format versions.
//
// # Compression
//
// Each [Compression] is what Kafka makes of it: a gzip stream; Snappy in the
// framing of Kafka's Java client, or as one bare block when read; one LZ4 frame of
// independent blocks; Zstandard. What is compressed are the records alone, so
// that a header is read, and stamped, without decompressing anything.
//
// # Trust
//
// Input may be hostile: no function that reads takes a length or a count from it
// without comparing it with the bytes that are there, none panics, and none
// allocates more than a small multiple of the records really present. Compressed
// records are really present to the extent that the bytes there can stand for, and
// to [MaxDecompressed] at most.
// [Check] is the gate: what passes it can be read by [All] to the end. [Peek],
// [Split] and [All] do not compute the checksum; they serve bytes that went
// through Check before.
//
// All functions may be called from any goroutine; nobody may change the bytes
// that a call reads while it runs.
package record
