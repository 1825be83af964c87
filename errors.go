package tidemark

import (
	"context"
	"errors"
	"fmt"

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
	// ErrRecordTooLarge: one record is above Config.MaxRecordBytes.
	ErrRecordTooLarge = errors.New("tidemark: record is too large")
	// ErrBatchTooLarge: the records of one append do not fit one batch.
	ErrBatchTooLarge = errors.New("tidemark: batch is too large")
	// ErrOverloaded: the partition has MaxUncommittedBytes above its high watermark,
	// the leader's store is far behind, or too many reads wait. Nothing was stored.
	ErrOverloaded = errors.New("tidemark: too many uncommitted bytes")
	// ErrInvalidAcks: AppendOptions.Acks is none of the constants.
	ErrInvalidAcks = errors.New("tidemark: unknown acks level")
	// ErrInvalidRecord: an append holds no record, or one that cannot be encoded.
	ErrInvalidRecord = errors.New("tidemark: record cannot be stored")
	// ErrUnknownTopic and ErrUnknownPartition: there is none of that name, or number, as far as the cluster knows.
	ErrUnknownTopic     = errors.New("tidemark: unknown topic")
	ErrUnknownPartition = errors.New("tidemark: unknown partition")
	// ErrTopicExists: a topic of that name exists.
	ErrTopicExists = errors.New("tidemark: topic exists")
	// ErrTopicMismatch: a topic of that name exists with another configuration. See TopicMismatchError.
	ErrTopicMismatch = errors.New("tidemark: topic exists with another configuration")
	// ErrTopicRecreated: the topic was deleted and created again since the handle was bound to it.
	ErrTopicRecreated = errors.New("tidemark: topic was created again")
	// ErrTooFewBrokers: the replication factor is above the number of brokers.
	ErrTooFewBrokers = errors.New("tidemark: fewer brokers than the replication factor")
	// ErrInvalidTopic: a topic's name or configuration is not allowed.
	ErrInvalidTopic = errors.New("tidemark: invalid topic")
	// ErrOffsetOutOfRange: the offset is below the log start or above the log end.
	ErrOffsetOutOfRange = errors.New("tidemark: offset out of range")
	// ErrNoController: no Controller could be reached.
	ErrNoController = errors.New("tidemark: no controller")
	// ErrResume: the producer had an append with an unknown outcome, or one that was
	// refused for longer than RetryFor; it takes no more for that partition until Resume.
	ErrResume = errors.New("tidemark: partition waits for Resume after an append with unknown outcome")
	// ErrStorage: the log, or the broker's store, failed.
	ErrStorage = errors.New("tidemark: storage failed")
	// ErrUnfit: the broker gave up its roles because its store fails or stalls, or
	// because its directory does not belong here.
	ErrUnfit = errors.New("tidemark: broker is unfit")
	// ErrDuplicateBroker: another live process has registered the same broker id.
	ErrDuplicateBroker = errors.New("tidemark: broker id is in use by another process")
	// ErrWrongCluster: the directory belongs to another cluster than the coordination store, or to another broker id.
	ErrWrongCluster = errors.New("tidemark: directory belongs to another cluster or broker")
	// ErrCoordinationBehind: the coordination store is older than what this directory has seen: it was restored or replaced.
	ErrCoordinationBehind = errors.New("tidemark: coordination store is behind this directory")
	// ErrInvalidConfig: Config.Validate found faults. The error lists all of them.
	ErrInvalidConfig = errors.New("tidemark: invalid configuration")

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

func trimPrefix(err error) string {
	const prefix = "tidemark: "
	s := err.Error()
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):]
	}
	return s
}

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
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
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
	return fmt.Sprintf("tidemark: topic %s exists with %d partitions, replication factor %d, min ISR %d; wanted %d, %d, %d", e.Topic,
		e.Found.Partitions, e.Found.ReplicationFactor, e.Found.MinISR, e.Wanted.Partitions, e.Wanted.ReplicationFactor, e.Wanted.MinISR)
}

// Unwrap makes errors.Is(err, ErrTopicMismatch) true.
func (e *TopicMismatchError) Unwrap() error { return ErrTopicMismatch }

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
	return fmt.Errorf("%w (last: %w)", cause, why)
}
