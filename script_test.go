package tidemark

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tidemark-log/tidemark/protocol"
)

// TestScripts runs what is told as scripts, whole clusters of brokers stepped by
// hand: a tour of the protocol, and scenarios. `go test -run TestScripts -rewrite .`
// writes what they print into them.
func TestScripts(t *testing.T) {
	for _, dir := range []string{"testdata/protocol", "testdata/scenarios", "testdata/found"} {
		datadriven.Walk(t, dir, func(t *testing.T, path string) {
			s := newScript(t)
			datadriven.RunTest(t, path, s.run)
		})
	}
}

// script is a cluster that a script steps. What happens on its own while a command
// runs (a role taken, a log cut, an append answered) is printed below the command
// in the order in which it happened.
type script struct {
	t       *testing.T
	w       *simWorld
	topics  map[string]protocol.Topic
	held    map[[2]int32]bool // messages wait, and are not lost
	stalled map[int32]bool    // stores that complete only what a command tells them to
	out     []string
}

func newScript(t *testing.T) *script {
	return &script{
		t: t, topics: make(map[string]protocol.Topic), held: make(map[[2]int32]bool), stalled: make(map[int32]bool),
	}
}

func (s *script) printf(format string, args ...any) {
	s.out = append(s.out, fmt.Sprintf(format, args...))
}

// run carries out one command. The invariants are checked after every one.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t, s.out = t, nil
	command, ok := scriptCommands[d.Cmd]
	if !ok {
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	if s.w == nil && d.Cmd != "cluster" && d.Cmd != "world" {
		d.Fatalf(t, "a script begins with `cluster` or `world`")
	}
	if s.w != nil {
		s.w.t = t
	}
	a := scriptArgs{t, d}
	command(s, a)
	if s.w.check.err() != nil {
		t.Errorf("%s: %v", d.Pos, s.w.check.err())
	}
	if len(s.out) == 0 {
		return "ok\n"
	}
	return strings.Join(s.out, "\n") + "\n"
}

// scriptArgs reads the arguments of a command.
type scriptArgs struct {
	t *testing.T
	d *datadriven.TestData
}

func (a scriptArgs) num(key string, otherwise int) int {
	a.d.MaybeScanArgs(a.t, key, &otherwise)
	return otherwise
}

func (a scriptArgs) text(key, otherwise string) string {
	a.d.MaybeScanArgs(a.t, key, &otherwise)
	return otherwise
}

func (a scriptArgs) list(key string) []string {
	arg, ok := a.d.Arg(key)
	if !ok {
		a.d.Fatalf(a.t, "%s is missing", key)
	}
	return arg.Vals
}

func (a scriptArgs) has(key string) bool { return a.d.HasArg(key) }

func (a scriptArgs) id(key string) int32 {
	id := a.num(key, -1)
	if id < 0 {
		a.d.Fatalf(a.t, "%s is missing", key)
	}
	return int32(id)
}

// broker returns the broker that the command names; up says that it must run.
func (s *script) broker(a scriptArgs, key string, up bool) *simBroker {
	b := s.w.brokers[a.id(key)]
	if b == nil {
		a.d.Fatalf(a.t, "no broker %d", a.id(key))
	}
	if up && b.broker == nil {
		a.d.Fatalf(a.t, "broker %d is down", b.id)
	}
	return b
}

// partition returns the partition that the command names: by default the only
// one of the only topic. A topic that was deleted is still known by its name.
func (s *script) partition(a scriptArgs) (topic string, id protocol.PartitionID) {
	maps.Copy(s.topics, s.w.records.topics) // also what `play` created
	topic = a.text("topic", "")
	for name := range s.topics {
		if topic == "" && len(s.topics) == 1 {
			topic = name
		}
	}
	t, ok := s.topics[topic]
	if !ok {
		a.d.Fatalf(a.t, "no topic %q", topic)
	}
	return topic, protocol.PartitionID{Topic: t.ID, Partition: int32(a.num("partition", 0))}
}

// listen has the script print what a broker finds worth telling.
func (s *script) listen(b *simBroker) {
	b.broker.log = slog.New(&scriptLog{s: s, broker: b.id})
}

// scriptLog is the slog.Handler behind a broker's logger.
type scriptLog struct {
	s      *script
	broker int32
	attrs  []slog.Attr
}

func (l *scriptLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *scriptLog) WithGroup(string) slog.Handler            { return l }
func (l *scriptLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &scriptLog{l.s, l.broker, append(slices.Clone(l.attrs), attrs...)}
}

// Handle prints the messages below, in their short form; the others belong to
// the machinery around the protocol.
func (l *scriptLog) Handle(_ context.Context, r slog.Record) error {
	form, ok := map[string]string{
		"became leader":          "leads in epoch {leader_epoch}",
		"truncated log":          "truncates its log from {from} to {to}",
		"reset log":              "resets its log from {from} to {to}",
		"lost committed records": "loses what was committed from {to} to {from}",
		"unclean election":       "reports an unclean election of {leader} in epoch {leader_epoch}",
		"isr expanded":           "sees the ISR expand",
		"isr shrunk":             "sees the ISR shrink",
		"log is damaged":         "finds its log damaged: {error}",
		"controller elected":     "is the Controller in epoch {controller_epoch}",
		"controller resigned":    "is the Controller no longer",
	}[r.Message]
	if !ok || r.Message == "unclean election" && r.Level == slog.LevelWarn { // the Controller's; the replicas tell it, too
		return nil
	}
	fill := func(a slog.Attr) bool {
		form = strings.ReplaceAll(form, "{"+a.Key+"}", a.Value.String())
		return true
	}
	for _, a := range l.attrs {
		fill(a)
	}
	r.Attrs(fill)
	l.s.printf("broker %d %s", l.broker, form)
	return nil
}

// round lets everything that is under way arrive, except what is held.
func (s *script) round() {
	for _, b := range s.w.up() {
		b.notice()
		b.broker.control.post(func(time.Duration) {}) // a turn of the Controller, also when nobody is left to talk to it
		b.callCoordination()
		if !s.stalled[b.id] {
			b.store.Sync(1 << 20)
		}
		b.run()
		b.readCold()
		b.tick()
	}
	for i, n := 0, len(s.w.flights); n > 0; n-- {
		if s.isHeld(s.w.flights[i]) {
			i++
		} else {
			s.w.deliver(i)
		}
	}
}

func (s *script) isHeld(f simFlight) bool { return s.held[[2]int32{f.msg.From, f.to}] }

// settle lets time go on while everything arrives at once.
func (s *script) settle(d time.Duration) {
	for end := s.w.now + d; s.w.now < end; {
		for _, b := range s.w.up() {
			if _, ok := b.broker.log.Handler().(*scriptLog); !ok {
				s.listen(b)
			}
		}
		s.round()
		s.w.advance(20 * time.Millisecond)
	}
	s.round()
}

// describeLog tells a log by its epochs: what each holds, in order.
func describeLog(entries []simEntry) string {
	if len(entries) == 0 {
		return "empty"
	}
	var out strings.Builder
	for i, e := range entries {
		if i == 0 || e.epoch != entries[i-1].epoch {
			if i > 0 {
				out.WriteString(" | ")
			}
			fmt.Fprintf(&out, "epoch %d:", e.epoch)
		}
		out.WriteString(" " + e.value)
	}
	return out.String()
}

// describePayload tells what an envelope carries, one item a line.
func describePayload(p *protocol.Payload) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, f := range p.Fetches {
		add("fetch in epoch %d from %d (last epoch %d), stored %d (epoch %d)", f.LeaderEpoch, f.Offset, f.LastEpoch, f.Stored, f.StoredEpoch)
	}
	for _, a := range p.FetchAnswers {
		switch a.Code {
		case protocol.OK:
			add("answer in epoch %d at %d: %d batches, hw %d", a.LeaderEpoch, a.Offset, len(a.Batches), a.HW)
		case protocol.Diverging:
			add("answer in epoch %d at %d: diverging, agreed up to epoch %d ending at %d", a.LeaderEpoch, a.Offset, a.Agreed.Epoch, a.Agreed.End)
		default:
			add("answer in epoch %d at %d: %v", a.LeaderEpoch, a.Offset, a.Code)
		}
	}
	for _, r := range p.Reports {
		add("report in epoch %d: stored %d (epoch %d)", r.LeaderEpoch, r.Stored, r.StoredEpoch)
	}
	for _, w := range p.Watermarks {
		add("watermark in epoch %d: hw %d", w.LeaderEpoch, w.HW)
	}
	for _, a := range p.Proposals {
		ids := make([]int32, 0, len(a.ISR))
		for _, m := range a.ISR {
			ids = append(ids, m.ID)
		}
		add("proposal in epoch %d: isr %v", a.LeaderEpoch, ids)
	}
	for _, v := range p.Verdicts {
		add("verdict: %v", v.Code)
	}
	for range p.Appends {
		add("append")
	}
	for _, a := range p.AppendAnswers {
		add("append answer: %v", a.Code)
	}
	return lines
}
