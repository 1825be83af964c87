package tcp

import (
	"container/list"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// strangers are the connections that have not shown yet who they are, the oldest
// first.
type strangers struct {
	waiting list.List // of *stranger
}

type stranger struct {
	raw     *socket
	at      *list.Element
	crowded bool // ended to make room
}

const maxAcceptDelay = time.Second

// accept takes connections until Close, whatever happens meanwhile: a process that
// has no file descriptors left now may have some later.
func (t *Transport) accept() {
	delay := time.Duration(0)
	for {
		c, err := t.listener.Accept()
		if t.closed.Load() {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err == nil {
			delay = 0
			t.admit(c)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			t.cfg.Logger.Error("listener was closed", "broker", t.cfg.ID, "error", err)
			return
		}
		delay = min(max(2*delay, 5*time.Millisecond), maxAcceptDelay)
		if say, before := t.acceptQuiet.open(t.now()); say {
			t.cfg.Logger.Warn("cannot accept connections", "broker", t.cfg.ID, "error", err, "since_last", before)
		}
		timer := time.NewTimer(delay)
		select {
		case <-t.closing:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// admit lets a connection show who it is. Where too many are at it, the one that
// has had most time gives way: who means well is quick.
func (t *Transport) admit(c net.Conn) {
	s := &stranger{raw: &socket{c}}
	var oldest *stranger
	t.mu.Lock()
	if t.closed.Load() {
		t.mu.Unlock()
		_ = c.Close()
		return
	}
	if t.waiting.Len() >= t.cfg.MaxHandshakes {
		oldest = t.waiting.Front().Value.(*stranger)
		oldest.crowded = true
		t.leave(oldest)
	}
	s.at = t.waiting.PushBack(s)
	t.conns[s.raw] = struct{}{}
	t.all.Go(func() { t.meet(s) })
	t.mu.Unlock()
	if oldest != nil {
		_ = oldest.raw.Close()
	}
}

// leave takes s out of those that wait. It is called with mu locked.
func (t *Transport) leave(s *stranger) {
	if s.at != nil {
		t.waiting.Remove(s.at)
		s.at = nil
	}
}

// meet is the goroutine of a connection that came in.
func (t *Transport) meet(s *stranger) {
	defer t.shut(s.raw)
	in, err := t.greet(s.raw.Conn)
	t.mu.Lock()
	t.leave(s)
	crowded := s.crowded
	t.mu.Unlock()
	if crowded { // even if it was just about to succeed: the connection is closed
		err = refuse(CauseCrowded, "newer connections came")
	}
	if err != nil {
		if !t.closed.Load() {
			t.refuse(addressOf(s.raw), -1, err)
		}
		if in != nil {
			t.unseat(in)
		}
		return
	}
	err = t.receive(in)
	t.unseat(in)
	if err != nil && !in.replaced.Load() && !t.closed.Load() {
		t.refuse(addressOf(s.raw), in.source.id, err)
	}
}

// greet finds out who has connected, answers, and gives him his seat. With an error
// behind that, the inbound is returned too.
func (t *Transport) greet(raw net.Conn) (*inbound, error) {
	if err := raw.SetDeadline(time.Now().Add(t.cfg.HandshakeTimeout)); err != nil {
		return nil, err
	}
	counted := &countedConn{Conn: raw}
	in := &inbound{t: t, raw: counted, conn: counted, limit: t.cfg.MaxReceiveBytes}
	owner := int32(-1)
	if t.security != nil {
		secure := tls.Server(newGatherReads(counted), t.security.server)
		if err := secure.Handshake(); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
		state := secure.ConnectionState()
		var err error
		if owner, err = t.security.owner(&state); err != nil {
			return nil, err
		}
		in.conn = secure
	}
	h, err := readHello(in.conn)
	if err != nil && !errors.Is(err, errVersion) {
		return nil, err
	}
	answer, refused := t.judge(&h, err, owner)
	if refused == nil {
		if refused = t.seat(in, h.from); refused != nil {
			answer = badCrowd
		}
	}
	mine := hello{version: wireVersion, status: answer, timeout: t.cfg.PeerTimeout, limit: uint32(t.cfg.MaxReceiveBytes),
		from: t.cfg.ID, to: h.from, cluster: t.cfg.Cluster}
	if _, err := in.conn.Write(mine.append(nil)); err != nil && refused == nil {
		return in, err
	}
	if refused != nil {
		return nil, refused
	}
	in.every = h.timeout / 8
	in.silence = max(t.cfg.PeerTimeout, h.timeout)
	return in, raw.SetDeadline(time.Time{})
}

// judge says what the answer to a hello is. owner is whose certificate it is.
func (t *Transport) judge(h *hello, err error, owner int32) (status, *refusal) {
	switch {
	case err != nil:
		return badVersion, &refusal{CauseVersion, err}
	case h.cluster != t.cfg.Cluster:
		return badCluster, refuse(CauseCluster, "a broker of cluster %q", h.cluster)
	case t.security != nil && h.from != owner:
		return badIdentity, refuse(CauseIdentity, "broker %d says it is broker %d", owner, h.from)
	case h.from < 0:
		return badIdentity, refuse(CauseIdentity, "there is no broker %d", h.from)
	case h.to != t.cfg.ID:
		return badAddressee, refuse(CauseAddressee, "broker %d meant to call broker %d", h.from, h.to)
	case int64(h.limit) > int64(t.cfg.MaxReceiveBytes):
		return badLimit, refuse(CauseLimit, "broker %d may send %d bytes, and %d are taken (MaxReceiveBytes)", h.from, h.limit, t.cfg.MaxReceiveBytes)
	case h.timeout < minPeerTimeout || h.timeout > maxPeerTimeout: // no Config allows it
		return badTimeout, refuse(CauseGarbage, "broker %d wants signs of life within %v", h.from, h.timeout)
	}
	return welcome, nil
}
