package protocol

import "slices"

// Fits reports whether the payload's message stays within max bytes, so that
// Split would return it as it is.
func (p *Payload) Fits(max int) bool { return p.Size() <= max-messageSize }

// Split cuts a payload into payloads whose messages stay within max bytes.
// Items are never cut: one that is larger than max is alone in its payload, which
// travels in Fragments. Control items come first, so that bulk never delays them.
func (p Payload) Split(max int) []Payload {
	max -= messageSize
	if p.Size() <= max {
		return []Payload{p}
	}
	s := splitter{max: max}
	spread(&s, p.Verdicts, func(q *Payload) *[]Verdict { return &q.Verdicts })
	spread(&s, p.Updates, func(q *Payload) *[]Update { return &q.Updates })
	spread(&s, p.UpdateAcks, func(q *Payload) *[]UpdateAck { return &q.UpdateAcks })
	spread(&s, p.OrderReplies, func(q *Payload) *[]OrderReply { return &q.OrderReplies })
	spread(&s, p.Removals, func(q *Payload) *[]Removal { return &q.Removals })
	spread(&s, p.Proposals, func(q *Payload) *[]Proposal { return &q.Proposals })
	spread(&s, p.Commands, func(q *Payload) *[]Command { return &q.Commands })
	spread(&s, p.CommandAnswers, func(q *Payload) *[]CommandAnswer { return &q.CommandAnswers })
	spread(&s, p.Reports, func(q *Payload) *[]Report { return &q.Reports })
	spread(&s, p.Watermarks, func(q *Payload) *[]Watermark { return &q.Watermarks })
	spread(&s, p.Fetches, func(q *Payload) *[]Fetch { return &q.Fetches })
	spread(&s, p.AppendAnswers, func(q *Payload) *[]AppendAnswer { return &q.AppendAnswers })
	spread(&s, p.Reads, func(q *Payload) *[]Read { return &q.Reads })
	spread(&s, p.Appends, func(q *Payload) *[]Append { return &q.Appends })
	spread(&s, p.FetchAnswers, func(q *Payload) *[]FetchAnswer { return &q.FetchAnswers })
	spread(&s, p.ReadAnswers, func(q *Payload) *[]ReadAnswer { return &q.ReadAnswers })
	return s.done()
}

// Cut parts what is small and may be urgent from what carries records.
func (p Payload) Cut() (control, bulk Payload) {
	bulk = Payload{Appends: p.Appends, FetchAnswers: p.FetchAnswers, ReadAnswers: p.ReadAnswers}
	p.Appends, p.FetchAnswers, p.ReadAnswers = nil, nil, nil
	return p, bulk
}

// Fragments returns the binary form of the payload in parts of which a message of
// max bytes carries one each. Put together, in order, they are for ParsePayload.
// The error is AppendBinary's.
func (p *Payload) Fragments(max int) ([][]byte, error) {
	b, err := p.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(b, max-messageSize)), nil
}

type splitter struct {
	max, size int
	current   Payload
	out       []Payload
}

func (s *splitter) done() []Payload {
	if !s.current.Empty() {
		s.out = append(s.out, s.current)
	}
	return s.out
}

func spread[T sized](s *splitter, items []T, field func(*Payload) *[]T) {
	for i := range items {
		n := items[i].size()
		if s.size > 0 && s.size+n > s.max {
			s.out = append(s.out, s.current)
			s.current, s.size = Payload{}, 0
		}
		f := field(&s.current)
		*f = append(*f, items[i])
		s.size += n
	}
}

// Merge adds the items of q behind those of p.
func (p *Payload) Merge(q Payload) {
	p.Fetches = append(p.Fetches, q.Fetches...)
	p.FetchAnswers = append(p.FetchAnswers, q.FetchAnswers...)
	p.Reports = append(p.Reports, q.Reports...)
	p.Watermarks = append(p.Watermarks, q.Watermarks...)
	p.Appends = append(p.Appends, q.Appends...)
	p.AppendAnswers = append(p.AppendAnswers, q.AppendAnswers...)
	p.Reads = append(p.Reads, q.Reads...)
	p.ReadAnswers = append(p.ReadAnswers, q.ReadAnswers...)
	p.Proposals = append(p.Proposals, q.Proposals...)
	p.Verdicts = append(p.Verdicts, q.Verdicts...)
	p.Updates = append(p.Updates, q.Updates...)
	p.UpdateAcks = append(p.UpdateAcks, q.UpdateAcks...)
	p.OrderReplies = append(p.OrderReplies, q.OrderReplies...)
	p.Removals = append(p.Removals, q.Removals...)
	p.Commands = append(p.Commands, q.Commands...)
	p.CommandAnswers = append(p.CommandAnswers, q.CommandAnswers...)
}

// Partitions iterates over the partitions of all items that concern one replica.
func (p *Payload) Partitions(yield func(PartitionID) bool) {
	_ = eachID(p.Fetches, func(f *Fetch) PartitionID { return f.ID }, yield) &&
		eachID(p.FetchAnswers, func(a *FetchAnswer) PartitionID { return a.ID }, yield) &&
		eachID(p.Reports, func(r *Report) PartitionID { return r.ID }, yield) &&
		eachID(p.Watermarks, func(w *Watermark) PartitionID { return w.ID }, yield) &&
		eachID(p.Appends, func(a *Append) PartitionID { return a.ID }, yield) &&
		eachID(p.Reads, func(r *Read) PartitionID { return r.ID }, yield) &&
		eachID(p.Verdicts, func(v *Verdict) PartitionID { return v.ID }, yield)
}

func eachID[T any](items []T, id func(*T) PartitionID, yield func(PartitionID) bool) bool {
	for i := range items {
		if !yield(id(&items[i])) {
			return false
		}
	}
	return true
}
