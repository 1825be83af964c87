package tcp

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/internal/devcert"
)

// loaded are the files of a broker, with what loads them.
func loaded(t *testing.T, ca *devcert.Authority, id int32, log *lines) *Files {
	dir := t.TempDir()
	require.NoError(t, ca.WriteFiles(dir, id))
	authorities, cert, key := devcert.Paths(dir, id)
	f, err := LoadFiles(Paths{CA: authorities, Certificate: cert, Key: key}, log.logger())
	require.NoError(t, err)
	return f
}

// due lets the next handshake look at the files, and returns when that is over.
func due(t *testing.T, f *Files) {
	t.Helper()
	f.looked.Store(-int64(lookEvery))
	require.NotNil(t, f.Roots())
	eventually(t, func() bool { return !f.looking.Load() }, "it looks for ever")
}

// A disk that hangs holds up neither handshakes nor Close, and costs one goroutine.
func TestDiskHangs(t *testing.T) {
	r := newRig(t, true)
	var log lines
	files := loaded(t, r.ca, 2, &log)
	hung, calls := make(chan struct{}), atomic.Int64{}
	stat, read := files.disk.stat, files.disk.read
	files.disk.read = func(path string) ([]byte, error) {
		calls.Add(1)
		<-hung
		return read(path)
	}
	require.NoError(t, os.Chtimes(files.paths.CA, time.Time{}, time.Now().Add(time.Minute)))
	files.looked.Store(-int64(lookEvery))

	got := new(box)
	b := r.open(2, func(c *Config) { c.TLS, c.Roots = files.TLS(), files.Roots }, got.handle)
	p := newProxy(t, b.Addr().String())
	a := r.open(1, nil, nobody)
	for seq := range uint64(3) {
		files.looked.Store(-int64(lookEvery))
		reach(t, a, p.peer(2), got, seq+1)
		p.cut()
	}
	eventually(t, func() bool { return calls.Load() > 0 }, "nobody looks")
	require.NoError(t, b.Close())
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	require.Equal(t, 1, bytes.Count(stacks, []byte("(*Files).look(")), "more than one at a time")
	require.True(t, files.looking.Load())
	close(hung)
	eventually(t, func() bool { return !files.looking.Load() }, "it does not end")
	require.Equal(t, 1, log.count("certificate files were read"))

	// So it is where the names of files are looked up.
	files.disk.stat = func(path string) (os.FileInfo, error) { return nil, errors.New("it does not answer") }
	due(t, files)
	due(t, files)
	require.Equal(t, 1, log.count("it does not answer"))
	files.disk.stat = stat
	due(t, files)
	files.disk.stat = func(path string) (os.FileInfo, error) { return nil, errors.New("it does not answer") }
	due(t, files)
	require.Equal(t, 2, log.count("it does not answer"), "what passed and came again is news")
}

// A pair that no peer would take does not replace one that works.
func TestUselessCertificateIsNotTaken(t *testing.T) {
	ca, err := devcert.NewAuthority("c")
	require.NoError(t, err)
	other, err := devcert.NewAuthority("c")
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		by   *devcert.Authority
		edit func(*x509.Certificate)
		err  string
	}{
		"expired":       {ca, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "expired or is not yet valid"},
		"not yet valid": {ca, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }, "expired or is not yet valid"},
		"not of the CA": {other, nil, "unknown authority"},
		"for one end": {ca, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}, "incompatible key usage"},
	} {
		t.Run(name, func(t *testing.T) {
			var log lines
			f := loaded(t, ca, 1, &log)
			before := f.present.Load()
			write(t, f.paths, tt.by, tt.edit)
			for range 3 {
				due(t, f)
				<-time.After(step)
			}
			require.Same(t, before, f.present.Load())
			require.Equal(t, 1, log.count("certificate files cannot be used"), "%s", &log)
			require.Equal(t, 1, log.count(tt.err), "%s", &log)
			require.ErrorContains(t, f.Reload(), tt.err)
			_, err := LoadFiles(f.paths, nil)
			require.ErrorContains(t, err, tt.err)
			require.NotContains(t, err.Error(), "\n")

			write(t, f.paths, ca, nil)
			due(t, f)
			require.NotSame(t, before, f.present.Load())
			require.Equal(t, 1, log.count("certificate files were read"))
		})
	}
}

// What does not get better is told of once, though the clock goes on.
func TestSameFailureIsToldOnce(t *testing.T) {
	cert := &x509.Certificate{SerialNumber: big.NewInt(7)}
	expired := func(detail string) error {
		return fmt.Errorf("tcp: %w", x509.CertificateInvalidError{Cert: cert, Reason: x509.Expired, Detail: detail})
	}
	require.Equal(t, failureOf(expired("at noon")), failureOf(expired("a second later")))
	require.NotEqual(t, failureOf(errors.New("a")), failureOf(errors.New("b")))
}

// write replaces the certificate of broker 1 and its key.
func write(t *testing.T, paths Paths, by *devcert.Authority, edit func(*x509.Certificate)) {
	cert, err := by.Certificate(1, edit)
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(t, err)
	for path, block := range map[string]*pem.Block{
		paths.Certificate: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]},
		paths.Key:         {Type: "PRIVATE KEY", Bytes: key},
	} {
		fresh := filepath.Join(t.TempDir(), "fresh")
		require.NoError(t, os.WriteFile(fresh, pem.EncodeToMemory(block), 0o600))
		require.NoError(t, os.Rename(fresh, path))
	}
}
