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

	"github.com/tidemark-log/tidemark/record"
)

// seal makes length and checksum right, so that what lies behind them is reached.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// lastError is the error that All ends with.
func lastError(batches []byte) (n int, last error) {
	for rec, err := range record.All(batches) {
		if last = err; err == nil {
			n++
			_ = rec
		}
	}
	return n, last
}

// Every change of one byte is noticed, but for base offset and leader epoch, which are not under the checksum.
func TestEveryFlippedByteIsNoticed(t *testing.T) {
	b := goldenBytes(t)
	for at := range b {
		if at < 8 || at >= 12 && at < 16 {
			continue
		}
		for mask := 1; mask < 256; mask++ {
			b[at] ^= byte(mask)
			_, err := record.Check(b)
			if err == nil {
				t.Fatalf("byte %d with mask %#x passes", at, mask)
			}
			lastError(b)
			b[at] ^= byte(mask)
		}
	}
	_, err := record.Check(b)
	require.NoError(t, err)
}

// The same with the checksum made right: nothing may panic, and what passes can be read.
func TestEveryFlippedByteUnderAGoodChecksum(t *testing.T) {
	for at := 21; at < 97; at++ {
		for mask := 1; mask < 256; mask++ {
			b := goldenBytes(t)
			b[at] ^= byte(mask)
			checkInvariants(t, seal(b))
		}
	}
}

func TestTruncation(t *testing.T) {
	b := goldenBytes(t)
	for n := range b {
		need := len(b)
		if n < record.HeaderSize {
			need = record.HeaderSize
			_, err := record.Peek(b[:n])
			require.Equal(t, &record.TruncatedError{Have: n, Need: need}, err)
		} else {
			_, err := record.Peek(b[:n])
			require.NoError(t, err)
		}
		want := &record.TruncatedError{Have: n, Need: need}
		_, err := record.Check(b[:n])
		require.Equal(t, want, err)
		_, _, err = record.Split(b[:n])
		require.Equal(t, want, err)
		read, err := lastError(slices.Concat(b, b[:n]))
		require.Equal(t, 3, read)
		if n == 0 {
			require.NoError(t, err)
		} else {
			require.Equal(t, want, err)
		}
		// Cut and then sealed: the length agrees, the records do not.
		if n >= record.HeaderSize {
			_, err = record.Check(seal(slices.Clone(b[:n])))
			require.ErrorIs(t, err, record.ErrCorrupt)
		}
	}
}

func TestHeaderFaults(t *testing.T) {
	be := binary.BigEndian
	unsupported := func(magic int8, attributes int16) error {
		return &record.UnsupportedError{Magic: magic, Attributes: attributes}
	}
	for name, c := range map[string]struct {
		edit func(b []byte)
		want error // nil: any CorruptError
	}{
		"magic 0":           {func(b []byte) { b[16] = 0 }, unsupported(0, 0)},
		"magic 1":           {func(b []byte) { b[16] = 1 }, unsupported(1, 0)},
		"magic 255":         {func(b []byte) { b[16] = 255 }, unsupported(-1, 0)},
		"compression 5":     {func(b []byte) { b[22] = 5 }, unsupported(2, 5)},
		"compression 7":     {func(b []byte) { b[22] = 7 }, unsupported(2, 7)},
		"transactional":     {func(b []byte) { b[22] = 16 }, unsupported(2, 16)},
		"control":           {func(b []byte) { b[22] = 32 }, unsupported(2, 32)},
		"delete horizon":    {func(b []byte) { b[22] = 64 }, unsupported(2, 64)},
		"unknown attribute": {func(b []byte) { b[21] = 0x80 }, unsupported(2, math.MinInt16)},
		"length 0":          {func(b []byte) { be.PutUint32(b[8:], 0) }, nil},
		"length 48":         {func(b []byte) { be.PutUint32(b[8:], 48) }, nil},
		"length 49":         {func(b []byte) { be.PutUint32(b[8:], 49) }, nil}, // no room for three records
		"length -1":         {func(b []byte) { be.PutUint32(b[8:], math.MaxUint32) }, nil},
		"length max":        {func(b []byte) { be.PutUint32(b[8:], math.MaxInt32) }, nil},
		"count 0":           {func(b []byte) { be.PutUint32(b[57:], 0); be.PutUint32(b[23:], math.MaxUint32) }, nil},
		"count -1":          {func(b []byte) { be.PutUint32(b[57:], math.MaxUint32) }, nil},
		"count min":         {func(b []byte) { be.PutUint32(b[57:], 1<<31); be.PutUint32(b[23:], math.MaxInt32) }, nil},
		"count 6":           {func(b []byte) { be.PutUint32(b[57:], 6); be.PutUint32(b[23:], 5) }, nil}, // 36 bytes hold five at most
		"count max":         {func(b []byte) { be.PutUint32(b[57:], math.MaxInt32); be.PutUint32(b[23:], math.MaxInt32-1) }, nil},
		"delta too small":   {func(b []byte) { be.PutUint32(b[23:], 1) }, nil},
		"delta too large":   {func(b []byte) { be.PutUint32(b[23:], 3) }, nil},
		"base negative":     {func(b []byte) { record.Stamp(b, -1, 0) }, nil},
		"base too large":    {func(b []byte) { record.Stamp(b, math.MaxInt64-2, 0) }, nil},
		"epoch -2":          {func(b []byte) { record.Stamp(b, 0, -2) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := goldenBytes(t)
			c.edit(b)
			_, peek := record.Peek(b)
			_, check := record.Check(b)
			_, _, split := record.Split(b)
			_, all := lastError(b)
			for _, err := range []error{peek, check, split, all} {
				if c.want != nil {
					require.Equal(t, c.want, err)
				} else {
					require.ErrorIs(t, err, record.ErrCorrupt)
				}
			}
		})
	}
	// Format versions before 2 are recognised in less than a header.
	_, err := record.Peek(make([]byte, 17))
	require.ErrorIs(t, err, record.ErrUnsupported)
	_, err = record.Peek(make([]byte, 16))
	require.ErrorIs(t, err, record.ErrTruncated)
}

// forge builds a sealed batch with one good record and then the given bytes as the second.
func forge(t *testing.T, second ...byte) []byte {
	b := goldenBytes(t)[:record.HeaderSize]
	binary.BigEndian.PutUint32(b[23:], 1)
	binary.BigEndian.PutUint32(b[57:], 2)
	copy(b[35:43], b[27:35]) // max timestamp = first
	b = append(b, 0x0c, 0, 0, 0, 1, 1, 0)
	return seal(append(b, second...))
}

func TestRecordFaults(t *testing.T) {
	_, err := record.Check(forge(t, 0x0c, 0, 0, 2, 1, 1, 0))
	require.NoError(t, err)
	_, err = record.Check(forge(t, 0x8c, 0x80, 0x00, 7, 0, 2, 1, 1, 0)) // wide numbers and attributes are no fault
	require.NoError(t, err)
	for name, c := range map[string]struct {
		second []byte
		what   string
	}{
		"length beyond the end":         {[]byte{0x0e, 0, 0, 2, 1, 1, 0}, "record length"},
		"length negative":               {[]byte{0x01, 0, 0, 2, 1, 1, 0}, "record length"},
		"length too small":              {[]byte{0x0a, 0, 0, 2, 1, 1, 0}, "record length"},
		"length too wide":               {[]byte{0xff, 0xff, 0xff, 0xff, 0x1f, 0, 0}, "record length"},
		"length endless":                {bytes.Repeat([]byte{0xff}, 20), "record length"},
		"timestamp too wide":            {append([]byte{0x20, 0}, bytes.Repeat([]byte{0xff}, 15)...), "record timestamp or offset"},
		"timestamp of 65 bits":          {append(append([]byte{0x1e, 0}, bytes.Repeat([]byte{0xff}, 9)...), 2, 2, 1, 1, 0), "record timestamp or offset"},
		"offset repeated":               {[]byte{0x0c, 0, 0, 0, 1, 1, 0}, "record offset is not consecutive"},
		"offset with a gap":             {[]byte{0x0c, 0, 0, 4, 1, 1, 0}, "record offset is not consecutive"},
		"offset negative":               {[]byte{0x0c, 0, 0, 1, 1, 1, 0}, "record offset is not consecutive"},
		"key length -2":                 {[]byte{0x0c, 0, 0, 2, 3, 1, 0}, "key length"},
		"key beyond the record":         {[]byte{0x0c, 0, 0, 2, 6, 1, 0}, "key length"},
		"key takes the value's place":   {[]byte{0x0c, 0, 0, 2, 4, 1, 0}, "value length"},
		"value length -2":               {[]byte{0x0c, 0, 0, 2, 1, 3, 0}, "value length"},
		"value beyond the record":       {[]byte{0x0c, 0, 0, 2, 1, 4, 0}, "value length"},
		"value takes the count's place": {[]byte{0x0c, 0, 0, 2, 1, 2, 0}, "number of headers"},
		"header count negative":         {[]byte{0x0c, 0, 0, 2, 1, 1, 1}, "number of headers"},
		"header count too large":        {[]byte{0x10, 0, 0, 2, 1, 1, 4, 0, 0}, "number of headers"},
		"header count huge":             {[]byte{0x14, 0, 0, 2, 1, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f}, "number of headers"},
		"header key nil":                {[]byte{0x10, 0, 0, 2, 1, 1, 2, 1, 0}, "headers"},
		"header key beyond the record":  {[]byte{0x10, 0, 0, 2, 1, 1, 2, 4, 0}, "headers"},
		"header value length -2":        {[]byte{0x10, 0, 0, 2, 1, 1, 2, 0, 3}, "headers"},
		"header value too long":         {[]byte{0x10, 0, 0, 2, 1, 1, 2, 0, 2}, "headers"},
		"bytes after the headers":       {[]byte{0x0e, 0, 0, 2, 1, 1, 0, 0}, "headers"},
	} {
		t.Run(name, func(t *testing.T) {
			b := forge(t, c.second...)
			record.Stamp(b, 40, 1)
			want := &record.CorruptError{Offset: 41, What: c.what}
			_, err := record.Check(b)
			require.Equal(t, want, err)
			n, err := lastError(b)
			require.Equal(t, want, err)
			require.Equal(t, 1, n, "the record before it is given")
		})
	}
}

func TestBatchFaultsBehindTheRecords(t *testing.T) {
	b := forge(t, 0x0c, 0, 0, 2, 1, 1, 0, 0)
	want := &record.CorruptError{What: "bytes after the last record"}
	_, err := record.Check(b)
	require.Equal(t, want, err)
	n, err := lastError(b)
	require.Equal(t, want, err)
	require.Equal(t, 2, n)

	b = forge(t, 0x0c, 0, 2, 2, 1, 1, 0) // a record later than the header's maximum
	_, err = record.Check(b)
	require.Equal(t, &record.CorruptError{What: "max timestamp is 1700000000001, header says 1700000000000"}, err)

	b = goldenBytes(t)
	b[96] ^= 1
	_, err = record.Check(b)
	require.ErrorContains(t, err, "header says ec1a9d9e")
}

func TestTimestampsFromElsewhere(t *testing.T) {
	b := goldenBytes(t)
	b[22] = 8 // log append time: every record has the batch's max timestamp
	_, err := record.Check(seal(b))
	require.NoError(t, err)
	for _, r := range collect(t, b) {
		require.Equal(t, int64(goldenTime+300), r.Timestamp.UnixMilli())
	}

	b = forge(t, 0x0c, 0, 0, 2, 1, 1, 0)
	for _, at := range []int{27, 35} { // -1: no time
		binary.BigEndian.PutUint64(b[at:], math.MaxUint64)
	}
	_, err = record.Check(seal(b))
	require.NoError(t, err)
	for _, r := range collect(t, b) {
		require.True(t, r.Timestamp.IsZero())
	}

	for _, extreme := range []uint64{math.MaxInt64, 1 << 63} { // odd, but no reason to fail
		for _, at := range []int{27, 35} {
			binary.BigEndian.PutUint64(b[at:], extreme)
		}
		_, err = record.Check(seal(b))
		require.NoError(t, err)
		require.Len(t, collect(t, b), 2)
	}
}

// checkInvariants holds for any bytes whatever.
func checkInvariants(t *testing.T, b []byte) {
	before := slices.Clone(b)
	peeked, peekErr := record.Peek(b)
	checked, err := record.Check(b)
	first, rest, splitErr := record.Split(b)
	n, allErr := lastError(b)
	if !bytes.Equal(before, b) {
		t.Fatal("reading changed the bytes")
	}
	for _, err := range []error{peekErr, err, splitErr, allErr} {
		if err != nil && !errors.Is(err, record.ErrTruncated) && !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrUnsupported) && !errors.Is(err, record.ErrTooLarge) {
			t.Fatalf("error without a kind: %v", err)
		}
	}
	if splitErr == nil && (len(first)+len(rest) != len(b) || peekErr != nil || peeked.Size != len(first)) {
		t.Fatal("Split and Peek disagree")
	}
	if allErr == nil && n == 0 && len(b) > 0 {
		t.Fatal("All gave neither a record nor an error")
	}
	if err != nil {
		return
	}
	if checked != peeked || splitErr != nil || checked.End()-checked.Base != int64(checked.Count) || checked.End() < 0 {
		t.Fatalf("Check and Peek disagree: %+v, %+v, %v", checked, peeked, splitErr)
	}
	checkReadable(t, first, checked)
}

// checkReadable: what Check passed is read to the end, and a second trip changes nothing.
func checkReadable(t *testing.T, batch []byte, info record.Info) {
	recs := collect(t, batch)
	require.Len(t, recs, info.Count)
	for i, r := range recs {
		require.Equal(t, info.Base+int64(i), r.Offset)
	}
	again, err := record.Encode(nil, recs, time.UnixMilli(goldenTime))
	if err != nil {
		require.ErrorIs(t, err, record.ErrTimestamp) // only a batch from elsewhere has such
		return
	}
	record.Stamp(again, info.Base, info.Epoch)
	for i, r := range collect(t, again) {
		if recs[i].Timestamp.IsZero() {
			recs[i].Timestamp = r.Timestamp
		}
		require.Equal(t, recs[i], r)
	}
}

func FuzzCheck(f *testing.F) {
	b := goldenBytes(f)
	f.Add(b)
	f.Add(slices.Concat(b, b))
	f.Add(b[:record.HeaderSize])
	f.Add(b[:len(b)-1])
	f.Add([]byte{})
	f.Add(make([]byte, 100))
	f.Add(bytes.Repeat([]byte{0xff}, 200))
	now := time.UnixMilli(goldenTime)
	for _, recs := range [][]record.Record{
		{{}},
		{{Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 300)}, {Timestamp: time.UnixMilli(0)}},
		{{Headers: []record.Header{{Key: "a"}, {Key: "b", Value: []byte{}}, {Value: []byte("x")}}}, {Value: []byte{}}},
	} {
		seed, err := record.Encode(nil, recs, now)
		require.NoError(f, err)
		f.Add(seed)
	}
	for _, c := range compressions {
		f.Add(compressible(f, c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkInvariants(t, b)
		if len(b) >= record.HeaderSize {
			checkInvariants(t, seal(slices.Clone(b))) // lets the fuzzer past the checksum
		}
	})
}
