package protocol

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCodeNames(t *testing.T) {
	require.Equal(t, int(Failed)+1, len(codeNames), "a name for every code, Failed being the last")
	seen := map[string]bool{}
	for c := OK; c <= Failed; c++ {
		s := c.String()
		require.NotEmpty(t, s)
		require.False(t, seen[s], s)
		seen[s] = true
	}
	for c, want := range map[Code]string{OK: "ok", NotEnoughAfter: "not enough in-sync replicas after append", Canceled: "canceled",
		NotController: "not controller", TopicExists: "topic exists", BehindLog: "behind own log", Failed: "failed", Failed + 1: fmt.Sprintf("code %d", Failed+1)} {
		require.Equal(t, want, c.String())
	}
	for o, want := range map[Outcome]string{Unknown: "unknown", NotAppended: "not appended", Appended: "appended", 9: "unknown"} {
		require.Equal(t, want, o.String())
	}
}

// The names are those that classic tools know; state keys outlive any version of this code.
func TestPartitionStateJSON(t *testing.T) {
	s := testState()
	b, err := json.Marshal(s)
	require.NoError(t, err)
	require.JSONEq(t, `{"version":1,"leader":1,"leader_epoch":5,"controller_epoch":2,"isr":[1,2],"partition_epoch":9,
		"leader_broker_epoch":44,"replicas":[1,2,3,4],"adding":[4],"removing":[2],"elr":[3],"last_known_elr":[7],"min_isr":2}`, string(b))
	b, err = json.Marshal(PartitionState{Version: 1, Leader: NoLeader, LeaderBrokerEpoch: -1, ISR: []int32{}, Replicas: []int32{2}, MinISR: 1})
	require.NoError(t, err)
	require.JSONEq(t, `{"version":1,"leader":-1,"leader_epoch":0,"controller_epoch":0,"isr":[],"partition_epoch":0,
		"leader_broker_epoch":-1,"replicas":[2],"min_isr":1}`, string(b))
	ids := rapid.SliceOfN(rapid.Int32(), 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		s := PartitionState{Version: 1, Leader: rapid.Int32().Draw(t, "leader"), LeaderEpoch: rapid.Int32().Draw(t, "epoch"),
			ControllerEpoch: rapid.Int32().Draw(t, "controller"), PartitionEpoch: rapid.Int32().Draw(t, "partition"),
			LeaderBrokerEpoch: rapid.Int64().Draw(t, "broker"), MinISR: rapid.Int32().Draw(t, "min"), ISR: ids.Draw(t, "isr"),
			Replicas: ids.Draw(t, "replicas"), Adding: ids.Draw(t, "adding"), Removing: ids.Draw(t, "removing"),
			ELR: ids.Draw(t, "elr"), LastKnownELR: ids.Draw(t, "last")}
		b, err := json.Marshal(s)
		require.NoError(t, err)
		var back PartitionState
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, s, back)
	})
}

func TestPartitionStateClone(t *testing.T) {
	s := testState()
	c := s.Clone()
	require.Equal(t, s, c)
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice {
			require.Positive(t, f.Len(), "testState fills every list")
			f.Index(0).SetInt(-77)
		}
	}
	require.Equal(t, testState(), s, "nothing is shared")
	require.Equal(t, []int32{3, 4}, s.OSR())
	require.True(t, s.InISR(2) && !s.InISR(3) && s.Assigned(4) && !s.Assigned(7))
}

func TestUUIDText(t *testing.T) {
	u := UUID{0xab, 15: 0x01}
	require.Equal(t, "ab000000000000000000000000000001", u.String())
	b, err := json.Marshal(map[string]UUID{"id": u})
	require.NoError(t, err)
	var back map[string]UUID
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, u, back["id"])
	for _, bad := range []string{"", "ab", strings.Repeat("z", 32), strings.Repeat("a", 33)} {
		require.Error(t, new(UUID).UnmarshalText([]byte(bad)), bad)
	}
	require.True(t, UUID{}.IsZero() && !u.IsZero())
}

func TestPartitionIDOrder(t *testing.T) {
	ids := []PartitionID{{UUID{1}, 0}, {UUID{1}, 7}, {UUID{1, 1}, 0}, {UUID{0xff}, 0}}
	for i, a := range ids {
		for j, b := range ids {
			require.Equal(t, i < j, a.Less(b))
		}
	}
}
