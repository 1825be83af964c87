package tidemark

import (
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage"
)

// coreConfig is what the protocol needs to know of Config.
type coreConfig struct {
	MaxLag              time.Duration
	JoinWindow          time.Duration
	ProposalTimeout     time.Duration
	MaxBatchBytes       int           // largest batch that an append may bring
	MaxUncommittedBytes int64         // per partition, above the high watermark
	MaxUnstoredBytes    int64         // per follower partition, received and not yet stored
	FetchBytes          int32         // most that one answer to a fetch or a read holds, unless one batch is larger
	CacheBytes          int64         // tail cache of the shard
	StoreSlow           time.Duration // age of the store's oldest write from which on it counts as stalled
}

// linkWindow is how many bytes may be on their way to a broker unacknowledged.
const linkWindow = 16 << 20

// linkView is what a shard knows of the link to another broker.
type linkView struct {
	up     bool
	epoch  int64 // the peer's broker epoch
	credit int   // bytes of bulk that may still be sent; refreshed before every turn
}

// controllerView is what a shard knows of the Controller.
type controllerView struct {
	id        int32 // its broker; -1: not known
	epoch     int32
	reachable bool
	storeOK   bool
}

// env is what all replicas of a shard share: who they are, whom they can reach,
// and where their effects go.
type env struct {
	cfg         coreConfig
	self        int32
	brokerEpoch int64 // 0 until registered
	unfit       bool  // the broker gave up its roles until it is opened again (D16)
	stopping    bool  // it takes no appends any more (EL-10)
	brokers     map[int32]int64
	links       map[int32]*linkView
	controller  controllerView
	eff         effects
	shard       *shard
	planted     planted
}

// linked reports whether the broker can be sent to in that broker epoch.
func (e *env) linked(broker int32, epoch int64) bool {
	l := e.links[broker]
	return l != nil && l.up && l.epoch == epoch
}

// sameLife reports whether a state that names this broker as leader means its
// present life (D11).
func (e *env) sameLife(epoch int64) bool {
	return epoch == e.brokerEpoch || e.planted.has(bugSameEpochAgain)
}

// alive reports whether the broker is registered under that broker epoch.
func (e *env) alive(broker int32, epoch int64) bool {
	return epoch != 0 && e.brokers[broker] == epoch
}

// effects are what a turn wants done. Nothing in the core does any of it.
type effects struct {
	ops       []storage.Op // one atomic group, in order
	synced    bool         // ops count once they are on the disk; else once they are applied (D25)
	out       map[int32]*protocol.Payload
	proposals []protocol.Proposal   // to the Controller
	replies   []protocol.OrderReply // to the Controller
	reads     []coldRead
	lookups   []protocol.PartitionID // read this partition's state key (D6)
	cleared   []protocol.UUID        // deleted topics of which nothing is left here (D21)
	notes     []note
}

// to returns the payload under construction for a broker, itself included.
func (e *effects) to(broker int32) *protocol.Payload {
	p := e.out[broker]
	if p == nil {
		p = &protocol.Payload{}
		if e.out == nil {
			e.out = make(map[int32]*protocol.Payload)
		}
		e.out[broker] = p
	}
	return p
}

// coldRead asks for batches that are no longer in memory. It comes back through
// shard.readDone.
type coldRead struct {
	id       protocol.PartitionID
	gen      uint64 // of the log; a result for another generation is discarded
	from     int64
	limit    int64 // where memory takes over: what the store has from there on may be about to be cut
	maxBytes int
	peer     int32 // whom the answer is for
	request  uint64
	fetch    bool // a follower's fetch, not a client's read
}

// noteKind says what a note is about.
type noteKind uint8

const (
	noteLeader noteKind = iota + 1
	noteFollower
	noteResigned
	noteTruncated
	noteReset
	noteLost
	noteExpanded
	noteShrunk
	noteDamaged
	noteUnclean
)

// note is something worth telling an operator or a test.
type note struct {
	id    protocol.PartitionID
	kind  noteKind
	epoch int32
	from  int64 // truncated, reset: the end before; lost: the high watermark before
	to    int64
	err   error
	code  protocol.Code // resigned: why

	leader   int32   // unclean
	was, isr []int32 // leader: isr. Expanded, shrunk: before and after
}
