// Package embedded runs a member of an etcd cluster inside the host's process, so that
// three processes of an application are all that a Tidemark cluster needs. It is apart
// from package etcd so that who uses an etcd of their own does not link its server.
//
// # Members
//
// A cluster has three members, or five: a majority has to be up for anything to be
// written. All have the same Cluster map, and each has a directory, which holds about
// what etcd's does: a write-ahead log in files of 64 MB, snapshots, and the database.
// Old revisions are compacted after Config.Retention.
//
// A member whose directory is lost must not come back with an empty one: it would have
// forgotten what it has agreed to. The others refuse it while they can be reached.
// Remove it from the cluster and add it again instead, with etcdctl or an etcd client
// (MemberRemove, MemberAdd), and start it with Existing and an empty directory.
//
// # What can go wrong
//
// The member is a guest: it logs only to Config.Logger, and where etcd would end the
// process the member ends instead. Failed is closed then, Err says why, and clients of
// this member have to use the others. So it is when the disk is full: the write-ahead
// log or the database cannot be written, the member stops within seconds, and the others
// go on while they are a majority. With space on the disk it may be started again, on
// the same directory. (A database that has reached Config.QuotaBytes is another matter:
// etcd refuses all further writes, everywhere, until it was compacted, defragmented, and
// its alarm disarmed; see etcd's documentation on space quotas.) What etcd does not
// notice by itself, such as a fault in its own memory, still ends the process.
//
// Close takes about a second, and hands over the leadership first.
//
// A disk that hangs stops the member's messages too, so another one becomes the leader.
//
// # Security
//
// Without ClientTLS and PeerTLS everybody who reaches the addresses can read and write
// everything. With them, only holders of a certificate that CA has signed can. Users and
// passwords are set up with etcdctl or an etcd client, as for any etcd.
package embedded
