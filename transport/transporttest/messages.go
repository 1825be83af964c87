package transporttest

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// The messages of the suite are sound in the sense of Message.Valid, because a
// transport may drop what is not. The brokers and the session are still to be
// filled in.

var (
	topicID   = protocol.UUID{0: 7, 15: 0xff}
	partition = protocol.PartitionID{Topic: topicID, Partition: 3}
)

func header(kind protocol.Kind) *protocol.Message {
	return &protocol.Message{Kind: kind, Cluster: protocol.UUID{0: 0x80, 7: 1}, FromEpoch: math.MaxInt64, ToEpoch: 12}
}

// small is a message without a payload.
func small() *protocol.Message {
	m := header(protocol.Heartbeat)
	m.Seq, m.Ack = 1<<40, 3
	return m
}

func data(p protocol.Payload) *protocol.Message {
	m := header(protocol.Data)
	m.Seq, m.Ack, m.Payload = math.MaxUint64, 1<<63, p
	return m
}

// bulk carries about size bytes, all of them salt.
func bulk(size int, salt byte) *protocol.Message {
	return data(protocol.Payload{Appends: []protocol.Append{{Request: 1, ID: partition, LeaderEpoch: -1, Batch: batch(0, -1, size, salt)}}})
}

// sized returns a message whose Size is n, which must be 2 KiB at least.
func sized(n int) *protocol.Message {
	const least, room = 256, 1024 // of Detail: within it, one byte more is one more of Size
	m := data(protocol.Payload{CommandAnswers: []protocol.CommandAnswer{{Request: 1, Detail: strings.Repeat("x", least)}}})
	if n > 4*room {
		m.Appends = bulk(n-m.Size()-room, 0xa5).Appends
	}
	if missing := n - m.Size(); missing > 0 {
		m.CommandAnswers[0].Detail = strings.Repeat("x", least+missing)
	}
	return m
}

// batch makes a record batch with a value of that size.
func batch(base int64, epoch int32, size int, salt byte) []byte {
	value := bytes.Repeat([]byte{salt}, size)
	b, err := record.Encode(nil, []record.Record{{Value: value}}, time.UnixMilli(1_700_000_000_000))
	if err != nil {
		panic(err)
	}
	record.Stamp(b, base, epoch)
	return b
}

// messages returns a message of every kind, with every type of item alone, with
// all of them, with very many, and with parts of a payload.
func messages() []*protocol.Message {
	hello, welcome, reset := header(protocol.Hello), header(protocol.Welcome), header(protocol.Reset)
	hello.Attempt, hello.MinVersion, hello.MaxVersion = math.MaxUint64, 1, math.MaxUint16
	welcome.Attempt, welcome.MinVersion, welcome.MaxVersion = 1, 2, 2
	reset.MinVersion, reset.MaxVersion = 1, 2
	all := []*protocol.Message{hello, welcome, reset, small(), data(protocol.Payload{}), data(payload())}

	whole := reflect.ValueOf(payload())
	for i := range whole.NumField() {
		var p protocol.Payload
		reflect.ValueOf(&p).Elem().Field(i).Set(whole.Field(i))
		all = append(all, data(p))
	}

	var many protocol.Payload
	for i := range int64(5000) {
		many.Reports = append(many.Reports, protocol.Report{ID: partition, LeaderEpoch: 5, Stored: i, StoredEpoch: -1})
	}
	part, last := data(protocol.Payload{}), data(protocol.Payload{})
	part.Fragment, part.More = bytes.Repeat([]byte{0, 0xff}, 5000), true
	last.Fragment = []byte{0}
	return append(all, data(many), part, last)
}

func state() *protocol.PartitionState {
	return &protocol.PartitionState{Version: protocol.StateVersion, Leader: 1, LeaderEpoch: 5, ControllerEpoch: 2, ISR: []int32{1, 2},
		PartitionEpoch: 9, LeaderBrokerEpoch: 44, Replicas: []int32{1, 2, 3, 4}, Adding: []int32{4}, Removing: []int32{2},
		ELR: []int32{3}, LastKnownELR: []int32{7, math.MaxInt32}, MinISR: 2, UncleanEpoch: 4}
}

func topic() *protocol.Topic {
	return &protocol.Topic{ID: topicID, Name: "orders-Ü", Version: 8, Config: protocol.TopicConfig{Partitions: 4, ReplicationFactor: 3, MinISR: 2,
		UncleanElection: true, Background: true, MaxRecordBytes: 100, MaxUncommittedBytes: 1 << 40}}
}

// payload holds items of every type, with every field in use somewhere.
func payload() protocol.Payload {
	run := [][]byte{batch(100, 3, 0, 0), batch(101, 3, 3000, 0xff), batch(102, 5, 1, 7)}
	return protocol.Payload{
		Fetches: []protocol.Fetch{{ID: partition, LeaderEpoch: 5, Offset: math.MaxInt64 - 1, LastEpoch: 4, Stored: 8, StoredEpoch: 4, MaxBytes: 1},
			{ID: partition, LastEpoch: -1, StoredEpoch: -1}},
		FetchAnswers: []protocol.FetchAnswer{{ID: partition, LeaderEpoch: 5, Offset: 100, HW: 101, LogStart: 7, Batches: run},
			{ID: partition, LeaderEpoch: 5, Offset: 3, Code: protocol.Diverging, Agreed: protocol.EpochEnd{Epoch: 4, End: -1}},
			{ID: partition, LeaderEpoch: 4, Code: protocol.FencedEpoch, State: state()}},
		Reports:    []protocol.Report{{ID: partition, LeaderEpoch: 5, Stored: 8, StoredEpoch: -1}},
		Watermarks: []protocol.Watermark{{ID: partition, LeaderEpoch: 5, HW: 8, LogStart: 2}},
		Appends: []protocol.Append{{Request: math.MaxUint64, ID: partition, LeaderEpoch: -1, Acks: protocol.AcksNone,
			Stream: protocol.Stream{ID: math.MaxUint64, Generation: math.MaxUint32}, Batch: batch(0, -1, 3000, 9)}},
		AppendAnswers: []protocol.AppendAnswer{{Request: 1, Outcome: protocol.Appended, Base: 5, Last: 7, LeaderEpoch: 5},
			{Request: 2, Code: protocol.NotLeader, Outcome: protocol.NotAppended, Base: -1, Last: -1, Generation: 6, State: state()}},
		Reads: []protocol.Read{{Request: 3, ID: partition, Kind: protocol.ReadEnds, From: 77, MaxBytes: 1 << 20, MaxWaitMs: 500}},
		ReadAnswers: []protocol.ReadAnswer{{Request: 3, Batches: run, HW: 108, LogStart: 1, LogEnd: 109, LeaderEpoch: 5},
			{Request: 4, Code: protocol.NotLeader, State: state()}},
		Proposals: []protocol.Proposal{{ID: partition, ControllerEpoch: 3, LeaderEpoch: 5, PartitionEpoch: 9, Attempt: 6, ISR: []protocol.Member{{ID: 1, Epoch: 44}, {ID: 3, Epoch: -1}}}},
		Verdicts: []protocol.Verdict{{ID: partition, ControllerEpoch: 2, LeaderEpoch: 5, PartitionEpoch: 9, Attempt: 6,
			Code: protocol.Ineligible, State: state()}},
		Updates: []protocol.Update{{ControllerEpoch: 2, Seq: 1, Full: true, More: true, StoreOK: true, Topics: []protocol.Topic{*topic()},
			States: []protocol.PartitionUpdate{{ID: partition, State: *state()}}, Deleted: []protocol.UUID{{1}, {2}}}},
		UpdateAcks:   []protocol.UpdateAck{{ControllerEpoch: 2, Seq: 1, Code: protocol.Gap}},
		OrderReplies: []protocol.OrderReply{{ID: partition, LeaderEpoch: 5, Accepted: true, Above: -1, Code: protocol.BehindLog}},
		Removals:     []protocol.Removal{{Topic: topicID}},
		Commands: []protocol.Command{{Request: 1, Kind: protocol.CreateTopic, Topic: *topic()},
			{Request: 2, Kind: protocol.ElectUnclean, Topic: *topic(), Partition: 2, Broker: -1}, {Request: 3, Kind: protocol.RaiseLevel, Level: 2}},
		CommandAnswers: []protocol.CommandAnswer{{Request: 1, Code: protocol.TopicExists, Detail: "exists: Ü", Topic: topic()}},
	}
}
