package storage

import (
	"fmt"
	"slices"

	"github.com/tidemark-log/tidemark/record"
)

// NewState is the state of a log before its first op: empty at offset 0, no
// epochs, never led.
func NewState() State { return State{Led: -1} }

// Clone returns a state that shares no memory with s.
func (s State) Clone() State {
	s.Epochs = slices.Clone(s.Epochs)
	return s
}

// Apply gives the state of a log after op, or an error that says why op does not
// fit it. It is the one set of rules that every Store follows; a Store adds what
// only it can know: that Truncate cuts at a batch boundary.
//
// exists tells whether the log exists; s is ignored when it does not. Append and
// Meta create a log (at offset 0), and so does Reset; Truncate and Trim do not
// (ErrUnknownLog), and to Delete a log that does not exist changes nothing. After
// Delete the result is NewState(). A log whose state says Damaged takes only Delete
// and Reset, after which it is not (ErrDamaged).
//
// Bytes rises with Append and becomes 0 when the log becomes empty; what Truncate
// and Trim free is for the caller to subtract. The result shares op.Epochs, not
// op.Batches.
func Apply(s State, exists bool, op Op) (State, error) {
	if !exists {
		switch op.Kind {
		case Delete:
			return NewState(), nil
		case Append, Meta, Reset:
			s = NewState()
		default:
			return s, fmt.Errorf("%w: %s", ErrUnknownLog, op.Log)
		}
	}
	if s.Damaged != nil && op.Kind != Reset && op.Kind != Delete {
		return s, fmt.Errorf("%w: %s takes only Reset and Delete", ErrDamaged, op.Log)
	}
	next := s
	why := ""
	switch op.Kind {
	case Append:
		next.End = op.End
		var size int64
		size, why = checkAppend(s, op)
		next.Bytes += size
	case Truncate:
		if op.Offset < s.Start || op.Offset > s.End {
			why = "truncation outside of the log"
		}
		next.End = op.Offset
	case Trim:
		if op.Offset < s.Start || op.Offset > s.End {
			why = "log start outside of the log"
		}
		next.Start = op.Offset
	case Reset:
		if op.Offset < 0 {
			why = "negative offset"
		}
		next.Start, next.End, next.Damaged = op.Offset, op.Offset, nil
	case Meta:
	case Delete:
		return NewState(), nil
	default:
		why = "unknown kind"
	}
	if why == "" {
		why = applyMeta(&next, op)
	}
	if why != "" {
		return s, OpError(op, s, why)
	}
	if next.Start == next.End {
		next.Bytes = 0
	}
	return next, nil
}

// checkAppend returns the size of op's batches, or what is wrong with them.
func checkAppend(s State, op Op) (size int64, why string) {
	if op.Offset != s.End {
		return 0, "append is not at the log's end"
	}
	at := op.Offset
	for _, b := range op.Batches {
		info, err := record.Peek(b)
		switch {
		case err != nil:
			return 0, err.Error()
		case info.Size != len(b):
			return 0, fmt.Sprintf("batch at %d says %d bytes but has %d", info.Base, info.Size, len(b))
		case info.Base != at:
			return 0, fmt.Sprintf("batch begins at %d, not at %d", info.Base, at)
		}
		at = info.End()
		size += int64(len(b))
	}
	if at != op.End {
		return 0, fmt.Sprintf("batches end at %d, op says %d", at, op.End)
	}
	return size, ""
}

// applyMeta applies what every kind but Delete may carry.
func applyMeta(next *State, op Op) (why string) {
	if op.Epochs == nil && (op.Kind == Truncate || op.Kind == Reset) {
		return "no epoch history given"
	}
	// Kinds that lower the end must bring a history, so one that is kept still fits.
	if op.Epochs != nil {
		if err := CheckEpochs(op.Epochs, next.End); err != nil {
			return err.Error()
		}
		next.Epochs = op.Epochs
		if len(op.Epochs) == 0 {
			next.Epochs = nil
		}
	}
	if op.HW < 0 || op.HW > next.End {
		return fmt.Sprintf("high watermark %d outside of the log", op.HW)
	}
	next.HW = op.HW
	if op.Led != nil {
		if *op.Led < -1 {
			return fmt.Sprintf("led epoch %d", *op.Led)
		}
		next.Led = *op.Led
	}
	return ""
}

// CheckEpochs tells whether history is well-formed: no negative number, both
// columns strictly rising, nothing that begins above end.
func CheckEpochs(history []EpochEntry, end int64) error {
	last := EpochEntry{Epoch: -1, Start: -1}
	for _, e := range history {
		if e.Epoch <= last.Epoch || e.Start <= last.Start {
			return fmt.Errorf("storage: epoch history is not rising at epoch %d, offset %d", e.Epoch, e.Start)
		}
		last = e
	}
	if last.Start > end {
		return fmt.Errorf("storage: epoch %d begins at %d, above the log's end %d", last.Epoch, last.Start, end)
	}
	return nil
}
