package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Paths are files in PEM form.
type Paths struct {
	CA          string // certificates of the authorities that are trusted
	Certificate string // this broker's, with what leads to an authority
	Key         string // of Certificate
}

// lookEvery is how often files are looked at, at most.
const lookEvery = time.Second

// Files are the certificates of a broker in files that may change while it runs. At
// a handshake, but at most once a second, it looks whether one of them has another
// time or size, and reads all of them then; Reload does so in any case. What cannot be
// used, such as half of a new pair, changes nothing; it is a warning, and is looked
// at again. Connections that stand are not affected. All methods may be called from
// any goroutine.
type Files struct {
	paths Paths
	log   *slog.Logger

	mu     sync.Mutex // held while files are read
	looked time.Time
	seen   [3]stamp
	failed string // what was warned of
	cert   *tls.Certificate
	pool   *x509.CertPool
}

// stamp is how a file looks from outside.
type stamp struct {
	modified time.Time
	size     int64
}

// LoadFiles reads the files for the first time. The logger may be nil.
func LoadFiles(paths Paths, logger *slog.Logger) (*Files, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	f := &Files{paths: paths, log: logger}
	if err := f.Reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// TLS is a configuration for Config.TLS that shows the present certificate. Roots
// belong to it: Config{TLS: f.TLS(), Roots: f.Roots}.
func (f *Files) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.certificate(), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.certificate(), nil },
	}
}

// Roots are the present authorities. It is for Config.Roots.
func (f *Files) Roots() *x509.CertPool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f.pool
}

func (f *Files) certificate() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f.cert
}

// Reload reads the files now. With an error everything stays as it was.
func (f *Files) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked = time.Now()
	seen, err := f.stamps()
	if err != nil {
		return err
	}
	return f.read(seen)
}

// look reads the files if they have changed. It is called with mu locked.
func (f *Files) look() {
	if time.Since(f.looked) < lookEvery {
		return
	}
	f.looked = time.Now()
	seen, err := f.stamps()
	if err == nil {
		if seen == f.seen {
			return
		}
		err = f.read(seen)
	}
	if err == nil {
		f.log.Info("certificate files were read", "certificate", f.paths.Certificate, "until", f.cert.Leaf.NotAfter)
	} else if f.failed != err.Error() {
		f.failed = err.Error()
		f.log.Warn("certificate files cannot be used, what they held before is", "error", err)
	}
}

func (f *Files) stamps() (seen [3]stamp, err error) {
	for i, path := range []string{f.paths.CA, f.paths.Certificate, f.paths.Key} {
		var info fs.FileInfo
		if info, err = os.Stat(path); err != nil {
			return seen, fmt.Errorf("tcp: %w", err)
		}
		seen[i] = stamp{info.ModTime(), info.Size()}
	}
	return seen, nil
}

// read takes what the files hold. seen is how they looked before that, so that what
// changes meanwhile is read once more.
func (f *Files) read(seen [3]stamp) error {
	ca, err := os.ReadFile(f.paths.CA)
	if err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return fmt.Errorf("tcp: %s holds no certificate", f.paths.CA)
	}
	cert, err := tls.LoadX509KeyPair(f.paths.Certificate, f.paths.Key)
	if err != nil {
		return fmt.Errorf("tcp: %s and %s: %w", f.paths.Certificate, f.paths.Key, err)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return errors.Join(fmt.Errorf("tcp: %s", f.paths.Certificate), err)
		}
	}
	f.cert, f.pool, f.seen, f.failed = &cert, pool, seen, ""
	return nil
}
