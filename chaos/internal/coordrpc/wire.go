// Package coordrpc serves a coordination.Store of one process to others over TCP:
// for harnesses, where the store should live in the process that makes the faults.
// Connections may be cut at any time; what a call that was under way then came to
// is not known (coordination.ErrUnavailable).
package coordrpc

import (
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/coordination"
)

const (
	// beat is how often each side says that it is there, and silence is when the other
	// is taken for gone: a connection that a black hole swallows must end.
	beat    = 300 * time.Millisecond
	silence = 1500 * time.Millisecond
	// dialTimeout bounds one attempt to connect.
	dialTimeout = time.Second
)

// kind is what a request asks for.
type kind uint8

const (
	get kind = iota + 1
	list
	do
	watch
	newSession
	renew
	endSession
	attach // tell when the session ends
	cancel // the request with that ID is not wanted any more
	ping
)

// request is what a client sends.
type request struct {
	ID      uint64 // chosen by the client; 0: none
	Kind    kind
	Key     string // or prefix
	After   int64
	Txn     coordination.Txn
	TTL     time.Duration
	Session string
}

// response is what a server sends: one per request, and for a watch the changes
// after that, and for a session that it ended.
type response struct {
	ID       uint64 // of the request; 0: none, it is only a sign of life
	KV       coordination.KV
	Found    bool
	KVs      []coordination.KV
	Revision int64
	Result   coordination.TxnResult
	Session  string
	Err      failure

	Changes *coordination.Changes // of a watch; its Err is in Err
	End     bool                  // of a watch: it ends with this
	Ended   string                // a session that ended
}

// failure is an error on its way.
type failure struct {
	Code uint8 // 0: none; else 1 + the index in known; above that, another error
	Text string
}

// known are the errors that keep their meaning.
var known = []error{coordination.ErrUnavailable, coordination.ErrSessionExpired, coordination.ErrCompacted, coordination.ErrClosed}

func failed(err error) failure {
	if err == nil {
		return failure{}
	}
	for i, k := range known {
		if errors.Is(err, k) {
			return failure{uint8(i + 1), err.Error()}
		}
	}
	return failure{uint8(len(known) + 1), err.Error()}
}

// err is the error again. What the server was closed for, or what it calls by no
// name, is to its clients that it could not be reached.
func (f failure) err() error {
	switch {
	case f.Code == 0:
		return nil
	case int(f.Code) <= len(known) && known[f.Code-1] != coordination.ErrClosed:
		return &remote{f.Text, known[f.Code-1]}
	}
	return &remote{f.Text, coordination.ErrUnavailable}
}

// remote is an error that came over the wire.
type remote struct {
	text string
	is   error
}

func (e *remote) Error() string { return e.text }
func (e *remote) Unwrap() error { return e.is }

// pipe is one end of a connection. Any goroutine may send; one receives.
type pipe struct {
	conn net.Conn
	dec  *gob.Decoder

	mu  sync.Mutex
	enc *gob.Encoder
}

func newPipe(c net.Conn) *pipe {
	return &pipe{conn: c, enc: gob.NewEncoder(c), dec: gob.NewDecoder(c)}
}

// send writes a message, or ends the connection: half a message leaves nothing to go on with.
func (p *pipe) send(m any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.conn.SetWriteDeadline(time.Now().Add(silence))
	if err := p.enc.Encode(m); err != nil {
		_ = p.conn.Close()
		return fmt.Errorf("coordrpc: send: %w", err)
	}
	return nil
}

// receive reads the next message.
func (p *pipe) receive(m any) error {
	_ = p.conn.SetReadDeadline(time.Now().Add(silence))
	return p.dec.Decode(m)
}

// beats sends m again and again until done is closed or the connection has ended.
func (p *pipe) beats(m any, done <-chan struct{}) {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			if p.send(m) != nil {
				return
			}
		}
	}
}
