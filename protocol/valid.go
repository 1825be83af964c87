package protocol

import (
	"fmt"
	"math"
	"slices"

	"github.com/tidemark-log/tidemark/record"
)

// Bounds of what a message may hold. They are far above any sensible use and
// keep a faulty peer from making a broker do absurd work.
const (
	MaxReplicas     = 1024    // per partition
	MaxPartitions   = 1 << 20 // per topic
	MaxTopicName    = 249     // bytes
	MaxDetail       = 1 << 16 // bytes of CommandAnswer.Detail
	MaxMessageItems = 1 << 20 // items of all types
)

// InvalidError says what is wrong with a message.
type InvalidError struct {
	Field string // for example Fetches[3].Offset
	Why   string
	Err   error // the record package's error, when a batch is unsound; else nil
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("protocol: invalid message: %s: %s", e.Field, e.Why)
}

// Unwrap returns Err.
func (e *InvalidError) Unwrap() error { return e.Err }

// Valid checks what can be checked without knowing the state of anything: kinds
// and codes are known, numbers are in range, lists are within bounds and without
// duplicates, partition states are consistent, and record batches are sound. The
// error is an *InvalidError. It does not change m, and may be called from any
// goroutine.
//
// It does not look for mistakes of a user, such as a bad topic name in a Command:
// those deserve an answer.
func (m *Message) Valid() error {
	var c checker
	m.checkHeader(&c)
	m.Payload.check(&c)
	if c.err != nil {
		return c.err
	}
	return nil
}

// checker keeps the first fault found.
type checker struct{ err *InvalidError }

func (c *checker) that(ok bool, field, why string) {
	if !ok && c.err == nil {
		c.err = &InvalidError{Field: field, Why: why}
	}
}

// within runs check and names the field around what it finds.
func within[T any](c *checker, field string, item *T, check func(*T, *checker)) {
	if c.err != nil || item == nil {
		return
	}
	if check(item, c); c.err != nil {
		c.err.Field = field + "." + c.err.Field
	}
}

func each[T any](c *checker, field string, items []T, check func(*T, *checker)) {
	for i := range items {
		if c.err != nil {
			return
		}
		if check(&items[i], c); c.err != nil {
			c.err.Field = fmt.Sprintf("%s[%d].%s", field, i, c.err.Field)
		}
	}
}

// An offset below MaxInt64 can be the base of one more record without overflow.
func (c *checker) offset(v int64, field string) {
	c.that(v >= 0 && v < math.MaxInt64, field, "not an offset")
}

// offsetOrNone also takes -1.
func (c *checker) offsetOrNone(v int64, field string) {
	c.that(v >= -1 && v < math.MaxInt64, field, "neither an offset nor -1")
}

func (c *checker) epoch(v int32, field string) { c.that(v >= -1, field, "epoch below -1") }

func (c *checker) code(v Code) { c.that(int(v) < len(codeNames), "Code", "unknown code") }

func (c *checker) partition(p PartitionID) {
	c.that(!p.Topic.IsZero(), "ID.Topic", "zero")
	c.that(p.Partition >= 0 && p.Partition < MaxPartitions, "ID.Partition", "out of range")
}

func (m *Message) checkHeader(c *checker) {
	c.that(m.Kind >= Hello && m.Kind <= Reset, "Kind", "unknown kind")
	c.that(!m.Cluster.IsZero(), "Cluster", "zero")
	c.that(m.From >= 0, "From", "negative")
	c.that(m.To >= 0, "To", "negative")
	c.that(m.From != m.To, "To", "the sender itself")
	c.that(m.FromEpoch > 0, "FromEpoch", "not a broker epoch")
	c.that(m.ToEpoch > 0, "ToEpoch", "not a broker epoch")
	c.that(m.Session != 0, "Session", "zero")
	c.that(m.MinVersion <= m.MaxVersion, "MinVersion", "above MaxVersion")
	switch m.Kind {
	case Hello, Welcome:
		c.that(m.Attempt > 0, "Attempt", "zero")
		c.that(m.MinVersion > 0, "MinVersion", "zero")
	case Data:
		c.that(m.Seq > 0, "Seq", "zero")
	}
	c.that(m.Kind == Hello || m.Kind == Reset || m.MinVersion == m.MaxVersion, "MaxVersion", "a session has one version")
	c.that(m.Kind == Data || m.Payload.Empty(), "Payload", "only Data carries one")
	c.that(m.Kind == Data || len(m.Fragment) == 0, "Fragment", "only Data carries one")
	c.that(len(m.Fragment) == 0 || m.Payload.Empty(), "Payload", "beside a fragment")
	c.that(len(m.Fragment) > 0 || !m.More, "More", "without a fragment")
}

func (p *Payload) items() int {
	return len(p.Fetches) + len(p.FetchAnswers) + len(p.Reports) + len(p.Watermarks) + len(p.Appends) +
		len(p.AppendAnswers) + len(p.Reads) + len(p.ReadAnswers) + len(p.Proposals) + len(p.Verdicts) +
		len(p.Updates) + len(p.UpdateAcks) + len(p.OrderReplies) + len(p.Removals) + len(p.Commands) + len(p.CommandAnswers)
}

func (p *Payload) check(c *checker) {
	c.that(p.items() <= MaxMessageItems, "Payload", "too many items")
	each(c, "Fetches", p.Fetches, (*Fetch).check)
	each(c, "FetchAnswers", p.FetchAnswers, (*FetchAnswer).check)
	each(c, "Reports", p.Reports, (*Report).check)
	each(c, "Watermarks", p.Watermarks, (*Watermark).check)
	each(c, "Appends", p.Appends, (*Append).check)
	each(c, "AppendAnswers", p.AppendAnswers, (*AppendAnswer).check)
	each(c, "Reads", p.Reads, (*Read).check)
	each(c, "ReadAnswers", p.ReadAnswers, (*ReadAnswer).check)
	each(c, "Proposals", p.Proposals, (*Proposal).check)
	each(c, "Verdicts", p.Verdicts, (*Verdict).check)
	each(c, "Updates", p.Updates, (*Update).check)
	each(c, "UpdateAcks", p.UpdateAcks, (*UpdateAck).check)
	each(c, "OrderReplies", p.OrderReplies, (*OrderReply).check)
	each(c, "Removals", p.Removals, (*Removal).check)
	each(c, "Commands", p.Commands, (*Command).check)
	each(c, "CommandAnswers", p.CommandAnswers, (*CommandAnswer).check)
}

func (f *Fetch) check(c *checker) {
	c.partition(f.ID)
	c.epoch(f.LeaderEpoch, "LeaderEpoch")
	c.offset(f.Offset, "Offset")
	c.epoch(f.LastEpoch, "LastEpoch")
	c.that(f.LastEpoch <= f.LeaderEpoch, "LastEpoch", "above LeaderEpoch")
	c.offset(f.Stored, "Stored")
	c.that(f.Stored <= f.Offset, "Stored", "above Offset")
	c.epoch(f.StoredEpoch, "StoredEpoch")
	c.that(f.StoredEpoch <= f.LastEpoch, "StoredEpoch", "above LastEpoch")
	c.that(f.MaxBytes >= 0, "MaxBytes", "negative")
}

func (a *FetchAnswer) check(c *checker) {
	c.partition(a.ID)
	c.epoch(a.LeaderEpoch, "LeaderEpoch")
	c.offset(a.Offset, "Offset")
	c.code(a.Code)
	c.offset(a.HW, "HW")
	c.offset(a.LogStart, "LogStart")
	c.epoch(a.Agreed.Epoch, "Agreed.Epoch")
	c.offsetOrNone(a.Agreed.End, "Agreed.End")
	c.that(a.Code == OK || len(a.Batches) == 0, "Batches", "with a code other than OK")
	first, _ := c.batches(a.Batches, a.LeaderEpoch)
	c.that(len(a.Batches) == 0 || first.Base <= a.Offset && a.Offset <= first.Last, "Batches[0]", "does not hold Offset")
	within(c, "State", a.State, (*PartitionState).check)
}

func (r *Report) check(c *checker) {
	c.partition(r.ID)
	c.epoch(r.LeaderEpoch, "LeaderEpoch")
	c.offset(r.Stored, "Stored")
	c.epoch(r.StoredEpoch, "StoredEpoch")
	c.that(r.StoredEpoch <= r.LeaderEpoch, "StoredEpoch", "above LeaderEpoch")
}

func (w *Watermark) check(c *checker) {
	c.partition(w.ID)
	c.epoch(w.LeaderEpoch, "LeaderEpoch")
	c.offset(w.HW, "HW")
	c.offset(w.LogStart, "LogStart")
}

func (a *Append) check(c *checker) {
	c.partition(a.ID)
	c.epoch(a.LeaderEpoch, "LeaderEpoch")
	c.that(a.Acks >= AcksAll && a.Acks <= AcksNone, "Acks", "unknown level")
	c.batch(a.Batch, "Batch", record.Check)
}

func (a *AppendAnswer) check(c *checker) {
	c.code(a.Code)
	c.that(a.Outcome <= Appended, "Outcome", "unknown outcome")
	c.offsetOrNone(a.Base, "Base")
	c.offsetOrNone(a.Last, "Last")
	c.that(a.Base <= a.Last, "Base", "above Last")
	c.epoch(a.LeaderEpoch, "LeaderEpoch")
	within(c, "State", a.State, (*PartitionState).check)
}

func (r *Read) check(c *checker) {
	c.partition(r.ID)
	c.that(r.Kind <= ReadWritable, "Kind", "unknown kind")
	c.offset(r.From, "From")
	c.that(r.MaxBytes >= 0, "MaxBytes", "negative")
	c.that(r.MaxWaitMs >= 0, "MaxWaitMs", "negative")
}

func (a *ReadAnswer) check(c *checker) {
	c.code(a.Code)
	c.offset(a.HW, "HW")
	c.offset(a.LogStart, "LogStart")
	c.offset(a.LogEnd, "LogEnd")
	c.epoch(a.LeaderEpoch, "LeaderEpoch")
	c.that(a.Code == OK || len(a.Batches) == 0, "Batches", "with a code other than OK")
	_, last := c.batches(a.Batches, a.LeaderEpoch)
	c.that(len(a.Batches) == 0 || last.End() <= a.HW, "Batches", "above HW")
	within(c, "State", a.State, (*PartitionState).check)
}

// batch requires exactly one batch, and that prove has nothing against it.
func (c *checker) batch(b []byte, field string, prove func([]byte) (record.Info, error)) record.Info {
	if c.err != nil {
		return record.Info{}
	}
	info, err := prove(b)
	if err != nil {
		c.err = &InvalidError{Field: field, Why: err.Error(), Err: err}
		return record.Info{}
	}
	c.that(info.Size == len(b), field, "bytes after the batch")
	return info
}

// batches requires what a leader of the given epoch can have in its log: stamped
// batches, one behind the other, whose epochs do not fall and end at its own.
// It returns the first and the last.
func (c *checker) batches(all [][]byte, leaderEpoch int32) (first, last record.Info) {
	for i, b := range all {
		if c.err != nil {
			return
		}
		info := c.batch(b, "Batches", record.Verify) // checked when it entered the log
		c.that(info.Epoch >= 0, "Batches", "without a leader epoch")
		c.that(info.Epoch <= leaderEpoch, "Batches", "leader epoch above the answer's")
		if i == 0 {
			first = info
		} else {
			c.that(info.Base == last.End(), "Batches", "not consecutive")
			c.that(info.Epoch >= last.Epoch, "Batches", "leader epoch falls")
		}
		last = info
		if c.err != nil {
			c.err.Field = fmt.Sprintf("Batches[%d]", i)
		}
	}
	return first, last
}

func (p *Proposal) check(c *checker) {
	c.partition(p.ID)
	c.epoch(p.ControllerEpoch, "ControllerEpoch")
	c.epoch(p.LeaderEpoch, "LeaderEpoch")
	c.epoch(p.PartitionEpoch, "PartitionEpoch")
	c.that(len(p.ISR) > 0 && len(p.ISR) <= MaxReplicas, "ISR", "number of members out of range")
	if c.err != nil {
		return
	}
	for i, m := range p.ISR {
		c.that(m.ID >= 0, "ISR", "negative broker id")
		c.that(m.Epoch >= -1, "ISR", "broker epoch below -1")
		for _, o := range p.ISR[:i] {
			c.that(o.ID != m.ID, "ISR", "broker twice")
		}
	}
}

func (v *Verdict) check(c *checker) {
	c.partition(v.ID)
	c.epoch(v.ControllerEpoch, "ControllerEpoch")
	c.epoch(v.LeaderEpoch, "LeaderEpoch")
	c.epoch(v.PartitionEpoch, "PartitionEpoch")
	c.code(v.Code)
	within(c, "State", v.State, (*PartitionState).check)
}

func (u *Update) check(c *checker) {
	c.epoch(u.ControllerEpoch, "ControllerEpoch")
	c.that(len(u.Topics) <= MaxMessageItems && len(u.States) <= MaxMessageItems, "States", "too many items")
	each(c, "Topics", u.Topics, (*Topic).check)
	each(c, "States", u.States, (*PartitionUpdate).check)
	c.that(len(u.Deleted) <= MaxMessageItems, "Deleted", "too many items")
	for _, id := range u.Deleted {
		c.that(!id.IsZero(), "Deleted", "zero")
	}
}

func (u *PartitionUpdate) check(c *checker) {
	c.partition(u.ID)
	within(c, "State", &u.State, (*PartitionState).check)
}

func (a *UpdateAck) check(c *checker) {
	c.epoch(a.ControllerEpoch, "ControllerEpoch")
	c.code(a.Code)
}

func (r *OrderReply) check(c *checker) {
	c.partition(r.ID)
	c.epoch(r.LeaderEpoch, "LeaderEpoch")
	c.epoch(r.Above, "Above")
	c.code(r.Code)
}

func (r *Removal) check(c *checker) { c.that(!r.Topic.IsZero(), "Topic", "zero") }

func (q *Command) check(c *checker) {
	c.that(q.Kind >= CreateTopic && q.Kind <= MoveLeaders, "Kind", "unknown kind")
	c.that(q.Kind == RaiseLevel || q.Kind == MoveLeaders || !q.Topic.ID.IsZero(), "Topic.ID", "zero")
	c.that(q.Partition >= 0, "Partition", "negative")
	c.that(q.Broker >= -1, "Broker", "below -1")
	c.that(q.Level >= 0, "Level", "negative")
	c.that(len(q.Topic.Name) <= MaxDetail, "Topic.Name", "too long")
}

func (a *CommandAnswer) check(c *checker) {
	c.code(a.Code)
	c.that(len(a.Detail) <= MaxDetail, "Detail", "too long")
	within(c, "Topic", a.Topic, (*Topic).check)
}

// check is for topics that exist.
func (t *Topic) check(c *checker) {
	c.that(!t.ID.IsZero(), "ID", "zero")
	c.that(t.Name != "" && len(t.Name) <= MaxTopicName, "Name", "length out of range")
	c.that(t.Config.Partitions >= 1 && t.Config.Partitions <= MaxPartitions, "Config.Partitions", "out of range")
	c.that(t.Config.ReplicationFactor >= 1 && t.Config.ReplicationFactor <= MaxReplicas, "Config.ReplicationFactor", "out of range")
	c.that(t.Config.MinISR >= 1, "Config.MinISR", "below 1")
	c.that(t.Config.MaxRecordBytes >= 0, "Config.MaxRecordBytes", "negative")
	c.that(t.Config.MaxUncommittedBytes >= 0, "Config.MaxUncommittedBytes", "negative")
	c.that(t.Version >= 0, "Version", "negative")
}

// StateVersion is the PartitionState.Version that this code writes and reads.
const StateVersion = 1

// Valid checks that the state is of this version and consistent in itself. The
// error is an *InvalidError.
func (s *PartitionState) Valid() error {
	var c checker
	if s.check(&c); c.err != nil {
		return c.err
	}
	return nil
}

func (s *PartitionState) check(c *checker) {
	c.that(s.Version == StateVersion, "Version", "unknown")
	c.that(s.Leader >= 0 || s.Leader == NoLeader, "Leader", "negative")
	c.epoch(s.LeaderEpoch, "LeaderEpoch")
	c.epoch(s.ControllerEpoch, "ControllerEpoch")
	c.epoch(s.PartitionEpoch, "PartitionEpoch")
	c.that(s.LeaderBrokerEpoch >= -1, "LeaderBrokerEpoch", "below -1")
	c.that(s.Leader == NoLeader || s.LeaderBrokerEpoch > 0, "LeaderBrokerEpoch", "a leader without one")
	c.that(s.UncleanEpoch >= 0 && s.UncleanEpoch <= max(s.LeaderEpoch, 0), "UncleanEpoch", "out of range")
	c.that(len(s.Replicas) > 0, "Replicas", "none")
	c.brokers(s.Replicas, nil, "Replicas")
	c.brokers(s.ISR, s.Replicas, "ISR")
	c.brokers(s.Adding, s.Replicas, "Adding")
	c.brokers(s.Removing, s.Replicas, "Removing")
	c.brokers(s.ELR, s.Replicas, "ELR")
	c.brokers(s.LastKnownELR, nil, "LastKnownELR")
	c.that(s.Leader == NoLeader || s.InISR(s.Leader), "Leader", "not in ISR")
	for _, b := range s.ELR {
		c.that(!s.InISR(b), "ELR", "member of ISR")
	}
	c.that(s.MinISR >= 1, "MinISR", "below 1")
	c.that(int(s.MinISR) <= len(s.Replicas), "MinISR", "above the number of replicas")
}

// brokers requires distinct broker ids, all of them among of when that is given.
func (c *checker) brokers(ids, of []int32, field string) {
	c.that(len(ids) <= MaxReplicas, field, "too many")
	if c.err != nil {
		return
	}
	for i, id := range ids {
		c.that(id >= 0, field, "negative broker id")
		c.that(!slices.Contains(ids[:i], id), field, "broker twice")
		c.that(of == nil || slices.Contains(of, id), field, "not among Replicas")
	}
}
