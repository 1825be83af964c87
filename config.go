package tidemark

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/transport"
)

// Config describes one broker. A zero field means the documented default.
type Config struct {
	// ID identifies the broker in its cluster, for good: 0 or above. Required to
	// be unique; two live processes with one id are noticed (ErrDuplicateBroker).
	ID int32
	// Address is how other brokers' Transports reach this one. Tidemark only passes it on.
	Address string
	// Rack says which brokers are likely to fail together; replicas of a partition are
	// spread over racks. Default "": all brokers without one are of one rack.
	Rack string

	// Store keeps the logs. Required. The host closes it after the Broker.
	Store storage.Store
	// Coordination holds the cluster's metadata. Required. The host closes it after the Broker.
	Coordination coordination.Store
	// Transport carries messages between brokers. The Broker starts and closes it, also
	// when it cannot be opened.
	// nil is right for a cluster of one broker, whose topics have replication factor 1.
	Transport transport.Transport

	// SessionTimeout is how long a broker may be silent before the cluster takes it
	// for dead. Default 9 s; at least 100 ms.
	SessionTimeout time.Duration
	// MaxLag is how long a replica may miss records before it leaves the ISR. Default 10 s.
	MaxLag time.Duration
	// JoinWindow is how far behind, in time, a replica may be for the high
	// watermark to wait for it before it joined the ISR. Default 200 ms, and never above MaxLag/2.
	JoinWindow time.Duration
	// StoreStallLimit is how long a write may be under way before the broker holds
	// itself unfit and gives up its roles. Default max(SessionTimeout/2, 2 s); at least 2 s.
	StoreStallLimit time.Duration
	// ProposalTimeout is when an ISR proposal without an answer is sent again. Default 2 s.
	ProposalTimeout time.Duration

	// MaxRecordBytes bounds one record's key, value and headers. Default 1 MiB.
	MaxRecordBytes int
	// MaxBatchBytes is the size at which a Producer closes a batch, and bounds one
	// Append. One record of MaxRecordBytes always fits. Default 1 MiB.
	MaxBatchBytes int
	// MaxUncommittedBytes bounds what a partition holds above its high watermark. Default 64 MiB.
	MaxUncommittedBytes int64
	// MemoryBudget bounds the broker's caches and what is in flight, in bytes. Default 512 MiB.
	MemoryBudget int64
	// Loops is the number of event loops that own the replicas. Default: one per
	// processor, at most 8.
	Loops int

	// Logger receives what an operator should know. Default: silent.
	Logger *slog.Logger
	// Observer is told what happens at this broker. Default: nobody is.
	Observer *Observer
}

// batchSlack is what encoding may add to a record, and a batch to its records.
const batchSlack = 4096

// withDefaults returns the configuration with its zero fields filled.
func (c Config) withDefaults() Config {
	def(&c.SessionTimeout, 9*time.Second)
	def(&c.MaxLag, 10*time.Second)
	def(&c.JoinWindow, min(200*time.Millisecond, c.MaxLag/2))
	def(&c.StoreStallLimit, max(c.SessionTimeout/2, 2*time.Second))
	def(&c.ProposalTimeout, 2*time.Second)
	def(&c.MaxRecordBytes, 1<<20)
	def(&c.MaxBatchBytes, 1<<20)
	def(&c.MaxUncommittedBytes, 64<<20)
	def(&c.MemoryBudget, 512<<20)
	def(&c.Loops, min(runtime.GOMAXPROCS(0), 8))
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every fault of the configuration at once, as one error that
// wraps ErrInvalidConfig, and changes nothing.
func (c Config) Validate() error {
	d := c.withDefaults()
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(d.ID >= 0, "ID must be 0 or above, not %d", d.ID)
	check(d.Store != nil, "Store is required")
	check(d.Coordination != nil, "Coordination is required")
	check(d.SessionTimeout >= 100*time.Millisecond, "SessionTimeout must be at least 100ms, not %v", d.SessionTimeout)
	check(d.MaxLag >= 100*time.Millisecond, "MaxLag must be at least 100ms, not %v", d.MaxLag)
	check(d.JoinWindow > 0 && d.JoinWindow <= d.MaxLag/2, "JoinWindow must be above 0 and at most MaxLag/2, not %v", d.JoinWindow)
	check(d.StoreStallLimit >= 2*time.Second, "StoreStallLimit must be at least 2s, not %v", d.StoreStallLimit)
	check(d.ProposalTimeout >= 10*time.Millisecond, "ProposalTimeout must be at least 10ms, not %v", d.ProposalTimeout)
	check(d.MaxRecordBytes > 0 && d.MaxRecordBytes <= 1<<30, "MaxRecordBytes must be 1 to 1 GiB, not %d", d.MaxRecordBytes)
	check(d.MaxBatchBytes > 0 && d.MaxBatchBytes <= 1<<30, "MaxBatchBytes must be 1 to 1 GiB, not %d", d.MaxBatchBytes)
	check(d.MaxUncommittedBytes >= int64(d.largestBatch()), "MaxUncommittedBytes must hold a batch of %d bytes, not %d", d.largestBatch(), d.MaxUncommittedBytes)
	check(d.MemoryBudget >= 1<<20, "MemoryBudget must be at least 1 MiB, not %d", d.MemoryBudget)
	check(d.Loops >= 1 && d.Loops <= 256, "Loops must be 1 to 256, not %d", d.Loops)
	if d.Transport != nil {
		check(d.maxMessage() >= minMessage, "Transport must take messages of %d bytes, not %d", minMessage, d.maxMessage())
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalidConfig, errors.Join(faults...))
}

// largestBatch is the size of the largest batch that an append may bring.
func (c *Config) largestBatch() int { return max(c.MaxBatchBytes, c.MaxRecordBytes) + batchSlack }

// misfit says which limit of a topic does not go with the broker's, or "": above it,
// it could not be used up.
func (c *Config) misfit(t *TopicConfig) string {
	switch {
	case int(t.MaxRecordBytes) > c.MaxRecordBytes:
		return fmt.Sprintf("max record bytes %d is above the brokers' %d (Config.MaxRecordBytes)", t.MaxRecordBytes, c.MaxRecordBytes)
	case t.MaxUncommittedBytes > c.MaxUncommittedBytes:
		return fmt.Sprintf("max uncommitted bytes %d is above the brokers' %d (Config.MaxUncommittedBytes)", t.MaxUncommittedBytes, c.MaxUncommittedBytes)
	case t.MaxUncommittedBytes > 0 && int(t.MaxUncommittedBytes) < recordLimit(c, t):
		return fmt.Sprintf("max uncommitted bytes %d is below max record bytes %d: the largest record would never fit", t.MaxUncommittedBytes, recordLimit(c, t))
	}
	return ""
}

// minMessage is the least that a Transport must take: enough that most messages
// need not be cut, and that a batch is not cut into very many.
const minMessage = 16 << 10

// fetchBytes is how much one answer to a fetch or a read holds.
const fetchBytes = 1 << 20

func (c *Config) maxMessage() int {
	if c.Transport == nil {
		return 1 << 30
	}
	return c.Transport.MaxMessageBytes()
}

// lookEvery is how often the control loop looks after the store.
func (c *Config) lookEvery() time.Duration { return min(c.SessionTimeout, c.StoreStallLimit) / 4 }

// storeSlow is how long a write may be under way before the store counts as stalled.
func (c *Config) storeSlow() time.Duration { return c.StoreStallLimit / 2 }

// core is the part of the configuration that the protocol needs, for one of the loops.
func (c *Config) core() coreConfig {
	return coreConfig{
		MaxLag: c.MaxLag, JoinWindow: c.JoinWindow, ProposalTimeout: c.ProposalTimeout,
		MaxBatchBytes: c.largestBatch(), MaxUncommittedBytes: c.MaxUncommittedBytes,
		MaxUnstoredBytes: 8 << 20, FetchBytes: fetchBytes,
		CacheBytes: c.MemoryBudget / 4 / int64(c.Loops), StoreSlow: c.storeSlow(),
	}
}
