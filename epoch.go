package tidemark

import (
	"sort"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// noEpoch stands where there is no record to have an epoch.
const noEpoch int32 = -1

// epochHistory is a log's leader-epoch history: which epoch begins where.
// Both columns rise strictly (EC-1). The slice is replaced, never changed in
// place, because the store and messages keep references to it.
type epochHistory struct {
	entries []storage.EpochEntry
}

// last returns the newest epoch, or noEpoch.
func (h *epochHistory) last() int32 {
	if len(h.entries) == 0 {
		return noEpoch
	}
	return h.entries[len(h.entries)-1].Epoch
}

// assign records that epoch begins at start. The last writer wins: what lies at
// or above either is dropped (EC-2). It reports whether the history changed.
func (h *epochHistory) assign(epoch int32, start int64) bool {
	if n := len(h.entries); n > 0 && h.entries[n-1].Epoch == epoch && start >= h.entries[n-1].Start {
		return false
	}
	keep := len(h.entries)
	for keep > 0 && (h.entries[keep-1].Epoch >= epoch || h.entries[keep-1].Start >= start) {
		keep--
	}
	h.entries = append(h.entries[:keep:keep], storage.EpochEntry{Epoch: epoch, Start: start})
	return true
}

// truncateFromEnd drops the epochs that begin at or above offset (EC-5).
func (h *epochHistory) truncateFromEnd(offset int64) bool {
	keep := len(h.entries)
	for keep > 0 && h.entries[keep-1].Start >= offset {
		keep--
	}
	if keep == len(h.entries) {
		return false
	}
	h.entries = h.entries[:keep:keep]
	return true
}

// truncateFromStart makes the history begin at offset: the epoch in force there
// keeps its name and begins at offset (EC-6).
func (h *epochHistory) truncateFromStart(offset int64) bool {
	drop := 0
	for drop < len(h.entries) && h.entries[drop].Start <= offset {
		drop++
	}
	if drop == 0 || (drop == 1 && h.entries[0].Start == offset) {
		return false
	}
	rest := []storage.EpochEntry{{Epoch: h.entries[drop-1].Epoch, Start: offset}}
	h.entries = append(rest, h.entries[drop:]...)
	return true
}

// clear forgets everything (EC-7).
func (h *epochHistory) clear() { h.entries = nil }

// epochAt returns the epoch of the record at offset, or noEpoch when the
// history does not reach down to it.
func (h *epochHistory) epochAt(offset int64) int32 {
	i := sort.Search(len(h.entries), func(i int) bool { return h.entries[i].Start > offset })
	if i == 0 {
		return noEpoch
	}
	return h.entries[i-1].Epoch
}

// epochBefore returns the epoch of the record before offset; start is the log's.
func (h *epochHistory) epochBefore(offset, start int64) int32 {
	if offset <= start {
		return noEpoch
	}
	return h.epochAt(offset - 1)
}

// endOffsetFor returns the largest known epoch at or below epoch and where it
// ends, given the log's end (EC-4). ok is false when the history cannot tell:
// it is empty, or every epoch in it is older than the one asked for.
func (h *epochHistory) endOffsetFor(epoch int32, logEnd int64) (end protocol.EpochEnd, ok bool) {
	n := len(h.entries)
	if epoch < 0 || n == 0 || epoch > h.entries[n-1].Epoch {
		return protocol.EpochEnd{Epoch: noEpoch, End: -1}, false
	}
	if epoch == h.entries[n-1].Epoch {
		return protocol.EpochEnd{Epoch: epoch, End: logEnd}, true
	}
	i := sort.Search(n, func(i int) bool { return h.entries[i].Epoch > epoch })
	if i == 0 {
		return protocol.EpochEnd{Epoch: epoch, End: h.entries[0].Start}, true
	}
	return protocol.EpochEnd{Epoch: h.entries[i-1].Epoch, End: h.entries[i].Start}, true
}

// position is how a log ends for the purpose of comparing it with another one:
// the offset, and the epoch of the record before it.
type position struct {
	offset int64
	epoch  int32
}

// diverges compares a position in another log with this one. A log whose
// history cannot tell answers known = false, and nobody cuts anything (D3).
func (h *epochHistory) diverges(p position, logEnd int64) (agreed protocol.EpochEnd, diverging, known bool) {
	if p.epoch == noEpoch {
		return protocol.EpochEnd{}, false, true
	}
	agreed, ok := h.endOffsetFor(p.epoch, logEnd)
	if !ok {
		return agreed, false, false
	}
	return agreed, agreed.Epoch < p.epoch || agreed.End < p.offset, true
}

// truncationTarget is where this log has to be cut, given the leader's answer
// that its largest epoch at or below the one asked for ends at agreed (FT-4).
// A log that has no epoch as old as the leader's shares nothing with it and is
// emptied down to its start, which is an agreement on "nothing" (S-6).
func (h *epochHistory) truncationTarget(agreed protocol.EpochEnd, start, logEnd int64) int64 {
	mine, ok := h.endOffsetFor(agreed.Epoch, logEnd)
	if !ok {
		// Every epoch here is older than the leader's answer: only its end can bind.
		return max(min(agreed.End, logEnd), start)
	}
	target := min(mine.End, logEnd)
	if mine.Epoch == agreed.Epoch {
		target = min(target, agreed.End)
	}
	return max(target, start)
}
