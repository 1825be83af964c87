package record_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/record"
)

var compressions = []record.Compression{record.Gzip, record.Snappy, record.LZ4, record.Zstd}

func eachCompression(t *testing.T, run func(t *testing.T, c record.Compression)) {
	for _, c := range compressions {
		t.Run(c.String(), func(t *testing.T) { run(t, c) })
	}
}

// compressible is a sound compressed batch.
func compressible(t testing.TB, c record.Compression) []byte {
	b, err := record.EncodeCompressed(nil, sample(20, 200), time.UnixMilli(goldenTime), c)
	require.NoError(t, err)
	info, err := record.Check(b)
	require.NoError(t, err)
	require.Equal(t, c, info.Compression)
	return b
}

// packed is a sealed batch with a header that promises count records of one
// timestamp, and the given bytes behind it.
func packed(c record.Compression, count int, section []byte) []byte {
	b := make([]byte, record.HeaderSize, record.HeaderSize+len(section))
	b[16] = 2
	b[22] = byte(c)
	binary.BigEndian.PutUint32(b[23:], uint32(count-1))
	binary.BigEndian.PutUint32(b[57:], uint32(count))
	return seal(append(b, section...))
}

func TestCompressionNames(t *testing.T) {
	for c := record.NoCompression; c <= record.Zstd; c++ {
		require.True(t, c.Valid())
	}
	require.Equal(t, "none gzip snappy lz4 zstd", fmt.Sprintf("%v %v %v %v %v", record.NoCompression, record.Gzip, record.Snappy, record.LZ4, record.Zstd))
	for _, c := range []record.Compression{-1, 5, 127, -128} {
		require.False(t, c.Valid())
		require.Equal(t, fmt.Sprintf("Compression(%d)", int8(c)), c.String())
		b, err := record.EncodeCompressed([]byte("kept"), sample(1, 1), time.UnixMilli(goldenTime), c)
		require.ErrorIs(t, err, record.ErrUnsupported)
		require.Equal(t, "kept", string(b))
	}
}

// A compressed batch is what Encode's is: header fields and records, and the
// records in it are the same bytes.
func TestCompressedRoundTrip(t *testing.T) {
	eachCompression(t, func(t *testing.T, c record.Compression) {
		smaller := 0
		rapid.Check(t, func(t *rapid.T) {
			now := time.UnixMilli(rapid.Int64Range(0, lastMilli).Draw(t, "now")).UTC()
			recs := rapid.SliceOfN(recordGen(), 1, 70).Draw(t, "records")
			prefix := rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "prefix")
			plain, err := record.Encode(nil, recs, now)
			require.NoError(t, err)
			out, err := record.EncodeCompressed(slices.Clone(prefix), recs, now, c)
			require.Equal(t, out[len(prefix):], build(t, recs, now, c))
			require.NoError(t, err)
			require.Equal(t, prefix, out[:len(prefix)])
			b := out[len(prefix):]
			for _, b := range [][]byte{plain, b} {
				record.Stamp(b, 1000, 5)
			}
			require.Equal(t, collect(t, plain), collect(t, b))
			want, err := record.Check(plain)
			require.NoError(t, err)
			got, err := record.Check(b)
			require.NoError(t, err)
			peeked, err := record.Peek(b[:record.HeaderSize])
			require.NoError(t, err)
			require.Equal(t, got, peeked)
			if got.Compression == record.NoCompression {
				require.Equal(t, plain, b)
				return
			}
			smaller++
			require.Equal(t, c, got.Compression)
			require.Equal(t, int16(c), got.Attributes)
			require.Equal(t, len(b), got.Size)
			require.Less(t, len(b), len(plain))
			got.Compression, got.Attributes, got.Size = record.NoCompression, 0, want.Size
			require.Equal(t, want, got)
			checkRun(t, slices.Concat(b, plain, b), slices.Concat(collect(t, b), collect(t, plain), collect(t, b)), []int{len(b), len(plain), len(b)})
		})
		require.NotZero(t, smaller)
	})
}

// Records that do not get smaller stay as they are, whatever the compression.
func TestIncompressible(t *testing.T) {
	noise := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{}).Read(noise)
	now := time.UnixMilli(goldenTime)
	for _, recs := range [][]record.Record{{{}}, {{Value: []byte("short")}}, {{Value: noise}}} {
		plain, err := record.Encode(nil, recs, now)
		require.NoError(t, err)
		for _, c := range append(compressions, record.NoCompression) {
			b, err := record.EncodeCompressed(nil, recs, now, c)
			require.NoError(t, err)
			require.Equal(t, plain, b, c)
		}
	}
	// Half of it noise: blocks that stay as they are within a batch that does get smaller.
	eachCompression(t, func(t *testing.T, c record.Compression) {
		recs := []record.Record{{Timestamp: now.UTC(), Value: slices.Concat(noise, make([]byte, 300_000), noise)}}
		b, err := record.EncodeCompressed(nil, recs, now, c)
		require.NoError(t, err)
		info, err := record.Check(b)
		require.NoError(t, err)
		require.Equal(t, c, info.Compression)
		require.Less(t, info.Size, 700_000)
		recs[0].LeaderEpoch = -1
		require.Equal(t, recs, collect(t, b))
	})
}

// Nobody could read what is larger than MaxDecompressed, so it is not compressed.
func TestTooLargeToCompress(t *testing.T) {
	value := make([]byte, 1<<20)
	recs := slices.Repeat([]record.Record{{Value: value}}, record.MaxDecompressed>>20)
	now := time.UnixMilli(goldenTime)
	b, err := record.EncodeCompressed(nil, recs, now, record.Zstd)
	require.NoError(t, err)
	info, err := record.Peek(b)
	require.NoError(t, err)
	require.Equal(t, record.NoCompression, info.Compression)
	require.Equal(t, record.EncodedSize(recs, now), info.Size)

	recs[0].Value = value[:len(value)-record.EncodedSize(recs, now)+record.HeaderSize+record.MaxDecompressed]
	b, err = record.EncodeCompressed(nil, recs, now, record.Zstd)
	require.NoError(t, err)
	info, err = record.Check(b)
	require.NoError(t, err)
	require.Equal(t, record.Zstd, info.Compression)
}

// The batches of another producer, franz-go, which the interop module renews.
func TestTestdata(t *testing.T) {
	files, err := filepath.Glob("testdata/franz-go-*.batches")
	require.NoError(t, err)
	seen := map[record.Compression]bool{}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			run, err := os.ReadFile(file)
			require.NoError(t, err)
			name, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "franz-go-"), ".batches"), "-")
			for rest := run; len(rest) > 0; {
				info, err := record.Check(rest)
				require.NoError(t, err)
				require.Equal(t, name, info.Compression.String())
				require.GreaterOrEqual(t, info.ProducerID, int64(0))
				seen[info.Compression] = true
				_, rest, err = record.Split(rest)
				require.NoError(t, err)
			}
			require.Equal(t, testdataRecords(), collect(t, run))
		})
	}
	require.Len(t, seen, 5)
}

// testdataRecords are what the interop module gives to the producer.
func testdataRecords() []record.Record {
	fields := [][]byte{nil, {}, []byte("x"), bytes.Repeat([]byte("tide "), 100)}
	headers := [][]record.Header{
		nil,
		{{Key: "content-type", Value: []byte("text/plain")}},
		{{Key: "", Value: nil}, {Key: "twice", Value: []byte{}}, {Key: "twice", Value: []byte("schlüssel")}},
	}
	recs := make([]record.Record, 24)
	for i := range recs {
		recs[i] = record.Record{
			Offset: int64(i), LeaderEpoch: -1, Key: fields[i%4], Value: fields[i/4%4], Headers: headers[i%3],
			Timestamp: time.UnixMilli(goldenTime + int64(i*i%7-3)*1234).UTC(),
		}
	}
	return recs
}

// Every change of a bit in the compressed records, with the checksum made right,
// is refused or leaves something that can be read.
func TestEveryFlippedBitOfCompressedRecords(t *testing.T) {
	eachCompression(t, func(t *testing.T, c record.Compression) {
		b := compressible(t, c)
		for at := record.HeaderSize; at < len(b); at++ {
			for bit := range 8 {
				b[at] ^= 1 << bit
				checkInvariants(t, seal(slices.Clone(b)))
				b[at] ^= 1 << bit
			}
			cut := seal(slices.Clone(b[:at]))
			checkInvariants(t, cut)
			_, err := record.Check(cut)
			require.ErrorIs(t, err, record.ErrCorrupt)
		}
	})
}

// The checksum comes first: nothing is decompressed that it does not cover.
func TestChecksumBeforeDecompression(t *testing.T) {
	b := packed(record.Gzip, 1, []byte("not gzip"))
	_, err := record.Check(b)
	require.ErrorContains(t, err, "gzip records: ")
	b[17] ^= 1
	_, err = record.Check(b)
	require.ErrorContains(t, err, "checksum is")
}

func TestCompressedFaults(t *testing.T) {
	one := []byte{0x0c, 0, 0, 0, 1, 1, 0}
	_, err := record.Check(packed(record.Snappy, 1, s2.EncodeSnappy(nil, one)))
	require.NoError(t, err)
	for name, c := range map[string]struct {
		batch []byte
		what  string
	}{
		"no record":         {packed(record.Snappy, 1, s2.EncodeSnappy(nil, one[:0])), "record length"},
		"too many records":  {packed(record.Snappy, 1, s2.EncodeSnappy(nil, slices.Concat(one, one))), "bytes after the last record"},
		"half a record":     {packed(record.Snappy, 1, s2.EncodeSnappy(nil, one[:4])), "record length"},
		"no section":        {packed(record.Zstd, 1, nil), "record length"},
		"another's":         {packed(record.LZ4, 1, s2.EncodeSnappy(nil, one)), "lz4 records: not a frame"},
		"max timestamp":     {packed(record.Snappy, 1, s2.EncodeSnappy(nil, []byte{0x0c, 0, 2, 0, 1, 1, 0})), "max timestamp is 1, header says 0"},
		"snappy damage":     {packed(record.Snappy, 1, []byte{7, 0x18}), "snappy records: block is damaged"},
		"snappy block size": {packed(record.Snappy, 1, []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00")), "snappy records: size of a block is cut short"},
		"snappy block":      {packed(record.Snappy, 1, []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff\x00")), "snappy records: block is cut short"},
		"lz4 flags":         {packed(record.LZ4, 1, lz4Frame(0x40, 0x40, "\x00\x00\x00\x00")), "lz4 records: flags of the frame"}, // dependent blocks
		"lz4 dictionary":    {packed(record.LZ4, 1, lz4Frame(0x61, 0x40, "\x00\x00\x00\x00")), "lz4 records: flags of the frame"},
		"lz4 block size":    {packed(record.LZ4, 1, lz4Frame(0x60, 0x30, "\x00\x00\x00\x00")), "lz4 records: block size of the frame"},
		"lz4 header":        {packed(record.LZ4, 1, lz4Frame(0x68, 0x40, "\x00\x00\x00\x00")), "lz4 records: header of the frame"},
		"lz4 block":         {packed(record.LZ4, 1, lz4Frame(0x60, 0x40, "\x09\x00\x00\x80\x00\x00")), "lz4 records: size of a block"},
		"lz4 large block":   {packed(record.LZ4, 1, lz4Frame(0x60, 0x40, "\x01\x00\x01\x80"+strings.Repeat("\x00", 1<<16+5))), "lz4 records: size of a block"},
		"lz4 no end":        {packed(record.LZ4, 1, lz4Frame(0x60, 0x40, "\x01\x00\x00\x80\x00\x00")), "lz4 records: end of the frame"},
		"lz4 more":          {packed(record.LZ4, 1, lz4Frame(0x60, 0x40, "\x00\x00\x00\x00\x00")), "lz4 records: end of the frame"},
		"lz4 no checksum":   {packed(record.LZ4, 1, lz4Frame(0x64, 0x40, "\x00\x00\x00\x00\x00")), "lz4 records: end of the frame"},
	} {
		t.Run(name, func(t *testing.T) {
			want := &record.CorruptError{What: c.what}
			_, err := record.Check(c.batch)
			require.Equal(t, want, err)
			if name != "max timestamp" { // which All does not look at
				_, err = lastError(c.batch)
				require.Equal(t, want, err)
			}
		})
	}
}

// What the package makes of Snappy, the ones of Kafka's other tools make of it too:
// the extensions of the library in use are refused.
func TestSnappyExtension(t *testing.T) {
	value := make([]byte, 50_000)
	rand.NewChaCha8([32]byte{}).Read(value[:10_000])
	for at := 10_000; at < len(value); at += 10_000 { // the same again, with an odd byte now and then
		copy(value[at:], value[:10_000])
		value[at+5_000]++
	}
	plain, err := record.Encode(nil, []record.Record{{Value: value}}, time.UnixMilli(0))
	require.NoError(t, err)
	extended := s2.EncodeBetter(nil, plain[record.HeaderSize:])
	again, err := s2.Decode(nil, extended)
	require.NoError(t, err)
	require.Equal(t, plain[record.HeaderSize:], again)
	_, err = record.Check(packed(record.Snappy, 1, extended))
	require.Equal(t, &record.CorruptError{What: "snappy records: block is damaged"}, err)
}

func lz4Frame(flags, block byte, rest string) []byte {
	return append([]byte{0x04, 0x22, 0x4d, 0x18, flags, block, 0}, rest...)
}

// The frames that other libraries write with other settings are read as well.
func TestOtherFrames(t *testing.T) {
	plain, err := record.Encode(nil, sample(300, 1000), time.UnixMilli(goldenTime))
	require.NoError(t, err)
	section := plain[record.HeaderSize:]
	write := func(w interface {
		Write(p []byte) (int, error)
		Close() error
	}, b *bytes.Buffer) []byte {
		_, err := w.Write(section)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return b.Bytes()
	}
	lz := func(options ...lz4.Option) []byte {
		b := new(bytes.Buffer)
		w := lz4.NewWriter(b)
		require.NoError(t, w.Apply(options...))
		return write(w, b)
	}
	zs := func(options ...zstd.EOption) []byte {
		b := new(bytes.Buffer)
		w, err := zstd.NewWriter(b, append(options, zstd.WithEncoderConcurrency(1))...)
		require.NoError(t, err)
		return write(w, b)
	}
	all := func(section []byte, c record.Compression) []byte {
		b := slices.Concat(plain[:record.HeaderSize], section)
		b[22] = byte(c)
		return seal(b)
	}
	var stored bytes.Buffer
	raw, err := gzip.NewWriterLevel(&stored, gzip.NoCompression)
	require.NoError(t, err)
	for name, b := range map[string][]byte{
		"lz4 with all there is":   all(lz(lz4.BlockChecksumOption(true), lz4.ChecksumOption(true), lz4.SizeOption(uint64(len(section)))), record.LZ4),
		"lz4 in blocks of 4 MiB":  all(lz(lz4.BlockSizeOption(lz4.Block4Mb)), record.LZ4),
		"zstd with a checksum":    all(zs(), record.Zstd),
		"zstd with a wide window": all(zs(zstd.WithWindowSize(record.MaxDecompressed), zstd.WithSingleSegment(false)), record.Zstd),
		"gzip not compressed":     all(write(raw, &stored), record.Gzip),
		"snappy in one block":     all(s2.EncodeSnappy(nil, section), record.Snappy),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := record.Check(b)
			require.NoError(t, err)
			require.Equal(t, collect(t, plain), collect(t, b))
		})
	}
}

// bomb is a small section that decompresses to a little more than the limit.
func bomb(t testing.TB, c record.Compression) []byte {
	const size = record.MaxDecompressed + 1
	var b bytes.Buffer
	switch c {
	case record.Gzip:
		w := gzip.NewWriter(&b)
		for range size/(1<<20) + 1 {
			_, err := w.Write(make([]byte, 1<<20))
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
	case record.Snappy:
		b.WriteString("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
		block := s2.EncodeSnappy(nil, make([]byte, 1<<20))
		for range size/(1<<20) + 1 {
			b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(block))))
			b.Write(block)
		}
	case record.LZ4:
		w := lz4.NewWriter(&b)
		for range size/(1<<20) + 1 {
			_, err := w.Write(make([]byte, 1<<20))
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
	case record.Zstd: // a frame without a size, of blocks that repeat a byte 128 KiB long
		b.WriteString("\x28\xb5\x2f\xfd\x00\x58")
		for i := range size/(1<<17) + 1 {
			header := uint32(1<<17)<<3 | 1<<1
			if i == size/(1<<17) {
				header |= 1
			}
			b.Write(binary.LittleEndian.AppendUint32(nil, header)[:3])
			b.WriteByte(0)
		}
	}
	return b.Bytes()
}

// What decompresses to more than the limit is refused, at a bounded cost.
func TestBombs(t *testing.T) {
	eachCompression(t, func(t *testing.T, c record.Compression) {
		b := packed(c, 1, bomb(t, c))
		require.Less(t, len(b), 8<<20)
		record.Stamp(b, 9, 1)
		for _, read := range []func() error{
			func() error { _, err := record.Check(b); return err },
			func() error { _, err := lastError(b); return err },
		} {
			spent := allocated(func() { require.Equal(t, &record.TooLargeError{Offset: 9}, read()) })
			require.Less(t, spent, uint64(8*record.MaxDecompressed)) // a buffer that grows bit by bit to the limit
		}
	})
}

// What a header claims costs nothing.
func TestHostileClaimsCostNothing(t *testing.T) {
	for name, c := range map[string]struct {
		batch []byte
		what  error
	}{
		"snappy block":   {packed(record.Snappy, 1, append(binary.AppendUvarint(nil, record.MaxDecompressed), 0, 0)), record.ErrCorrupt},
		"snappy too big": {packed(record.Snappy, 1, append(binary.AppendUvarint(nil, 1<<32-1), 0, 0)), record.ErrCorrupt},
		"lz4 block":      {packed(record.LZ4, 1, lz4Frame(0x60, 0x70, "\x02\x00\x00\x00\x1f\x00\x00\x00\x00\x00")), record.ErrCorrupt},
		"lz4 content":    {packed(record.LZ4, 1, lz4Frame(0x68, 0x70, "\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x00\x00\x00")), record.ErrCorrupt},
		"zstd content":   {packed(record.Zstd, 1, []byte("\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x04\x01\x00\x00")), record.ErrCorrupt}, // 64 MiB
		"zstd too large": {packed(record.Zstd, 1, []byte("\x28\xb5\x2f\xfd\xa0\x01\x00\x00\x04\x01\x00\x00")), record.ErrTooLarge},
		"zstd window":    {packed(record.Zstd, 1, []byte("\x28\xb5\x2f\xfd\x00\x80\x01\x00\x00")), record.ErrCorrupt}, // 64 MiB
		"zstd wider":     {packed(record.Zstd, 1, []byte("\x28\xb5\x2f\xfd\x00\x81\x01\x00\x00")), record.ErrTooLarge},
		"records":        {packed(record.Zstd, record.MaxDecompressed/7, []byte("\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00")), record.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			var check, all error
			spent := allocated(func() {
				_, check = record.Check(c.batch)
				_, all = lastError(c.batch)
			})
			require.ErrorIs(t, check, c.what)
			require.ErrorIs(t, all, c.what)
			require.Less(t, spent, uint64(2<<20))
		})
	}
	_, err := record.Peek(packed(record.Zstd, record.MaxDecompressed/7+1, nil))
	require.ErrorIs(t, err, record.ErrCorrupt)
}

func allocated(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What All gives is not the memory that the next batch is decompressed into.
func TestDecompressedRecordsStay(t *testing.T) {
	eachCompression(t, func(t *testing.T, c record.Compression) {
		b := compressible(t, c)
		recs := collect(t, b)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				other := slices.Repeat([]record.Record{{Value: bytes.Repeat([]byte{byte(i)}, 5000)}}, 10)
				for range 20 {
					b, err := record.EncodeCompressed(nil, other, time.UnixMilli(goldenTime), c)
					if err != nil {
						t.Error(err)
					}
					for rec, err := range record.All(b) {
						if err != nil || !bytes.Equal(rec.Value, other[0].Value) {
							t.Error("mixed up", err)
						}
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, collect(t, b), recs)
		require.Equal(t, sample(1, 200)[0].Value, recs[19].Value)
		_ = append(recs[0].Value, "longer"...)
		require.Equal(t, sample(1, 200)[0].Key, recs[1].Key)
	})
}

// What is kept for later batches may be used in a synctest bubble, outside, and in
// another one, and has no goroutines.
func TestCompressionInBubbles(t *testing.T) {
	defer goleak.VerifyNone(t)
	all := func(t *testing.T) {
		for _, c := range compressions {
			checkInvariants(t, compressible(t, c))
		}
	}
	for range 3 {
		for range 2 { // two collections empty the pools, so that the bubble fills them
			runtime.GC()
		}
		synctest.Test(t, all)
		synctest.Test(t, all)
		all(t)
	}
}

// A batch that was compressed takes no more memory than it needs.
func TestCompressedAllocations(t *testing.T) {
	recs, now := sample(64, 1024), time.UnixMilli(goldenTime)
	eachCompression(t, func(t *testing.T, c record.Compression) {
		b, err := record.EncodeCompressed(nil, recs, now, c)
		require.NoError(t, err)
		require.Less(t, cap(b), len(b)+len(b)/4+64)
		again, err := record.EncodeCompressed(b[:0], recs, now, c)
		require.NoError(t, err)
		require.Same(t, &b[0], &again[0])
		for rec, err := range record.All(b) {
			require.NoError(t, err)
			require.Len(t, rec.Value, 1024)
		}
	})
}

func FuzzDecompress(f *testing.F) {
	one := []byte{0x0c, 0, 0, 0, 1, 1, 0}
	f.Add(byte(record.Snappy), byte(1), s2.EncodeSnappy(nil, one))
	for _, c := range compressions {
		f.Add(byte(c), byte(20), compressible(f, c)[record.HeaderSize:])
	}
	f.Fuzz(func(t *testing.T, c, count byte, section []byte) {
		b := packed(record.Compression(c&7), int(count), section)
		spent := allocated(func() { _, _ = record.Check(b) })
		// At best, a byte of Zstandard stands for 32 KiB.
		if bound := 4<<20 + min(len(section)<<16, 8*record.MaxDecompressed); spent > uint64(bound) {
			t.Fatalf("%d bytes took %d", len(section), spent)
		}
		checkInvariants(t, b)
	})
}
