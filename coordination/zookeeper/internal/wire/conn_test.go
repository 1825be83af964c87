package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// server is the other end of a connection, played by hand.
type server struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

// pair returns both ends of a connection, with the handshake made.
func pair(t testing.TB, h Hello) (*Conn, *server) {
	client, conn := net.Pipe()
	s := &server{t, conn, bufio.NewReader(conn)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = readFrame(s.in)
		s.frame(handshake(7, h.Timeout))
	}()
	c, err := Begin(context.Background(), client, h)
	require.NoError(t, err)
	<-done
	require.Equal(t, int64(7), c.SessionID())
	require.Equal(t, []byte("secret"), c.Password())
	require.Equal(t, h.Timeout, c.Timeout())
	return c, s
}

func handshake(id int64, timeout time.Duration) []byte {
	var e encoder
	e.int32(0)
	e.int32(int32(timeout.Milliseconds()))
	e.int64(id)
	e.bytes([]byte("secret"))
	e.bool(false)
	return e.b
}

func (s *server) frame(b []byte) {
	_, _ = s.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
}

// request reads one request's xid and operation.
func (s *server) request() (xid, op int32, err error) {
	b, err := readFrame(s.in)
	if err != nil {
		return 0, 0, err
	}
	d := decoder{b: b}
	return d.int32(), d.int32(), nil
}

func (s *server) answer(xid int32, code Code, body []byte) {
	var e encoder
	e.int32(xid)
	e.int64(99)
	e.int32(int32(code))
	s.frame(append(e.b, body...))
}

func hello() Hello {
	return Hello{Timeout: 6 * time.Second, AnswerLimit: 4 * time.Second}
}

// TestNothingUnasked: a connection sends nothing by itself, unless it is told to ping. It
// is what a session's end in time rests on.
func TestNothingUnasked(t *testing.T) {
	for _, ping := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := hello()
			h.Ping = ping
			c, s := pair(t, h)
			pings := 0
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					xid, op, err := s.request()
					if err != nil {
						return
					}
					require.Equal(t, int32(opPing), op)
					pings++
					s.answer(xid, 0, nil)
				}
			}()
			time.Sleep(time.Minute)
			require.NoError(t, c.Err())
			if ping {
				require.InDelta(t, 30, pings, 10, "each third of the timeout or so")
			} else {
				require.Zero(t, pings)
				go func() { _, _ = c.Ping(context.Background()) }()
				synctest.Wait()
				require.Equal(t, 1, pings)
			}
			c.Close()
			<-done
		})
	}
}

// TestSilentServer: a server that owes an answer too long is given up; one that owes none is not.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := pair(t, hello())
		go func() { _, _ = io.Copy(io.Discard, s.in) }()
		time.Sleep(time.Hour)
		require.NoError(t, c.Err())
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Call(ctx, Sync("/")), context.DeadlineExceeded)
		require.ErrorIs(t, c.Call(context.Background(), Sync("/")), ErrSilent)
		require.InDelta(t, 5*time.Second, time.Since(begun), float64(time.Second))
		<-c.Dead()
		require.ErrorIs(t, c.Call(context.Background(), Sync("/")), ErrSilent)
		c.Close()
		require.NoError(t, s.conn.Close())
	})
}

// TestAnswers: answers go to their requests, also when one of these is not waited for any more.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		h := hello()
		h.OnEvent = func(ev Event) { events = append(events, ev.Path) }
		c, s := pair(t, h)
		var xids []int32
		go func() {
			for range 4 {
				xid, _, err := s.request()
				require.NoError(t, err)
				xids = append(xids, xid)
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		abandoned := Children("/gone")
		require.Error(t, c.Call(ctx, abandoned))
		names, missing, pinged := Children("/a"), Exists("/b", true), make(chan int64, 1)
		called := make(chan error, 1)
		go func() { called <- c.Call(context.Background(), names, missing) }()
		synctest.Wait()
		go func() {
			zxid, _ := c.Ping(context.Background())
			pinged <- zxid
		}()
		synctest.Wait()
		var two, event encoder
		two.int32(2)
		two.string("x")
		two.string("y")
		event.int32(3)
		event.int32(3)
		event.string("/b")
		s.answer(xids[0], 0, two.b)
		s.answer(xids[1], 0, two.b)
		s.answer(xidPing, 0, nil)
		s.answer(xidEvent, 0, event.b)
		s.answer(xids[2], NoNode, nil)
		require.NoError(t, <-called)
		require.Equal(t, int64(99), <-pinged)
		require.Equal(t, []string{"x", "y"}, names.Children)
		require.ErrorIs(t, missing.Err, NoNode)
		require.Equal(t, []string{"/b"}, events)
		c.Close()
		require.ErrorIs(t, c.Call(context.Background(), Sync("/")), ErrClosed)
	})
}

// TestBegin: handshakes that fail.
func TestBegin(t *testing.T) {
	for name, tt := range map[string]struct {
		answer []byte
		err    error
	}{
		"expired": {handshake(0, 0), SessionExpired},
		"short":   {handshake(7, time.Second)[:10], errShort},
		"silent":  {nil, context.DeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, conn := net.Pipe()
			s := &server{t, conn, bufio.NewReader(conn)}
			go func() {
				_, _ = readFrame(s.in)
				if tt.answer != nil {
					s.frame(tt.answer)
				}
				_, _ = io.Copy(io.Discard, s.in)
			}()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := Begin(ctx, client, hello())
			require.ErrorIs(t, err, tt.err, name)
			_ = conn.Close()
		})
	}
}

// TestMalformed: whatever a server sends, the connection ends with an error at worst.
func TestMalformed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(rt, "body")
		rest := rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(rt, "rest")
		c, s := pair(t, hello())
		go func() {
			_, _ = readFrame(s.in)
			s.answer(1, 0, body)
			_, _ = s.conn.Write(rest)
			_ = s.conn.Close()
		}()
		r := rapid.SampledFrom([]func() *Request{
			func() *Request { return Get("/", false) }, func() *Request { return Children("/") },
			func() *Request { return Multi([]Op{Check("/", 1), Set("/", nil, 1)}) },
			func() *Request { return Reads([]*Request{Get("/", false), Children("/")})[0] },
		}).Draw(rt, "request")()
		_ = c.Call(context.Background(), r)
		<-c.Dead()
		c.Close()
	})
	client, conn := net.Pipe()
	go func() { _, _ = conn.Write([]byte{0xff, 0xff, 0xff, 0xff}) }()
	_, err := readFrame(bufio.NewReader(client))
	require.ErrorContains(t, err, "answer of")
}
