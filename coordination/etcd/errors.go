package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-log/tidemark/coordination"
)

// Errors beside those of the coordination package, for use with errors.Is.
var (
	// ErrTooLarge means that a transaction is larger than etcd takes. It was not
	// applied, and never can be.
	ErrTooLarge = errors.New("etcd: transaction is too large")
	// ErrRewound means that etcd's revision went backwards, or that another cluster
	// answers: it was restored from an older backup, or set up anew. The Store ends
	// with it, and every call fails; it is also coordination.ErrUnavailable.
	ErrRewound = fmt.Errorf("%w: etcd has lost what was there before", coordination.ErrUnavailable)
)

// refusal is the error of a call that failed as err. Nothing is said by it of
// whether the call had an effect, unless it is ErrTooLarge.
func (s *Store) refusal(ctx context.Context, err error) error {
	if cause := s.cause(); cause != nil {
		return cause
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", coordination.ErrUnavailable, ctx.Err())
	}
	_, known := etcdError(err)
	byMessage := !known && status.Code(err) == codes.ResourceExhausted // says gRPC
	if byMessage || is(err, rpctypes.ErrTooManyOps) || is(err, rpctypes.ErrRequestTooLarge) {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return fmt.Errorf("%w: %w", coordination.ErrUnavailable, err)
}

// is reports whether err is the given one of etcd's, which its server sends by text.
func is(err, want error) bool {
	e, ok := etcdError(err)
	return ok && e == want
}

// etcdError finds the error of etcd's own that err is or wraps.
func etcdError(err error) (e rpctypes.EtcdError, ok bool) {
	if errors.As(err, &e) {
		return e, true
	}
	var sent interface {
		error
		GRPCStatus() *status.Status
	}
	if !errors.As(err, &sent) {
		return e, false
	}
	return e, errors.As(rpctypes.Error(sent), &e)
}

// transient reports whether the way to etcd is at fault, or its having no leader.
func transient(err error) bool {
	return status.Code(err) == codes.Unavailable || is(err, rpctypes.ErrNotLeader)
}
