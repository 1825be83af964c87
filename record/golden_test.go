package record_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/record"
)

// golden is one batch written out by hand from the format's description; the
// checksum was computed bit by bit with another program.
const golden = `
0000000000000000  base offset 0
00000055          length 85 = 97 - 12
ffffffff          leader epoch -1
02                magic
ec1a9d9e          checksum
0000              attributes
00000002          last offset delta
0000018bcfe56800  first timestamp 1700000000000
0000018bcfe5692c  max timestamp 1700000000300
ffffffffffffffff  no producer id
ffff              no producer epoch
ffffffff          no base sequence
00000003          3 records

28                record of 20 bytes
00                attributes
00                timestamp delta 0
00                offset delta 0
046b31            key "k1"
0a68656c6c6f      value "hello"
04                2 headers
02680276          "h" = "v"
026e01            "n" = nil

0c                record of 6 bytes
00                attributes
13                timestamp delta -10
02                offset delta 1
01                key nil
00                value empty
00                no headers

0e                record of 7 bytes
00                attributes
d804              timestamp delta 300
04                offset delta 2
00                key empty
01                value nil
00                no headers
`

const goldenTime = 1700000000000

func goldenBytes(t testing.TB) []byte {
	var digits strings.Builder
	for line := range strings.Lines(golden) {
		word, _, _ := strings.Cut(line, " ")
		digits.WriteString(strings.TrimSpace(word))
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(t, err)
	require.Len(t, b, 97)
	return b
}

func goldenRecords() []record.Record {
	return []record.Record{
		{
			Timestamp: time.UnixMilli(goldenTime).Add(999 * time.Microsecond), // cut to milliseconds
			Key:       []byte("k1"),
			Value:     []byte("hello"),
			Headers:   []record.Header{{Key: "h", Value: []byte("v")}, {Key: "n"}},
			Offset:    77, LeaderEpoch: 7, // ignored
		},
		{Timestamp: time.UnixMilli(goldenTime - 10), Value: []byte{}, Headers: []record.Header{}},
		{Key: []byte{}},
	}
}

func TestGoldenEncode(t *testing.T) {
	b, err := record.Encode(nil, goldenRecords(), time.UnixMilli(goldenTime+300))
	require.NoError(t, err)
	require.Equal(t, hex.EncodeToString(goldenBytes(t)), hex.EncodeToString(b))
}

func TestGoldenDecode(t *testing.T) {
	b := goldenBytes(t)
	record.Stamp(b, 1000, 5)
	info, err := record.Check(b)
	require.NoError(t, err)
	require.Equal(t, record.Info{
		Base: 1000, Last: 1002, Epoch: 5, Count: 3, Size: 97,
		FirstTimestamp: goldenTime, MaxTimestamp: goldenTime + 300,
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	}, info)
	require.Equal(t, int64(1003), info.End())
	require.Equal(t, []record.Record{
		{
			Offset: 1000, LeaderEpoch: 5, Timestamp: time.UnixMilli(goldenTime).UTC(),
			Key: []byte("k1"), Value: []byte("hello"),
			Headers: []record.Header{{Key: "h", Value: []byte("v")}, {Key: "n", Value: nil}},
		},
		{Offset: 1001, LeaderEpoch: 5, Timestamp: time.UnixMilli(goldenTime - 10).UTC(), Value: []byte{}},
		{Offset: 1002, LeaderEpoch: 5, Timestamp: time.UnixMilli(goldenTime + 300).UTC(), Key: []byte{}},
	}, collect(t, b))
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
