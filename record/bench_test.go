package record_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/record"
)

// sample is n records with a 16-byte key and a value of the given size.
func sample(n, size int) []record.Record {
	r := record.Record{Timestamp: time.UnixMilli(goldenTime), Key: bytes.Repeat([]byte("k"), 16), Value: bytes.Repeat([]byte("v"), size)}
	return slices.Repeat([]record.Record{r}, n)
}

var sink []byte

func TestAllocations(t *testing.T) {
	recs, now := sample(64, 1024), time.UnixMilli(goldenTime)
	for i := range recs { // keys that repeat are kept once
		recs[i].Headers = []record.Header{{Key: "content-type", Value: []byte("x")}, {Key: "trace", Value: []byte("y")}}
	}
	b, err := record.Encode(nil, recs, now)
	require.NoError(t, err)
	require.Less(t, cap(b)-len(b), len(b)/4, "Encode takes about what it needs")
	// One without the race detector, under which the compiler does not merge the
	// two steps of slices.Grow.
	grow := testing.AllocsPerRun(20, func() { sink = slices.Grow([]byte(nil), len(b)) })
	var failed error
	note := func(err error) {
		if err != nil {
			failed = err
		}
	}
	for name, c := range map[string]struct {
		allowed float64
		run     func()
	}{
		"Peek":            {0, func() { _, err := record.Peek(b); note(err) }},
		"Check":           {0, func() { _, err := record.Check(b); note(err) }},
		"Split":           {0, func() { _, _, err := record.Split(b); note(err) }},
		"Stamp":           {0, func() { record.Stamp(b, 12, 3) }},
		"EncodedSize":     {0, func() { record.EncodedSize(recs, now) }},
		"Encode":          {grow, func() { _, err := record.Encode(nil, recs, now); note(err) }},
		"Encode in place": {0, func() { _, err := record.Encode(b[:0], recs, now); note(err) }},
		// One header slice for each record, the two distinct keys, and the iterator's own.
		"All": {64 + 2 + 4, func() {
			for _, err := range record.All(b) {
				note(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, testing.AllocsPerRun(20, c.run), c.allowed)
		})
	}
	require.NoError(t, failed)
}

// A count that the bytes do not bear out must not cost memory before it is refused.
func TestHostileCountsCostNothing(t *testing.T) {
	// Half a megabyte of zeros claims to be a quarter of a million headers, the
	// last of which is not there.
	const n = 1 << 19
	body := append([]byte{0, 0, 2, 1, 1}, varint(n/2)...)
	body = append(body, make([]byte, n-1)...)
	body = append(body, 0x7f)
	b := forge(t, append(varint(int64(len(body))), body...)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := lastError(b)
	runtime.ReadMemStats(&after)
	require.Equal(t, &record.CorruptError{Offset: 1, What: "headers"}, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(n/8))
}

// varint is the encoding, written the plain way.
func varint(v int64) []byte {
	u := uint64(v) << 1
	if v < 0 {
		u = ^u
	}
	var b []byte
	for ; u > 127; u /= 128 {
		b = append(b, byte(u%128+128))
	}
	return append(b, byte(u))
}

var shapes = []struct{ count, size int }{{1, 1024}, {64, 1024}, {640, 100}}

func BenchmarkEncode(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%dx%d", s.count, s.size), func(b *testing.B) {
			recs, now := sample(s.count, s.size), time.UnixMilli(goldenTime)
			dst := make([]byte, 0, record.EncodedSize(recs, now))
			b.SetBytes(int64(cap(dst)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := record.Encode(dst, recs, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchmarkRead(b *testing.B, read func(batch []byte) error) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%dx%d", s.count, s.size), func(b *testing.B) {
			batch, err := record.Encode(nil, sample(s.count, s.size), time.UnixMilli(goldenTime))
			require.NoError(b, err)
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			for b.Loop() {
				if err := read(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	benchmarkRead(b, func(batch []byte) error {
		_, err := record.Check(batch)
		return err
	})
}

// text is n records of words in random order, which compress as logs do.
func text(n, size int) []record.Record {
	words, random := strings.Fields(golden), rand.New(rand.NewPCG(1, 2))
	recs := sample(n, 0)
	for i := range recs {
		for len(recs[i].Value) < size {
			recs[i].Value = append(append(recs[i].Value, words[random.IntN(len(words))]...), ' ')
		}
	}
	return recs
}

func BenchmarkCompressed(b *testing.B) {
	recs, now := text(1000, 1000), time.UnixMilli(goldenTime)
	size := int64(record.EncodedSize(recs, now))
	for c := record.NoCompression; c <= record.Zstd; c++ {
		batch, err := record.EncodeCompressed(nil, recs, now, c)
		require.NoError(b, err)
		b.Run("Encode/"+c.String(), func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if batch, err = record.EncodeCompressed(batch[:0], recs, now, c); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size)/float64(len(batch)), "ratio")
		})
		b.Run("Check/"+c.String(), func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := record.Check(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAll(b *testing.B) {
	benchmarkRead(b, func(batch []byte) error {
		for _, err := range record.All(batch) {
			if err != nil {
				return err
			}
		}
		return nil
	})
}
