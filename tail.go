package tidemark

import (
	"sort"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// cachedBatch is one batch in memory. Its bytes are immutable.
type cachedBatch struct {
	base, end int64
	bytes     []byte
}

// tail is the newest part of a log, held in memory: what is not stored yet, and
// as much of the rest as the cache allows. Batches are consecutive up to logEnd.
type tail struct {
	batches []cachedBatch
	head    int // batches before it are gone
	bytes   int64
}

func (t *tail) live() []cachedBatch { return t.batches[t.head:] }

// start is the offset from which on the tail has everything, given the log's end.
func (t *tail) start(logEnd int64) int64 {
	if t.head == len(t.batches) {
		return logEnd
	}
	return t.batches[t.head].base
}

func (t *tail) push(b cachedBatch) {
	t.batches = append(t.batches, b)
	t.bytes += int64(len(b.bytes))
}

// evict drops the oldest batch if it ends at or below limit, and returns its size.
func (t *tail) evict(limit int64) (size int64, ok bool) {
	if t.head == len(t.batches) || t.batches[t.head].end > limit {
		return 0, false
	}
	size = int64(len(t.batches[t.head].bytes))
	t.batches[t.head] = cachedBatch{}
	t.head++
	t.bytes -= size
	if t.head > 64 && t.head*2 > len(t.batches) {
		t.batches = append(t.batches[:0:0], t.batches[t.head:]...)
		t.head = 0
	}
	return size, true
}

// truncate drops what lies at or above offset and returns how many bytes that was.
func (t *tail) truncate(offset int64) int64 {
	var size int64
	n := len(t.batches)
	for n > t.head && t.batches[n-1].end > offset {
		size += int64(len(t.batches[n-1].bytes))
		t.batches[n-1] = cachedBatch{}
		n--
	}
	t.batches = t.batches[:n]
	t.bytes -= size
	return size
}

// read returns batches from the one that contains from on, none that ends above
// limit: at least one, then more while the sum stays within maxBytes. ok is
// false when the tail does not reach back to from.
func (t *tail) read(from, limit int64, maxBytes int) (batches [][]byte, ok bool) {
	live := t.live()
	i := sort.Search(len(live), func(i int) bool { return live[i].end > from })
	if i == len(live) || live[i].base > from {
		return nil, false
	}
	size := 0
	for ; i < len(live) && live[i].end <= limit; i++ {
		size += len(live[i].bytes) + protocol.BatchOverhead
		if len(batches) > 0 && size > maxBytes {
			break
		}
		batches = append(batches, live[i].bytes)
	}
	return batches, true
}

// splitBatches cuts a run of batches, keeping those that end at or below limit:
// the first, then more while the sum stays within maxBytes.
func splitBatches(run []byte, limit int64, maxBytes int) ([][]byte, error) {
	var out [][]byte
	size := 0
	for len(run) > 0 {
		first, rest, err := record.Split(run)
		if err != nil {
			return out, err
		}
		info, err := record.Peek(first)
		if err != nil {
			return out, err
		}
		size += len(first) + protocol.BatchOverhead
		if info.End() > limit || len(out) > 0 && size > maxBytes {
			break
		}
		out = append(out, first)
		run = rest
	}
	return out, nil
}
