package protocol

import "fmt"

// Code says how a request ended. The numbers are part of the binary form: a new one
// comes behind the last.
type Code uint8

const (
	OK Code = iota
	// Data path.
	NotLeader         // the broker does not lead the partition
	FencedEpoch       // the request's leader epoch is older than the one in force
	Diverging         // the follower's log is not a prefix of the leader's
	BelowStart        // the offset lies below the log start
	OutOfRange        // the offset lies outside the log
	NotEnoughReplicas // the ISR is smaller than MinISR
	NotEnoughAfter    // committed, but the ISR has become smaller than MinISR
	TooLarge          // record or batch above its limit
	Corrupt           // the bytes are not a sound record batch
	Overloaded        // MaxUncommittedBytes is reached, the store is far behind, or too many reads wait
	StreamRefused     // an earlier append of the same stream generation was refused (D22)
	StorageFailed     // the replica's log, or the broker's store, failed
	Unfit             // the broker considers itself unfit (D16)
	UnknownPartition  // no such partition as far as this broker knows
	Canceled          // the broker closed or ended the role before the request was decided
	Disconnected      // the session with the asked broker ended before its answer came
	// Control path.
	NotController   // the broker is not the Controller
	StaleController // a newer Controller is known
	Gap             // an update is missing; send the whole image
	Ineligible      // a proposed member may not join; the change was and will not be applied
	InvalidVersion  // the proposal rests on another partition epoch
	InvalidRequest  // the request contradicts itself or the state
	TopicExists     // a topic of that name exists
	TooFewBrokers   // the replication factor is above the number of brokers
	LedBefore       // the broker led this epoch, or a later one, before it was opened (D11)
	BehindLog       // the epoch is below the last one in the log (D11)
	UnknownTopic    // there is no topic with that id
	Conflict        // the topic is of another version
	NotNeeded       // the election would change nothing
	NoCandidate     // no broker may lead by that election
	Unsupported     // a registered broker does not support that feature level
	StoreStalled    // a write of the broker's store has been under way for long
	Failed          // anything else; Detail says what
)

var codeNames = [...]string{"ok", "not leader", "fenced leader epoch", "diverging log", "below log start", "offset out of range",
	"not enough in-sync replicas", "not enough in-sync replicas after append", "too large", "corrupt", "too many uncommitted bytes",
	"stream generation refused", "storage failed", "broker unfit", "unknown partition", "canceled", "disconnected",
	"not controller", "stale controller", "update gap", "ineligible replica", "invalid partition epoch",
	"invalid request", "topic exists", "too few brokers", "led before", "behind own log",
	"unknown topic", "topic version conflict", "election not needed", "no candidate", "unsupported feature level",
	"store stalled", "failed"}

func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Outcome says whether an append's records are in the log.
type Outcome uint8

const (
	Unknown     Outcome = iota // they may be in the log, now or later
	NotAppended                // they are not in the log and will not be
	Appended                   // they are in the log
)

func (o Outcome) String() string {
	switch o {
	case NotAppended:
		return "not appended"
	case Appended:
		return "appended"
	}
	return "unknown"
}
