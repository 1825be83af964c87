package tidemark

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidemark-log/tidemark/protocol"
)

// Keys of the coordination store.
const (
	clusterKey         = "/cluster"
	controllerKey      = "/controller"
	controllerEpochKey = "/controller_epoch"
	brokersPrefix      = "/brokers/"
	brokerIDsPrefix    = "/brokers/ids/"
	brokerLastPrefix   = "/brokers/last/"
	topicsPrefix       = "/brokers/topics/"
	deletedPrefix      = "/deleted/"
	clearedKey         = "/cleared"
	featuresKey        = "/features"
	newestKey          = "/brokers/newest"
)

// metadataPrefixes are what a Controller reads when it begins.
var metadataPrefixes = [...]string{topicsPrefix, deletedPrefix, clearedKey}

func brokerIDKey(id int32) string   { return brokerIDsPrefix + strconv.Itoa(int(id)) }
func brokerLastKey(id int32) string { return brokerLastPrefix + strconv.Itoa(int(id)) }
func topicKey(name string) string   { return topicsPrefix + name }

func deletedKey(topic protocol.UUID) string { return deletedPrefix + topic.String() }

// partitionsPrefix begins the keys of a topic's partitions.
func partitionsPrefix(topic string) string { return topicsPrefix + topic + "/partitions/" }

func partitionKey(topic string, n int32) string {
	return fmt.Sprintf("%s%d/state", partitionsPrefix(topic), n)
}

// registration is the value of a broker's ephemeral key. The key's revision is
// the broker epoch.
type registration struct {
	Address     string        `json:"address"`
	Rack        string        `json:"rack,omitempty"`
	Directory   protocol.UUID `json:"directory"`
	Incarnation protocol.UUID `json:"incarnation"`
	MinLevel    int32         `json:"min_level"` // feature levels that the broker supports (B12)
	MaxLevel    int32         `json:"max_level"`
}

// lastLife is what stays of a broker when its registration goes (D15).
type lastLife struct {
	Directory   protocol.UUID `json:"directory"`
	Incarnation protocol.UUID `json:"incarnation"`
	Rack        string        `json:"rack,omitempty"`
	Replaced    bool          `json:"replaced,omitempty"` // another directory than before; never elected until cleared
	// Unclean: the store was not closed cleanly, so that topics which do not wait for
	// the disk may lack their last records (D25). Cleared like Replaced.
	Unclean bool `json:"unclean,omitempty"`
}

// controllerClaim is the value of the Controller's ephemeral key.
type controllerClaim struct {
	Broker      int32 `json:"broker"`
	BrokerEpoch int64 `json:"broker_epoch"`
}

// controllerTerm is the value of the controller epoch's key.
type controllerTerm struct {
	Epoch int32 `json:"epoch"`
}

// topicRecord is the value of a topic's key.
type topicRecord struct {
	protocol.Topic
	Assignment [][]int32 `json:"assignment"`
	// Unmade is how many partitions, the last ones, have no state key yet: each write
	// makes as many as it takes (PL-8).
	Unmade int32 `json:"unmade,omitempty"`
}

// deletedRecord is the value of a deleted topic's key: what is still to be
// cleared away of it (D21).
type deletedRecord struct {
	Name       string  `json:"name"`
	Partitions int32   `json:"partitions"`
	Brokers    []int32 `json:"brokers"` // that may have logs of it
}

// clearedRecord is the value of the key with the topics that were cleared away
// last, the newest at the end.
type clearedRecord struct {
	Topics []protocol.UUID `json:"topics"`
}

// features is the value of the features' key.
type features struct {
	Level int32 `json:"level"` // in force (B12)
}

// newestBroker is the value of the key that every registration writes, so that
// whoever read the registrations can guard on there being no newer one.
type newestBroker struct {
	Broker int32 `json:"broker"`
}

// marshal encodes one of the types above, or a partition state: plain structs
// of numbers and strings, for which encoding cannot fail.
func marshal(v any) []byte {
	b, _ := json.Marshal(v)
	return b
}

// parsePartitionKey takes a partition's state key apart.
func parsePartitionKey(key string) (topic string, n int32, ok bool) {
	rest, ok := strings.CutPrefix(key, topicsPrefix)
	if !ok {
		return "", 0, false
	}
	topic, rest, ok = strings.Cut(rest, "/partitions/")
	if !ok {
		return "", 0, false
	}
	number, ok := strings.CutSuffix(rest, "/state")
	if !ok {
		return "", 0, false
	}
	v, err := strconv.ParseInt(number, 10, 32)
	return topic, int32(v), err == nil && v >= 0
}

// parseBrokerKey takes the id out of a key below prefix.
func parseBrokerKey(key, prefix string) (int32, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(rest, 10, 32)
	return int32(v), err == nil && v >= 0
}
