package workload

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/chaos/history"
	"github.com/tidemark-log/tidemark/chaos/internal/cluster"
	"github.com/tidemark-log/tidemark/chaos/internal/node"
)

const (
	// grace is how much longer than the broker the caller waits: one that is paused
	// does not look at its clock.
	grace = time.Second
	// refusedPause is before what was refused is sent again.
	refusedPause = 50 * time.Millisecond
)

// value is unique, and of 100 to 1000 bytes.
func value(name string) []byte {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	size := 100 + int(h.Sum32()%901)
	return []byte(name + strings.Repeat(" ", max(size-len(name), 0)))
}

// producer sends values to one partition, several at a time.
type producer struct {
	l         *Load
	id        int
	partition int
	values    atomic.Int64
	attempts  atomic.Int64
}

// run is one place of those that a producer has for appends in flight.
func (p *producer) run(slot int) {
	l := p.l
	every := time.Duration(l.o.Partitions*l.o.Producers*l.o.InFlight) * time.Second / time.Duration(l.o.Rate)
	at := p.id/l.o.Partitions + slot // each begins with another broker
	for next := time.Now(); l.ctx.Err() == nil; next = next.Add(every) {
		if late := time.Since(next); late > every {
			next = time.Now() // what was not sent in time is not made up for
		} else if late < 0 && !wait(l.ctx, -late) {
			return
		}
		v := value(fmt.Sprintf("p%d-%d", p.id, p.values.Add(1)))
		for l.ctx.Err() == nil {
			life := l.someBroker(&at)
			if life == nil {
				wait(l.ctx, refusedPause)
				continue
			}
			outcome := p.append(life, v)
			if outcome == history.Acked {
				break
			}
			at++
			if outcome == history.Unknown && !l.o.Resend {
				break
			}
			wait(l.ctx, refusedPause)
		}
	}
}

// someBroker is the at-th broker, or the next one that is up; nil: none is.
func (l *Load) someBroker(at *int) *cluster.Life {
	for range l.ids {
		if life := l.c.Life(l.ids[*at%len(l.ids)]); life != nil {
			return life
		}
		*at++
	}
	return nil
}

// call is an append that was sent and not answered.
type call struct {
	life      *cluster.Life
	partition int
	record    history.Append
	reply     node.AppendReply
	done      <-chan error
	atResume  bool // guarded by Load.mu
}

// append sends a value once, and returns what is known of it when the caller has
// waited long enough; what comes later is still written down.
func (p *producer) append(life *cluster.Life, v []byte) history.Outcome {
	c := p.l.send(life, p.partition, p.id, int(p.attempts.Add(1)), v)
	timer := time.NewTimer(p.l.o.CallTimeout + grace)
	defer timer.Stop()
	select {
	case err := <-c.done:
		return p.l.settle(c, err)
	case <-timer.C:
		p.l.late.Go(func() { p.l.settle(c, <-c.done) })
		return history.Unknown
	}
}

// send sends an append to a broker.
func (l *Load) send(life *cluster.Life, partition, producer, attempt int, v []byte) *call {
	c := &call{life: life, partition: partition, record: history.Append{
		Producer: producer, Attempt: attempt, Partition: int32(partition), Value: string(v), Offset: -1, Outcome: history.Unknown,
	}}
	l.mu.Lock()
	l.outstanding[c] = true
	l.mu.Unlock()
	c.record.Began = l.Now()
	c.done = life.Work.Go("Append", node.AppendArgs{Partition: partition, Value: v, Timeout: l.o.CallTimeout}, &c.reply)
	return c
}

// settle writes down how an append ended. Any other error is of the connection: then
// nobody knows.
func (l *Load) settle(c *call, err error) history.Outcome {
	c.record.Ended = l.Now()
	switch {
	case errors.Is(err, node.ErrNotSent):
		c.record.Outcome = history.Refused
	case err == nil:
		switch c.reply.Outcome {
		case node.Appended:
			c.record.Outcome, c.record.Offset = history.Acked, c.reply.Offset
			l.acks[c.partition].note(l.Now)
		case node.Refused:
			c.record.Outcome = history.Refused
		}
	}
	l.mu.Lock()
	delete(l.outstanding, c)
	atResume := c.atResume
	l.mu.Unlock()
	switch c.record.Outcome {
	case history.Acked:
		l.acked.Add(1)
		if atResume {
			l.ackedAfterResume.Add(1)
		}
	case history.Refused:
		l.refused.Add(1)
	default:
		l.unknown.Add(1)
	}
	l.history.AddAppend(c.record)
	return c.record.Outcome
}

// pressing is the producer of what Press sends.
const pressing = 1 << 20

// Press sends n appends to each of the partitions by one broker, whatever state that
// is in, and does not wait for them. Their outcomes are written down like any other.
func (l *Load) Press(life *cluster.Life, partitions []int, n int) {
	for _, partition := range partitions {
		for range n {
			i := l.pressed.Add(1)
			c := l.send(life, partition, pressing, int(i), value(fmt.Sprintf("x-%d", i)))
			l.late.Go(func() { l.settle(c, <-c.done) })
		}
	}
}

// MarkResume counts the appends that were sent to a broker and not answered, just
// before it goes on. AckedAfterResume counts those of them that are acknowledged.
func (l *Load) MarkResume(life *cluster.Life) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.outstanding {
		if c.life == life {
			c.atResume = true
			n++
		}
	}
	return n
}
