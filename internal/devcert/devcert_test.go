package devcert

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// greet lets two ends authenticate each other, and returns their errors.
func greet(t *testing.T, client, server *tls.Config) (clientErr, serverErr error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
		c := tls.Server(raw, server)
		if err = c.Handshake(); err == nil {
			_, err = c.Write([]byte{1})
		}
		served <- err
	}()
	client = client.Clone()
	client.ServerName = "127.0.0.1"
	raw, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer raw.Close()
	require.NoError(t, raw.SetDeadline(time.Now().Add(10*time.Second)))
	c := tls.Client(raw, client)
	_, clientErr = c.Read(make([]byte, 1)) // a refused client learns it here
	return clientErr, <-served
}

func TestMutualTLS(t *testing.T) {
	a, err := NewAuthority("orders-1.eu")
	require.NoError(t, err)
	one, err := a.Config(1)
	require.NoError(t, err)
	two, err := a.Config(2)
	require.NoError(t, err)
	clientErr, serverErr := greet(t, one, two)
	require.NoError(t, clientErr)
	require.NoError(t, serverErr)
	leaf := one.Certificates[0].Leaf
	require.Len(t, leaf.URIs, 1)
	require.Equal(t, "tidemark://orders-1.eu/broker/1", leaf.URIs[0].String())

	// Of another authority, of nobody, expired.
	other, err := NewAuthority("orders-1.eu")
	require.NoError(t, err)
	stranger, err := other.Config(1)
	require.NoError(t, err)
	stranger.RootCAs = a.Pool()
	late, err := a.Certificate(1, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	require.NoError(t, err)
	for _, client := range []*tls.Config{stranger, {RootCAs: a.Pool()}, mutual(late, a.Pool())} {
		_, serverErr = greet(t, client, two)
		require.Error(t, serverErr)
	}
}

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certificates")
	a, err := NewAuthority("c")
	require.NoError(t, err)
	for range 2 { // the second time in place of the first
		require.NoError(t, a.WriteFiles(dir, 1))
		require.NoError(t, a.WriteFiles(dir, 2, "10.1.2.3", "two.example"))
	}
	var names []string
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, d.Name())
		}
		return err
	}))
	require.Equal(t, []string{"broker-1-key.pem", "broker-1.pem", "broker-2-key.pem", "broker-2.pem", "ca.pem"}, names)
	for name, mode := range map[string]os.FileMode{"broker-1-key.pem": 0o600, "broker-1.pem": 0o644, "ca.pem": 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), name)
	}
	one, err := Load(dir, 1)
	require.NoError(t, err)
	two, err := Load(dir, 2)
	require.NoError(t, err)
	clientErr, serverErr := greet(t, one, two)
	require.NoError(t, clientErr)
	require.NoError(t, serverErr)

	_, err = Load(dir, 3)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.pem"), []byte("nothing"), 0o644))
	_, err = Load(dir, 1)
	require.ErrorContains(t, err, "holds no certificate")
	require.Error(t, a.WriteFiles(filepath.Join(dir, "ca.pem"), 1), "a file is in the way")
}

func TestHostsInCertificates(t *testing.T) {
	dir := t.TempDir()
	a, err := NewAuthority("c")
	require.NoError(t, err)
	require.NoError(t, a.WriteFiles(dir, 2, "10.1.2.3", "two.example"))
	c, err := Load(dir, 2)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(c.Certificates[0].Certificate[0])
	require.NoError(t, err)
	for _, host := range []string{"10.1.2.3", "two.example", "localhost", "127.0.0.1"} {
		require.NoError(t, leaf.VerifyHostname(host))
	}
	require.Error(t, leaf.VerifyHostname("10.1.2.4"))
}
