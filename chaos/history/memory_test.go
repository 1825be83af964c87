package history

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMemory: what is kept of a value does not depend on its length.
func TestMemory(t *testing.T) {
	const values, limit = 100_000, 400
	before := heap()
	var h History
	long := fillHistory(&h, values)
	kept := (heap() - before) / values
	t.Logf("%d bytes for each value with its append, its read and three replicas", kept)
	require.Less(t, kept, uint64(limit))
	require.Greater(t, len(long), 2*limit)
	r := h.Check()
	require.True(t, r.OK(), r.String())
}

// fillHistory appends long values to four partitions, and returns one of them.
func fillHistory(h *History, n int) (value string) {
	padding := strings.Repeat(" ", 1000)
	finals := make([]Final, 4)
	for i := range n {
		p, offset, at := int32(i%4), int64(i/4), time.Duration(i)
		value = fmt.Sprintf("p%d-%d%s", p, i, padding)
		h.AddAppend(Append{Producer: int(p), Attempt: i, Partition: p, Value: value, Offset: offset, Began: at, Ended: at + 1})
		h.AddRead(Read{Reader: int(p), Partition: p, Offset: offset, Value: value, At: at + 1})
		finals[p].Partition = p
		finals[p].Records = append(finals[p].Records, Record{Offset: offset, Value: value, Sum: 1})
	}
	for replica := range int32(3) {
		for _, f := range finals {
			f.Replica = replica
			h.AddFinal(f)
		}
	}
	return value
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkCheck(b *testing.B) {
	var h History
	fillHistory(&h, 100_000)
	for b.Loop() {
		if r := h.Check(); !r.OK() {
			b.Fatal(r)
		}
	}
}
