package zookeeper

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// TestPaths: every key has one node, with names that ZooKeeper takes, and back.
func TestPaths(t *testing.T) {
	tr := tree{"/c"}
	require.Equal(t, "/c/brokers/ids/1", tr.path("/brokers/ids/1"))
	for _, key := range []string{"", "/", "//", "a", "/a/", "/.log", ".", "/..", "/%", "/%41", "/\xff", "/\u0085", "/\ue000", "/\U0001F30A", "/ä", "/\ufffd"} {
		path := tr.path(key)
		back, ok := tr.key(path)
		require.True(t, ok, path)
		require.Equal(t, key, back, path)
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.SliceOfN(rapid.SampledFrom([]byte("/.%a0\x00\x7f\xc3\xa4\xff\xee\x80")), 0, 8)
		one, two := string(draw.Draw(t, "one")), string(draw.Draw(t, "two"))
		path := tr.path(one)
		back, ok := tr.key(path)
		if !ok || back != one {
			t.Fatalf("%q is %q, which is %q", one, path, back)
		}
		if one != two && tr.path(two) == path {
			t.Fatalf("%q and %q are both %q", one, two, path)
		}
		for _, r := range path {
			if forbidden(r) {
				t.Fatalf("%q has %q", path, r)
			}
		}
		for name := range strings.SplitSeq(path[1:], "/") {
			if name == "" || name == "." || name == ".." {
				t.Fatalf("%q", path)
			}
		}
		// And not by another way.
		if other, ok := tr.key("/c/" + one); ok && tr.path(other) != "/c/"+one {
			t.Fatalf("%q is also %q", other, one)
		}
	})
}

func TestValues(t *testing.T) {
	for _, value := range []string{"", "v", "\x00", "\x00\x00v", `{"a":1}`} {
		for _, id := range []string{"", "0x1"} {
			data := encodeValue([]byte(value), id)
			require.NotEmpty(t, data, "it would be no key")
			got, session, err := decodeValue(data)
			require.NoError(t, err)
			require.Equal(t, value, string(got))
			require.Equal(t, id, session)
		}
	}
	require.Equal(t, `{"a":1}`, string(encodeValue([]byte(`{"a":1}`), "")), "as it is")
	_, _, err := decodeValue([]byte("\x000x1"))
	require.ErrorIs(t, err, errMalformed)
}

func TestEntries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		en := entry{before: rapid.Int64Min(0).Draw(t, "before")}
		for range rapid.IntRange(0, 20).Draw(t, "events") {
			ev := coordination.Event{KV: coordination.KV{Key: rapid.String().Draw(t, "key"), Revision: 7}}
			if ev.Deleted = rapid.Bool().Draw(t, "deleted"); !ev.Deleted {
				ev.Value = []byte(strings.Repeat(rapid.String().Draw(t, "value"), 20))
				ev.Session = rapid.StringN(0, 5, -1).Draw(t, "session")
			}
			en.events = append(en.events, ev)
		}
		data := en.encode()
		got, err := decodeEntry(&wire.Request{Data: data, Stat: wire.Stat{Created: 7}})
		if err != nil || got.before != en.before || got.revision != 7 || len(got.events) != len(en.events) {
			t.Fatal(got, err)
		}
		for i, ev := range got.events {
			want := en.events[i]
			if ev.Key != want.Key || !bytes.Equal(ev.Value, want.Value) || ev.Session != want.Session || ev.Deleted != want.Deleted || ev.Revision != 7 {
				t.Fatal(ev, want)
			}
		}
		// What is cut short or changed is noticed, or at least does no harm.
		cut := bytes.Clone(data[:rapid.IntRange(0, len(data)-1).Draw(t, "cut")])
		if len(cut) > 0 {
			cut[rapid.IntRange(0, len(cut)-1).Draw(t, "at")] ^= 0x81
		}
		_, _ = decodeEntry(&wire.Request{Data: cut})
	})
	var many entry
	for range 200 {
		many.events = append(many.events, coordination.Event{KV: coordination.KV{Key: "/brokers/topics/orders/partitions/17/state",
			Value: []byte(`{"version":1,"leader":1,"leader_epoch":3,"isr":[1,2,3],"replicas":[1,2,3]}`)}})
	}
	require.Less(t, len(many.encode()), 2000, "states are much alike")
}

func TestSequence(t *testing.T) {
	first := &sequence{Format: format, First: 1}
	s := first.next()
	s.bind("/a", "0x1")
	s.bind("/b", "0x1")
	s.bind("/c", "0x2")
	later := s.next()
	later.bind("/a", "0x2")
	later.bind("/b", "")
	require.Empty(t, first.Sessions)
	require.Equal(t, map[string][]string{"0x1": {"/a", "/b"}, "0x2": {"/c"}}, s.Sessions, "it is not touched by the next one")
	require.Equal(t, map[string][]string{"0x2": {"/c", "/a"}}, later.Sessions)
	got, err := decodeSequence(&wire.Request{Data: later.encode(), Stat: wire.Stat{Modified: 9, Version: 4}})
	require.NoError(t, err)
	require.Equal(t, int64(9), got.logged())
	require.Equal(t, int64(2), got.Entry)
	require.Equal(t, int32(4), got.version)
	for _, bad := range []string{"", "{", `{"format":2}`} {
		_, err := decodeSequence(&wire.Request{Data: []byte(bad)})
		require.Error(t, err, bad)
	}
	require.True(t, validSession("0xffffffffffffffff"))
	for _, id := range []string{"", "0x", "0x0", "12", "0x01", "0xG", "0x1/../x"} {
		require.False(t, validSession(id), id)
	}
}
