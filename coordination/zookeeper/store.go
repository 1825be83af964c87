package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/coordination/zookeeper/internal/wire"
)

// ErrForeign means that the Chroot holds something that is not Tidemark's.
var ErrForeign = errors.New("zookeeper: chroot holds something else")

// ErrTooLarge means that a transaction is larger than Config.MaxRequest. Nothing was sent.
var ErrTooLarge = errors.New("zookeeper: transaction is too large")

// Store is a client of ZooKeeper. It implements coordination.Store.
type Store struct {
	cfg  Config
	tree tree
	link *link
	feed *feed
	turn chan struct{} // held by the one transaction of this Store that is at work
	seen seen

	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	work       sync.WaitGroup // every goroutine
	complained atomic.Int64   // when the operator was last told

	mu       sync.Mutex // never held during I/O
	closed   bool
	sessions map[string]*session // those begun here that may be alive
}

var _ coordination.Store = (*Store)(nil)

// Open makes a Store. It connects to ZooKeeper, and makes the Chroot what a Store needs
// if it is new; when no server answers it returns a Store all the same, whose calls end
// with coordination.ErrUnavailable until one does, and tells Config.Logger. The error is
// ErrForeign when the Chroot is in use by something else, and coordination.ErrUnavailable
// when ZooKeeper refuses, such as a Digest that may not write there, or ctx ends. The
// caller must Close the Store.
func Open(ctx context.Context, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg: c, tree: tree{c.Chroot},
		turn:     make(chan struct{}, 1),
		sessions: make(map[string]*session),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.link, s.feed = &link{s: s}, &feed{s: s}
	if _, err := s.link.get(ctx); err != nil && !errors.Is(err, errNoServer) {
		if !errors.Is(err, ErrForeign) && !errors.Is(err, errMalformed) {
			err = s.unavailable(err)
		}
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// found makes the nodes that a Store needs. Several may do so at once.
func (s *Store) found(ctx context.Context, conn *wire.Conn) error {
	get, children := wire.Get(s.tree.sequence(), false), wire.Children(s.tree.chroot)
	if err := s.call(ctx, conn, get, children); err != nil {
		return err
	}
	if get.Err == nil {
		_, err := decodeSequence(get)
		return err
	}
	if !errors.Is(get.Err, wire.NoNode) {
		return get.Err
	}
	for _, name := range children.Children {
		if !strings.HasPrefix(name, ".") {
			return fmt.Errorf("%w: %s has %q and no %s", ErrForeign, s.tree.chroot, name, sequenceName)
		}
	}
	paths := tree{}.parents(s.tree.log())
	slices.Reverse(paths)
	paths = append(paths, s.tree.log(), s.tree.sessions())
	for _, path := range paths {
		if err := s.create(ctx, conn, path, nil); err != nil {
			return err
		}
	}
	first := sequence{Format: format, First: 1}
	return s.create(ctx, conn, s.tree.sequence(), first.encode())
}

// create makes a node, unless it is there.
func (s *Store) create(ctx context.Context, conn *wire.Conn, path string, data []byte) error {
	// Where a node is, nobody needs the right to make it.
	there := wire.Exists(path, false)
	if err := s.call(ctx, conn, there); err != nil {
		return err
	}
	if there.Err == nil {
		return nil
	}
	create := wire.Multi([]wire.Op{wire.Create(path, data, s.cfg.acl(), false)})
	if err := s.call(ctx, conn, create); err != nil {
		return err
	}
	if create.Err != nil && !errors.Is(create.Err, wire.NodeExists) {
		return fmt.Errorf("create %s: %w", path, create.Err)
	}
	return nil
}

// begin counts a goroutine in, unless the Store is closed.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

// admit says whether a call may begin.
func (s *Store) admit(ctx context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return coordination.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return s.unavailable(err)
	}
	return nil
}

// bounded returns a context for a call that ends with the Store, too.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// unavailable makes the error of a call of one from below.
func (s *Store) unavailable(err error) error {
	if s.ctx.Err() != nil && s.isClosed() {
		return coordination.ErrClosed
	}
	for _, plain := range [...]error{coordination.ErrUnavailable, coordination.ErrSessionExpired, ErrTooLarge, errEphemeralParent, errTimeout} {
		if errors.Is(err, plain) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", coordination.ErrUnavailable, err)
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close implements coordination.Store. The sessions expire in their time. It waits for
// its goroutines.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	if first {
		s.link.close()
		for _, x := range s.open() {
			x.drop()
		}
	}
	s.work.Wait()
	s.link.drop() // one that was being made
	return nil
}

// open returns the sessions that may be alive.
func (s *Store) open() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.sessions))
	for _, x := range s.sessions {
		all = append(all, x)
	}
	return all
}

// look reads the sequence.
func (s *Store) look(ctx context.Context, conn *wire.Conn, watch bool, rest ...*wire.Request) (*sequence, error) {
	seen := s.seen.entry.Load()
	get := wire.Get(s.tree.sequence(), watch)
	if err := s.call(ctx, conn, append([]*wire.Request{get}, rest...)...); err != nil {
		return nil, err
	}
	return s.accept(get, seen)
}

// accept takes a sequence that was asked for when the entry seen was known.
func (s *Store) accept(get *wire.Request, seen int64) (*sequence, error) {
	seq, err := decodeSequence(get)
	if err == nil && seq.Entry < seen {
		err = fmt.Errorf("%w: it is at transaction %d, %d was seen", errBehind, seq.Entry, seen)
	}
	if err != nil {
		s.complain("ZooKeeper does not have what it should", err)
		return nil, err
	}
	raise(&s.seen.entry, seq.Entry)
	return seq, nil
}

// Get implements coordination.Store.
func (s *Store) Get(ctx context.Context, key string) (coordination.KV, bool, error) {
	if err := s.admit(ctx); err != nil {
		return coordination.KV{}, false, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	kv, ok, err := s.get(ctx, key)
	if err != nil {
		return coordination.KV{}, false, s.unavailable(err)
	}
	return kv, ok, nil
}

func (s *Store) get(ctx context.Context, key string) (coordination.KV, bool, error) {
	conn, err := s.link.get(ctx)
	if err != nil {
		return coordination.KV{}, false, err
	}
	path := s.tree.path(key)
	for attempt := range maxAttempts {
		seen, zxid := s.seen.entry.Load(), s.seen.zxid.Load()
		sync, node, seq := wire.Sync(s.tree.chroot), wire.Get(path, false), wire.Get(s.tree.sequence(), false)
		if err := s.call(ctx, conn, sync, node, seq); err != nil {
			return coordination.KV{}, false, err
		}
		if sync.Zxid < zxid {
			if !pause(ctx, attempt) {
				return coordination.KV{}, false, ctx.Err()
			}
			continue
		}
		if _, err := s.accept(seq, seen); err != nil { // only for what it says of the server
			return coordination.KV{}, false, err
		}
		kv, ok, err := s.kv(path, node)
		if err != nil || !ok || kv.Session == "" || node.Stat.Owner != 0 {
			return kv, ok, err
		}
		// The node does not vanish by itself.
		over, err := s.ended(ctx, conn, kv.Session)
		if err != nil || !over {
			return kv, err == nil, err
		}
		if err := s.adopt(ctx, conn); err != nil {
			return coordination.KV{}, false, err
		}
	}
	return coordination.KV{}, false, errContended
}

// kv makes a key of a node that was asked for, or says that it is none.
func (s *Store) kv(path string, get *wire.Request) (coordination.KV, bool, error) {
	if errors.Is(get.Err, wire.NoNode) || get.Err == nil && get.Stat.Length == 0 {
		return coordination.KV{}, false, nil
	}
	if get.Err != nil {
		return coordination.KV{}, false, get.Err
	}
	key, ok := s.tree.key(path)
	if !ok {
		return coordination.KV{}, false, nil
	}
	value, session, err := decodeValue(get.Data)
	if err != nil {
		return coordination.KV{}, false, fmt.Errorf("%s: %w", path, err)
	}
	if get.Stat.Owner != 0 {
		session = sessionID(get.Stat.Owner)
	}
	return coordination.KV{Key: key, Value: value, Revision: get.Stat.Modified, Session: session}, true, nil
}

// ended says whether a session that has keys is over. The server is not behind what conn
// has seen, so it knows of every session that it names.
func (s *Store) ended(ctx context.Context, conn *wire.Conn, session string) (bool, error) {
	lease := wire.Exists(s.tree.lease(session), false)
	if err := s.call(ctx, conn, lease); err != nil {
		return false, err
	}
	if lease.Err != nil && !errors.Is(lease.Err, wire.NoNode) {
		return false, lease.Err
	}
	return lease.Err != nil, nil
}
