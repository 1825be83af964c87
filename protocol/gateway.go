package protocol

// A gateway checks a message in two steps, so that one bad item costs no more
// than itself: ValidHeader before the link looks at the message, and Sound on
// what the link delivers. Refusing a whole message for one item would be a gap on
// the link, and a gap concerns every partition (D7).

// ValidHeader checks what Valid checks, except the items of the payload.
func (m *Message) ValidHeader() error {
	var c checker
	m.checkHeader(&c)
	c.that(m.Payload.items() <= MaxMessageItems, "Payload", "too many items")
	if c.err != nil {
		return c.err
	}
	return nil
}

// Sound returns the payload without its unsound items, how many there were, and
// what was wrong with the first. An unsound batch leaves its item behind, as one
// with code Corrupt or without the batch, so that whoever waits for it hears
// about it. p itself is not changed.
func (p Payload) Sound() (sound Payload, unsound int, first error) {
	var whole checker
	p.check(&whole)
	if whole.err == nil {
		return p, 0, nil
	}
	s := sifter{}
	p.Fetches = sift(&s, p.Fetches, (*Fetch).check, nil)
	p.FetchAnswers = sift(&s, p.FetchAnswers, (*FetchAnswer).check, func(a *FetchAnswer) { a.Code, a.Batches = Corrupt, nil })
	p.Reports = sift(&s, p.Reports, (*Report).check, nil)
	p.Watermarks = sift(&s, p.Watermarks, (*Watermark).check, nil)
	p.Appends = siftAppends(&s, p.Appends)
	p.AppendAnswers = sift(&s, p.AppendAnswers, (*AppendAnswer).check, nil)
	p.Reads = sift(&s, p.Reads, (*Read).check, nil)
	p.ReadAnswers = sift(&s, p.ReadAnswers, (*ReadAnswer).check, func(a *ReadAnswer) { a.Code, a.Batches = Corrupt, nil })
	p.Proposals = sift(&s, p.Proposals, (*Proposal).check, nil)
	p.Verdicts = sift(&s, p.Verdicts, (*Verdict).check, nil)
	p.Updates = sift(&s, p.Updates, (*Update).check, func(u *Update) {
		u.Topics = sift(&s, u.Topics, (*Topic).check, nil)
		u.States = sift(&s, u.States, (*PartitionUpdate).check, nil)
	})
	p.UpdateAcks = sift(&s, p.UpdateAcks, (*UpdateAck).check, nil)
	p.OrderReplies = sift(&s, p.OrderReplies, (*OrderReply).check, nil)
	p.Removals = sift(&s, p.Removals, (*Removal).check, nil)
	p.Commands = sift(&s, p.Commands, (*Command).check, nil)
	p.CommandAnswers = sift(&s, p.CommandAnswers, (*CommandAnswer).check, nil)
	return p, s.unsound, whole.err
}

type sifter struct{ unsound int }

// sift keeps the items that pass check. One that passes once mend changed it is
// kept so.
func sift[T any](s *sifter, items []T, check func(*T, *checker), mend func(*T)) []T {
	var kept []T
	for _, item := range items {
		var c checker
		check(&item, &c)
		if c.err != nil {
			s.unsound++
			if mend == nil {
				continue
			}
			mend(&item)
			c = checker{}
			if check(&item, &c); c.err != nil {
				continue
			}
		}
		kept = append(kept, item)
	}
	return kept
}

// siftAppends empties the batch of an unsound append: the leader refuses it as
// corrupt, and the client hears.
func siftAppends(s *sifter, items []Append) []Append {
	var kept []Append
	for _, a := range items {
		var c checker
		if a.check(&c); c.err != nil {
			s.unsound++
			a.Batch = nil
		}
		kept = append(kept, a)
	}
	return kept
}
