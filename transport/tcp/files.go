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
	"sync/atomic"
	"time"
)

// Paths are files in PEM form.
type Paths struct {
	CA          string // certificates of the authorities that are trusted
	Certificate string // this broker's, with what leads to an authority
	Key         string // of Certificate
}

const (
	// lookEvery is how often files are looked at, at most.
	lookEvery = time.Second
	// lookSlow is when it is told that a look does not end.
	lookSlow = 10 * time.Second
)

// Files are the certificates of a broker in files that may change while it runs. At
// a handshake, but at most once a second, it has somebody look whether one of them
// has another time or size, and read all of them then; Reload does so in any case. No
// handshake waits for that: it takes what was read last, and the next one what is new.
// What cannot be used changes nothing; it is a warning, and is looked at again. That is
// half of a new pair, or a certificate which is not valid now, for both ends of a
// connection, by the authorities read with it. Connections that stand are not
// affected. All methods may be called from any goroutine.
type Files struct {
	paths Paths
	log   *slog.Logger
	disk  disk

	present atomic.Pointer[credentials]
	began   time.Time
	looked  atomic.Int64 // nanoseconds after began
	looking atomic.Bool  // there is a goroutine that does

	mu     sync.Mutex // held while files are read: never by a handshake
	seen   [3]stamp
	failed string // what was warned of
}

// disk is what reads files.
type disk struct {
	stat func(string) (fs.FileInfo, error)
	read func(string) ([]byte, error)
}

// credentials are what was read together.
type credentials struct {
	cert *tls.Certificate
	pool *x509.CertPool
}

// stamp is how a file looks from outside.
type stamp struct {
	modified time.Time
	size     int64
}

// LoadFiles reads the files for the first time, and waits for the disk. The logger may
// be nil. The error wraps that of the file, or of the certificate.
func LoadFiles(paths Paths, logger *slog.Logger) (*Files, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	f := &Files{paths: paths, log: logger, disk: disk{os.Stat, os.ReadFile}, began: time.Now()}
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
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.current().cert, nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.current().cert, nil },
	}
}

// Roots are the present authorities. It is for Config.Roots.
func (f *Files) Roots() *x509.CertPool { return f.current().pool }

// current is what there is, at once. It has the files looked at if that is due.
func (f *Files) current() *credentials {
	now := time.Since(f.began)
	if now-time.Duration(f.looked.Load()) >= lookEvery && f.looking.CompareAndSwap(false, true) {
		f.looked.Store(int64(now))
		go f.look()
	}
	return f.present.Load()
}

// Reload reads the files now, and waits for the disk. With an error everything stays
// as it was.
func (f *Files) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked.Store(int64(time.Since(f.began)))
	seen, err := f.stamps()
	if err != nil {
		return err
	}
	return f.read(seen)
}

// look reads the files if they have changed. It is a goroutine of its own, one at a
// time, as a disk may hang.
func (f *Files) look() {
	defer f.looking.Store(false)
	slow := time.AfterFunc(lookSlow, func() {
		f.log.Warn("certificate files are not read in time, what they held before is used", "certificate", f.paths.Certificate)
	})
	defer slow.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, err := f.stamps()
	if err == nil {
		if seen == f.seen {
			f.failed = "" // it passed
			return
		}
		err = f.read(seen)
	}
	if err == nil {
		f.log.Info("certificate files were read", "certificate", f.paths.Certificate, "until", f.present.Load().cert.Leaf.NotAfter)
	} else if what := failureOf(err); f.failed != what {
		f.failed = what
		f.log.Warn("certificate files cannot be used, what they held before is", "error", err)
	}
}

// failureOf is the same for what is the same failure.
func failureOf(err error) string {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) { // the text may have the time
		return fmt.Sprint(invalid.Reason, invalid.Cert.SerialNumber)
	}
	return err.Error()
}

func (f *Files) stamps() (seen [3]stamp, err error) {
	for i, path := range []string{f.paths.CA, f.paths.Certificate, f.paths.Key} {
		info, err := f.disk.stat(path)
		if err != nil {
			return seen, fmt.Errorf("tcp: %w", err)
		}
		seen[i] = stamp{info.ModTime(), info.Size()}
	}
	return seen, nil
}

// read takes what the files hold. seen is how they looked before that, so that what
// changes meanwhile is read once more. It is called with mu locked.
func (f *Files) read(seen [3]stamp) error {
	var content [3][]byte
	for i, path := range []string{f.paths.CA, f.paths.Certificate, f.paths.Key} {
		var err error
		if content[i], err = f.disk.read(path); err != nil {
			return fmt.Errorf("tcp: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content[0]) {
		return fmt.Errorf("tcp: %s holds no certificate", f.paths.CA)
	}
	cert, err := tls.X509KeyPair(content[1], content[2])
	if err != nil {
		return fmt.Errorf("tcp: %s and %s: %w", f.paths.Certificate, f.paths.Key, err)
	}
	if err := prove(&cert, pool); err != nil {
		return fmt.Errorf("tcp: %s by %s: %w", f.paths.Certificate, f.paths.CA, err)
	}
	f.present.Store(&credentials{&cert, pool})
	f.seen, f.failed = seen, ""
	return nil
}

// prove checks that peers with the same authorities would take cert now, at both ends
// of a connection. It sets Leaf.
func prove(cert *tls.Certificate, pool *x509.CertPool) error {
	between := x509.NewCertPool()
	for i, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		if i == 0 {
			cert.Leaf = c
		} else {
			between.AddCert(c)
		}
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
			return err
		}
	}
	return nil
}
