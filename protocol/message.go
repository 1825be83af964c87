package protocol

import "fmt"

// Kind is the role of a Message on its link.
type Kind uint8

const (
	Hello     Kind = iota + 1 // opens a session; sent by the broker with the lower id
	Welcome                   // accepts it
	Data                      // a numbered envelope with a payload
	Heartbeat                 // says "alive", acknowledges, and tells the last number sent
	Reset                     // says that the sender has no such session any more
)

// Version is the protocol version that this code speaks.
const Version = 1

// Message is what a Transport carries. Every message names the cluster, both
// brokers and their broker epochs, so that one that belongs to another cluster
// or to an earlier life of a broker is recognised and dropped (D6).
type Message struct {
	Kind      Kind
	Cluster   UUID
	From, To  int32
	FromEpoch int64 // broker epoch of the sender
	ToEpoch   int64 // broker epoch that the sender believes the addressee to have
	Session   uint64
	Attempt   uint64 // Hello, Welcome: rises with each session that the opener begins
	Seq       uint64 // Data: number of this envelope, from 1. Heartbeat: the last number sent
	Ack       uint64 // highest number received in order in this session
	// Hello, Reset: the versions that the sender speaks. Welcome, Data, Heartbeat:
	// both the one of the session, which an opener may learn from any of the three.
	MinVersion, MaxVersion uint16
	// Fragment, when not empty, is a part of the binary form of a payload that is too
	// large for one message; Payload is empty then. The last part has More unset.
	Fragment []byte
	More     bool
	Payload
}

// Payload is what an envelope holds: items grouped by type. Items of one type
// keep their order; between types there is none.
type Payload struct {
	Fetches        []Fetch
	FetchAnswers   []FetchAnswer
	Reports        []Report
	Watermarks     []Watermark
	Appends        []Append
	AppendAnswers  []AppendAnswer
	Reads          []Read
	ReadAnswers    []ReadAnswer
	Proposals      []Proposal
	Verdicts       []Verdict
	Updates        []Update
	UpdateAcks     []UpdateAck
	OrderReplies   []OrderReply
	Removals       []Removal
	Commands       []Command
	CommandAnswers []CommandAnswer
}

// Fetch asks the leader for batches from Offset on, and reports what the
// follower has stored. The leader keeps it until there is something to send.
type Fetch struct {
	ID          PartitionID
	LeaderEpoch int32 // the epoch in which the follower follows
	Offset      int64 // the follower's logEnd
	LastEpoch   int32 // epoch of the record before Offset; -1: the log is empty
	Stored      int64 // the follower's storedEnd
	StoredEpoch int32 // epoch of the record before Stored; -1: none
	MaxBytes    int32 // at least one batch is sent whatever its size
}

// FetchAnswer answers a Fetch.
type FetchAnswer struct {
	ID          PartitionID
	LeaderEpoch int32
	Offset      int64 // as asked
	Code        Code  // OK, Diverging, BelowStart, OutOfRange, FencedEpoch, NotLeader; Corrupt: made by the gateway
	HW          int64
	LogStart    int64
	Batches     [][]byte
	Agreed      EpochEnd        // Diverging: the leader's largest epoch at or below LastEpoch, and its end
	State       *PartitionState // FencedEpoch, NotLeader: what the sender knows
}

// EpochEnd says where a leader epoch ends in a log. Epoch -1 means none.
type EpochEnd struct {
	Epoch int32
	End   int64
}

// Report tells the leader how much of its log a follower has on disk (D9).
type Report struct {
	ID          PartitionID
	LeaderEpoch int32
	Stored      int64
	StoredEpoch int32
}

// Watermark tells a follower a high watermark that no answer carried (D13).
type Watermark struct {
	ID          PartitionID
	LeaderEpoch int32
	HW          int64
	LogStart    int64
}

// Acks says what an append waits for.
type Acks int8

const (
	AcksAll    Acks = 0 // every in-sync replica has it on disk, and there are MinISR of them
	AcksLeader Acks = 1 // the leader has it on disk
	AcksNone   Acks = 2 // nothing
)

func (a Acks) String() string {
	switch a {
	case AcksAll:
		return "all"
	case AcksLeader:
		return "leader"
	case AcksNone:
		return "none"
	}
	return fmt.Sprintf("acks %d", int8(a))
}

// Stream identifies one producer's appends to one partition (D22).
type Stream struct {
	ID         uint64 // 0: not part of a stream
	Generation uint32 // a leader that refused one append refuses the rest of its generation
}

// Append asks the leader to append one record batch.
type Append struct {
	Request     uint64
	ID          PartitionID
	LeaderEpoch int32 // the epoch that it is meant for; -1: any
	Acks        Acks
	Stream      Stream
	Batch       []byte // base offset and leader epoch are the leader's to set: it copies
}

// AppendAnswer ends an Append. Request 0 ends all that the receiver has asked of the
// sender and that have no answer: the sender stops, and takes none of them any more.
type AppendAnswer struct {
	Request     uint64
	Code        Code
	Outcome     Outcome
	Base, Last  int64
	LeaderEpoch int32
	Generation  uint32          // refused, part of a stream: what its next generation has to exceed
	State       *PartitionState // of a refusal: what the sender knows
}

// ReadKind says what a Read asks for.
type ReadKind uint8

const (
	ReadRecords  ReadKind = iota // committed batches from From on
	ReadEnds                     // log start and high watermark, once the latter is valid for this epoch (RD-8)
	ReadWritable                 // nothing; the code says whether an append with AcksAll would be taken
)

// Read asks the leader for committed batches, for the ends of its log, or how it is.
type Read struct {
	Request   uint64
	ID        PartitionID
	Kind      ReadKind
	From      int64
	MaxBytes  int32
	MaxWaitMs int32 // how long the leader may wait for something to answer
}

// ReadAnswer ends a Read. Without batches and with code OK, nothing came in time.
type ReadAnswer struct {
	Request     uint64
	Code        Code
	Batches     [][]byte
	HW          int64
	LogStart    int64
	LogEnd      int64
	LeaderEpoch int32
	State       *PartitionState // of a refusal: what the sender knows
}

// Member is a replica's broker in a proposed ISR. Epoch is the broker epoch of
// its reports; -1: none heard in this epoch, allowed only for members already in the ISR.
type Member struct {
	ID    int32
	Epoch int64
}

// Proposal asks the Controller for another ISR.
type Proposal struct {
	ID              PartitionID
	ControllerEpoch int32 // whom it is for: another Controller does not look at it
	LeaderEpoch     int32
	PartitionEpoch  int32
	Attempt         uint64 // rises with every proposal of this leader; a copy has the same
	ISR             []Member
}

// Verdict answers a Proposal.
type Verdict struct {
	ID              PartitionID
	ControllerEpoch int32
	LeaderEpoch     int32 // of the proposal
	PartitionEpoch  int32 // of the proposal
	Attempt         uint64
	Code            Code
	State           *PartitionState // the state in force, when the Controller knows one
}

// Update carries the cluster image, or a change of it, from the Controller to a broker.
type Update struct {
	ControllerEpoch int32
	Seq             uint64 // rises by one per Update to this broker within the epoch
	Full            bool   // the first part of a whole image: forget what is not in it
	More            bool   // a whole image goes on in the next Update
	StoreOK         bool   // the coordination store answers the Controller
	Topics          []Topic
	States          []PartitionUpdate
	Deleted         []UUID // topics whose logs are to be deleted (D21)
}

// PartitionUpdate is one partition's state within an Update.
type PartitionUpdate struct {
	ID    PartitionID
	State PartitionState
}

// UpdateAck tells the Controller how far a broker got, or that it must begin
// again (Code Gap), or that its epoch is over (Code StaleController).
type UpdateAck struct {
	ControllerEpoch int32
	Seq             uint64
	Code            Code
}

// OrderReply tells the Controller that a broker took up a leadership (its epoch
// entry and `led` are durable), or why it cannot (D11).
type OrderReply struct {
	ID          PartitionID
	LeaderEpoch int32
	Accepted    bool
	Above       int32 // refused: the epoch that a new leader epoch must exceed
	Code        Code
}

// Removal tells the Controller that a broker has nothing on disk any more of a
// topic that was deleted (D21).
type Removal struct {
	Topic UUID
}

// CommandKind says what a Command asks for.
type CommandKind uint8

const (
	// CreateTopic creates the topic that the command holds. It may be sent again
	// with the same topic id: the second one then waits for the first.
	CreateTopic CommandKind = iota + 1
	// AlterTopic gives the topic with Topic.ID the configuration in Topic.Config, if
	// Topic.Version is the version in force; Partitions may not change. Once done, the
	// version is one higher; a copy of the command finds it so and succeeds.
	AlterTopic
	// DeleteTopic deletes the topic with Topic.ID.
	DeleteTopic
	// AddPartitions raises the number of partitions of the topic with Topic.ID to
	// Topic.Config.Partitions.
	AddPartitions
	// ElectPreferred gives the leadership of a partition to its first replica.
	ElectPreferred
	// ElectUnclean gives the leadership of a partition that has no leader to Broker,
	// or to the first live replica, though it may lack committed records (EL-2).
	ElectUnclean
	// RaiseLevel raises the feature level of the cluster to Level (B12).
	RaiseLevel
	// MoveLeaders says that the broker that sends it is about to stop: its leaderships
	// move to other brokers, and it gets none any more (EL-10).
	MoveLeaders
)

// Command is an administrative request to the Controller.
type Command struct {
	Request   uint64
	Kind      CommandKind
	Topic     Topic
	Partition int32 // ElectPreferred, ElectUnclean
	Broker    int32 // ElectUnclean: whom; -1: the first live replica
	Level     int32 // RaiseLevel
}

// CommandAnswer ends a Command.
type CommandAnswer struct {
	Request uint64
	Code    Code
	Detail  string
	Topic   *Topic // TopicExists: the topic that exists. AlterTopic, AddPartitions: the topic as it is now
}
