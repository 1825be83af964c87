package protocol

import (
	"encoding/binary"
	"math"
)

// versionSize is what the version takes in front of a payload.
const versionSize = 2

// wire is the header and the body. Reading, nothing may be left behind it.
func (m *Message) wire(c *coder) {
	form := uint8(headerForm)
	if c.uint8(&form); form != headerForm {
		c.fail(&VersionError{Part: "header", Version: int(form)})
		return
	}
	enum(c, &m.Kind)
	c.uuid(&m.Cluster)
	c.int32(&m.From)
	c.int32(&m.To)
	c.int64(&m.FromEpoch)
	c.int64(&m.ToEpoch)
	c.uint64(&m.Session)
	c.uint64(&m.Attempt)
	c.uint64(&m.Seq)
	c.uint64(&m.Ack)
	c.uint16(&m.MinVersion)
	c.uint16(&m.MaxVersion)

	fragment := len(m.Fragment) > 0
	c.bool(&fragment)
	c.bool(&m.More)
	if c.reading {
		m.readBody(c, fragment)
	} else {
		m.writeBody(c, fragment)
	}
}

func (m *Message) writeBody(c *coder, fragment bool) {
	c.b = append(c.b, 0, 0, 0, 0)
	at := len(c.b)
	switch {
	case fragment && !m.Payload.Empty():
		c.wrong("a payload beside a fragment")
	case fragment:
		c.b = append(c.b, m.Fragment...)
	case !m.Payload.Empty():
		m.Payload.wire(c)
	}
	n := len(c.b) - at
	if n > math.MaxInt32 {
		c.wrong("more than 2 GiB")
	}
	binary.BigEndian.PutUint32(c.b[at-4:], uint32(n))
}

func (m *Message) readBody(c *coder, fragment bool) {
	n := c.length(0)
	if n < c.left() {
		c.wrong("more than there should be")
	}
	switch {
	case fragment && n == 0:
		c.wrong("a fragment of nothing")
	case fragment:
		m.Fragment = c.keep(c.take(n))
	case n > 0:
		if m.Payload.wire(c); c.items == 0 {
			c.wrong("a payload of nothing")
		}
	}
}

// wire is the version and the sections. With each section stands its number, and
// how many bytes an item has that holds nothing of variable length. Reading,
// nothing may be left behind it.
func (p *Payload) wire(c *coder) {
	version := uint16(Version)
	if c.uint16(&version); version != Version {
		c.fail(&VersionError{Part: "payload", Version: int(version)})
		return
	}
	for i := range section(c, 1, &p.Fetches, 52) {
		p.Fetches[i].wire(c)
	}
	for i := range section(c, 2, &p.FetchAnswers, 66) {
		p.FetchAnswers[i].wire(c)
	}
	for i := range section(c, 3, &p.Reports, 36) {
		p.Reports[i].wire(c)
	}
	for i := range section(c, 4, &p.Watermarks, 40) {
		p.Watermarks[i].wire(c)
	}
	for i := range section(c, 5, &p.Appends, 49) {
		p.Appends[i].wire(c)
	}
	for i := range section(c, 6, &p.AppendAnswers, 35) {
		p.AppendAnswers[i].wire(c)
	}
	for i := range section(c, 7, &p.Reads, 45) {
		p.Reads[i].wire(c)
	}
	for i := range section(c, 8, &p.ReadAnswers, 42) {
		p.ReadAnswers[i].wire(c)
	}
	for i := range section(c, 9, &p.Proposals, 44) {
		p.Proposals[i].wire(c)
	}
	for i := range section(c, 10, &p.Verdicts, 42) {
		p.Verdicts[i].wire(c)
	}
	for i := range section(c, 11, &p.Updates, 27) {
		p.Updates[i].wire(c)
	}
	for i := range section(c, 12, &p.UpdateAcks, 13) {
		p.UpdateAcks[i].wire(c)
	}
	for i := range section(c, 13, &p.OrderReplies, 30) {
		p.OrderReplies[i].wire(c)
	}
	for i := range section(c, 14, &p.Removals, 16) {
		p.Removals[i].wire(c)
	}
	for i := range section(c, 15, &p.Commands, 71) {
		p.Commands[i].wire(c)
	}
	for i := range section(c, 16, &p.CommandAnswers, 14) {
		p.CommandAnswers[i].wire(c)
	}
	if c.reading && c.left() > 0 {
		c.wrong("a section of an unknown type, or out of turn")
	}
}

func (f *Fetch) wire(c *coder) {
	c.partition(&f.ID)
	c.int32(&f.LeaderEpoch)
	c.int64(&f.Offset)
	c.int32(&f.LastEpoch)
	c.int64(&f.Stored)
	c.int32(&f.StoredEpoch)
	c.int32(&f.MaxBytes)
}

func (a *FetchAnswer) wire(c *coder) {
	c.partition(&a.ID)
	c.int32(&a.LeaderEpoch)
	c.int64(&a.Offset)
	enum(c, &a.Code)
	c.int64(&a.HW)
	c.int64(&a.LogStart)
	c.batches(&a.Batches)
	c.int32(&a.Agreed.Epoch)
	c.int64(&a.Agreed.End)
	c.state(&a.State)
}

func (r *Report) wire(c *coder) {
	c.partition(&r.ID)
	c.int32(&r.LeaderEpoch)
	c.int64(&r.Stored)
	c.int32(&r.StoredEpoch)
}

func (w *Watermark) wire(c *coder) {
	c.partition(&w.ID)
	c.int32(&w.LeaderEpoch)
	c.int64(&w.HW)
	c.int64(&w.LogStart)
}

func (a *Append) wire(c *coder) {
	c.uint64(&a.Request)
	c.partition(&a.ID)
	c.int32(&a.LeaderEpoch)
	enum(c, &a.Acks)
	c.uint64(&a.Stream.ID)
	c.uint32(&a.Stream.Generation)
	c.bytes(&a.Batch)
}

func (a *AppendAnswer) wire(c *coder) {
	c.uint64(&a.Request)
	enum(c, &a.Code)
	enum(c, &a.Outcome)
	c.int64(&a.Base)
	c.int64(&a.Last)
	c.int32(&a.LeaderEpoch)
	c.uint32(&a.Generation)
	c.state(&a.State)
}

func (r *Read) wire(c *coder) {
	c.uint64(&r.Request)
	c.partition(&r.ID)
	enum(c, &r.Kind)
	c.int64(&r.From)
	c.int32(&r.MaxBytes)
	c.int32(&r.MaxWaitMs)
}

func (a *ReadAnswer) wire(c *coder) {
	c.uint64(&a.Request)
	enum(c, &a.Code)
	c.batches(&a.Batches)
	c.int64(&a.HW)
	c.int64(&a.LogStart)
	c.int64(&a.LogEnd)
	c.int32(&a.LeaderEpoch)
	c.state(&a.State)
}

func (p *Proposal) wire(c *coder) {
	c.partition(&p.ID)
	c.int32(&p.ControllerEpoch)
	c.int32(&p.LeaderEpoch)
	c.int32(&p.PartitionEpoch)
	c.uint64(&p.Attempt)
	for i := range list(c, &p.ISR, 12) {
		c.int32(&p.ISR[i].ID)
		c.int64(&p.ISR[i].Epoch)
	}
}

func (v *Verdict) wire(c *coder) {
	c.partition(&v.ID)
	c.int32(&v.ControllerEpoch)
	c.int32(&v.LeaderEpoch)
	c.int32(&v.PartitionEpoch)
	c.uint64(&v.Attempt)
	enum(c, &v.Code)
	c.state(&v.State)
}

func (u *Update) wire(c *coder) {
	c.int32(&u.ControllerEpoch)
	c.uint64(&u.Seq)
	c.bool(&u.Full)
	c.bool(&u.More)
	c.bool(&u.StoreOK)
	for i := range list(c, &u.Topics, 50) {
		u.Topics[i].wire(c)
	}
	for i := range list(c, &u.States, 80) {
		c.partition(&u.States[i].ID)
		u.States[i].State.wire(c)
	}
	for i := range list(c, &u.Deleted, 16) {
		c.uuid(&u.Deleted[i])
	}
}

func (a *UpdateAck) wire(c *coder) {
	c.int32(&a.ControllerEpoch)
	c.uint64(&a.Seq)
	enum(c, &a.Code)
}

func (r *OrderReply) wire(c *coder) {
	c.partition(&r.ID)
	c.int32(&r.LeaderEpoch)
	c.bool(&r.Accepted)
	c.int32(&r.Above)
	enum(c, &r.Code)
}

func (r *Removal) wire(c *coder) { c.uuid(&r.Topic) }

func (q *Command) wire(c *coder) {
	c.uint64(&q.Request)
	enum(c, &q.Kind)
	q.Topic.wire(c)
	c.int32(&q.Partition)
	c.int32(&q.Broker)
	c.int32(&q.Level)
}

func (a *CommandAnswer) wire(c *coder) {
	c.uint64(&a.Request)
	enum(c, &a.Code)
	c.string(&a.Detail)
	if optional(c, &a.Topic) {
		a.Topic.wire(c)
	}
}

func (t *Topic) wire(c *coder) {
	c.uuid(&t.ID)
	c.string(&t.Name)
	c.int32(&t.Config.Partitions)
	c.int32(&t.Config.ReplicationFactor)
	c.int32(&t.Config.MinISR)
	c.bool(&t.Config.UncleanElection)
	c.bool(&t.Config.Background)
	c.int32(&t.Config.MaxRecordBytes)
	c.int64(&t.Config.MaxUncommittedBytes)
	c.int32(&t.Version)
}

func (s *PartitionState) wire(c *coder) {
	c.int(&s.Version)
	c.int32(&s.Leader)
	c.int32(&s.LeaderEpoch)
	c.int32(&s.ControllerEpoch)
	c.brokers(&s.ISR)
	c.int32(&s.PartitionEpoch)
	c.int64(&s.LeaderBrokerEpoch)
	c.brokers(&s.Replicas)
	c.brokers(&s.Adding)
	c.brokers(&s.Removing)
	c.brokers(&s.ELR)
	c.brokers(&s.LastKnownELR)
	c.int32(&s.MinISR)
	c.int32(&s.UncleanEpoch)
}

// state is the state that an answer may carry.
func (c *coder) state(v **PartitionState) {
	if optional(c, v) {
		(*v).wire(c)
	}
}

func (c *coder) batches(v *[][]byte) {
	for i := range list(c, v, BatchOverhead) {
		c.bytes(&(*v)[i])
	}
}

func (c *coder) brokers(v *[]int32) {
	for i := range list(c, v, replicaField) {
		c.int32(&(*v)[i])
	}
}
