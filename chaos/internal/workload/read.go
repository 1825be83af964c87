package workload

import (
	"context"
	"time"

	"github.com/tidemark-log/tidemark/chaos/history"
	"github.com/tidemark-log/tidemark/chaos/internal/node"
)

// read is one reader: it follows its partition from the start, by another broker when
// one fails it.
func (l *Load) read(i int) {
	partition, at := i%l.o.Partitions, i
	for l.reading.Err() == nil {
		life := l.someBroker(&at)
		if life == nil {
			wait(l.reading, refusedPause)
			continue
		}
		ctx, cancel := context.WithTimeout(l.reading, l.o.CallTimeout+grace)
		var r node.FetchReply
		from := l.positions[i].Load()
		args := node.FetchArgs{Partition: partition, Offset: from, MaxBytes: 256 << 10, Wait: 500 * time.Millisecond, Timeout: l.o.CallTimeout}
		err := life.Work.Call(ctx, "Fetch", args, &r)
		cancel()
		if err != nil || r.Err != "" {
			at++
			wait(l.reading, refusedPause)
			continue
		}
		now := l.Now()
		for _, rec := range r.Records {
			l.history.AddRead(history.Read{Reader: i, Partition: int32(partition), Offset: rec.Offset, Value: string(rec.Value), At: now})
			from = rec.Offset + 1
		}
		l.reads.Add(int64(len(r.Records)))
		l.positions[i].Store(from)
	}
}
