package protocol

import "slices"

// NoLeader is the Leader of a partition that has none.
const NoLeader int32 = -1

// PartitionState is the authoritative state of a partition. Its JSON form is
// what the partition's key in the coordination store holds. Values are immutable
// once shared: Clone before a change.
type PartitionState struct {
	Version           int     `json:"version"`
	Leader            int32   `json:"leader"`
	LeaderEpoch       int32   `json:"leader_epoch"`
	ControllerEpoch   int32   `json:"controller_epoch"`
	ISR               []int32 `json:"isr"`
	PartitionEpoch    int32   `json:"partition_epoch"`
	LeaderBrokerEpoch int64   `json:"leader_broker_epoch"` // -1 when there is no leader
	Replicas          []int32 `json:"replicas"`            // AR, in order of preference
	Adding            []int32 `json:"adding,omitempty"`
	Removing          []int32 `json:"removing,omitempty"`
	ELR               []int32 `json:"elr,omitempty"`
	LastKnownELR      []int32 `json:"last_known_elr,omitempty"`
	MinISR            int32   `json:"min_isr"` // in force, already capped by the number of replicas (D19)
	// UncleanEpoch is the leader epoch of the last unclean election; 0: there was none.
	// Only a leader of that epoch or a later one may have a follower cut what was
	// committed before it (D12, EL-2).
	UncleanEpoch int32 `json:"unclean_epoch,omitempty"`
}

// Clone returns a deep copy.
func (s PartitionState) Clone() PartitionState {
	s.ISR = slices.Clone(s.ISR)
	s.Replicas = slices.Clone(s.Replicas)
	s.Adding = slices.Clone(s.Adding)
	s.Removing = slices.Clone(s.Removing)
	s.ELR = slices.Clone(s.ELR)
	s.LastKnownELR = slices.Clone(s.LastKnownELR)
	return s
}

// InISR reports whether the broker is an in-sync replica.
func (s *PartitionState) InISR(broker int32) bool { return slices.Contains(s.ISR, broker) }

// Eligible reports whether the broker is one of ELR.
func (s *PartitionState) Eligible(broker int32) bool { return slices.Contains(s.ELR, broker) }

// Assigned reports whether the broker is one of AR.
func (s *PartitionState) Assigned(broker int32) bool { return slices.Contains(s.Replicas, broker) }

// OSR returns the assigned replicas that are not in sync: AR = ISR + OSR.
func (s *PartitionState) OSR() []int32 {
	var osr []int32
	for _, r := range s.Replicas {
		if !s.InISR(r) {
			osr = append(osr, r)
		}
	}
	return osr
}

// TopicConfig is how a topic was created, and altered since.
type TopicConfig struct {
	Partitions        int32 `json:"partitions"`
	ReplicationFactor int32 `json:"replication_factor"`
	MinISR            int32 `json:"min_isr"` // as asked for; PartitionState has the one in force
	// UncleanElection lets any live replica lead when no in-sync one is left. What
	// only the others have is lost then, acknowledged or not.
	UncleanElection bool `json:"unclean_election,omitempty"`
	// Background acknowledges records that the operating system has not been made to
	// write yet (D25). It is set at the creation of the topic, for good.
	Background bool `json:"background,omitempty"`
	// MaxRecordBytes and MaxUncommittedBytes lower the brokers' limits of the same
	// names for this topic. 0: the brokers' own.
	MaxRecordBytes      int32 `json:"max_record_bytes,omitempty"`
	MaxUncommittedBytes int64 `json:"max_uncommitted_bytes,omitempty"`
}

// Topic is a named set of partitions, numbered from 0.
type Topic struct {
	ID      UUID        `json:"topic_id"`
	Name    string      `json:"name"`
	Config  TopicConfig `json:"config"`
	Version int32       `json:"version,omitempty"` // rises with every change of Config
}
