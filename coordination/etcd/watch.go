package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"github.com/tidemark-log/tidemark/coordination"
)

const (
	// maxEvents and maxBytes bound what one watch holds that was not received yet.
	maxEvents, maxBytes = 100_000, 32 << 20
)

// watch is one stream of events. Its channel has two places: one for everything that
// the receiver has not taken yet, merged into one Changes, and one for the Err that
// ends the watch. So whoever fills it never waits for a receiver that does not come.
type watch struct {
	s      *Store
	stream etcdserverpb.Watch_WatchClient
	ch     chan coordination.Changes
	after  int64
}

// Watch implements coordination.Store. A watch whose receiver falls so far behind
// that 100,000 events or 32 MiB wait ends with coordination.ErrCompacted. One that
// loses its connection, or whose member loses its leader, ends with
// coordination.ErrUnavailable; it can be begun again where it ended.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (<-chan coordination.Changes, error) {
	begun, cancelBegun, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancelBegun()
	streamCtx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader))
	stopBegin := context.AfterFunc(begun, cancel) // also at the Store's end
	w := &watch{s: s, ch: make(chan coordination.Changes, 2), after: after}
	first, err := w.begin(streamCtx, prefix)
	if !stopBegin() && err == nil {
		err = begun.Err()
	}
	if err != nil {
		cancel()
		return nil, s.refusal(begun, err)
	}
	stopStream := context.AfterFunc(s.ctx, cancel)
	if !s.start(func() {
		defer cancel()
		defer stopStream()
		w.run(ctx, first)
	}) {
		stopStream()
		cancel()
		return nil, s.cause()
	}
	return w.ch, nil
}

// begin opens the stream and waits for its first word.
func (w *watch) begin(ctx context.Context, prefix string) (*etcdserverpb.WatchResponse, error) {
	var err error
	if w.stream, err = w.s.watcher.Watch(ctx); err != nil {
		return nil, err
	}
	key := w.s.space.key(prefix)
	err = w.stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: key, RangeEnd: rangeEnd(key), StartRevision: w.after + 1, Fragment: true},
	}})
	if err != nil {
		_, err = w.stream.Recv() // has the reason
		return nil, err
	}
	return w.stream.Recv()
}

// run passes on what comes until the stream ends, and says why it did.
func (w *watch) run(ctx context.Context, resp *etcdserverpb.WatchResponse) {
	var events []coordination.Event
	for {
		switch {
		case resp.CompactRevision > 0:
			w.end(coordination.ErrCompacted)
			return
		case resp.Canceled:
			w.end(fmt.Errorf("%w: %s", coordination.ErrUnavailable, resp.CancelReason))
			return
		}
		for _, ev := range resp.Events {
			events = append(events, w.event(ev))
		}
		if !resp.Fragment && len(events) > 0 { // else the rest of it follows
			if !w.feed(events) {
				w.end(coordination.ErrCompacted)
				return
			}
			events = nil
		}
		var err error
		if resp, err = w.stream.Recv(); err != nil {
			w.end(w.reason(ctx, err))
			return
		}
	}
}

// reason is why the stream has ended; nil: because the watch's context has.
func (w *watch) reason(ctx context.Context, err error) error {
	if w.s.cause() == nil && ctx.Err() != nil {
		return nil
	}
	return w.s.refusal(context.WithoutCancel(ctx), err)
}

func (w *watch) event(ev *mvccpb.Event) coordination.Event {
	out := coordination.Event{KV: w.s.space.kv(ev.Kv)}
	if ev.Type == mvccpb.Event_DELETE {
		out.Deleted, out.Value = true, nil
	}
	return out
}

// feed puts events into the channel, behind those that wait there. It returns false
// when that are too many.
func (w *watch) feed(events []coordination.Event) bool {
	select {
	case waiting := <-w.ch:
		if len(waiting.Events)+len(events) > maxEvents || size(waiting.Events)+size(events) > maxBytes {
			w.ch <- waiting
			return false
		}
		events = append(waiting.Events, events...)
	default:
	}
	w.ch <- coordination.Changes{Events: events, Revision: events[len(events)-1].Revision}
	return true
}

func (w *watch) end(err error) {
	if err != nil {
		w.ch <- coordination.Changes{Err: err}
	}
	close(w.ch)
}

func size(events []coordination.Event) (n int) {
	for _, ev := range events {
		n += len(ev.Key) + len(ev.Value)
	}
	return n
}
