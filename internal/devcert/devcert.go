// Package devcert makes certificates on the fly, for tests, demonstrations and
// rigs of several processes on one machine. Its authority lives in memory and
// signs for a day: what runs for longer, or matters, needs certificates of its
// host's own.
package devcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

// lifetime of what is issued. An hour before now is for clocks that are behind.
const (
	lifetime = 24 * time.Hour
	before   = time.Hour
)

// Authority signs the certificates of one cluster's brokers. Its methods may be
// called from any goroutine.
type Authority struct {
	cluster string
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	pool    *x509.CertPool
}

// NewAuthority makes an authority with a fresh key (ECDSA P-256). Two of the same
// cluster do not trust each other's certificates.
func NewAuthority(cluster string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := newTemplate("authority of " + cluster)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("devcert: authority of %q: %w", cluster, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("devcert: authority of %q: %w", cluster, err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &Authority{cluster: cluster, cert: cert, key: key, pool: pool}, nil
}

func newTemplate(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-before),
		NotAfter:     now.Add(lifetime),
	}, nil
}

// Pool is what trusts this authority, and nothing else. It must not be changed.
func (a *Authority) Pool() *x509.CertPool { return a.pool }

// Certificate issues one for a broker: URI SAN tidemark://CLUSTER/broker/ID, the
// loopback addresses, for both ends of a connection. edit, unless nil, changes it
// before it is signed, for tests of certificates that must be refused.
func (a *Authority) Certificate(id int32, edit func(*x509.Certificate)) (tls.Certificate, error) {
	fail := func(err error) (tls.Certificate, error) {
		return tls.Certificate{}, fmt.Errorf("devcert: broker %d of %q: %w", id, a.cluster, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	template, err := newTemplate(fmt.Sprintf("broker %d of %s", id, a.cluster))
	if err != nil {
		return fail(err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.URIs = []*url.URL{{Scheme: "tidemark", Host: a.cluster, Path: fmt.Sprintf("/broker/%d", id)}}
	template.DNSNames = []string{"localhost"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if edit != nil {
		edit(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fail(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// Config issues a certificate for a broker and returns mutual TLS for both ends of
// its connections. The caller may change it.
func (a *Authority) Config(id int32) (*tls.Config, error) {
	cert, err := a.Certificate(id, nil)
	if err != nil {
		return nil, err
	}
	return mutual(cert, a.pool), nil
}

func mutual(cert tls.Certificate, pool *x509.CertPool) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	}
}
