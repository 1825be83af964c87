// Package tcp is a Transport over TCP, with mutual TLS. It needs nothing but the
// standard library.
//
//	files, err := tcp.LoadFiles(tcp.Paths{CA: "ca.pem", Certificate: "broker-1.pem", Key: "broker-1-key.pem"}, logger)
//	…
//	t, err := tcp.New(tcp.Config{ID: 1, Cluster: "orders", Listen: ":7070", TLS: files.TLS(), Roots: files.Roots, Logger: logger})
//	…
//	b, err := tidemark.Open(ctx, tidemark.Config{ID: 1, Address: "10.0.0.1:7070", Transport: t, …})
//
// # Who speaks
//
// A broker's certificate says in a URI which broker of which cluster it is for:
// tidemark://CLUSTER/broker/ID (or whatever Config.PeerID reads from it). Names and
// addresses in it do not matter. At both ends of each connection the chain is
// verified against Config.TLS or Config.Roots, for its use (the end that dials:
// server authentication; the one that accepts: client authentication) and its
// time. The broker who is dialed must be the one of the Peer; the broker who dials
// must be the one that he says he is, and the sender of each message; and each
// message must be for this broker. TLS is 1.3 unless Config.TLS.MinVersion says
// otherwise, and sessions are not resumed. A connection that stands is not ended
// when a certificate expires or an authority is withdrawn: the next one is refused.
//
// Config.TLS may have GetCertificate, GetClientCertificate and GetConfigForClient, and
// VerifyConnection for further checks, at both ends. VerifyPeerCertificate gets no
// chains where this side dials. Files reloads all that brokers need when files change.
//
// With Config.Plaintext there is no proof of anything: whoever reaches the port and
// knows the name of the cluster can take part as any broker.
//
// # Connections
//
// A broker dials each peer to which it sends, and keeps that connection for what it
// sends; what the peer sends comes by the peer's own. On a connection messages keep
// their order, but for link control (Hello, Welcome, Reset), which goes first. A
// message is lost with the connection on which it was sent, and so is what waited
// behind it; what waits for a connection is dropped after a second. What belongs to a
// link session that has ended at this side is dropped when the next one begins.
//
// The receiver acknowledges bytes as they come, at least every eighth of PeerTimeout,
// whether or not messages are complete; a sender that has nothing to send asks for
// that every quarter of it. Without an acknowledgement for PeerTimeout the connection
// is replaced, so it is when one direction alone is dead; without a byte for the
// larger of both ends' PeerTimeout the receiver closes it. A slow peer is a live one.
// A receiver whose Handler blocks is taken for dead.
//
// Connections are made again at once, and then after 50 ms, doubled up to 1 s, each
// less up to half by chance. The newest connection of a peer counts at the receiver,
// once it has shown who it is; the one before is closed, and what it had read is
// delivered first.
//
// # On the wire
//
// Numbers are big-endian. Within TLS, or without it, either end sends one hello, the
// end that dials first, and nothing before it has got its answer:
//
//	magic    8 bytes "tidemark"
//	version  1 byte   1
//	status   1 byte   0; in an answer that refuses: why
//	timeout  4 bytes  PeerTimeout of the sender, in milliseconds
//	limit    4 bytes  dialer: MaxMessageBytes; answer: MaxReceiveBytes
//	from, to 4 bytes each, broker ids
//	cluster  1 byte length, and the name
//
// Then the dialer sends frames, each a length of 4 bytes and that many bytes, a
// message in the binary form of package protocol; the length 0 alone asks for an
// acknowledgement. The other end sends acknowledgements of 8 bytes: how many bytes
// of frames it has read. Lengths above MaxReceiveBytes end the connection before
// anything is allocated, and memory is taken as bytes come, not as they are announced.
//
// # Logging
//
// Config.Logger gets changes of a peer's state (keys broker, peer, address, error):
// "peer is connected" at Info; "connection to peer is lost" and "peer cannot be
// reached" at Warn, the latter again once a minute while it lasts; and at Warn
// "connection refused" (also cause, see Cause), once a minute for each cause. A peer
// that comes and goes gets six lines in a row, and then one every ten seconds. At
// Error, once a minute for each peer: "message cannot be sent", a fault of this
// program. What is not said is at Debug; since_last is how many like it that were.
//
// "cannot accept connections" at Warn, once a minute, tells of what may pass, such as
// a want of file descriptors; "listener was closed" at Error, once, that the host has
// closed its Listener.
//
// # Locks and goroutines
//
// A Transport has a goroutine that accepts, one for each connection that came in, and
// two for each peer to which it sends, until nothing was sent for IdleTimeout. Files
// have one while they are looked at; it outlives Close where a disk hangs. No lock
// is held while anything is read, written or dialed, nor around the Handler or the
// Logger. The Transport's lock comes before that of a peer.
package tcp
