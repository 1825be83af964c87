// Package tidemark keeps replicated partition logs inside a Go program.
//
// A tidemark is the line that the highest water leaves on the shore. Here it is
// the high watermark: below it nothing is ever lost, and nothing above it is
// shown to a reader.
//
// # The story
//
// A topic is a named set of partitions; a [Partition] is an ordered, append-only
// log. Copies of it, its replicas, live on several brokers. One replica leads: it
// takes appends and serves reads. The others follow: they fetch from the leader
// and store what they get. The replicas that keep up are in sync; together they
// are the ISR. A record that every member of the ISR has on disk is committed: it
// lies below the high watermark, is visible, and survives the loss of all but one
// of them.
//
// A [Broker] is one process's share of the cluster. The brokers elect one of
// themselves to be the Controller, through a small coordination store. It chooses
// leaders, records who is in sync, and tells the brokers. Records never pass
// through it, nor through the coordination store: while either is away data
// flows on, and only changes of leadership and membership wait.
//
// # Using it
//
// Package local opens a whole cluster in this process, over Pebble. A program that
// runs one broker per process calls [Open] with a [Config]: a Store for the logs, a
// Coordination store, and the Transport that it already has. Either way the handles
// are the same: [Topic], [Partition], [Producer] and [Controller] work from any
// broker, find the leader, and retry what is safe to retry: until the context ends,
// a Producer for as long as [ProducerOptions] says. A nil context never ends.
// [Replica] is a snapshot of one copy, for operators and tests.
//
// # What is promised
//
// With [AcksAll], the default, a nil error means that the records are on the disk
// of every in-sync replica, and that there were at least MinISR of them. Such a
// record is never lost, reordered or changed while one of those disks survives.
// [AcksLeader] promises the leader's disk only, [AcksNone] nothing. An error of an
// append says in its [Outcome] whether the records are in the log, are not, or may
// be; an append whose outcome is unknown is never repeated behind the caller's back.
//
// The rules behind these promises have names such as D8 or HW-2 in comments and
// tests; docs/protocol.md defines every one of them.
//
// # Reading the source
//
// The protocol is pure: no I/O, goroutine, clock, lock or channel. Events and the
// time go in, effects come out. In the order in which to read it:
//
//	epoch.go           leader-epoch history: where logs agree, and where they are cut
//	hw.go              the high watermark, and who waits for it
//	isr.go             who is in sync: lag, expansion, shrinking
//	replica*.go        one copy of one partition: roles, how they change, and damage
//	leader*.go         what a leader does: appends, fetches, reads, streams
//	follower.go        what a follower does
//	tail.go            the newest part of a log, in memory
//	shard*.go          the replicas of one event loop: routing, timers, lag passes, topics
//	election.go        who leads
//	place.go           where new partitions go
//	metadata*.go       the Controller: from what is to what should be, by guarded writes
//	member.go          a broker's view of the cluster
//	link*.go           sessions, numbered envelopes and fragments between two brokers
//	events.go          what the parts above share: configuration, surroundings, effects
//
// Around it are thin drivers: loop.go, writer.go, peers.go, control*.go,
// registration.go, broker.go, shutdown.go, on mailbox.go, pool.go, requests.go and
// view.go; and the handles: client.go, topic.go, partition.go, position.go,
// writable.go, producer*.go, controller*.go, inspect.go, status.go, observer.go.
// ARCHITECTURE.md tells how they fit, and lists every goroutine.
//
// # Terms
//
// The nouns are Kafka's, used exactly.
//
//	AR      assigned replicas of a partition, in order of preference; AR = ISR + OSR
//	ISR     in-sync replicas: those that may lead, and whose disks the high watermark counts
//	OSR     out-of-sync replicas: assigned, and not (yet, or any more) in sync
//	LEO     log end offset: the offset of the next record
//	HW      high watermark: one behind the newest committed record
//	MinISR  how many replicas must be in sync for an append with AcksAll
//
// A leader epoch numbers the leaderships of one partition, a partition epoch the
// changes of its state, a broker epoch the registrations of one broker, and a
// controller epoch the Controllers. The log start offset is that of the oldest record.
package tidemark
