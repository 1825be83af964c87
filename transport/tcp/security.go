package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// security makes the TLS configurations of both ends from the host's. What identity
// rests on is set here, and is the same whatever the host's configuration says:
//
//   - The peer's chain is verified in VerifyConnection, for the use at hand, against
//     the host's authorities and never the system's. Names and addresses in the
//     certificate do not matter, so the check that a client makes by default is off
//     (InsecureSkipVerify): who it is follows from PeerID.
//   - Sessions are not resumed: each connection proves its identity anew.
type security struct {
	host   *tls.Config
	roots  func() *x509.CertPool // nil: those in host
	peerID func(*x509.Certificate) (int32, error)
	client *tls.Config
	server *tls.Config
}

func newSecurity(c *Config) (*security, error) {
	s := &security{host: c.TLS.Clone(), roots: c.Roots, peerID: c.PeerID}
	certain := len(s.host.Certificates) > 0
	if !certain && (s.host.GetClientCertificate == nil || s.host.GetCertificate == nil && s.host.GetConfigForClient == nil) {
		return nil, fmt.Errorf("%w: TLS has no certificate, or for one end only", ErrInvalidConfig)
	}
	if s.roots == nil && s.host.RootCAs == nil && s.host.ClientCAs == nil {
		return nil, fmt.Errorf("%w: TLS has neither RootCAs nor ClientCAs, and there are no Roots", ErrInvalidConfig)
	}
	if own := s.own(); own != nil {
		if err := s.checkOwn(own, c.ID); err != nil {
			return nil, err
		}
	}
	s.client = s.harden(s.host, s.host.RootCAs, s.host.ClientCAs, x509.ExtKeyUsageServerAuth)
	s.client.InsecureSkipVerify = true
	s.client.ClientSessionCache = nil
	if s.client.GetClientCertificate == nil {
		s.client.GetClientCertificate = s.present
	}

	s.server = s.serverFrom(s.host)
	s.server.GetConfigForClient = s.forClient
	return s, nil
}

// own is the certificate to begin with, or nil if the host has none before a peer asks.
func (s *security) own() *tls.Certificate {
	if len(s.host.Certificates) > 0 {
		return &s.host.Certificates[0]
	}
	own, err := s.host.GetClientCertificate(&tls.CertificateRequestInfo{
		Version:          tls.VersionTLS13,
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256, tls.ECDSAWithP384AndSHA384, tls.ECDSAWithP521AndSHA512, tls.Ed25519, tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512},
	})
	if err != nil || own == nil || len(own.Certificate) == 0 {
		return nil
	}
	return own
}

// checkOwn finds early that the certificate at hand is another broker's.
func (s *security) checkOwn(own *tls.Certificate, id int32) error {
	leaf := own.Leaf
	if leaf == nil {
		if len(own.Certificate) == 0 {
			return fmt.Errorf("%w: TLS has an empty certificate", ErrInvalidConfig)
		}
		var err error
		if leaf, err = x509.ParseCertificate(own.Certificate[0]); err != nil {
			return fmt.Errorf("%w: TLS has a certificate that cannot be read: %w", ErrInvalidConfig, err)
		}
	}
	switch owner, err := s.peerID(leaf); {
	case err != nil:
		return fmt.Errorf("%w: TLS has a certificate of no broker: %w", ErrInvalidConfig, err)
	case owner != id:
		return fmt.Errorf("%w: TLS has the certificate of broker %d, and ID is %d", ErrInvalidConfig, owner, id)
	}
	return nil
}

// present returns a certificate even where the peer does not trust its authority:
// the peer can say then what is wrong, rather than that there was none.
func (s *security) present(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	for i := range s.host.Certificates {
		if r.SupportsCertificate(&s.host.Certificates[i]) == nil {
			return &s.host.Certificates[i], nil
		}
	}
	return &s.host.Certificates[0], nil
}

// forClient is asked for the configuration of each connection that comes in.
func (s *security) forClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if s.host.GetConfigForClient != nil {
		c, err := s.host.GetConfigForClient(hello)
		if err != nil {
			return nil, err
		}
		if c != nil {
			return s.serverFrom(c), nil
		}
	}
	if s.roots != nil {
		return s.serverFrom(s.host), nil
	}
	return nil, nil // as it is
}

func (s *security) serverFrom(c *tls.Config) *tls.Config {
	server := s.harden(c, c.ClientCAs, c.RootCAs, x509.ExtKeyUsageClientAuth)
	server.GetConfigForClient = nil
	server.ClientAuth = tls.RequireAndVerifyClientCert
	server.SessionTicketsDisabled = true
	return server
}

// harden returns a copy of c that takes peers whose chains lead to an authority in
// pool, or in the other one if that is nil, and have that use.
func (s *security) harden(c *tls.Config, pool, other *x509.CertPool, use x509.ExtKeyUsage) *tls.Config {
	hard := c.Clone()
	if pool == nil {
		pool = other
	}
	if pool == nil { // of a configuration for one client
		if pool = s.host.ClientCAs; pool == nil {
			pool = s.host.RootCAs
		}
	}
	current := func() *x509.CertPool { return pool }
	if s.roots != nil {
		current = s.roots
	}
	if hard.ClientCAs = current(); hard.ClientCAs == nil {
		hard.ClientCAs = x509.NewCertPool() // nil would mean the system's
	}
	if hard.MinVersion == 0 {
		hard.MinVersion = tls.VersionTLS13
	}
	// Large messages: records are as large as can be from the start.
	hard.DynamicRecordSizingDisabled = true
	hard.VerifyConnection = func(state tls.ConnectionState) error {
		if err := s.verify(&state, current(), hard.Time, use); err != nil {
			return err
		}
		if c.VerifyConnection != nil {
			return c.VerifyConnection(state)
		}
		return nil
	}
	return hard
}

// verify checks the peer's chain, and that it is a broker's.
func (s *security) verify(state *tls.ConnectionState, pool *x509.CertPool, clock func() time.Time, use x509.ExtKeyUsage) error {
	if len(state.PeerCertificates) == 0 {
		return refuse(CauseCertificate, "the peer shows no certificate")
	}
	if pool == nil {
		return refuse(CauseCertificate, "there are no authorities to trust")
	}
	o := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{use}}
	if clock != nil {
		o.CurrentTime = clock()
	}
	for _, cert := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	leaf := state.PeerCertificates[0]
	chains, err := leaf.Verify(o)
	if err != nil {
		return &refusal{CauseCertificate, fmt.Errorf("certificate of %q: %w", leaf.Subject.CommonName, err)}
	}
	state.VerifiedChains = chains
	_, err = s.owner(state)
	return err
}

// owner is the broker to whom the peer's certificate belongs.
func (s *security) owner(state *tls.ConnectionState) (int32, error) {
	if len(state.PeerCertificates) == 0 {
		return 0, refuse(CauseCertificate, "the peer shows no certificate")
	}
	id, err := s.peerID(state.PeerCertificates[0])
	if err != nil {
		return 0, &refusal{CauseIdentity, err}
	}
	return id, nil
}

var errNoURI = errors.New("the certificate has no URI of a broker of this cluster")

// peerIDByURI finds the broker by the one URI tidemark://CLUSTER/broker/ID.
func peerIDByURI(cluster string) func(*x509.Certificate) (int32, error) {
	return func(cert *x509.Certificate) (int32, error) {
		var found *url.URL
		for _, u := range cert.URIs {
			if u.Scheme != "tidemark" || u.Host != cluster {
				continue
			}
			if found != nil {
				return 0, fmt.Errorf("the certificate has several URIs of this cluster: %v, %v", found, u)
			}
			found = u
		}
		if found == nil {
			return 0, fmt.Errorf("%w: its URIs are %v, and tidemark://%s/broker/ID is wanted", errNoURI, cert.URIs, cluster)
		}
		digits, ok := strings.CutPrefix(found.String(), "tidemark://"+cluster+"/broker/")
		id, err := strconv.ParseInt(digits, 10, 32)
		if !ok || err != nil || id < 0 || strconv.FormatInt(id, 10) != digits {
			return 0, fmt.Errorf("%w: %v", errNoURI, found)
		}
		return int32(id), nil
	}
}
