package interop_test

import (
	"bytes"
	"hash/crc32"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/record"
)

const lastMilli = 253402300799999 // of the year 9999

var compressions = []record.Compression{record.NoCompression, record.Gzip, record.Snappy, record.LZ4, record.Zstd}

// field draws nil, empty, repetitive and random bytes.
func field() *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		switch n := rapid.SampledFrom([]int{-2, -1, 0, 1, 63, 64, 8192, 70000}).Draw(t, "length"); n {
		case -2:
			return rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")
		case -1:
			return nil
		default:
			return bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, n)
		}
	})
}

func recordGen() *rapid.Generator[record.Record] {
	return rapid.Custom(func(t *rapid.T) record.Record {
		r := record.Record{
			Timestamp: time.UnixMilli(rapid.Int64Range(0, lastMilli).Draw(t, "ms")).UTC(),
			Key:       field().Draw(t, "key"),
			Value:     field().Draw(t, "value"),
		}
		for range rapid.SampledFrom([]int{0, 0, 1, 2, 70}).Draw(t, "headers") {
			r.Headers = append(r.Headers, record.Header{
				Key:   rapid.SampledFrom([]string{"", "a", "trace-id", "schlüssel"}).Draw(t, "header key"),
				Value: rapid.SampledFrom([][]byte{nil, {}, {1}, []byte("longer")}).Draw(t, "header value"),
			})
		}
		return r
	})
}

// toKmsg is the records as kmsg has them.
func toKmsg(recs []record.Record) []kmsg.Record {
	out := make([]kmsg.Record, len(recs))
	for i, r := range recs {
		k := &out[i]
		k.TimestampDelta64 = r.Timestamp.UnixMilli() - recs[0].Timestamp.UnixMilli()
		k.TimestampDelta = int32(k.TimestampDelta64)
		k.OffsetDelta, k.Key, k.Value = int32(i), r.Key, r.Value
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		k.Length = int32(len(k.AppendTo(nil)) - 1) // that of length 0 takes one byte
	}
	return out
}

func appendKmsg(recs []kmsg.Record) []byte {
	var b []byte
	for i := range recs {
		b = recs[i].AppendTo(b)
	}
	return b
}

// readKmsg takes count records off b.
func readKmsg(t require.TestingT, b []byte, count int) []kmsg.Record {
	out := make([]kmsg.Record, count)
	for i := range out {
		require.NoError(t, out[i].ReadFrom(b))
		b = b[len(out[i].AppendTo(nil)):]
		if len(out[i].Headers) == 0 {
			out[i].Headers = nil
		}
	}
	require.Empty(t, b)
	return out
}

func castagnoli(b []byte) int32 {
	return int32(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// kmsgBatch is the batch of recs as kmsg writes it, with the records as given.
func kmsgBatch(recs []record.Record, c record.Compression, section []byte) []byte {
	first, latest := recs[0].Timestamp.UnixMilli(), int64(math.MinInt64)
	for _, r := range recs {
		latest = max(latest, r.Timestamp.UnixMilli())
	}
	v := kmsg.RecordBatch{
		Length: int32(record.HeaderSize - 12 + len(section)), PartitionLeaderEpoch: -1, Magic: 2,
		Attributes: int16(c), LastOffsetDelta: int32(len(recs) - 1), FirstTimestamp: first, MaxTimestamp: latest,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(recs)), Records: section,
	}
	v.CRC = castagnoli(v.AppendTo(nil)[21:])
	return v.AppendTo(nil)
}

// What Encode writes is, byte for byte, what kmsg writes for the same records.
func TestEncodeEqualsKmsg(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		recs := rapid.SliceOfN(recordGen(), 1, 20).Draw(t, "records")
		ours, err := record.Encode(nil, recs, time.Time{})
		require.NoError(t, err)
		theirs := kmsgBatch(recs, record.NoCompression, appendKmsg(toKmsg(recs)))
		require.Equal(t, theirs, ours)
	})
}

// kmsg and franz-go's decompressor read what EncodeCompressed writes, and writing
// that again with kmsg gives the same bytes.
func TestKmsgReadsOurs(t *testing.T) {
	decompressor := kgo.DefaultDecompressor()
	for _, c := range compressions {
		t.Run(c.String(), func(t *testing.T) {
			packed := 0
			rapid.Check(t, func(t *rapid.T) {
				recs := rapid.SliceOfN(recordGen(), 1, 20).Draw(t, "records")
				base, epoch := rapid.Int64Range(0, 1<<60).Draw(t, "base"), rapid.Int32Min(-1).Draw(t, "epoch")
				ours, err := record.EncodeCompressed(nil, recs, time.Time{}, c)
				require.NoError(t, err)
				record.Stamp(ours, base, epoch)

				var v kmsg.RecordBatch
				require.NoError(t, v.ReadFrom(ours))
				require.Equal(t, ours, v.AppendTo(nil))
				require.Equal(t, castagnoli(ours[21:]), v.CRC)
				info, err := record.Check(ours)
				require.NoError(t, err)
				require.Equal(t, headerOf(v), info)
				if info.Compression != record.NoCompression {
					require.Equal(t, c, info.Compression)
					packed++
				}
				section, err := decompressor.Decompress(v.Records, kgo.CompressionCodecType(v.Attributes&7))
				require.NoError(t, err)
				require.Equal(t, toKmsg(recs), readKmsg(t, section, int(v.NumRecords)))
			})
			if c != record.NoCompression {
				require.NotZero(t, packed)
			}
		})
	}
}

// headerOf is what record should find in a header.
func headerOf(v kmsg.RecordBatch) record.Info {
	return record.Info{
		Base: v.FirstOffset, Last: v.FirstOffset + int64(v.LastOffsetDelta), Epoch: v.PartitionLeaderEpoch,
		Count: int(v.NumRecords), Size: int(v.Length) + 12, FirstTimestamp: v.FirstTimestamp, MaxTimestamp: v.MaxTimestamp,
		Attributes: v.Attributes, Compression: record.Compression(v.Attributes & 7),
		ProducerID: v.ProducerID, ProducerEpoch: v.ProducerEpoch, BaseSequence: v.FirstSequence,
	}
}

// Check and All read what franz-go's compressors and kmsg write.
func TestWeReadKmsg(t *testing.T) {
	for name, codec := range codecs {
		t.Run(name, func(t *testing.T) {
			compressor, err := kgo.DefaultCompressor(codec.codec)
			require.NoError(t, err)
			rapid.Check(t, func(t *rapid.T) {
				recs := rapid.SliceOfN(recordGen(), 1, 20).Draw(t, "records")
				section := appendKmsg(toKmsg(recs))
				if compressor != nil {
					var used kgo.CompressionCodecType
					section, used = compressor.Compress(new(bytes.Buffer), section)
					require.Equal(t, int8(codec.want), int8(used))
				}
				theirs := kmsgBatch(recs, codec.want, section)
				record.Stamp(theirs, 7, 3)
				var v kmsg.RecordBatch
				require.NoError(t, v.ReadFrom(theirs))
				info, err := record.Check(theirs)
				require.NoError(t, err)
				require.Equal(t, headerOf(v), info)
				for i := range recs {
					recs[i].Offset, recs[i].LeaderEpoch = 7+int64(i), 3
				}
				require.Equal(t, recs, collect(t, theirs))
			})
		})
	}
}

// codec is one way in which franz-go compresses.
type codec struct {
	codec     kgo.CompressionCodec
	want      record.Compression
	streaming bool // records of many batches compressed together
}

var codecs = map[string]codec{
	"none":          {kgo.NoCompression(), record.NoCompression, false},
	"gzip":          {kgo.GzipCompression(), record.Gzip, false},
	"gzip-9":        {kgo.GzipCompression().WithLevel(9), record.Gzip, false},
	"gzip-stream":   {kgo.GzipCompression(), record.Gzip, true},
	"snappy":        {kgo.SnappyCompression(), record.Snappy, false},
	"snappy-stream": {kgo.SnappyCompression(), record.Snappy, true}, // in the framing of Kafka's Java client
	"lz4":           {kgo.Lz4Compression(), record.LZ4, false},
	"lz4-9":         {kgo.Lz4Compression().WithLevel(1 << 17), record.LZ4, false},
	"lz4-stream":    {kgo.Lz4Compression(), record.LZ4, true},
	"zstd":          {kgo.ZstdCompression(), record.Zstd, false},
	"zstd-best":     {kgo.ZstdCompression().WithLevel(4), record.Zstd, false},
	"zstd-stream":   {kgo.ZstdCompression(), record.Zstd, true},
}

// collect reads every record of a sound run of batches.
func collect(t require.TestingT, batches []byte) []record.Record {
	var recs []record.Record
	for rec, err := range record.All(batches) {
		require.NoError(t, err)
		recs = append(recs, rec)
	}
	return recs
}
