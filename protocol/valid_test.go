package protocol

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/record"
)

var (
	testTopic = UUID{1}
	testID    = PartitionID{Topic: testTopic, Partition: 3}
)

func testBatch(t testing.TB, base int64, epoch int32, records int) []byte {
	recs := make([]record.Record, records)
	for i := range recs {
		recs[i].Value = []byte{byte(i)}
	}
	b, err := record.Encode(nil, recs, time.UnixMilli(1_700_000_000_000))
	require.NoError(t, err)
	record.Stamp(b, base, epoch)
	return b
}

func testState() PartitionState {
	return PartitionState{Version: 1, Leader: 1, LeaderEpoch: 5, ControllerEpoch: 2, ISR: []int32{1, 2}, PartitionEpoch: 9,
		LeaderBrokerEpoch: 44, Replicas: []int32{1, 2, 3, 4}, Adding: []int32{4}, Removing: []int32{2}, ELR: []int32{3},
		LastKnownELR: []int32{7}, MinISR: 2}
}

// soundMessage holds a sound item of every type.
func soundMessage(t testing.TB) *Message {
	state := testState()
	topic := Topic{ID: testTopic, Name: "orders", Config: TopicConfig{Partitions: 4, ReplicationFactor: 3, MinISR: 2}}
	run := [][]byte{testBatch(t, 100, 3, 5), testBatch(t, 105, 3, 1), testBatch(t, 106, 5, 2)}
	return &Message{Kind: Data, Cluster: UUID{9}, From: 0, To: 1, FromEpoch: 11, ToEpoch: 12, Session: 77, Seq: 1, Payload: Payload{
		Fetches: []Fetch{{ID: testID, LeaderEpoch: 5, Offset: 10, LastEpoch: 4, Stored: 8, StoredEpoch: 4, MaxBytes: 1},
			{ID: testID, LastEpoch: -1, StoredEpoch: -1}},
		FetchAnswers: []FetchAnswer{{ID: testID, LeaderEpoch: 5, Offset: 102, HW: 101, LogStart: 7, Batches: run},
			{ID: testID, LeaderEpoch: 5, Offset: 3, Code: Diverging, Agreed: EpochEnd{Epoch: -1, End: -1}},
			{ID: testID, LeaderEpoch: 4, Code: FencedEpoch, State: &state}},
		Reports:    []Report{{ID: testID, LeaderEpoch: 5, Stored: 8, StoredEpoch: -1}},
		Watermarks: []Watermark{{ID: testID, LeaderEpoch: 5, HW: 8, LogStart: 2}},
		Appends:    []Append{{Request: 1, ID: testID, LeaderEpoch: -1, Acks: AcksNone, Batch: testBatch(t, 0, -1, 3)}},
		AppendAnswers: []AppendAnswer{{Request: 1, Outcome: Appended, Base: 5, Last: 7, LeaderEpoch: 5},
			{Request: 2, Code: NotLeader, Outcome: NotAppended, Base: -1, Last: -1, State: &state}},
		Reads:          []Read{{Request: 3, ID: testID, Kind: ReadEnds, MaxBytes: 1 << 20, MaxWaitMs: 500}},
		ReadAnswers:    []ReadAnswer{{Request: 3, Batches: run, HW: 108, LogStart: 1, LogEnd: 109, LeaderEpoch: 5}, {Request: 4}},
		Proposals:      []Proposal{{ID: testID, LeaderEpoch: 5, PartitionEpoch: 9, ISR: []Member{{1, 44}, {3, -1}}}},
		Verdicts:       []Verdict{{ID: testID, ControllerEpoch: 2, LeaderEpoch: 5, PartitionEpoch: 9, Code: Ineligible, State: &state}},
		Updates:        []Update{{ControllerEpoch: 2, Seq: 1, Full: true, Topics: []Topic{topic}, States: []PartitionUpdate{{testID, state}}}},
		UpdateAcks:     []UpdateAck{{ControllerEpoch: 2, Seq: 1, Code: Gap}},
		OrderReplies:   []OrderReply{{ID: testID, LeaderEpoch: 5, Above: -1, Code: BehindLog}},
		Commands:       []Command{{Request: 1, Kind: CreateTopic, Topic: Topic{ID: testTopic, Name: "a user's bad name!"}}},
		CommandAnswers: []CommandAnswer{{Request: 1, Code: TopicExists, Detail: "exists", Topic: &topic}},
	}}
}

func TestValidAcceptsSound(t *testing.T) {
	require.NoError(t, soundMessage(t).Valid())
	base := Message{Cluster: UUID{9}, From: 1, To: 0, FromEpoch: 1, ToEpoch: 1, Session: 5}
	for _, change := range []func(*Message){
		func(m *Message) { m.Kind, m.Attempt, m.MinVersion, m.MaxVersion = Hello, 1, 1, 3 },
		func(m *Message) { m.Kind, m.Attempt, m.MinVersion, m.MaxVersion = Welcome, 1, 2, 2 },
		func(m *Message) { m.Kind = Heartbeat },
		func(m *Message) { m.Kind = Reset },
		func(m *Message) { m.Kind, m.MinVersion, m.MaxVersion = Reset, 1, 1 },
		func(m *Message) { m.Kind, m.Seq = Data, math.MaxUint64 },
	} {
		m := base
		change(&m)
		require.NoError(t, m.Valid())
	}
	for _, change := range []func(*PartitionState){
		func(s *PartitionState) { s.Leader, s.LeaderBrokerEpoch = NoLeader, -1 },
		func(s *PartitionState) {
			s.Leader, s.LeaderBrokerEpoch, s.ISR, s.ELR = NoLeader, -1, nil, []int32{1, 3}
		},
		func(s *PartitionState) { s.LeaderEpoch, s.ControllerEpoch, s.PartitionEpoch = -1, -1, -1 },
		func(s *PartitionState) { s.MinISR = 4 },
	} {
		m, s := soundMessage(t), testState()
		change(&s)
		m.Verdicts[0].State = &s
		require.NoError(t, m.Valid())
	}
}

func TestValidRefusesHeaders(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*Message)
	}{
		{"Kind", func(m *Message) { m.Kind = 0 }},
		{"Kind", func(m *Message) { m.Kind = Reset + 1 }},
		{"Cluster", func(m *Message) { m.Cluster = UUID{} }},
		{"From", func(m *Message) { m.From = -1 }},
		{"To", func(m *Message) { m.To = -5 }},
		{"To", func(m *Message) { m.To = m.From }},
		{"FromEpoch", func(m *Message) { m.FromEpoch = 0 }},
		{"ToEpoch", func(m *Message) { m.ToEpoch = -1 }},
		{"Session", func(m *Message) { m.Session = 0 }},
		{"Seq", func(m *Message) { m.Seq = 0 }},
		{"MinVersion", func(m *Message) { m.MinVersion = 1 }},
		{"Payload", func(m *Message) { m.Kind = Heartbeat }},
		{"Attempt", func(m *Message) { m.Kind, m.Payload, m.MinVersion, m.MaxVersion = Hello, Payload{}, 1, 1 }},
		{"MinVersion", func(m *Message) { m.Kind, m.Payload, m.Attempt = Hello, Payload{}, 1 }},
		{"MaxVersion", func(m *Message) {
			m.Kind, m.Payload, m.Attempt, m.MinVersion, m.MaxVersion = Welcome, Payload{}, 1, 1, 2
		}},
	} {
		requireInvalid(t, c.field, c.change)
	}
}

func requireInvalid(t *testing.T, field string, change func(*Message)) *InvalidError {
	t.Helper()
	m := soundMessage(t)
	change(m)
	var invalid *InvalidError
	require.True(t, errors.As(m.Valid(), &invalid), "%s was not refused", field)
	require.Equal(t, field, invalid.Field)
	require.NotEmpty(t, invalid.Why)
	require.Contains(t, invalid.Error(), field)
	return invalid
}

func TestValidRefusesItems(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*Message)
	}{
		{"Fetches[0].ID.Topic", func(m *Message) { m.Fetches[0].ID.Topic = UUID{} }},
		{"Fetches[1].ID.Partition", func(m *Message) { m.Fetches[1].ID.Partition = -1 }},
		{"Fetches[1].LeaderEpoch", func(m *Message) { m.Fetches[1].LeaderEpoch = -2 }},
		{"Fetches[0].Offset", func(m *Message) { m.Fetches[0].Offset = -1 }},
		{"Fetches[0].Offset", func(m *Message) { m.Fetches[0].Offset = math.MaxInt64 }},
		{"Fetches[0].LastEpoch", func(m *Message) { m.Fetches[0].LastEpoch = 6 }},
		{"Fetches[0].Stored", func(m *Message) { m.Fetches[0].Stored = 11 }},
		{"Fetches[0].StoredEpoch", func(m *Message) { m.Fetches[0].StoredEpoch = 5 }},
		{"Fetches[0].MaxBytes", func(m *Message) { m.Fetches[0].MaxBytes = -1 }},
		{"FetchAnswers[1].Code", func(m *Message) { m.FetchAnswers[1].Code = Failed + 1 }},
		{"FetchAnswers[0].HW", func(m *Message) { m.FetchAnswers[0].HW = -1 }},
		{"FetchAnswers[0].LogStart", func(m *Message) { m.FetchAnswers[0].LogStart = -1 }},
		{"FetchAnswers[1].Agreed.End", func(m *Message) { m.FetchAnswers[1].Agreed.End = -2 }},
		{"FetchAnswers[0].Batches", func(m *Message) { m.FetchAnswers[0].Code = NotLeader }},
		{"FetchAnswers[0].Batches[0]", func(m *Message) { m.FetchAnswers[0].Offset = 99 }},
		{"FetchAnswers[0].Batches[0]", func(m *Message) { m.FetchAnswers[0].Offset = 105 }},
		{"FetchAnswers[2].State.MinISR", func(m *Message) { m.FetchAnswers[2].State.MinISR = 0 }},
		{"Reports[0].Stored", func(m *Message) { m.Reports[0].Stored = -1 }},
		{"Reports[0].StoredEpoch", func(m *Message) { m.Reports[0].StoredEpoch = 6 }},
		{"Watermarks[0].HW", func(m *Message) { m.Watermarks[0].HW = -1 }},
		{"Watermarks[0].LogStart", func(m *Message) { m.Watermarks[0].LogStart = -1 }},
		{"Appends[0].Acks", func(m *Message) { m.Appends[0].Acks = 3 }},
		{"Appends[0].Acks", func(m *Message) { m.Appends[0].Acks = -1 }},
		{"Appends[0].LeaderEpoch", func(m *Message) { m.Appends[0].LeaderEpoch = -2 }},
		{"AppendAnswers[0].Outcome", func(m *Message) { m.AppendAnswers[0].Outcome = 3 }},
		{"AppendAnswers[0].Base", func(m *Message) { m.AppendAnswers[0].Base = 8 }},
		{"AppendAnswers[0].Last", func(m *Message) { m.AppendAnswers[0].Last = -2 }},
		{"Reads[0].Kind", func(m *Message) { m.Reads[0].Kind = ReadWritable + 1 }},
		{"Reads[0].From", func(m *Message) { m.Reads[0].From = -1 }},
		{"Reads[0].MaxWaitMs", func(m *Message) { m.Reads[0].MaxWaitMs = -1 }},
		{"ReadAnswers[0].Batches", func(m *Message) { m.ReadAnswers[0].HW = 107 }},
		{"ReadAnswers[0].LogEnd", func(m *Message) { m.ReadAnswers[0].LogEnd = -1 }},
		{"Proposals[0].ISR", func(m *Message) { m.Proposals[0].ISR = nil }},
		{"Proposals[0].ISR", func(m *Message) { m.Proposals[0].ISR = make([]Member, MaxReplicas+1) }},
		{"Proposals[0].ISR", func(m *Message) { m.Proposals[0].ISR[1].ID = 1 }},
		{"Proposals[0].ISR", func(m *Message) { m.Proposals[0].ISR[1].Epoch = -2 }},
		{"Verdicts[0].ControllerEpoch", func(m *Message) { m.Verdicts[0].ControllerEpoch = -2 }},
		{"Updates[0].Topics[0].Name", func(m *Message) { m.Updates[0].Topics[0].Name = "" }},
		{"Updates[0].Topics[0].Name", func(m *Message) { m.Updates[0].Topics[0].Name = strings.Repeat("x", MaxTopicName+1) }},
		{"Updates[0].Topics[0].ID", func(m *Message) { m.Updates[0].Topics[0].ID = UUID{} }},
		{"Updates[0].Topics[0].Config.Partitions", func(m *Message) { m.Updates[0].Topics[0].Config.Partitions = 0 }},
		{"Updates[0].States[0].ID.Topic", func(m *Message) { m.Updates[0].States[0].ID.Topic = UUID{} }},
		{"UpdateAcks[0].Code", func(m *Message) { m.UpdateAcks[0].Code = 255 }},
		{"OrderReplies[0].Above", func(m *Message) { m.OrderReplies[0].Above = -2 }},
		{"Commands[0].Kind", func(m *Message) { m.Commands[0].Kind = 0 }},
		{"Commands[0].Topic.ID", func(m *Message) { m.Commands[0].Topic.ID = UUID{} }},
		{"CommandAnswers[0].Detail", func(m *Message) { m.CommandAnswers[0].Detail = strings.Repeat("x", MaxDetail+1) }},
		{"CommandAnswers[0].Topic.Config.ReplicationFactor", func(m *Message) { m.CommandAnswers[0].Topic.Config.ReplicationFactor = 0 }},
		{"Payload", func(m *Message) { m.Reports = make([]Report, MaxMessageItems+1) }},
	} {
		requireInvalid(t, c.field, c.change)
	}
}

func TestValidRefusesStates(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*PartitionState)
	}{
		{"Version", func(s *PartitionState) { s.Version = -1 }},
		{"Leader", func(s *PartitionState) { s.Leader = -2 }},
		{"Leader", func(s *PartitionState) { s.Leader = 3 }},
		{"LeaderEpoch", func(s *PartitionState) { s.LeaderEpoch = -2 }},
		{"ControllerEpoch", func(s *PartitionState) { s.ControllerEpoch = -2 }},
		{"PartitionEpoch", func(s *PartitionState) { s.PartitionEpoch = -2 }},
		{"LeaderBrokerEpoch", func(s *PartitionState) { s.LeaderBrokerEpoch = -1 }},
		{"LeaderBrokerEpoch", func(s *PartitionState) { s.Leader, s.LeaderBrokerEpoch = NoLeader, -2 }},
		{"Replicas", func(s *PartitionState) { s.Replicas = nil }},
		{"Replicas", func(s *PartitionState) { s.Replicas = append(s.Replicas, 1) }},
		{"Replicas", func(s *PartitionState) { s.Replicas = append(s.Replicas, -1) }},
		{"Replicas", func(s *PartitionState) { s.Replicas = make([]int32, MaxReplicas+1) }},
		{"ISR", func(s *PartitionState) { s.ISR = []int32{1, 5} }},
		{"ISR", func(s *PartitionState) { s.ISR = []int32{1, 1} }},
		{"Adding", func(s *PartitionState) { s.Adding = []int32{9} }},
		{"Removing", func(s *PartitionState) { s.Removing = []int32{2, 2} }},
		{"ELR", func(s *PartitionState) { s.ELR = []int32{2} }},
		{"ELR", func(s *PartitionState) { s.ELR = []int32{9} }},
		{"LastKnownELR", func(s *PartitionState) { s.LastKnownELR = []int32{7, 7} }},
		{"MinISR", func(s *PartitionState) { s.MinISR = 0 }},
		{"MinISR", func(s *PartitionState) { s.MinISR = 5 }},
	} {
		s := testState()
		c.change(&s)
		requireInvalid(t, "Verdicts[0].State."+c.field, func(m *Message) { m.Verdicts[0].State = &s })
		requireInvalid(t, "Updates[0].States[0].State."+c.field, func(m *Message) { m.Updates[0].States[0].State = s })
	}
}

func TestValidRefusesBatches(t *testing.T) {
	damaged := testBatch(t, 105, 3, 1)
	damaged[len(damaged)-1] ^= 1
	two := append(testBatch(t, 105, 3, 1), testBatch(t, 106, 3, 1)...)
	for name, b := range map[string][]byte{
		"flipped bit":    damaged,
		"cut":            testBatch(t, 105, 3, 1)[:70],
		"nothing":        nil,
		"two in one":     two,
		"gap":            testBatch(t, 106, 3, 1),
		"overlap":        testBatch(t, 104, 3, 1),
		"epoch falls":    testBatch(t, 105, 2, 1),
		"epoch too high": testBatch(t, 105, 6, 1),
		"not stamped":    testBatch(t, 105, -1, 1),
	} {
		t.Run(name, func(t *testing.T) {
			put := func(m *Message) [][]byte { return [][]byte{testBatch(t, 100, 3, 5), b} }
			requireInvalid(t, "FetchAnswers[0].Batches[1]", func(m *Message) { m.FetchAnswers[0].Batches = put(m) })
			requireInvalid(t, "ReadAnswers[0].Batches[1]", func(m *Message) { m.ReadAnswers[0].Batches = put(m) })
		})
	}
	for _, b := range [][]byte{damaged, nil, two} {
		requireInvalid(t, "Appends[0].Batch", func(m *Message) { m.Appends[0].Batch = b })
	}
	err := requireInvalid(t, "Appends[0].Batch", func(m *Message) { m.Appends[0].Batch = damaged })
	require.ErrorIs(t, err, record.ErrCorrupt)
}

// Every message that arrives passes here.
func TestValidIsCheap(t *testing.T) {
	m := soundMessage(t)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = m.Valid() }), 1.0)
}
