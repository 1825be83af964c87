// Package etcd keeps a cluster's metadata in etcd: the coordination store for brokers
// that live in several processes. It is a module of its own, so that who does not use
// it has nothing of etcd or gRPC in the build.
//
// # A quorum inside the brokers' own processes
//
// With package embedded, three processes need nothing else. Each runs, before its
// broker:
//
//	member, err := embedded.Start(ctx, embedded.Config{
//		Name: "a", Dir: "/var/lib/app/etcd",
//		Client: "10.0.0.1:2379", Peer: "10.0.0.1:2380",
//		Cluster: map[string]string{"a": "10.0.0.1:2380", "b": "10.0.0.2:2380", "c": "10.0.0.3:2380"},
//	})
//	...
//	defer member.Close()
//	store, err := etcd.Open(ctx, etcd.Config{
//		Endpoints: append(member.Endpoints(), "10.0.0.2:2379", "10.0.0.3:2379"),
//	})
//	...
//	defer store.Close()
//	broker, err := tidemark.Open(ctx, tidemark.Config{ID: 1, Coordination: store, ...})
//
// Client and Peer are what a member listens on: an IP address, or "localhost". Cluster
// is what the others are told, where names will do as well.
//
// Start the three at the same time: Start returns once a majority is there. Two of
// three have to be up for any change of metadata; records flow on without.
//
// With certificates in files, which the brokers' own connections (transport/tcp) may
// use as well, nobody else gets in:
//
//	identity := &embedded.TLS{CA: "ca.pem", Cert: "a.pem", Key: "a-key.pem"}
//	member, err := embedded.Start(ctx, embedded.Config{..., ClientTLS: identity, PeerTLS: identity})
//	...
//	files, err := tcp.LoadFiles(tcp.Paths{CA: "ca.pem", Certificate: "a.pem", Key: "a-key.pem"}, logger)
//	...
//	access := files.TLS()
//	access.RootCAs = files.Roots() // etcd's client does not ask files for them
//	store, err := etcd.Open(ctx, etcd.Config{
//		Endpoints: append(member.Endpoints(), "https://10.0.0.2:2379", "https://10.0.0.3:2379"),
//		TLS:       access,
//	})
//
// The certificate and the key are read again when their files change, these RootCAs are
// not. See embedded.TLS for what a certificate needs.
//
// # An etcd of yours
//
//	store, err := etcd.Open(ctx, etcd.Config{
//		Endpoints: []string{"https://etcd-1:2379", "https://etcd-2:2379", "https://etcd-3:2379"},
//		Prefix:    "/clusters/orders/",
//		TLS:       &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
//		Username:  "orders", Password: password,
//	})
//
// The user needs read and write access to the range of keys below the prefix:
//
//	etcdctl role add orders
//	etcdctl role grant-permission orders readwrite /clusters/orders/ --prefix
//	etcdctl user add orders
//	etcdctl user grant-role orders orders
//
// Let etcd compact itself (--auto-compaction-mode=periodic
// --auto-compaction-retention=10m): every renewal of a session writes a revision, about
// 200 bytes until it is compacted. Three brokers with the default SessionTimeout make
// about 115,000 of them a day. An etcd that is never compacted is full one day, and
// takes no more writes.
//
// # Sessions
//
// A session is an etcd lease, which its ephemeral keys are bound to, and a beacon: a key
// that each Renew writes. Nothing is renewed in the background. Every open Store looks
// at all beacons, sixteen times per shortest ttl, and one that sees a beacon stand still
// for its ttl ends the session: it first writes so, on the condition that the beacon
// has not moved, and then revokes the lease, which deletes the session's keys in one
// revision. The lease itself has a ttl of ten times the session's, at least a minute; it
// counts only when no Store is left.
//
// So a session never lives shorter than its ttl from its last renewal, and usually no
// more than a tenth of it longer: etcd's own expiry has a grain of whole seconds, is up
// to half a second late, and begins anew with every new leader of etcd. A ttl may be a
// fraction of a second. When etcd, the way to it or this process stood still for more
// than half a ttl, everybody gets a whole ttl from then on: nobody's renewals arrived.
// Without a Store that reaches etcd no session ends but by its lease.
//
// The leader of etcd may be lost without harm to sessions while the next one is there
// within half a ttl. An embedded member's defaults do that in about half a second, at
// most one; an etcd of yours, with its default --election-timeout of 1000 ms, in one or
// two seconds, so do not go below a SessionTimeout of 4 s there.
//
// # Limits
//
// A transaction is one request and one revision, whatever etcd's --max-txn-ops is (128
// or more), with as many guards and ops as its size allows: 1.5 MiB by default
// (--max-request-bytes of etcd; embedded members take 32 MiB), and 64,000 guards and ops
// together. Tidemark's own stay within coordination.MaxTxnOps and MaxTxnBytes. One that
// does not fit fails with ErrTooLarge; it was not applied.
//
// A watch whose receiver leaves 100,000 events or 32 MiB unread ends with
// coordination.ErrCompacted, and so does one that begins at a revision which etcd has
// compacted.
//
// # Backups
//
// Do not restore etcd from a backup while brokers are up. A Store that sees etcd's
// revision go backwards, or another etcd answer, ends with ErrRewound: its process goes
// on with the data that it has, takes part in no change of metadata any more, and has
// to be restarted once the matter is settled. A restarted broker refuses an etcd which
// does not know its last registration (tidemark.ErrCoordinationBehind). See
// https://etcd.io/docs/latest/op-guide/recovery for how to restore with a revision bump
// (etcdutl snapshot restore --bump-revision), which is the way to do it.
package etcd
