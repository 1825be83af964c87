package tidemark

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/memstore"
)

// joiner is a broker that registers by hand, and supports what the test says.
func joiner(t *testing.T, store coordination.Store, id int32, levels levelRange) *registrar {
	disk, err := memstore.NewDisk(memstore.Manual(), memstore.Directory(protocol.UUID{byte(id)})).Open()
	require.NoError(t, err)
	b := newBroker(Config{ID: id, Store: disk, Coordination: store, Loops: 1}.withDefaults())
	t.Cleanup(b.cancel)
	b.levels = levels
	return newRegistrar(b)
}

// featureBench is a Controller over brokers that registered themselves.
func featureBench(t *testing.T, brokers ...levelRange) (*metaBench, []coordination.Session) {
	b := &metaBench{
		t: t, store: memory.New(memory.Options{Manual: true}).Connect(), now: 1, epochs: make(map[int32]int64),
		dirs: make(map[int32]protocol.UUID), out: make(map[int32]*protocol.Payload),
	}
	b.put(controllerEpochKey, controllerTerm{Epoch: 1})
	var sessions []coordination.Session
	for i, levels := range brokers {
		id := int32(i + 1)
		s, epoch, err := joiner(t, b.store, id, levels).register()
		require.NoError(t, err)
		b.epochs[id] = epoch
		sessions = append(sessions, s)
	}
	b.load(1)
	b.turn()
	clear(b.out)
	return b, sessions
}

func (b *metaBench) level() string {
	kv, _, err := b.store.Get(b.t.Context(), featuresKey)
	require.NoError(b.t, err)
	return string(kv.Value)
}

func (b *metaBench) raise(level int32) {
	b.request++
	b.m.onCommand(1, b.epochs[1], protocol.Command{Request: b.request, Kind: protocol.RaiseLevel, Level: level})
	b.turn()
}

func TestRaiseLevel(t *testing.T) {
	t.Run("all support it", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2}, levelRange{1, 3}, levelRange{1, 2})
		require.JSONEq(t, `{"level":1}`, b.level())
		b.raise(2)
		require.Empty(t, b.writes, "before the brokers are counted")
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
		require.JSONEq(t, `{"level":2}`, b.level())
		b.raise(2)
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code, "again")
		for _, level := range []int32{1, 3} {
			b.raise(level)
			b.settle()
			a := b.answered()
			require.Equal(t, protocol.Unsupported, a.Code)
			require.NotEmpty(t, a.Detail)
			require.JSONEq(t, `{"level":2}`, b.level())
		}
	})
	t.Run("one does not, until it is gone", func(t *testing.T) {
		b, sessions := featureBench(t, levelRange{1, 2}, levelRange{1, 1})
		b.raise(2)
		b.settle()
		a := b.answered()
		require.Equal(t, protocol.Unsupported, a.Code)
		require.Equal(t, "broker 2 supports level 1", a.Detail)
		require.NoError(t, sessions[1].Close(t.Context()))
		b.raise(2)
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
	})
	t.Run("many do not", func(t *testing.T) {
		b, _ := featureBench(t, slices.Repeat([]levelRange{{1, 1}}, 13)...)
		b.raise(2)
		b.settle()
		require.Contains(t, b.answered().Detail, "and 3 others")
	})
	t.Run("what is recorded cannot be read", func(t *testing.T) {
		for _, value := range []string{"{", `{"level":0}`, `{"level":"2"}`} {
			b, _ := featureBench(t, levelRange{1, 2})
			b.do(coordination.Txn{Ops: []coordination.Op{{Key: featuresKey, Value: []byte(value)}}})
			b.raise(2)
			b.settle()
			require.Equal(t, protocol.Failed, b.answered().Code)
			require.Equal(t, value, b.level())
		}
	})
	t.Run("a registration cannot be read", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2})
		b.do(coordination.Txn{Ops: []coordination.Op{{Key: brokerIDKey(9), Value: []byte("{")}}})
		b.raise(2)
		b.settle()
		require.Equal(t, protocol.Failed, b.answered().Code)
	})
	t.Run("the answer was lost", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2})
		b.raise(2)
		b.reread()
		w := b.write()
		b.do(w.txn)
		b.noAnswer(w)
		b.pause()
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
	})
	t.Run("the store does not answer the count", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2})
		b.raise(2)
		r := b.rereads[0]
		b.rereads = nil
		b.m.onReread(b.now, r.token, nil, coordination.ErrUnavailable)
		b.pause()
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
	})
	t.Run("another Controller", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2})
		b.raise(2)
		b.reread()
		b.put(controllerEpochKey, controllerTerm{Epoch: 2})
		b.answer(b.write())
		b.reread()
		require.ErrorIs(t, b.resign, errControllerMoved)
		require.JSONEq(t, `{"level":1}`, b.level())
	})
}

// A broker that does not support the new level registers while it is raised: one of
// the two fails, wherever they meet.
func TestRegistrationMeetsRaise(t *testing.T) {
	old := levelRange{1, 1}
	t.Run("after the count, before the write", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2})
		b.raise(2)
		b.reread()
		_, _, err := joiner(t, b.store, 7, old).register()
		require.NoError(t, err)
		b.settle()
		require.Equal(t, "broker 7 supports level 1", b.answered().Detail)
		require.JSONEq(t, `{"level":1}`, b.level())
	})
	t.Run("one that supports it only makes it count again", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2})
		b.raise(2)
		b.reread()
		_, _, err := joiner(t, b.store, 7, levelRange{1, 2}).register()
		require.NoError(t, err)
		b.settle()
		require.Equal(t, protocol.OK, b.answered().Code)
	})
	t.Run("read the level before it rose", func(t *testing.T) {
		b, _ := featureBench(t, levelRange{1, 2})
		late := &gatedStore{Store: b.store}
		late.before = func(txn coordination.Txn) {
			if !slices.ContainsFunc(txn.Ops, func(op coordination.Op) bool { return op.Key == brokerIDKey(7) }) {
				return
			}
			late.before = nil
			b.raise(2)
			b.settle()
			require.Equal(t, protocol.OK, b.answered().Code)
		}
		r := joiner(t, late, 7, old)
		_, _, err := r.register()
		require.ErrorIs(t, err, errRegistrationRaced)
		_, ok, err := b.store.Get(t.Context(), brokerIDKey(7))
		require.NoError(t, err)
		require.False(t, ok)
		_, _, err = r.register()
		require.ErrorIs(t, err, ErrUnsupportedLevel)
	})
}

// gatedStore lets a test act just before a transaction.
type gatedStore struct {
	coordination.Store
	before func(coordination.Txn)
}

func (g *gatedStore) Do(ctx context.Context, txn coordination.Txn) (coordination.TxnResult, error) {
	if g.before != nil {
		g.before(txn)
	}
	return g.Store.Do(ctx, txn)
}

func TestRegistrationAndLevels(t *testing.T) {
	store := memory.New(memory.Options{Manual: true}).Connect()
	first := joiner(t, store, 1, levelRange{2, 4})
	_, _, err := first.register()
	require.NoError(t, err)
	kv, _, err := store.Get(t.Context(), featuresKey)
	require.NoError(t, err)
	require.JSONEq(t, `{"level":2}`, string(kv.Value), "a cluster begins with the lowest that its first broker supports")
	var reg registration
	kv, _, err = store.Get(t.Context(), brokerIDKey(1))
	require.NoError(t, err)
	mustUnmarshal(t, kv.Value, &reg)
	require.Equal(t, levelRange{2, 4}, levelRange{reg.MinLevel, reg.MaxLevel})

	for name, levels := range map[string]levelRange{"older": {1, 1}, "newer": {3, 4}} {
		_, _, err := joiner(t, store, 2, levels).register()
		require.ErrorIs(t, err, ErrUnsupportedLevel, name)
		require.ErrorContains(t, err, levels.String(), name)
	}
	for _, value := range []string{"{", `{"level":-1}`} {
		_, err := store.Do(t.Context(), coordination.Txn{Ops: []coordination.Op{{Key: featuresKey, Value: []byte(value)}}})
		require.NoError(t, err)
		_, _, err = joiner(t, store, 2, levelRange{1, 9}).register()
		require.ErrorContains(t, err, featuresKey)
		kv, _, err = store.Get(t.Context(), featuresKey)
		require.NoError(t, err)
		require.Equal(t, value, string(kv.Value), "it was touched")
	}
}

// A registered broker that sees the level rise above what it supports gives up.
func TestLevelRisesAboveABroker(t *testing.T) {
	store := memory.New(memory.Options{Manual: true}).Connect()
	b := joiner(t, store, 1, levelRange{1, 2}).b
	show := func(value string) {
		b.control.onRegistry(registry{
			live:     map[int32]registered{1: {epoch: 1, registration: registration{MinLevel: 1, MaxLevel: 2}}, 2: {epoch: 2, registration: registration{MinLevel: 1, MaxLevel: 1}}},
			features: coordination.KV{Key: featuresKey, Value: []byte(value), Revision: 1},
		})
	}
	levels := func() levelView { l, _ := b.view.featureLevels(); return l }
	require.False(t, levels().known)
	show("{")
	require.True(t, levels().known)
	require.Error(t, levels().err)
	require.NoError(t, b.unfitReason(), "what cannot be read is no level")
	show(`{"level":2}`)
	require.NoError(t, b.unfitReason())
	require.Equal(t, levelView{known: true, inForce: 2, supported: levelRange{1, 1}}, levels())
	show(`{"level":3}`)
	require.ErrorIs(t, b.unfitReason(), ErrUnsupportedLevel)
}
