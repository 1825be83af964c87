package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/record"
)

const lastMilli = 253402300799999 // of the year 9999

// field draws nil, empty and longer byte slices; the sizes around 64 and 8192
// change the width of their length.
func field() *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		switch n := rapid.SampledFrom([]int{-1, 0, 1, 5, 63, 64, 65, 8191, 8192}).Draw(t, "length"); n {
		case -1:
			return nil
		default:
			return bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, n)
		}
	})
}

func recordGen() *rapid.Generator[record.Record] {
	return rapid.Custom(func(t *rapid.T) record.Record {
		r := record.Record{Key: field().Draw(t, "key"), Value: field().Draw(t, "value")}
		if rapid.Bool().Draw(t, "timed") {
			r.Timestamp = time.UnixMilli(rapid.Int64Range(0, lastMilli).Draw(t, "ms")).UTC()
		}
		for range rapid.SampledFrom([]int{0, 0, 1, 2, 10, 70}).Draw(t, "headers") {
			r.Headers = append(r.Headers, record.Header{
				Key:   rapid.SampledFrom([]string{"", "a", "trace-id", "schlüssel", "\xff"}).Draw(t, "header key"),
				Value: rapid.SampledFrom([][]byte{nil, {}, {1}, []byte("longer")}).Draw(t, "header value"),
			})
		}
		return r
	})
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.UnixMilli(rapid.Int64Range(0, lastMilli).Draw(t, "now")).UTC()
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "prefix")
		run := slices.Clone(prefix)
		offset := rapid.Int64Range(0, math.MaxInt64-1000).Draw(t, "offset")
		var want []record.Record
		var sizes []int
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			recs := rapid.SliceOfN(recordGen(), 1, 70).Draw(t, "records")
			epoch := rapid.Int32Range(-1, math.MaxInt32).Draw(t, "epoch")
			start := len(run)
			var err error
			run, err = record.Encode(run, recs, now)
			require.NoError(t, err)
			batch := run[start:]
			require.Equal(t, record.EncodedSize(recs, now), len(batch))
			require.Equal(t, batch, build(t, recs, now, record.NoCompression))
			checkBound(t, recs, len(batch))
			record.Stamp(batch, offset, epoch)
			sizes = append(sizes, len(batch))
			for _, r := range recs {
				r.Offset, r.LeaderEpoch = offset, epoch
				if r.Timestamp.IsZero() {
					r.Timestamp = now
				}
				want = append(want, r)
				offset++
			}
		}
		require.Equal(t, prefix, run[:len(prefix)])
		run = run[len(prefix):]
		require.Equal(t, want, collect(t, run))
		checkRun(t, run, want, sizes)
	})
}

// build makes a batch with a Builder that was used before.
func build(t require.TestingT, recs []record.Record, now time.Time, c record.Compression) []byte {
	var b record.Builder
	require.NoError(t, b.Add(&record.Record{Value: []byte("before")}, time.UnixMilli(77)))
	b.Reset()
	for i := range recs {
		require.NoError(t, b.Add(&recs[i], now))
		require.Equal(t, i+1, b.Count())
		require.Equal(t, record.EncodedSize(recs[:i+1], now), b.Size())
	}
	prefix := []byte("prefix")
	out, err := b.Encode(prefix, c)
	require.NoError(t, err)
	require.Equal(t, prefix, out[:len(prefix)])
	return out[len(prefix):]
}

func TestBuilderRefuses(t *testing.T) {
	var b record.Builder
	now := time.UnixMilli(goldenTime)
	_, err := b.Encode(nil, record.NoCompression)
	require.ErrorIs(t, err, record.ErrEmpty)
	require.NoError(t, b.Add(&record.Record{Value: []byte("v")}, now))
	size := b.Size()
	require.ErrorIs(t, b.Add(&record.Record{}, time.Time{}), record.ErrTimestamp)
	require.ErrorIs(t, b.Add(&record.Record{Timestamp: time.UnixMilli(-1)}, now), record.ErrTimestamp)
	require.Equal(t, size, b.Size(), "nothing was added")
	_, err = b.Encode(nil, 77)
	require.ErrorIs(t, err, record.ErrUnsupported)
}

// checkBound compares the sum of MaxRecordSize with the truth.
func checkBound(t require.TestingT, recs []record.Record, size int) {
	bound := record.HeaderSize
	for i := range recs {
		bound += record.MaxRecordSize(&recs[i])
	}
	require.LessOrEqual(t, size, bound)
	require.LessOrEqual(t, bound-size, 11*len(recs))
}

// checkRun takes a run apart with Split and compares what the headers say.
func checkRun(t require.TestingT, run []byte, want []record.Record, sizes []int) {
	for _, size := range sizes {
		peeked, err := record.Peek(run[:record.HeaderSize])
		require.NoError(t, err)
		checked, err := record.Check(run)
		require.NoError(t, err)
		require.Equal(t, peeked, checked)
		first, rest, err := record.Split(run)
		require.NoError(t, err)
		require.Len(t, first, size)
		require.Equal(t, size, checked.Size)
		require.Equal(t, size, cap(first))
		latest := int64(0)
		for _, r := range want[:checked.Count] {
			latest = max(latest, r.Timestamp.UnixMilli())
		}
		require.Equal(t, want[0].Timestamp.UnixMilli(), checked.FirstTimestamp)
		require.Equal(t, latest, checked.MaxTimestamp)
		require.Equal(t, want[0].Offset, checked.Base)
		require.Equal(t, want[0].LeaderEpoch, checked.Epoch)
		require.Equal(t, want[checked.Count-1].Offset, checked.Last)
		want, run = want[checked.Count:], rest
	}
	require.Empty(t, want)
	require.Empty(t, run)
}

func TestEncodeRefuses(t *testing.T) {
	now := time.UnixMilli(goldenTime)
	good := record.Record{Timestamp: now}
	big := make([]byte, 1<<26) // 32 references to it are 2 GiB that nobody allocates
	tooLarge := slices.Repeat([]record.Record{{Value: big}}, 32)
	headers := slices.Repeat([]record.Header{{Value: big}}, 32)
	at := func(t time.Time) []record.Record { return []record.Record{good, {Timestamp: t}} }
	for name, c := range map[string]struct {
		recs []record.Record
		now  time.Time
		want error
	}{
		"nothing":           {nil, now, record.ErrEmpty},
		"too large":         {tooLarge, now, record.ErrTooLarge},
		"headers too large": {[]record.Record{{Headers: headers}}, now, record.ErrTooLarge},
		"before 1970":       {at(time.Unix(0, -1)), now, record.ErrTimestamp},
		"after 9999":        {at(time.UnixMilli(lastMilli + 1)), now, record.ErrTimestamp},
		"far future":        {at(time.Unix(math.MaxInt64/2, 0)), now, record.ErrTimestamp},
		"zero now":          {at(time.Time{}), time.Time{}, record.ErrTimestamp},
	} {
		t.Run(name, func(t *testing.T) {
			dst := []byte("kept")
			out, err := record.Encode(dst, c.recs, c.now)
			require.ErrorIs(t, err, c.want)
			require.Equal(t, dst, out)
		})
	}
	for _, edge := range []time.Time{time.Unix(0, 0), time.UnixMilli(lastMilli)} {
		b, err := record.Encode(nil, []record.Record{{Timestamp: edge}}, time.Time{}) // an unused now does not matter
		require.NoError(t, err)
		require.True(t, edge.Equal(collect(t, b)[0].Timestamp))
	}
}

func TestEncodeCopies(t *testing.T) {
	recs := goldenRecords()
	b, err := record.Encode(nil, recs, time.UnixMilli(goldenTime+300))
	require.NoError(t, err)
	for _, f := range [][]byte{recs[0].Key, recs[0].Value, recs[0].Headers[0].Value} {
		clear(f)
	}
	require.Equal(t, goldenBytes(t), b)
}

// Appending to a decoded field must not reach into the bytes of its neighbour.
func TestDecodedFieldsAreClipped(t *testing.T) {
	b := goldenBytes(t)
	for _, r := range collect(t, b) {
		require.Equal(t, len(r.Key), cap(r.Key))
		require.Equal(t, len(r.Value), cap(r.Value))
		for _, h := range r.Headers {
			require.Equal(t, len(h.Value), cap(h.Value))
		}
	}
}

func TestAllEndsWhenAsked(t *testing.T) {
	b := goldenBytes(t)
	run := slices.Concat(b, b)
	for stop := 1; stop <= 6; stop++ {
		n := 0
		for _, err := range record.All(run) {
			require.NoError(t, err)
			if n++; n == stop {
				break
			}
		}
		require.Equal(t, stop, n)
	}
	require.Empty(t, collect(t, nil))
}

func TestStampKeepsTheChecksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, err := record.Encode(nil, goldenRecords(), time.UnixMilli(goldenTime+300))
		require.NoError(t, err)
		was := slices.Clone(b)
		base := rapid.Int64Range(0, math.MaxInt64-3).Draw(t, "base")
		epoch := rapid.Int32Range(-1, math.MaxInt32).Draw(t, "epoch")
		record.Stamp(b, base, epoch)
		info, err := record.Check(b)
		require.NoError(t, err)
		require.Equal(t, base, info.Base)
		require.Equal(t, base+3, info.End())
		require.Equal(t, epoch, info.Epoch)
		record.Stamp(b, 0, -1)
		require.Equal(t, was, b)
	})
}

func TestErrorDetails(t *testing.T) {
	for _, c := range []struct {
		err  error
		is   error
		text string
	}{
		{&record.TruncatedError{Have: 5, Need: 61}, record.ErrTruncated, "record: batch is truncated: 5 bytes of 61"},
		{&record.CorruptError{Offset: 9, What: "headers"}, record.ErrCorrupt, "record: batch is corrupt at offset 9: headers"},
		{&record.UnsupportedError{Magic: 1}, record.ErrUnsupported, "record: batch format is not supported: magic 1"},
		{
			&record.UnsupportedError{Magic: 2, Attributes: 0x12}, record.ErrUnsupported,
			"record: batch format is not supported: attributes 0x12 (unknown compression, transactional, control, delete horizon or unknown)",
		},
		{
			&record.TooLargeError{Offset: 9}, record.ErrTooLarge,
			"record: batch is too large at offset 9: decompressed, its records exceed 67108864 bytes",
		},
	} {
		require.EqualError(t, c.err, c.text)
		for _, sentinel := range []error{record.ErrTruncated, record.ErrCorrupt, record.ErrUnsupported, record.ErrTooLarge} {
			require.Equal(t, sentinel == c.is, errors.Is(c.err, sentinel))
		}
	}
}

// CheckTime refuses what Encode would refuse.
func TestCheckTime(t *testing.T) {
	for _, at := range []time.Time{time.Unix(0, 0), time.Unix(-1, 0), time.UnixMilli(lastMilli), time.UnixMilli(lastMilli + 1)} {
		_, err := record.Encode(nil, []record.Record{{Timestamp: at}}, time.Unix(1, 0))
		require.Equal(t, err == nil, record.CheckTime(at) == nil, at)
	}
}

// Verify holds what a checksum can hold, and leaves what is in the records to Check.
func TestVerify(t *testing.T) {
	b, err := record.Encode(nil, []record.Record{{Value: []byte("v")}, {Value: []byte("w")}}, time.UnixMilli(1))
	require.NoError(t, err)
	info, err := record.Verify(append(b, "more"...))
	require.NoError(t, err)
	require.Equal(t, []int{2, len(b)}, []int{info.Count, info.Size})

	flipped := bytes.Clone(b)
	flipped[len(b)-1] ^= 1 // the number of headers
	_, err = record.Verify(flipped)
	require.ErrorIs(t, err, record.ErrCorrupt)
	_, err = record.Verify(b[:len(b)-1])
	require.ErrorIs(t, err, record.ErrTruncated)

	binary.BigEndian.PutUint32(flipped[17:], crc32.Checksum(flipped[21:], crc32.MakeTable(crc32.Castagnoli)))
	_, err = record.Check(flipped)
	require.ErrorIs(t, err, record.ErrCorrupt)
	_, err = record.Verify(flipped)
	require.NoError(t, err)
}
