package tidemark

import (
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/record"
)

// scriptCommands are the words of the scripts. Without further ado a command acts
// on partition 0 of the only topic.
//
//	cluster brokers=N           N brokers, up and registered
//	topic name=T rf=N min-isr=N [partitions=N]
//	append via=B value=(a,b) [acks=all|leader|none]   one batch per value
//	deliver from=A to=B [drop]  what is in flight between two brokers, in order
//	hold from=A to=B, release   keep it in flight until then; time does not matter
//	isolate broker=B, heal      lose everything from and to a broker, until then
//	cut from=A to=B             lose everything in one direction, until healed
//	stall broker=B, unstall     the store completes only what `store` says, until then
//	store broker=B [groups=N]   the store completes write groups
//	tick ms=N                   time goes on, and nothing else happens
//	crash broker=B [keep=N]     N of the write groups under way survive
//	restart broker=B
//	session-loss broker=B       the session ends; the broker registers anew
//	stabilize [ms=N]            time goes on; all that is neither held nor stalled happens
//	read via=B from=N [ms=N]    a client's read of committed records, and how it ends
//	log broker=B                the log, epoch by epoch
//	isr                         the partition as the Controller recorded it
//	status                      every replica as it is
//	elect [preferred|unclean] [broker=B]   has the Controller elect a leader
//	check [whole]               the invariants; whole: all copies are equal and committed
//
// A run of the simulator is written down with three more; others use them for what has
// no word of its own above:
//
//	world seed=N brokers=N partitions=N min-isr=N budget=N [background] [lossy] [wire]
//	play                        what its lines say; see newSimVerbs
//	recover                     all faults end, and everything is well again within a bound
var scriptCommands = map[string]func(s *script, a scriptArgs){
	"cluster": (*script).cluster, "topic": (*script).topic, "append": (*script).append,
	"deliver": (*script).deliver, "hold": (*script).hold, "release": (*script).release,
	"isolate": (*script).isolate, "cut": (*script).cut, "heal": (*script).heal,
	"stall": (*script).stall, "unstall": (*script).unstall, "store": (*script).store,
	"tick": (*script).tick, "crash": (*script).crash, "restart": (*script).restart,
	"session-loss": (*script).sessionLoss, "stabilize": (*script).stabilize,
	"read": (*script).read, "log": (*script).log, "isr": (*script).isr, "status": (*script).status, "check": (*script).check,
	"elect": (*script).elect, "world": (*script).world, "play": (*script).play, "recover": (*script).recover,
}

func (s *script) cluster(a scriptArgs) {
	s.w = newSimWorld(a.t, 1, a.num("brokers", 3))
	for _, b := range s.w.up() {
		s.listen(b)
	}
	s.settle(100 * time.Millisecond)
}

func (s *script) topic(a scriptArgs) {
	name := a.text("name", "t")
	s.topics[name] = s.w.createTopic(name, TopicConfig{
		Partitions: int32(a.num("partitions", 1)), ReplicationFactor: int32(a.num("rf", 3)), MinISR: int32(a.num("min-isr", 2)),
	})
	s.settle(50 * time.Millisecond)
}

func (s *script) append(a scriptArgs) {
	via := s.broker(a, "via", true)
	_, id := s.partition(a)
	acks, ok := map[string]Acks{"all": AcksAll, "leader": AcksLeader, "none": AcksNone}[a.text("acks", "all")]
	if !ok {
		a.d.Fatalf(a.t, "acks are all, leader or none")
	}
	st, ok, _ := via.broker.view.state(id)
	if !ok || st.Leader == protocol.NoLeader {
		s.printf("broker %d knows no leader", via.id)
		return
	}
	for _, value := range a.list("value") {
		sent := s.w.attempt(via, id, &simAppend{value: value, acks: acks}, &st, protocol.Append{LeaderEpoch: -1}, nil, func(ans protocol.AppendAnswer) {
			s.appended(value, ans)
		})
		if !sent {
			s.printf("%s: not sent", value)
		}
	}
	via.run()
}

// appended prints how an append ended.
func (s *script) appended(value string, a protocol.AppendAnswer) {
	switch {
	case a.Code != protocol.OK:
		s.printf("%s: %v; %v", value, a.Code, a.Outcome)
	case a.Base < 0:
		s.printf("%s: ok", value)
	default:
		s.printf("%s: ok, at %d in epoch %d", value, a.Base, a.LeaderEpoch)
	}
}

func (s *script) deliver(a scriptArgs) {
	from, to := a.id("from"), a.id("to")
	due := slices.DeleteFunc(slices.Clone(s.w.flights), func(f simFlight) bool { return f.msg.From != from || f.to != to })
	for _, f := range due {
		i := slices.IndexFunc(s.w.flights, func(g simFlight) bool { return g.msg == f.msg })
		for _, line := range describePayload(&f.msg.Payload) {
			s.printf("%d -> %d: %s", from, to, line)
		}
		if a.has("drop") {
			s.w.flights = slices.Delete(s.w.flights, i, i+1)
		} else {
			s.w.deliver(i)
		}
	}
	if len(s.out) == 0 {
		s.printf("nothing")
	}
}

func (s *script) hold(a scriptArgs) { s.held[[2]int32{a.id("from"), a.id("to")}] = true }

func (s *script) release(scriptArgs) { clear(s.held) }

func (s *script) isolate(a scriptArgs) {
	b := s.broker(a, "broker", false)
	for other := range s.w.brokers {
		s.w.cut[[2]int32{b.id, other}], s.w.cut[[2]int32{other, b.id}] = true, true
	}
}

func (s *script) cut(a scriptArgs) { s.w.cut[[2]int32{a.id("from"), a.id("to")}] = true }

func (s *script) heal(scriptArgs) { clear(s.w.cut) }

func (s *script) stall(a scriptArgs) { s.stalled[s.broker(a, "broker", false).id] = true }

func (s *script) unstall(scriptArgs) { clear(s.stalled) }

func (s *script) store(a scriptArgs) {
	b := s.broker(a, "broker", true)
	n := b.store.Sync(a.num("groups", 1<<20))
	b.run()
	for !a.has("groups") && n > 0 { // what gathered meanwhile
		n = b.store.Sync(1 << 20)
		b.run()
	}
}

func (s *script) tick(a scriptArgs) {
	s.w.advance(time.Duration(a.num("ms", 0)) * time.Millisecond)
	for _, b := range s.w.up() {
		b.tick()
	}
}

func (s *script) crash(a scriptArgs) { s.broker(a, "broker", true).crash(a.num("keep", 0)) }

func (s *script) restart(a scriptArgs) {
	b := s.broker(a, "broker", false)
	if b.broker != nil {
		a.d.Fatalf(a.t, "broker %d is up", b.id)
	}
	b.start()
	s.listen(b)
}

func (s *script) sessionLoss(a scriptArgs) { s.broker(a, "broker", true).loseSession() }

func (s *script) stabilize(a scriptArgs) {
	s.settle(time.Duration(a.num("ms", 300)) * time.Millisecond)
}

func (s *script) read(a scriptArgs) {
	via := s.broker(a, "via", true)
	_, id := s.partition(a)
	st, _, _ := via.broker.view.state(id)
	r := route{via: via.broker, leader: st.Leader, epoch: st.LeaderEpoch, id: id}
	from := int64(a.num("from", 0))
	answered := false
	r.read(protocol.Read{From: from, MaxBytes: 1 << 20, MaxWaitMs: int32(a.num("ms", 0))}, func(ans protocol.ReadAnswer) {
		answered = true
		var values []string
		for _, run := range ans.Batches {
			for rec, err := range record.All(run) {
				if err == nil && rec.Offset >= from {
					values = append(values, string(rec.Value))
				}
			}
		}
		switch {
		case ans.Code != protocol.OK:
			s.printf("%v", ans.Code)
		case len(values) == 0:
			s.printf("nothing, hw %d", ans.HW)
		default:
			s.printf("%s, hw %d", strings.Join(values, " "), ans.HW)
		}
	})
	s.settle(time.Duration(a.num("ms", 0)+20) * time.Millisecond)
	if !answered {
		s.printf("waits")
	}
}

func (s *script) log(a scriptArgs) {
	b := s.broker(a, "broker", false)
	_, id := s.partition(a)
	l := s.w.check.logs[b.id][id]
	if l == nil {
		s.printf("none")
		return
	}
	s.printf("%s", describeLog(l.entries))
}

func (s *script) isr(a scriptArgs) {
	topic, id := s.partition(a)
	st := s.w.stored(topic, id.Partition)
	s.printf("leader %d, epoch %d, isr %v of %v, min isr %d", st.Leader, st.LeaderEpoch, st.ISR, st.Replicas, st.MinISR)
}

func (s *script) status(a scriptArgs) {
	_, id := s.partition(a)
	for _, b := range s.w.all() {
		if b.broker == nil {
			s.printf("%d down", b.id)
			continue
		}
		r := b.broker.loops[0].shard.replicas[id]
		if r == nil {
			s.printf("%d has no replica", b.id)
			continue
		}
		s.printf("%d %v in epoch %d, log [%d, %d), stored %d, hw %d", b.id, r.role, r.state.LeaderEpoch, r.start, r.end, r.stored, r.hw)
	}
}

func (s *script) elect(a scriptArgs) {
	topic, id := s.partition(a)
	kind := protocol.ElectPreferred
	if a.has("unclean") {
		kind = protocol.ElectUnclean
	}
	s.w.command(s.w.up()[0], protocol.Command{
		Kind: kind, Topic: s.topics[topic], Partition: id.Partition, Broker: int32(a.num("broker", -1)),
	}, func(ans protocol.CommandAnswer) { s.printf("%s", strings.TrimSpace(ans.Code.String()+" "+ans.Detail)) })
}

func (s *script) check(a scriptArgs) {
	if s.w.check.err() != nil {
		s.printf("%v", s.w.check.err())
	}
	if !a.has("whole") {
		return
	}
	topic, id := s.partition(a)
	st := s.w.stored(topic, id.Partition)
	var want string
	for _, b := range s.w.up() {
		r := b.broker.loops[0].shard.replicas[id]
		if r == nil {
			continue
		}
		got := describeLog(s.w.check.logs[b.id][id].entries)
		if want == "" {
			want = got
		}
		switch {
		case got != want:
			s.printf("broker %d has %s, another %s", b.id, got, want)
		case r.stored != r.end || r.hw != r.end:
			s.printf("broker %d has stored %d and committed %d of %d", b.id, r.stored, r.hw, r.end)
		case !st.InISR(b.id):
			s.printf("broker %d is not in sync", b.id)
		}
	}
}
