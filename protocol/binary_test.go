package protocol

import (
	"bytes"
	"encoding"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	_ encoding.BinaryAppender    = (*Message)(nil)
	_ encoding.BinaryMarshaler   = (*Message)(nil)
	_ encoding.BinaryUnmarshaler = (*Message)(nil)
	_ encoding.BinaryAppender    = (*Payload)(nil)
	_ encoding.BinaryMarshaler   = (*Payload)(nil)
	_ encoding.BinaryUnmarshaler = (*Payload)(nil)
)

// bare makes empty slices nil ones: the binary form does not tell them apart.
func bare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			bare(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			bare(v.Field(i))
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.SetZero()
		}
		for i := range v.Len() {
			bare(v.Index(i))
		}
	}
}

// wireMessages draws any message that has a binary form, sound or not.
func wireMessages() *rapid.Generator[*Message] {
	return rapid.Custom(func(t *rapid.T) *Message {
		m := rapid.MakeCustom[Message](rapid.MakeConfig{
			Fields: map[reflect.Type]map[string]*rapid.Generator[any]{
				reflect.TypeFor[PartitionState](): {"Version": rapid.Custom(func(t *rapid.T) any { return int(rapid.Int32().Draw(t, "version")) })},
			},
		}).Draw(t, "message")
		if rapid.Bool().Draw(t, "fragment") {
			m.Payload = Payload{}
		} else {
			m.Fragment = nil
		}
		bare(reflect.ValueOf(&m))
		return &m
	})
}

func TestBinaryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := wireMessages().Draw(t, "m")
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "prefix")
		out, err := m.AppendBinary(slices.Clone(prefix))
		require.NoError(t, err)
		b := out[len(prefix):]
		require.Equal(t, prefix, out[:len(prefix):len(prefix)])
		require.LessOrEqual(t, len(b), m.Size())

		copied, before := new(Message), bytes.Clone(b)
		copied.Fragment, copied.Reports = []byte{1}, make([]Report, 3)
		require.NoError(t, copied.UnmarshalBinary(b))
		for i := range b {
			b[i] ^= 0xff
		}
		require.Equal(t, m, copied, "copies")
		parsed, err := Parse(before)
		require.NoError(t, err)
		require.Equal(t, m, parsed)

		var p Payload
		alone, err := m.Payload.MarshalBinary()
		require.NoError(t, err)
		require.LessOrEqual(t, len(alone), m.Payload.Size()+versionSize)
		p.Commands = make([]Command, 2)
		require.NoError(t, p.UnmarshalBinary(alone))
		require.Equal(t, m.Payload, p)
		p, err = ParsePayload(alone)
		require.NoError(t, err)
		require.Equal(t, m.Payload, p)
	})
}

func TestFragments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPayload(t)
		max := messageSize + rapid.IntRange(1, 4000).Draw(t, "max")
		parts, err := p.Fragments(max)
		require.NoError(t, err)
		for i, part := range parts {
			m := Message{Kind: Data, Fragment: part, More: i < len(parts)-1}
			require.LessOrEqual(t, m.Size(), max)
			require.True(t, m.Size() == max || i == len(parts)-1, "no smaller than they have to be")
			b, err := m.MarshalBinary()
			require.NoError(t, err)
			require.LessOrEqual(t, len(b), m.Size())
		}
		whole, err := ParsePayload(bytes.Join(parts, nil))
		require.NoError(t, err)
		bare(reflect.ValueOf(&whole))
		bare(reflect.ValueOf(&p))
		require.Equal(t, p, whole)
	})
	_, err := (&Payload{Updates: []Update{{States: make([]PartitionUpdate, MaxMessageItems+1)}}}).Fragments(1 << 20)
	require.Error(t, err)
}

// fill gives every field of v another value that is not its zero value.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
		if v.Kind() == reflect.Int8 {
			v.SetInt(int64(*n%127 + 1))
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
		if v.Kind() == reflect.Uint8 {
			v.SetUint(uint64(*n%255 + 1))
		}
	case reflect.String:
		v.SetString(fmt.Sprint("string ", *n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic("no way to fill a " + v.Type().String())
	}
}

// A field that is added later, and forgotten in wire_items.go, fails here.
func TestBinaryKeepsEveryField(t *testing.T) {
	var full Message
	n := 0
	fill(reflect.ValueOf(&full).Elem(), &n)
	data, fragment := full, full
	data.Fragment, fragment.Payload = nil, Payload{}
	for _, m := range []Message{data, fragment} {
		b, err := m.MarshalBinary()
		require.NoError(t, err)
		require.LessOrEqual(t, len(b), m.Size())
		back, err := Parse(b)
		require.NoError(t, err)
		require.Equal(t, &m, back)
	}
	b, err := full.Payload.MarshalBinary()
	require.NoError(t, err)
	back, err := ParsePayload(b)
	require.NoError(t, err)
	require.Equal(t, full.Payload, back)
}

// Items without their variable part: what is announced must be there before there
// is memory for it, and no more may be asked for than an item takes.
func TestBinarySizesOfItems(t *testing.T) {
	sections := reflect.TypeFor[Payload]()
	for i := range sections.NumField() {
		var p Payload
		reflect.ValueOf(&p).Elem().Field(i).Set(reflect.MakeSlice(sections.Field(i).Type, 1, 1))
		b, err := p.MarshalBinary()
		require.NoError(t, err)
		name := sections.Field(i).Name
		require.Equal(t, byte(i+1), b[versionSize], "%s: the sections are in the order of the fields", name)
		require.LessOrEqual(t, len(b)-versionSize, p.Size(), name)
		_, err = ParsePayload(b)
		require.NoError(t, err, "%s: more asked for than an item takes", name)
		_, err = ParsePayload(b[:len(b)-1])
		var wire *WireError
		require.ErrorAs(t, err, &wire)
		require.Equal(t, "fewer elements than announced", wire.Why, "%s: less asked for than an item takes", name)
	}
	for name, u := range map[string]Update{"topics": {Topics: make([]Topic, 100)}, "states": {States: make([]PartitionUpdate, 100)}, "deleted": {Deleted: make([]UUID, 100)}} {
		b, err := (&Payload{Updates: []Update{u}}).MarshalBinary()
		require.NoError(t, err)
		_, err = ParsePayload(b)
		require.NoError(t, err, name)
	}
}

// goldenMessages are those whose bytes are in testdata/wire.
func goldenMessages() map[string]*Message {
	uuid := func(first byte) (u UUID) {
		for i := range u {
			u[i] = first + byte(i)
		}
		return u
	}
	header := Message{Cluster: uuid(0xa0), From: 3, To: 1, FromEpoch: 0x1122, ToEpoch: 0x3344, Session: 0x0102030405060708}
	id := PartitionID{Topic: uuid(0x10), Partition: 5}
	state := PartitionState{Version: 1, Leader: 1, LeaderEpoch: 5, ControllerEpoch: 2, ISR: []int32{1, 2}, PartitionEpoch: 9,
		LeaderBrokerEpoch: 44, Replicas: []int32{1, 2, 3, 4}, Adding: []int32{4}, Removing: []int32{2}, ELR: []int32{3},
		LastKnownELR: []int32{7}, MinISR: 2, UncleanEpoch: 4}
	topic := Topic{ID: id.Topic, Name: "orders", Version: 7, Config: TopicConfig{Partitions: 4, ReplicationFactor: 3, MinISR: 2,
		UncleanElection: true, Background: true, MaxRecordBytes: 1 << 16, MaxUncommittedBytes: 1 << 33}}
	batches := [][]byte{[]byte("batch one"), []byte("batch two")}
	all := map[string]*Message{}
	add := func(name string, change func(m *Message)) {
		m := header
		change(&m)
		all[name] = &m
	}
	data := func(name string, p Payload) {
		add(name, func(m *Message) {
			m.Kind, m.Seq, m.Ack, m.MinVersion, m.MaxVersion, m.Payload = Data, 12, 11, 1, 1, p
		})
	}
	add("hello", func(m *Message) { m.Kind, m.Attempt, m.MinVersion, m.MaxVersion = Hello, 6, 1, 3 })
	add("welcome", func(m *Message) { m.Kind, m.Attempt, m.MinVersion, m.MaxVersion = Welcome, 6, 1, 1 })
	add("heartbeat", func(m *Message) { m.Kind, m.Seq, m.Ack, m.MinVersion, m.MaxVersion = Heartbeat, 12, 11, 1, 1 })
	add("reset", func(m *Message) { m.Kind, m.MinVersion, m.MaxVersion = Reset, 1, 1 })
	add("fragment", func(m *Message) { m.Kind, m.Seq, m.Fragment, m.More = Data, 12, []byte("a part of something"), true })
	data("nothing", Payload{})
	data("fetches", Payload{Fetches: []Fetch{{ID: id, LeaderEpoch: 5, Offset: 1 << 40, LastEpoch: 4, Stored: 8, StoredEpoch: -1, MaxBytes: 1 << 20}, {ID: id}}})
	data("fetch answers", Payload{FetchAnswers: []FetchAnswer{{ID: id, LeaderEpoch: 5, Offset: 102, HW: 101, LogStart: 7, Batches: batches},
		{ID: id, Code: Diverging, Agreed: EpochEnd{Epoch: 3, End: 90}}, {ID: id, Code: FencedEpoch, State: &state}}})
	data("reports", Payload{Reports: []Report{{ID: id, LeaderEpoch: 5, Stored: 8, StoredEpoch: 4}}})
	data("watermarks", Payload{Watermarks: []Watermark{{ID: id, LeaderEpoch: 5, HW: 8, LogStart: 2}}})
	data("appends", Payload{Appends: []Append{{Request: 1, ID: id, LeaderEpoch: -1, Acks: AcksAll, Batch: batches[0]},
		{Request: 2, ID: id, LeaderEpoch: 5, Acks: AcksLeader, Stream: Stream{ID: 0xffee, Generation: 3}, Batch: batches[1]}, {Acks: AcksNone}}})
	data("append answers", Payload{AppendAnswers: []AppendAnswer{{Request: 1, Outcome: Appended, Base: 5, Last: 7, LeaderEpoch: 5},
		{Request: 2, Code: NotLeader, Outcome: NotAppended, Base: -1, Last: -1, Generation: 4, State: &state}, {Outcome: Unknown}}})
	data("reads", Payload{Reads: []Read{{Request: 3, ID: id, Kind: ReadRecords, From: 17, MaxBytes: 1 << 20, MaxWaitMs: 500}, {Kind: ReadEnds}, {Kind: ReadWritable}}})
	data("read answers", Payload{ReadAnswers: []ReadAnswer{{Request: 3, Batches: batches, HW: 108, LogStart: 1, LogEnd: 109, LeaderEpoch: 5}, {Request: 4, State: &state}}})
	data("proposals", Payload{Proposals: []Proposal{{ID: id, LeaderEpoch: 5, PartitionEpoch: 9, Attempt: 2, ISR: []Member{{1, 44}, {3, -1}}}}})
	data("verdicts", Payload{Verdicts: []Verdict{{ID: id, ControllerEpoch: 2, LeaderEpoch: 5, PartitionEpoch: 9, Attempt: 2, Code: Ineligible, State: &state}}})
	data("updates", Payload{Updates: []Update{{ControllerEpoch: 2, Seq: 1, Full: true, Topics: []Topic{topic}, States: []PartitionUpdate{{id, state}}},
		{More: true, Deleted: []UUID{uuid(0x20)}}, {StoreOK: true}}})
	data("update acks", Payload{UpdateAcks: []UpdateAck{{ControllerEpoch: 2, Seq: 1, Code: Gap}}})
	data("order replies", Payload{OrderReplies: []OrderReply{{ID: id, LeaderEpoch: 5, Above: 6, Code: BehindLog}, {Accepted: true}}})
	data("removals", Payload{Removals: []Removal{{Topic: uuid(0x20)}}})
	data("commands", Payload{Commands: []Command{{Request: 1, Kind: CreateTopic, Topic: topic}, {Kind: AlterTopic}, {Kind: DeleteTopic}, {Kind: AddPartitions},
		{Kind: ElectPreferred, Partition: 5}, {Kind: ElectUnclean, Partition: 5, Broker: -1}, {Kind: RaiseLevel, Level: 2}, {Kind: MoveLeaders}}})
	data("command answers", Payload{CommandAnswers: []CommandAnswer{{Request: 1, Code: TopicExists, Detail: "exists", Topic: &topic}, {Request: 2}}})
	data("several", Payload{Removals: []Removal{{Topic: uuid(0x20)}}, Watermarks: []Watermark{{ID: id}}, UpdateAcks: []UpdateAck{{Seq: 4}}})
	return all
}

// TestWire holds the bytes of version 1, which do not change. A new message is
// added to testdata/wire by its name; `go test -run TestWire -rewrite ./protocol`
// writes its bytes there.
func TestWire(t *testing.T) {
	messages := goldenMessages()
	seen := map[string]bool{}
	datadriven.RunTest(t, "testdata/wire", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "codes" {
			var out strings.Builder
			for c := range Code(len(codeNames)) {
				fmt.Fprintf(&out, "%d %s\n", uint8(c), c)
			}
			return out.String()
		}
		name := strings.TrimSpace(d.Input)
		m := messages[name]
		require.NotNil(t, m, "no message %q", name)
		seen[name] = true
		b, err := m.MarshalBinary()
		require.NoError(t, err)
		if !d.Rewrite {
			old, err := hex.DecodeString(strings.Join(strings.Fields(d.Expected), ""))
			require.NoError(t, err)
			back, err := Parse(old)
			require.NoError(t, err, "%s: old bytes are read for ever", name)
			require.Equal(t, m, back, name)
		}
		var out strings.Builder
		for line := range slices.Chunk(b, 32) {
			fmt.Fprintf(&out, "%x\n", line)
		}
		return out.String()
	})
	for name := range messages {
		require.True(t, seen[name], "%s has no bytes in testdata/wire", name)
	}
}

func TestBinaryRefuses(t *testing.T) {
	marshal := func(m Message) []byte {
		b, err := m.MarshalBinary()
		require.NoError(t, err)
		return b
	}
	const body = 78 // flags, length, payload
	set := func(b []byte, at int, v ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], v)
		return b
	}
	heartbeat := marshal(Message{Kind: Heartbeat})
	require.Len(t, heartbeat, body+6)
	data := marshal(Message{Kind: Data, Payload: Payload{Removals: []Removal{{}, {}}, UpdateAcks: []UpdateAck{{}}}})
	answer := marshal(Message{Kind: Data, Payload: Payload{CommandAnswers: []CommandAnswer{{}}}})
	batch := marshal(Message{Kind: Data, Payload: Payload{Appends: []Append{{Batch: []byte("x")}}}})
	section := body + 6 + versionSize
	swapped := slices.Concat(data[:section], data[section+18:], data[section:section+18])
	for name, c := range map[string]struct {
		b   []byte
		why string
	}{
		"nothing":              {nil, "cut short"},
		"a byte more":          {append(bytes.Clone(heartbeat), 0), "more than there should be"},
		"a byte more in data":  {append(bytes.Clone(data), 0), "more than there should be"},
		"a byte more inside":   {set(append(bytes.Clone(data), 0), body+5, data[body+5]+1), "a section of an unknown type, or out of turn"},
		"a strange flag":       {set(heartbeat, body, 2), "neither yes nor no"},
		"no fragment":          {set(heartbeat, body, 1), "a fragment of nothing"},
		"a wrong length":       {set(data, body+5, 200), "cut short"},
		"no sections":          {slices.Concat(heartbeat[:body+5], []byte{2, 0, 1}), "a payload of nothing"},
		"an unknown section":   {set(data, section, 17), "a section of an unknown type, or out of turn"},
		"section 0":            {set(data, section, 0), "a section of an unknown type, or out of turn"},
		"sections out of turn": {swapped, "a section of an unknown type, or out of turn"},
		"an empty section":     {set(data, section+4, 0), "a section without items"},
		"too few items":        {set(data, section+1, 0, 0, 0, 9), "fewer elements than announced"},
		"far too few items":    {set(data, section+1, 255, 255, 255, 255), "fewer elements than announced"},
		"a long string":        {set(answer, section+5+9, 0, 0, 0, 2), "cut short"},
		"a longer string":      {set(answer, section+5+9, 255, 255, 255, 255), "cut short"},
		"a topic that is not":  {set(answer, section+5+13, 1), "cut short"},
		"a long batch":         {set(batch, section+5+45, 0, 0, 0, 2), "cut short"},
	} {
		m := Message{Seq: 4}
		err := m.UnmarshalBinary(c.b)
		var wire *WireError
		require.ErrorAs(t, err, &wire, name)
		require.Equal(t, c.why, wire.Why, name)
		require.Contains(t, err.Error(), fmt.Sprint(wire.At))
		require.Zero(t, m, name)
		_, err = Parse(c.b)
		require.Error(t, err, name)
	}
	for _, b := range [][]byte{heartbeat, data, answer, batch} {
		for n := range b {
			require.Error(t, new(Message).UnmarshalBinary(b[:n]), "cut to %d", n)
		}
	}
	for part, b := range map[string][]byte{"header": set(heartbeat, 0, 7), "payload": set(data, section-1, 7)} {
		var version *VersionError
		_, err := Parse(b)
		require.ErrorAs(t, err, &version)
		require.Equal(t, VersionError{Part: part, Version: 7}, *version)
		require.ErrorContains(t, err, part+" of unknown version 7")
	}
	_, err := ParsePayload([]byte{0, 2})
	require.ErrorContains(t, err, "payload of unknown version 2")
	many, err := (&Payload{Removals: make([]Removal, MaxMessageItems), UpdateAcks: make([]UpdateAck, 1)}).MarshalBinary()
	require.ErrorContains(t, err, "too many items")
	require.Nil(t, many)
	// Two sections that are within bounds, but not together.
	a, _ := (&Payload{Removals: make([]Removal, MaxMessageItems)}).MarshalBinary()
	b, _ := (&Payload{Commands: make([]Command, 1)}).MarshalBinary()
	_, err = ParsePayload(append(a, b[versionSize:]...))
	require.ErrorContains(t, err, "too many items")
	_, err = ParsePayload(slices.Concat([]byte{0, 1, 14, 0, 16, 0, 1}, make([]byte, (MaxMessageItems+1)*16)))
	require.ErrorContains(t, err, "too many elements")
}

func TestBinaryOfWhatHasNone(t *testing.T) {
	prefix := []byte("as it was")
	for why, m := range map[string]*Message{
		"a payload beside a fragment":   {Fragment: []byte{1}, Payload: Payload{Reports: make([]Report, 1)}},
		"too many elements":             {Payload: Payload{Removals: make([]Removal, MaxMessageItems+1)}},
		"a number of more than 32 bits": {Payload: Payload{Verdicts: []Verdict{{State: &PartitionState{Version: math.MaxInt32 + 1}}}}},
	} {
		b, err := m.AppendBinary(prefix)
		var wire *WireError
		require.ErrorAs(t, err, &wire)
		require.Equal(t, why, wire.Why)
		require.Equal(t, prefix, b)
	}
}

// What a batch is kept with: nothing, or not more than its own size again.
func TestParseOwnsItsBytes(t *testing.T) {
	inside := func(part, whole []byte) bool {
		p, w := reflect.ValueOf(part).Pointer(), reflect.ValueOf(whole).Pointer()
		return p >= w && p < w+uintptr(len(whole))
	}
	p := Payload{FetchAnswers: []FetchAnswer{{Batches: [][]byte{make([]byte, 4000), make([]byte, 1000), make([]byte, 1000)}}}}
	b, err := p.MarshalBinary()
	require.NoError(t, err)
	parsed, err := ParsePayload(b)
	require.NoError(t, err)
	got := parsed.FetchAnswers[0].Batches
	require.True(t, inside(got[0], b))
	require.False(t, inside(got[1], b) || inside(got[2], b))
	require.Equal(t, len(got[0]), cap(got[0]), "an append would write into the next one")
	require.NoError(t, parsed.UnmarshalBinary(b))
	require.False(t, inside(parsed.FetchAnswers[0].Batches[0], b))
	b, err = (&Message{Kind: Data, Fragment: make([]byte, 4000)}).MarshalBinary()
	require.NoError(t, err)
	m, err := Parse(b)
	require.NoError(t, err)
	require.True(t, inside(m.Fragment, b))
}

// A message is immutable once it was sent, and several may be writing it.
func TestBinaryDoesNotWriteToTheMessage(t *testing.T) {
	var m Message
	n := 0
	fill(reflect.ValueOf(&m).Elem(), &n)
	m.Fragment = nil
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			_, err := m.MarshalBinary()
			require.NoError(t, err)
		})
	}
	all.Wait()
}

func FuzzUnmarshal(f *testing.F) {
	for _, m := range goldenMessages() {
		b, err := m.MarshalBinary()
		require.NoError(f, err)
		f.Add(b)
	}
	b, err := soundMessage(f).MarshalBinary()
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		if m.UnmarshalBinary(b) != nil {
			return
		}
		back, err := m.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, b, back)
		require.LessOrEqual(t, len(b), m.Size())
		_, _ = m.Valid(), m.ValidHeader()
		_, _, _ = m.Payload.Sound()
	})
}

func FuzzPayload(f *testing.F) {
	for _, m := range goldenMessages() {
		b, err := m.Payload.MarshalBinary()
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePayload(bytes.Clone(b))
		if err != nil {
			return
		}
		back, err := p.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, b, back)
		_, _, _ = p.Sound()
	})
}

func benchmarkMessages() map[string]*Message {
	fetches := make([]Fetch, 1000)
	batches := make([][]byte, 64)
	for i := range batches {
		batches[i] = make([]byte, 16<<10)
	}
	return map[string]*Message{
		"fetches=1000":         {Kind: Data, Payload: Payload{Fetches: fetches}},
		"answer=1MiB/batch=1":  {Kind: Data, Payload: Payload{FetchAnswers: []FetchAnswer{{Batches: [][]byte{make([]byte, 1<<20)}}}}},
		"answer=1MiB/batch=64": {Kind: Data, Payload: Payload{FetchAnswers: []FetchAnswer{{Batches: batches}}}},
	}
}

// A transport that keeps its buffer writes without allocating.
func TestAppendBinaryDoesNotAllocate(t *testing.T) {
	for name, m := range benchmarkMessages() {
		buf := make([]byte, 0, m.Size())
		require.Zero(t, testing.AllocsPerRun(20, func() { _, _ = m.AppendBinary(buf) }), name)
	}
}

// What is refused costs no memory, whatever it announces.
func TestParseTakesMemoryInProportion(t *testing.T) {
	b, err := (&Payload{Updates: make([]Update, 1)}).MarshalBinary()
	require.NoError(t, err)
	copy(b[versionSize+5+15:], []byte{0, 0x0f, 0xff, 0xff})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = ParsePayload(b)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "fewer elements")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10))
}

func BenchmarkAppendBinary(b *testing.B) {
	for name, m := range benchmarkMessages() {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, m.Size())
			b.SetBytes(int64(m.Size()))
			b.ReportAllocs()
			for b.Loop() {
				buf, _ = m.AppendBinary(buf[:0])
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for name, m := range benchmarkMessages() {
		b.Run(name, func(b *testing.B) {
			wire, _ := m.MarshalBinary()
			b.SetBytes(int64(len(wire)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(wire)
			}
		})
	}
}
