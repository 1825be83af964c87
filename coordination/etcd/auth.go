package etcd

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// auth adds a token to every call. The client library can do this too, but it wants
// etcd to be up when the client is made.
type auth struct {
	s *Store

	mu    sync.Mutex // never held during I/O
	token string
	ask   *asking // not nil while a token is being asked for, and
	until time.Time
	no    error // until then this is the answer
}

// asking is one question for a token. It goes on when whoever began it does not wait
// any more: etcd makes checking a password expensive on purpose.
type asking struct {
	done chan struct{}
	err  error // once done is closed
}

// askAgain is how long a refusal holds.
const askAgain = time.Second

// stale reports whether a call failed because of its token.
func stale(err error) bool {
	return is(err, rpctypes.ErrInvalidAuthToken) || is(err, rpctypes.ErrUserEmpty) || is(err, rpctypes.ErrAuthOldRevision)
}

// with returns ctx with a token that is not the old one. An etcd that does not ask who
// speaks gives none.
func (a *auth) with(ctx context.Context, cc *grpc.ClientConn, old string) (context.Context, string, error) {
	a.mu.Lock()
	token, no, ask := a.token, a.no, a.ask
	if time.Now().After(a.until) {
		no = nil
	}
	if token == old && no == nil && ask == nil {
		ask = &asking{done: make(chan struct{})}
		a.ask = ask
		if !a.s.start(func() { a.run(cc, ask) }) {
			a.ask, no = nil, a.s.cause()
		}
	}
	a.mu.Unlock()
	if token == old {
		if no != nil {
			return ctx, "", no
		}
		select {
		case <-ask.done:
		case <-ctx.Done():
			return ctx, "", status.FromContextError(ctx.Err()).Err()
		}
		if is(ask.err, rpctypes.ErrAuthNotEnabled) {
			return ctx, "", nil
		}
		if ask.err != nil {
			return ctx, "", ask.err
		}
		a.mu.Lock()
		token = a.token
		a.mu.Unlock()
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token), token, nil
}

func (a *auth) run(cc *grpc.ClientConn, ask *asking) {
	ctx, cancel := context.WithTimeout(a.s.ctx, a.s.c.RequestTimeout)
	defer cancel()
	resp, err := etcdserverpb.NewAuthClient(cc).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: a.s.c.Username, Password: a.s.c.Password})
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.token = resp.Token
	} else if is(err, rpctypes.ErrAuthFailed) {
		a.no, a.until = err, time.Now().Add(askAgain)
	}
	ask.err, a.ask = err, nil
	close(ask.done)
}

const authenticate = "/etcdserverpb.Auth/Authenticate"

func (a *auth) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if a.s.c.Username == "" || method == authenticate {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	withToken, token, err := a.with(ctx, cc, "")
	if err != nil {
		return err
	}
	if err = invoke(withToken, method, req, reply, cc, opts...); !stale(err) {
		return err
	}
	if withToken, _, err = a.with(ctx, cc, token); err != nil {
		return err
	}
	return invoke(withToken, method, req, reply, cc, opts...)
}

// stream begins a stream with a new token: whether an old one is good would show only
// later.
func (a *auth) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if a.s.c.Username == "" {
		return open(ctx, desc, cc, method, opts...)
	}
	a.mu.Lock()
	old := a.token
	a.mu.Unlock()
	ctx, _, err := a.with(ctx, cc, old)
	if err != nil {
		return nil, err
	}
	return open(ctx, desc, cc, method, opts...)
}
