package tidemark

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// levelRange is the feature levels that a broker supports, or all brokers do (B12).
type levelRange struct{ min, max int32 }

// The feature levels that this code supports.
const minLevel, maxLevel = 1, 1

func (r levelRange) include(level int32) bool { return r.min <= level && level <= r.max }

func (r levelRange) String() string {
	if r.min == r.max {
		return fmt.Sprint("level ", r.min)
	}
	return fmt.Sprintf("levels %d to %d", r.min, r.max)
}

// readFeatures decodes the value of the features' key.
func readFeatures(kv coordination.KV) (f features, err error) {
	if err = json.Unmarshal(kv.Value, &f); err == nil && f.Level < 1 {
		err = fmt.Errorf("level %d", f.Level)
	}
	if err != nil {
		err = fmt.Errorf("tidemark: key %s: %w", featuresKey, err)
	}
	return f, err
}

// raiseLevel raises the cluster's feature level. It counts the brokers first, in
// the store, and its write is guarded by there having been no registration since;
// a registration in turn is guarded by the level that it read. So no broker gets in
// that does not support what was raised meanwhile.
func (m *metadata) raiseLevel(q queuedCommand) {
	m.lastToken++
	w := &metaWrite{token: m.lastToken, raise: &q}
	m.writes[w.token] = w
	m.lookAgain(w)
}

// countBrokers reads the newest registration before it lists all: one that comes
// in between is in the list, or makes the write fail.
func (m *metadata) countBrokers(w *metaWrite) {
	m.eff.rereads = append(m.eff.rereads, metaReread{
		token: w.token, keys: []string{controllerEpochKey, featuresKey, newestKey}, prefix: brokerIDsPrefix,
	})
}

// brokersCounted decides a raise from what the store has.
func (m *metadata) brokersCounted(w *metaWrite, kvs map[string]coordination.KV) {
	origin, level := w.raise.origin(), w.raise.command.Level
	end := func(code protocol.Code, detail string) {
		delete(m.writes, w.token)
		m.answer(origin, code, detail, nil)
	}
	now, err := readFeatures(kvs[featuresKey])
	if err != nil {
		end(protocol.Failed, err.Error())
		return
	}
	against, err := objections(level, kvs)
	switch {
	case level == now.Level:
		end(protocol.OK, "")
	case level < now.Level:
		end(protocol.Unsupported, fmt.Sprintf("level %d is in force, and it only rises", now.Level))
	case err != nil:
		end(protocol.Failed, err.Error())
	case against != "":
		end(protocol.Unsupported, against)
	default:
		w.put(featuresKey, kvs[featuresKey].Revision, features{Level: level})
		w.txn.Guards = append(w.txn.Guards,
			coordination.Guard{Key: newestKey, Revision: kvs[newestKey].Revision},
			coordination.Guard{Key: controllerEpochKey, Revision: m.epochRevision})
		m.send(w)
	}
}

// objections says which registered brokers do not support a level; "": all do.
func objections(level int32, kvs map[string]coordination.KV) (string, error) {
	const most = 10 // are named
	var against []string
	for _, key := range slices.Sorted(maps.Keys(kvs)) {
		id, ok := parseBrokerKey(key, brokerIDsPrefix)
		if !ok {
			continue
		}
		var reg registration
		if err := json.Unmarshal(kvs[key].Value, &reg); err != nil {
			return "", fmt.Errorf("tidemark: key %s: %w", key, err)
		}
		if has := (levelRange{reg.MinLevel, reg.MaxLevel}); !has.include(level) {
			against = append(against, fmt.Sprintf("broker %d supports %v", id, has))
		}
	}
	if n := len(against); n > most {
		against = append(against[:most], fmt.Sprintf("and %d others do not support it", n-most))
	}
	return strings.Join(against, "; "), nil
}
