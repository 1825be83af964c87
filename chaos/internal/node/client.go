package node

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"sync"
	"time"
)

// Client is a connection to a broker's control interface. Any goroutine may use it.
type Client struct {
	rpc *rpc.Client

	mu      sync.Mutex
	open    int           // calls without an answer
	hungUp  bool          // no call is sent any more
	settled chan struct{} // closed once it is and there are none
}

// ErrNotSent is how a call ends that came after HangUp.
var ErrNotSent = errors.New("node: hung up before, so nothing was sent")

// Dial connects to a control interface.
func Dial(ctx context.Context, address string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &Client{rpc: rpc.NewClient(conn), settled: make(chan struct{})}, nil
}

// Close ends the connection, and the calls that wait for answers.
func (c *Client) Close() error { return c.rpc.Close() }

// Go sends a call from a goroutine of its own, for the process may not read what is
// sent to it, and returns a channel that gets its end, once. args and reply are of one
// of the methods.
func (c *Client) Go(method string, args, reply any) <-chan error {
	done := make(chan error, 1)
	if !c.begin() {
		done <- ErrNotSent
		return done
	}
	go func() {
		err := c.rpc.Call(serviceName+"."+method, args, reply)
		c.end()
		done <- err
	}()
	return done
}

func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hungUp {
		return false
	}
	c.open++
	return true
}

func (c *Client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open--; c.open == 0 && c.hungUp {
		close(c.settled)
	}
}

// HangUp is Close once every call has its answer, or the limit is over. It is called once.
func (c *Client) HangUp(limit time.Duration) error {
	c.mu.Lock()
	if c.hungUp = true; c.open == 0 {
		close(c.settled)
	}
	c.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.settled:
	case <-timer.C:
	}
	return c.Close()
}

// Call is Go, waiting for the end or for that of ctx. reply is the call's until it has
// ended: after an error of ctx it is not to be looked at.
func (c *Client) Call(ctx context.Context, method string, args, reply any) error {
	select {
	case err := <-c.Go(method, args, reply):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
