package protocol

// Sizes are estimates of the binary form, a little above it and never below: they
// serve limits and credit, for which only proportion matters.
const (
	messageSize = 96
	itemSize    = 72 // any item without its variable part, and the head of its section
	// BatchOverhead is what a batch takes besides its bytes.
	BatchOverhead = 4
	replicaField  = 4
	uuidSize      = 16
)

func batchesSize(b [][]byte) int {
	n := 0
	for _, x := range b {
		n += BatchOverhead + len(x)
	}
	return n
}

func (s *PartitionState) size() int {
	if s == nil {
		return 0
	}
	lists := len(s.ISR) + len(s.Replicas) + len(s.Adding) + len(s.Removing) + len(s.ELR) + len(s.LastKnownELR)
	return itemSize + replicaField*lists
}

func (f Fetch) size() int        { return itemSize }
func (a FetchAnswer) size() int  { return itemSize + batchesSize(a.Batches) + a.State.size() }
func (r Report) size() int       { return itemSize }
func (w Watermark) size() int    { return itemSize }
func (a Append) size() int       { return itemSize + len(a.Batch) }
func (a AppendAnswer) size() int { return itemSize + a.State.size() }
func (r Read) size() int         { return itemSize }
func (a ReadAnswer) size() int   { return itemSize + batchesSize(a.Batches) + a.State.size() }
func (p Proposal) size() int     { return itemSize + 12*len(p.ISR) }
func (v Verdict) size() int      { return itemSize + v.State.size() }
func (a UpdateAck) size() int    { return itemSize }
func (r OrderReply) size() int   { return itemSize }
func (c Command) size() int      { return itemSize + c.Topic.size() }
func (t Topic) size() int        { return itemSize + len(t.Name) }
func (a CommandAnswer) size() int {
	n := itemSize + len(a.Detail)
	if a.Topic != nil {
		n += a.Topic.size()
	}
	return n
}

func (u PartitionUpdate) size() int { return itemSize + u.State.size() }

// Size is about how many bytes the topic takes within an Update.
func (t *Topic) Size() int { return t.size() }

// Size is about how many bytes the state takes within an Update.
func (u *PartitionUpdate) Size() int { return u.size() }

func (r Removal) size() int { return itemSize }

func (u Update) size() int {
	return itemSize + total(u.Topics) + total(u.States) + uuidSize*len(u.Deleted)
}

type sized interface{ size() int }

func total[T sized](items []T) int {
	n := 0
	for i := range items {
		n += items[i].size()
	}
	return n
}

// Size is about how many bytes the payload takes on the wire, and not fewer.
func (p *Payload) Size() int {
	return total(p.Fetches) + total(p.FetchAnswers) + total(p.Reports) + total(p.Watermarks) +
		total(p.Appends) + total(p.AppendAnswers) + total(p.Reads) + total(p.ReadAnswers) +
		total(p.Proposals) + total(p.Verdicts) + total(p.Updates) + total(p.UpdateAcks) +
		total(p.OrderReplies) + total(p.Removals) + total(p.Commands) + total(p.CommandAnswers)
}

// Size is about how many bytes the message takes on the wire, and not fewer.
func (m *Message) Size() int { return messageSize + len(m.Fragment) + m.Payload.Size() }

// Empty reports whether the payload holds nothing.
func (p *Payload) Empty() bool { return p.items() == 0 }
