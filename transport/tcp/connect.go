package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/transport"
)

// outConn is a connection on which messages are sent to a peer.
type outConn struct {
	t    *Transport
	raw  *socket
	conn net.Conn // that of raw, or TLS over it
	// The connection between them; nil without TLS.
	records *gatherWrites
	dead    chan struct{}

	written atomic.Uint64 // bytes of frames, before each write
	acked   atomic.Uint64

	once  sync.Once
	cause error // what ended it; read once dead is closed
}

var (
	errSilent = errors.New("tcp: the peer shows no sign of life")
	errAck    = errors.New("tcp: the peer acknowledged what was never sent")
	errMoved  = errors.New("tcp: the peer is at another address now")
	errIdle   = errors.New("tcp: nothing was sent for long")
)

// remoteRefusal is the peer's word that it does not take this connection.
type remoteRefusal struct{ status status }

func (r *remoteRefusal) Error() string { return "tcp: the peer refuses: " + r.status.String() }

// dial opens a connection to a peer, which may be anybody yet.
func (t *Transport) dial(ctx context.Context, address string) (*outConn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.DialTimeout)
	defer cancel()
	raw, err := t.cfg.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	s := t.open(raw)
	if s == nil {
		return nil, transport.ErrClosed
	}
	tune(raw)
	return &outConn{t: t, raw: s, conn: raw, dead: make(chan struct{})}, nil
}

// introduce is the handshake of the one that dials.
func (t *Transport) introduce(c *outConn, id int32) error {
	if err := c.raw.SetDeadline(time.Now().Add(t.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	if t.security != nil {
		c.records = &gatherWrites{Conn: c.raw.Conn}
		secure := tls.Client(c.records, t.security.client)
		if err := secure.Handshake(); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		state := secure.ConnectionState()
		owner, err := t.security.owner(&state)
		if err != nil {
			return err
		}
		if owner != id {
			return refuse(CauseIdentity, "called broker %d, and the certificate is of broker %d", id, owner)
		}
		c.conn = secure
	}
	mine := hello{version: wireVersion, timeout: t.cfg.PeerTimeout, limit: uint32(t.cfg.MaxMessageBytes),
		from: t.cfg.ID, to: id, cluster: t.cfg.Cluster}
	if _, err := c.conn.Write(mine.append(nil)); err != nil {
		return err
	}
	answer, err := readHello(c.conn)
	switch {
	case errors.Is(err, errMagic):
		return &refusal{CauseGarbage, err}
	case errors.Is(err, errVersion):
		return &refusal{CauseVersion, err}
	case err != nil:
		return fmt.Errorf("no answer: %w", err)
	case answer.status != welcome:
		return &remoteRefusal{answer.status}
	case answer.cluster != t.cfg.Cluster:
		return refuse(CauseCluster, "called broker %d, which is of cluster %q", id, answer.cluster)
	case answer.from != id || answer.to != t.cfg.ID:
		return refuse(CauseAddressee, "called broker %d, and broker %d answers broker %d", id, answer.from, answer.to)
	}
	return c.raw.SetDeadline(time.Time{})
}

// end closes the connection for a reason; the first one counts. It waits for
// nothing. One that is given up is not to deliver later what the kernel still has.
func (c *outConn) end(why error) {
	c.once.Do(func() {
		c.cause = why
		if tcp, ok := c.raw.Conn.(*net.TCPConn); ok && !errors.Is(why, transport.ErrClosed) && !errors.Is(why, errIdle) {
			_ = tcp.SetLinger(0)
		}
		_ = c.raw.Close()
	})
}

// readAcks is the goroutine that hears whether the peer lives. It ends with the
// connection, which it ends in silence.
func (c *outConn) readAcks() {
	defer close(c.dead)
	for {
		if err := c.raw.SetReadDeadline(time.Now().Add(c.t.cfg.PeerTimeout)); err != nil {
			c.end(err)
			return
		}
		acked, err := readAck(c.conn)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = errSilent
		case err == io.EOF:
			err = errors.New("tcp: the peer ended the connection")
		case err == nil && (acked < c.acked.Load() || acked > c.written.Load()):
			err = errAck
		}
		if err != nil {
			c.end(err)
			return
		}
		c.acked.Store(acked)
	}
}

// write writes frames, or a ping.
func (c *outConn) write(b []byte) error {
	c.written.Add(uint64(len(b)))
	if c.records == nil {
		_, err := c.conn.Write(b)
		return err
	}
	c.records.hold()
	_, err := c.conn.Write(b)
	if flushed := c.records.release(); err == nil {
		err = flushed
	}
	return err
}
