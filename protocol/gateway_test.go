package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// One unsound item costs no more than itself, and whoever waits for it hears.
func TestSoundKeepsTheRest(t *testing.T) {
	id := PartitionID{Topic: UUID{1}}
	flipped := testBatch(t, 0, 1, 1)
	flipped[len(flipped)-1] ^= 1
	p := Payload{
		Fetches: []Fetch{
			{ID: id, LastEpoch: -1, StoredEpoch: -1},
			{ID: id, LastEpoch: -1, StoredEpoch: -1, Offset: -5},
			{ID: id, LastEpoch: -1, StoredEpoch: -1, MaxBytes: 7},
		},
		FetchAnswers: []FetchAnswer{
			{ID: id, LeaderEpoch: 1, Agreed: EpochEnd{-1, -1}, Batches: [][]byte{testBatch(t, 0, 1, 1)}},
			{ID: id, LeaderEpoch: 1, Agreed: EpochEnd{-1, -1}, Batches: [][]byte{flipped}},
			{ID: id, LeaderEpoch: -7, Agreed: EpochEnd{-1, -1}},
		},
		Appends: []Append{
			{Request: 1, ID: id, LeaderEpoch: -1, Batch: testBatch(t, 0, 1, 1)},
			{Request: 2, ID: id, LeaderEpoch: -1, Batch: flipped},
		},
		ReadAnswers: []ReadAnswer{
			{Request: 3, HW: 1, LogEnd: 1, LeaderEpoch: 1, Batches: [][]byte{flipped}},
		},
	}
	sound, unsound, err := p.Sound()
	require.Equal(t, 5, unsound)
	var invalid *InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Len(t, sound.Fetches, 2)
	require.Equal(t, int32(7), sound.Fetches[1].MaxBytes)
	require.Len(t, sound.FetchAnswers, 2)
	require.Equal(t, Corrupt, sound.FetchAnswers[1].Code, "the follower asks again")
	require.Empty(t, sound.FetchAnswers[1].Batches)
	require.Len(t, sound.Appends, 2)
	require.Nil(t, sound.Appends[1].Batch, "the leader refuses it, so that the client hears")
	require.Equal(t, Corrupt, sound.ReadAnswers[0].Code)
	require.Equal(t, flipped, p.Appends[1].Batch, "the payload that came is not changed")
}

func TestSoundLeavesASoundPayloadAlone(t *testing.T) {
	p := Payload{Reports: []Report{{ID: PartitionID{Topic: UUID{1}}, StoredEpoch: -1}}}
	sound, unsound, err := p.Sound()
	require.NoError(t, err)
	require.Zero(t, unsound)
	require.Equal(t, &p.Reports[0], &sound.Reports[0])
}

// The header decides whether the link may see the message, whatever its items are.
func TestValidHeaderIgnoresItems(t *testing.T) {
	m := Message{Kind: Data, Cluster: UUID{1}, From: 1, To: 2, FromEpoch: 1, ToEpoch: 1, Session: 1, Seq: 1}
	m.Fetches = []Fetch{{Offset: -5}}
	require.NoError(t, m.ValidHeader())
	require.Error(t, m.Valid())
	m.Seq = 0
	require.Error(t, m.ValidHeader())
}

// Partitions names every partition that an item of the data path is about, and stops when told to.
func TestPartitions(t *testing.T) {
	id := func(n int32) PartitionID { return PartitionID{Topic: UUID{1}, Partition: n} }
	p := Payload{
		Fetches: []Fetch{{ID: id(0)}}, FetchAnswers: []FetchAnswer{{ID: id(1)}}, Reports: []Report{{ID: id(2)}},
		Watermarks: []Watermark{{ID: id(3)}}, Appends: []Append{{ID: id(4)}}, Reads: []Read{{ID: id(5)}}, Verdicts: []Verdict{{ID: id(6)}},
	}
	var seen []int32
	for part := range p.Partitions {
		if seen = append(seen, part.Partition); part.Partition == 6 {
			break
		}
	}
	require.Equal(t, []int32{0, 1, 2, 3, 4, 5, 6}, seen)
}
