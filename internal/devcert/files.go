package devcert

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// Paths returns where WriteFiles puts what a broker needs: the authority's
// certificate, and the broker's with its key.
func Paths(dir string, id int32) (ca, cert, key string) {
	return filepath.Join(dir, "ca.pem"),
		filepath.Join(dir, fmt.Sprintf("broker-%d.pem", id)),
		filepath.Join(dir, fmt.Sprintf("broker-%d-key.pem", id))
}

// WriteFiles issues a certificate for a broker and writes ca.pem, broker-ID.pem and
// broker-ID-key.pem into dir, which it makes if there is none; the key is for its
// owner alone. Each file is replaced as a whole, so that whoever reads them while
// they are written finds an old or a new one. hosts are names or addresses, besides
// those of loopback, that the certificate is good for: Tidemark does not look at them.
func (a *Authority) WriteFiles(dir string, id int32, hosts ...string) error {
	cert, err := a.Certificate(id, func(c *x509.Certificate) {
		for _, host := range hosts {
			if ip := net.ParseIP(host); ip != nil {
				c.IPAddresses = append(c.IPAddresses, ip)
			} else {
				c.DNSNames = append(c.DNSNames, host)
			}
		}
	})
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return fmt.Errorf("devcert: key of broker %d: %w", id, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("devcert: %w", err)
	}
	caPath, certPath, keyPath := Paths(dir, id)
	for _, f := range []struct {
		path, kind string
		der        []byte
		mode       os.FileMode
	}{
		{caPath, "CERTIFICATE", a.cert.Raw, 0o644},
		{certPath, "CERTIFICATE", cert.Certificate[0], 0o644},
		{keyPath, "PRIVATE KEY", key, 0o600},
	} {
		if err := replace(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), f.mode); err != nil {
			return fmt.Errorf("devcert: %w", err)
		}
	}
	return nil
}

func replace(path string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".devcert-*") // for its owner alone
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if chmod := f.Chmod(mode); err == nil {
		err = chmod
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error says more
	}
	return err
}

// Load returns mutual TLS from what WriteFiles wrote.
func Load(dir string, id int32) (*tls.Config, error) {
	caPath, certPath, keyPath := Paths(dir, id)
	ca, err := os.ReadFile(caPath)
	if err != nil {
		return nil, fmt.Errorf("devcert: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("devcert: %s holds no certificate", caPath)
	}
	cert, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err != nil {
		return nil, fmt.Errorf("devcert: broker %d: %w", id, err)
	}
	return mutual(cert, pool), nil
}
