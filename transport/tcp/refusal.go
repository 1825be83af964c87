package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Cause says why a connection was refused, or ended because of what came from it.
type Cause uint8

const (
	// CauseHandshake: no TLS, no certificate, nothing that both ends speak, or the peer
	// does not trust this broker's certificate.
	CauseHandshake Cause = iota
	// CauseCertificate: it is of no authority that is trusted, not valid now, or not for this use.
	CauseCertificate
	// CauseIdentity: the certificate is of no broker of this cluster, or of another
	// than the peer says it is, or than was called.
	CauseIdentity
	// CauseGarbage: something else than a hello came first, or one with a PeerTimeout
	// that no Config may have.
	CauseGarbage
	// CauseVersion: the peer speaks another version of this protocol.
	CauseVersion
	// CauseCluster: the peer is of another cluster.
	CauseCluster
	// CauseAddressee: the peer meant to call another broker.
	CauseAddressee
	// CauseLimit: the peer's MaxMessageBytes is above MaxReceiveBytes.
	CauseLimit
	// CauseTimeout: who it is was not shown within HandshakeTimeout.
	CauseTimeout
	// CauseBroken: the connection ended before that, or within a frame.
	CauseBroken
	// CauseCrowded: newer connections came, and it had not shown who it is.
	CauseCrowded
	// CausePeers: MaxPeers others are connected.
	CausePeers
	// CauseSilence: a peer showed no sign of life.
	CauseSilence
	// CauseFrame: a peer sent what is no frame, or no message, or above a bound.
	CauseFrame
	// CauseForged: a peer sent a message of another broker, or to another.
	CauseForged

	causes = iota
)

var causeNames = [causes]string{"handshake", "certificate", "identity", "garbage", "version", "cluster", "addressee",
	"limit", "timeout", "broken", "crowded", "peers", "silence", "frame", "forged"}

// String is one lower-case word, fit for a label.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// refusal is an error for which this side ends a connection.
type refusal struct {
	cause Cause
	err   error
}

func (r *refusal) Error() string { return fmt.Sprintf("refused (%v): %v", r.cause, r.err) }
func (r *refusal) Unwrap() error { return r.err }

func refuse(c Cause, format string, args ...any) *refusal {
	return &refusal{c, fmt.Errorf(format, args...)}
}

// causeOf finds the cause in what came of a handshake.
func causeOf(err error) Cause {
	var (
		r    *refusal
		cert *tls.CertificateVerificationError
		net  net.Error
	)
	switch {
	case errors.As(err, &r):
		return r.cause
	case errors.As(err, &cert), isCertificateError(err):
		return CauseCertificate
	case errors.Is(err, errMagic):
		return CauseGarbage
	case errors.Is(err, errVersion):
		return CauseVersion
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &net) && net.Timeout():
		return CauseTimeout
	case ended(err):
		return CauseBroken
	}
	return CauseHandshake
}

// isCertificateError finds what a VerifyConnection of the host's may return.
func isCertificateError(err error) bool {
	return errors.As(err, new(x509.CertificateInvalidError)) || errors.As(err, new(x509.UnknownAuthorityError))
}

// ended reports whether a connection has ended, and that is all there is to say.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrClosedPipe) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
