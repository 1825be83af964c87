// Package zookeeper keeps a cluster's metadata in ZooKeeper: the coordination store for
// brokers that live in several processes, where a ZooKeeper ensemble is at hand. It is a
// module of its own; but for its tests it depends on Tidemark alone. It needs ZooKeeper 3.6
// or newer.
//
//	store, err := zookeeper.Open(ctx, zookeeper.Config{
//		Servers: []string{"zk-1:2181", "zk-2:2181", "zk-3:2181"},
//		Chroot:  "/clusters/orders",
//	})
//	...
//	defer store.Close()
//	broker, err := tidemark.Open(ctx, tidemark.Config{ID: 1, Coordination: store, ...})
//
// With TLS, Config.Dial makes the connections:
//
//	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, Certificates: certificates}}
//	zookeeper.Config{Servers: []string{"zk-1:2281"}, Dial: dialer.DialContext, ...}
//
// # What the servers must allow
//
// The brokers' SessionTimeout has to be between the servers' minSessionTimeout (by
// default twice their tickTime, 4 s) and maxSessionTimeout (20 times, 40 s), or brokers
// cannot register. ZooKeeper ends a session up to one tickTime late.
//
// A transaction takes at most about 0.9 MB on the wire when it is as large as the contract
// allows (coordination.MaxTxnBytes) and its values do not compress; ZooKeeper accepts
// just below 1 MiB (jute.maxbuffer). The usual ones of the Controller take a tenth of that.
// What is above Config.MaxRequest is refused with ErrTooLarge, unsent. The servers keep
// their last 500 transactions in memory, so do not be stingy with their heap: 512 MiB.
//
// # What is where
//
// The key "/brokers/ids/1" is the node CHROOT/brokers/ids/1, and its value is the node's
// data: JSON that zkCli shows.
//
//	CHROOT/cluster                                       cluster id
//	CHROOT/controller                                    ephemeral: who is Controller
//	CHROOT/controller_epoch
//	CHROOT/features, /cleared, /deleted/<topic id>
//	CHROOT/brokers/ids/<id>                              ephemeral: the brokers that are registered
//	CHROOT/brokers/last/<id>, /brokers/newest
//	CHROOT/brokers/topics/<topic>                        topic and configuration
//	CHROOT/brokers/topics/<topic>/partitions/<n>/state   leader, leader_epoch, isr, …
//
//	CHROOT/.sequence          the number of the last transaction, and who owns which ephemeral keys
//	CHROOT/.log/<number>      the last transactions
//	CHROOT/.sessions/<id>     ephemeral: the sessions that are alive
//	CHROOT/.relative          above keys that do not begin with a slash; Tidemark has none
//
// Nodes without data are the parents of keys, and go with the last of these. Names that
// ZooKeeper does not take are escaped: a byte as %XX, an empty name as %. A value that
// is empty or begins with a zero byte has two zero bytes before it.
//
// Look as you like. You may delete ephemeral nodes by hand: a /controller, to have another
// one elected, or a lease below .sessions, to end a session with all its keys; either
// shows as if the session had ended. Do not write anything else by hand: it would be
// guarded against, but watches would not tell of it. To set a cluster back, stop it,
// remove or restore the whole CHROOT, and start it.
//
// # Revisions and transactions
//
// A key's revision is the zxid of its last write, which no deletion and creation brings
// back. ZooKeeper can assert only versions, and these begin again at 0. So each
// transaction is one multi that also sets .sequence, on the condition that it has the
// version it had when the guarded nodes were looked at; whoever was slower looks again.
// All writes below a CHROOT are in one order by that, and one at a time: with three
// servers expect a few hundred a second, of up to 128 keys each.
//
// Each read is preceded by ZooKeeper's sync, so that what was written through one server
// shows at all others; what a Store has written itself always shows to it. Between Stores
// there is one gap, which is ZooKeeper's own: the leader does not wait when it is asked
// itself, and for a moment may not have applied what it has already let others promise. So
// a Get or List there may be that moment old. Transactions are not subject to it: what
// is applied is asserted, and a refusal is first put to a majority.
//
// # Watches
//
// ZooKeeper's watches tell that something has changed, not what, and several changes may
// be one. The contract's tell each change in its order. So a transaction also leaves
// itself, compressed, below .log, and whoever watches reads there; the last
// Config.History are kept, and 16 MiB at most. A list is read while things change, and
// brought to one revision by what the log has meanwhile.
//
// An ephemeral key vanishes by itself, in no transaction. The first Store that notices
// writes its deletion into the log, and gives it a revision and a place in the order by
// that; .sequence lists the keys for which this may become necessary. Nobody answers that
// such a key is absent before. A key that vanished and came back is two events to
// everybody.
//
// When the connection is lost, all watches of the Store end with
// coordination.ErrUnavailable. The next call makes another connection; nothing is tried
// in the background.
//
// # Sessions
//
// A coordination.Session is a ZooKeeper session on a connection of its own, over which
// nothing goes but its own calls, and the transactions of this Store that put its keys. So
// the server's time runs from the last call of Renew, or such a transaction: a process
// that is alive but unfit loses its session. Its id is ZooKeeper's, in hex. When its
// connection is lost, the next call goes on with it on another one, at another server if
// need be.
//
// Its keys are ZooKeeper's ephemeral nodes when the Store that began the session puts them
// in a transaction without keys of other sessions, which is what brokers do. Other puts
// are possible, too: the node is then an ordinary one that names its session, and goes
// with the deletion in the log. A key below an ephemeral node is not possible.
//
// ZooKeeper does not forgive sessions the time for which a server stood still itself, but
// a server that was down and comes back gives each of them its whole timeout again.
//
// # A server that goes back
//
// Servers that were restored from a backup, or emptied, are behind what was answered before.
// A Store that has seen more takes no answer from them: its calls fail with
// coordination.ErrUnavailable, and it says so to Config.Logger, until they have passed
// what it has seen. Restart the brokers after such a restore: they check for
// themselves that the cluster is theirs and not behind their directories.
package zookeeper
