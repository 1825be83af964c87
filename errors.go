package tidemark

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tidemark-log/tidemark/protocol"
)

// Outcome says whether the records of an append are in the log.
type Outcome = protocol.Outcome

const (
	// Unknown: the records may be in the log, now or later. Appending them again may store them twice.
	Unknown = protocol.Unknown
	// NotAppended: the records are not in the log and will not be. Appending them again is safe.
	NotAppended = protocol.NotAppended
	// Appended: the records are in the log.
	Appended = protocol.Appended
)

// Sentinels, for errors.Is.
var (
	// ErrClosed: the Broker, Producer or Cluster that was called was closed, or shut down meanwhile.
	ErrClosed = errors.New("tidemark: closed")
	// ErrNotLeader: the partition has no leader at present, or it changed.
	ErrNotLeader = errors.New("tidemark: no leader for the partition")
	// ErrNoBroker: no broker of this process is up at present.
	ErrNoBroker = errors.New("tidemark: no broker is up")
	// ErrDisconnected: the leader's broker, or the link to it, was lost before it
	// answered. Other brokers go on.
	ErrDisconnected = errors.New("tidemark: lost the leader before it answered")
	// ErrNotEnoughReplicas: the ISR is smaller than MinISR; nothing was stored.
	ErrNotEnoughReplicas = errors.New("tidemark: fewer in-sync replicas than MinISR")
	// ErrNotEnoughReplicasAfterAppend: the records are in the log and committed, but the ISR shrank below MinISR meanwhile.
	ErrNotEnoughReplicasAfterAppend = errors.New("tidemark: fewer in-sync replicas than MinISR after the append")
	// ErrRecordTooLarge: one record is above MaxRecordBytes, of Config or of the topic.
	ErrRecordTooLarge = errors.New("tidemark: record is too large")
	// ErrBatchTooLarge: the records of one append do not fit one batch.
	ErrBatchTooLarge = errors.New("tidemark: batch is too large")
	// ErrOverloaded: the partition has MaxUncommittedBytes above its high watermark,
	// the leader's store is far behind, or too many reads wait. Nothing was stored.
	ErrOverloaded = errors.New("tidemark: too many uncommitted bytes")
	// ErrInvalidAcks: AppendOptions.Acks is none of the constants.
	ErrInvalidAcks = errors.New("tidemark: unknown acks level")
	// ErrInvalidCompression: the Compression asked for is none of the constants.
	ErrInvalidCompression = errors.New("tidemark: unknown compression")
	// ErrInvalidRecord: an append holds no record, or one that cannot be encoded.
	ErrInvalidRecord = errors.New("tidemark: record cannot be stored")
	// ErrUnknownTopic and ErrUnknownPartition: there is none of that name, or number, as far as the cluster knows.
	ErrUnknownTopic     = errors.New("tidemark: unknown topic")
	ErrUnknownPartition = errors.New("tidemark: unknown partition")
	// ErrTopicExists: a topic of that name exists.
	ErrTopicExists = errors.New("tidemark: topic exists")
	// ErrTopicMismatch: a topic of that name exists with another configuration. See TopicMismatchError.
	ErrTopicMismatch = errors.New("tidemark: topic exists with another configuration")
	// ErrTopicRecreated: the topic was deleted and created again since the call, the
	// iteration or the Producer began. A Partition or Topic is a name: its next call
	// is about the new topic.
	ErrTopicRecreated = errors.New("tidemark: topic was created again")
	// ErrTooFewBrokers: the replication factor is above the number of brokers.
	ErrTooFewBrokers = errors.New("tidemark: fewer brokers than the replication factor")
	// ErrInvalidTopic: a topic's name or configuration is not allowed.
	ErrInvalidTopic = errors.New("tidemark: invalid topic")
	// ErrElectionNotNeeded: the election that was asked for would change nothing.
	ErrElectionNotNeeded = errors.New("tidemark: election not needed")
	// ErrPreferredUnavailable: the partition's first replica is not in sync, not there or not reached.
	ErrPreferredUnavailable = errors.New("tidemark: preferred leader is not available")
	// ErrNoCandidate: no replica may lead by an unclean election.
	ErrNoCandidate = errors.New("tidemark: no candidate for the leadership")
	// ErrOffsetOutOfRange: the offset is below the log start or above the log end.
	ErrOffsetOutOfRange = errors.New("tidemark: offset out of range")
	// ErrNoController: no Controller could be reached.
	ErrNoController = errors.New("tidemark: no controller")
	// ErrResume: the producer had an append with an unknown outcome, or one that was
	// refused for longer than RetryFor; it takes no more for that partition until Resume.
	ErrResume = errors.New("tidemark: partition takes nothing until Resume: an append before ended as unknown, or was refused for longer than RetryFor")
	// ErrStorage: the log, or the broker's store, failed.
	ErrStorage = errors.New("tidemark: storage failed")
	// ErrStoreStalled: a write of the leader's store has been under way for more than
	// half of Config.StoreStallLimit. Appends are taken, and wait for it.
	ErrStoreStalled = errors.New("tidemark: store is stalled")
	// ErrUnfit: the broker gave up its roles because its store fails or stalls, or
	// because its directory does not belong here.
	ErrUnfit = errors.New("tidemark: broker is unfit")
	// ErrDuplicateBroker: another live process has registered the same broker id.
	ErrDuplicateBroker = errors.New("tidemark: broker id is in use by another process")
	// ErrUnsupportedLevel: a feature level that this broker, or one that is registered, does not support.
	ErrUnsupportedLevel = errors.New("tidemark: unsupported feature level")
	// ErrWrongCluster: the directory belongs to another cluster than the coordination store, or to another broker id.
	ErrWrongCluster = errors.New("tidemark: directory belongs to another cluster or broker")
	// ErrCoordinationBehind: the coordination store is older than what this directory has seen: it was restored or replaced.
	ErrCoordinationBehind = errors.New("tidemark: coordination store is behind this directory")
	// ErrInvalidConfig: Config.Validate found faults. The error lists all of them.
	ErrInvalidConfig = errors.New("tidemark: invalid configuration")

	// ErrAbandoned: the broker is closed, but a call that it made to its store, its
	// transport or its coordination store has not returned.
	ErrAbandoned = errors.New("tidemark: closed, but a call to the store, the transport or the coordination store has not returned")

	errControllerMoved = errors.New("tidemark: another broker is the controller")
)

// AppendError is the error of an append, with what is known of its records.
type AppendError struct {
	Topic     string
	Partition int // -1: none was chosen yet
	Outcome   Outcome
	Err       error // one of the sentinels, or a context's error, or both
}

func (e *AppendError) Error() string {
	where := e.Topic
	if e.Partition >= 0 {
		where = fmt.Sprintf("%s/%d", e.Topic, e.Partition)
	}
	return fmt.Sprintf("tidemark: append to %s: %s (records: %s)", where, trimPrefix(e.Err), e.Outcome)
}

// Unwrap lets errors.Is find the cause.
func (e *AppendError) Unwrap() error { return e.Err }

// NotWritableError says why a partition would not take an append with AcksAll now.
type NotWritableError struct {
	Topic     string
	Partition int
	Leader    int32   // -1: there is none
	ISR       []int32 // as far as is known
	MinISR    int
	// Err wraps ErrNotLeader (no leader), ErrNotEnoughReplicas, ErrOverloaded,
	// ErrStoreStalled, ErrUnfit or ErrStorage (of the leader's broker), or
	// ErrDisconnected (the leader did not answer within a second).
	Err error
}

func (e *NotWritableError) Error() string {
	return fmt.Sprintf("tidemark: %s/%d is not writable: %s (leader %d, in sync %v, MinISR %d)",
		e.Topic, e.Partition, trimPrefix(e.Err), e.Leader, e.ISR, e.MinISR)
}

// Unwrap lets errors.Is find the cause.
func (e *NotWritableError) Unwrap() error { return e.Err }

// prefix begins the text of this package's errors.
const prefix = "tidemark: "

func trimPrefix(err error) string { return strings.TrimPrefix(err.Error(), prefix) }

// lostLeader is the error for an append whose leader went away under it. That the
// leader's broker was closed is not the caller's having closed something.
func lostLeader(c *Client, code protocol.Code) error {
	err := codeError(code)
	_, gone := c.pick(0)
	switch {
	case c.closed() && code == protocol.Disconnected:
		return ErrClosed
	case gone != nil && !errors.Is(gone, ErrNoBroker):
		return err
	}
	switch code {
	case protocol.Canceled:
		return ErrDisconnected
	case protocol.Unfit, protocol.StorageFailed:
		return because(ErrDisconnected, err)
	}
	return err
}

// OutcomeOf says what is known of the records of an append that ended with err:
// Appended for nil (with AcksNone that means taken by the leader, not kept), what the error says if it is an *AppendError or wraps one,
// else Unknown.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Appended
	}
	var ae *AppendError
	if errors.As(err, &ae) {
		return ae.Outcome
	}
	return Unknown
}

// TopicMismatchError says how an existing topic differs from what EnsureTopic asked for.
type TopicMismatchError struct {
	Topic         string
	Wanted, Found TopicConfig
}

func (e *TopicMismatchError) Error() string {
	return fmt.Sprintf("tidemark: topic %s exists with %s; wanted %s", e.Topic, describe(e.Found), describe(e.Wanted))
}

// Unwrap makes errors.Is(err, ErrTopicMismatch) true.
func (e *TopicMismatchError) Unwrap() error { return ErrTopicMismatch }

// describe tells a configuration; what is as by default is left out.
func describe(c TopicConfig) string {
	s := fmt.Sprintf("%d partitions, replication factor %d, min ISR %d", c.Partitions, c.ReplicationFactor, c.MinISR)
	if c.UncleanElection {
		s += ", unclean election"
	}
	if c.Background {
		s += ", background"
	}
	if c.MaxRecordBytes > 0 {
		s += fmt.Sprintf(", max record bytes %d", c.MaxRecordBytes)
	}
	if c.MaxUncommittedBytes > 0 {
		s += fmt.Sprintf(", max uncommitted bytes %d", c.MaxUncommittedBytes)
	}
	return s
}

// codeError is the sentinel for a code that ended a request.
func codeError(c protocol.Code) error {
	switch c {
	case protocol.NotLeader, protocol.FencedEpoch, protocol.StreamRefused:
		return ErrNotLeader
	case protocol.NotEnoughReplicas:
		return ErrNotEnoughReplicas
	case protocol.NotEnoughAfter:
		return ErrNotEnoughReplicasAfterAppend
	case protocol.TooLarge:
		return ErrBatchTooLarge
	case protocol.Corrupt:
		return ErrInvalidRecord
	case protocol.Overloaded:
		return ErrOverloaded
	case protocol.OutOfRange, protocol.BelowStart:
		return ErrOffsetOutOfRange
	case protocol.StorageFailed:
		return ErrStorage
	case protocol.StoreStalled:
		return ErrStoreStalled
	case protocol.Unfit:
		return ErrUnfit
	case protocol.UnknownPartition:
		return ErrUnknownPartition
	case protocol.Canceled:
		return ErrClosed
	case protocol.Disconnected:
		return ErrDisconnected
	case protocol.NotController, protocol.StaleController:
		return ErrNoController
	case protocol.TopicExists:
		return ErrTopicExists
	case protocol.NotNeeded:
		return ErrElectionNotNeeded
	case protocol.NoCandidate:
		return ErrNoCandidate
	case protocol.UnknownTopic:
		return ErrUnknownTopic
	case protocol.Unsupported:
		return ErrUnsupportedLevel
	case protocol.TooFewBrokers:
		return ErrTooFewBrokers
	case protocol.InvalidRequest:
		return ErrInvalidTopic
	}
	return fmt.Errorf("tidemark: %s", c)
}

// ctxError joins why an operation did not end with the context that ended it.
func ctxError(ctx context.Context, why error) error {
	cause := context.Cause(ctx)
	if why == nil || errors.Is(why, cause) {
		return cause
	}
	return &chained{prefix + trimPrefix(cause) + " (last: " + trimPrefix(why) + ")", []error{cause, why}}
}

// because joins an error with why it came about.
func because(err, why error) error {
	return &chained{err.Error() + ": " + trimPrefix(why), []error{err, why}}
}

// chained is several errors in one text, with the package's name at its front only.
type chained struct {
	text string
	errs []error
}

func (e *chained) Error() string   { return e.text }
func (e *chained) Unwrap() []error { return e.errs }
