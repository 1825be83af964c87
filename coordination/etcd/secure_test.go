package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/etcd"
	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
)

// authority signs certificates for 127.0.0.1.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.make("ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// make writes name.crt and name.key.
func (a *authority) make(name string, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	require.NoError(a.t, os.WriteFile(a.file(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(a.t, os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return key, cert
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue makes a certificate and returns its files.
func (a *authority) issue(name string) *embedded.TLS {
	a.make(name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return &embedded.TLS{Cert: a.file(name + ".crt"), Key: a.file(name + ".key"), CA: a.file("ca.crt")}
}

// client is the configuration of a client with a certificate, if it has a name.
func (a *authority) client(name string) *tls.Config {
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(a.cert)
	if name != "" {
		files := a.issue(name)
		cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		require.NoError(a.t, err)
		c.Certificates = []tls.Certificate{cert}
	}
	return c
}

// TestTLS: three members that speak TLS to each other and to clients, which have to have
// a certificate.
func TestTLS(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	dir, peers := t.TempDir(), make(map[string]string)
	var processes []*process
	for _, name := range []string{"a", "b", "c"} {
		peers[name] = freeAddress(t)
	}
	for name, peer := range peers {
		files := a.issue(name)
		processes = append(processes, startProcess(t, embedded.Config{
			Name: name, Dir: filepath.Join(dir, name), Client: freeAddress(t), Peer: peer, Cluster: peers, ClientTLS: files, PeerTLS: files,
		}))
	}
	var endpoints []string
	for _, p := range processes {
		endpoints = append(endpoints, p.endpoint())
		require.Contains(t, endpoints[len(endpoints)-1], "https://")
	}
	s := open(t, etcd.Config{Endpoints: endpoints, TLS: a.client("client")})
	sess := session(t, s, time.Second)
	rev := do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
	ch, err := s.Watch(ctx, "", rev)
	require.NoError(t, err)
	require.NoError(t, sess.Renew(ctx))
	untilGone(t, ch, "e")

	for name, c := range map[string]*tls.Config{
		"no certificate": a.client(""), "another authority": stranger.client("client"), "no TLS": nil,
	} {
		s := open(t, etcd.Config{Endpoints: endpoints, TLS: c, RequestTimeout: time.Second})
		_, _, err := s.Get(ctx, "k")
		require.ErrorIs(t, err, coordination.ErrUnavailable, name)
	}
	begun := time.Now()
	for _, p := range processes {
		p.stop() // with a client that has a watch
	}
	t.Logf("three members stopped in %v", time.Since(begun))
}

// askWhoItIs gives etcd the user orders, who may use what is below /orders/, and turns
// authentication on.
func askWhoItIs(t testing.TB, endpoints []string) {
	client(t, endpoints, func(ctx context.Context, c *clientv3.Client) {
		for _, step := range []func() error{
			func() error { _, err := c.RoleAdd(ctx, "root"); return err },
			func() error { _, err := c.UserAdd(ctx, "root", "root"); return err },
			func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
			func() error { _, err := c.RoleAdd(ctx, "orders"); return err },
			func() error {
				_, err := c.RoleGrantPermission(ctx, "orders", "/orders/", clientv3.GetPrefixRangeEnd("/orders/"), clientv3.PermissionType(clientv3.PermReadWrite))
				return err
			},
			func() error { _, err := c.UserAdd(ctx, "orders", "secret"); return err },
			func() error { _, err := c.UserGrantRole(ctx, "orders", "orders"); return err },
			func() error { _, err := c.AuthEnable(ctx); return err },
		} {
			require.NoError(t, step())
		}
	})
}

// TestAuthentication: with a user, who may do nothing but below the prefix.
func TestAuthentication(t *testing.T) {
	config := oneMember(t)
	p := startProcess(t, config)
	endpoints := []string{p.endpoint()}
	early := open(t, etcd.Config{Endpoints: endpoints, Prefix: "/orders", Username: "orders", Password: "secret"})
	do(t, early, coordination.Op{Key: "early"}) // before etcd asks who it is
	askWhoItIs(t, endpoints)
	use := func(s *etcd.Store) {
		t.Helper()
		const ttl = 3 * time.Second // etcd takes its time over passwords
		sess := session(t, s, ttl)
		rev := do(t, s, coordination.Op{Key: "e", Session: sess.ID()})
		ch, err := s.Watch(ctx, "", rev)
		require.NoError(t, err)
		require.NoError(t, sess.Renew(ctx))
		untilGone(t, ch, "e")
		closed := session(t, s, time.Hour)
		do(t, s, coordination.Op{Key: "e", Session: closed.ID()})
		require.NoError(t, closed.Close(ctx))
		_, there, err := s.Get(ctx, "e")
		require.NoError(t, err)
		require.False(t, there)
		res, err := s.Do(ctx, creation("t", 500)) // one that is packed
		require.NoError(t, err)
		require.True(t, res.Applied)
		res, err = s.Do(ctx, creation("t", 500))
		require.NoError(t, err)
		require.False(t, res.Applied)
		kvs, _, err := s.List(ctx, "/brokers/topics/t")
		require.NoError(t, err)
		ops := make([]coordination.Op, len(kvs))
		for i, kv := range kvs {
			ops[i] = coordination.Op{Key: kv.Key, Delete: true}
		}
		do(t, s, ops...)
	}
	use(early)
	late := open(t, etcd.Config{Endpoints: endpoints, Prefix: "/orders/", Username: "orders", Password: "secret"})
	use(late)
	// Tokens do not outlive etcd's process.
	p.kill()
	startProcess(t, config).endpoint()
	use(late)
	for name, c := range map[string]etcd.Config{
		"wrong password":  {Prefix: "/orders/", Username: "orders", Password: "wrong"},
		"nobody":          {Prefix: "/orders/"},
		"somebody else's": {Prefix: "/others/", Username: "orders", Password: "secret"},
	} {
		c.Endpoints, c.RequestTimeout = endpoints, time.Second
		s := open(t, c)
		_, _, err := s.Get(ctx, "k")
		require.ErrorIs(t, err, coordination.ErrUnavailable, name)
		_, err = s.Do(ctx, coordination.Txn{Ops: []coordination.Op{{Key: "k"}}})
		require.ErrorIs(t, err, coordination.ErrUnavailable, name)
		ch, err := s.Watch(ctx, "", 0)
		if err == nil {
			err = (<-ch).Err
		}
		require.ErrorIs(t, err, coordination.ErrUnavailable, name)
	}
}

// TestCertificateOfNoAddress: members that do not take each other's certificates say
// why there is no leader.
func TestCertificateOfNoAddress(t *testing.T) {
	a := newAuthority(t)
	peers := map[string]string{"a": freeAddress(t), "b": freeAddress(t)}
	starting, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	errs := make(chan error, len(peers))
	for name, peer := range peers {
		a.make(name, &x509.Certificate{
			DNSNames: []string{"host.example"}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		})
		files := &embedded.TLS{Cert: a.file(name + ".crt"), Key: a.file(name + ".key"), CA: a.file("ca.crt")}
		c := embedded.Config{Name: name, Dir: filepath.Join(t.TempDir(), name), Client: "127.0.0.1:0", Peer: peer, Cluster: peers, ClientTLS: files, PeerTLS: files}
		go func() {
			_, err := embedded.Start(starting, c)
			errs <- err
		}()
	}
	for range peers {
		err := <-errs
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no leader yet")
		require.ErrorContains(t, err, "x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs")
		require.Regexp(t, "[ab] at https://127.0.0.1:", err.Error())
		t.Log(err)
	}
}
