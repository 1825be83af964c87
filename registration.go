package tidemark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/protocol"
)

// registrar keeps this broker registered: it begins sessions, renews them while
// the store makes progress, and watches the others.
type registrar struct {
	b           *Broker
	incarnation protocol.UUID
}

func newRegistrar(b *Broker) *registrar {
	return &registrar{b: b, incarnation: b.randomUUID()}
}

// run registers, serves the session until it ends, and begins again, until the
// broker stops or finds itself unfit.
func (r *registrar) run() {
	const firstPause, lastPause = 10 * time.Millisecond, time.Second
	pause := firstPause
	for r.b.ctx.Err() == nil && r.b.unfitReason() == nil {
		session, epoch, err := r.register()
		switch {
		case err == nil:
			pause = firstPause
			r.serve(session, epoch)
			r.b.control.post(func(time.Duration) { r.b.control.onSessionLost() })
		case errors.Is(err, ErrWrongCluster) || errors.Is(err, ErrCoordinationBehind) ||
			errors.Is(err, ErrUnsupportedLevel) || errors.Is(err, ErrStorage):
			r.b.becomeUnfit(err)
			return
		default:
			r.b.setRegistrationError(err)
			if !r.b.sleep(pause) {
				return
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// register begins a session and claims this broker's id in it (D15).
func (r *registrar) register() (coordination.Session, int64, error) {
	ctx, cancel := context.WithTimeout(r.b.ctx, r.b.cfg.SessionTimeout)
	defer cancel()
	store := r.b.cfg.Coordination
	if err := r.joinCluster(ctx); err != nil {
		return nil, 0, err
	}
	session, err := store.NewSession(ctx, r.b.cfg.SessionTimeout)
	if err != nil {
		return nil, 0, err
	}
	epoch, err := r.claimID(ctx, session)
	if err == nil {
		err = r.remember(epoch)
	}
	if err != nil {
		closeCtx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = session.Close(closeCtx) // it expires by itself otherwise
		return nil, 0, err
	}
	return session, epoch, nil
}

// joinCluster makes the cluster's id known to the store and to the directory, or
// refuses when they differ.
func (r *registrar) joinCluster(ctx context.Context) error {
	store := r.b.cfg.Coordination
	for {
		kv, ok, err := store.Get(ctx, clusterKey)
		if err != nil {
			return err
		}
		node := r.b.cfg.Store.Node()
		if !ok {
			// A directory that belongs to a cluster does not found another one.
			if !node.Cluster.IsZero() {
				return fmt.Errorf("%w: the coordination store knows no cluster, the directory belongs to %s: restore the coordination store that belongs to it, or open another directory", ErrWrongCluster, node.Cluster)
			}
			if _, err := store.Do(ctx, coordination.Txn{
				Guards: []coordination.Guard{{Key: clusterKey}},
				Ops:    []coordination.Op{{Key: clusterKey, Value: []byte(r.b.randomUUID().String())}},
			}); err != nil {
				return err
			}
			continue
		}
		var id protocol.UUID
		if err := id.UnmarshalText(kv.Value); err != nil {
			return fmt.Errorf("tidemark: key %s: %w", clusterKey, err)
		}
		if !node.Cluster.IsZero() && node.Cluster != id {
			return fmt.Errorf("%w: cluster %s, directory of %s", ErrWrongCluster, id, node.Cluster)
		}
		r.b.setCluster(id)
		return nil
	}
}

// claimID creates the registration; its revision is the broker epoch. An answer
// that was lost is found by the incarnation in the key (CE-10).
func (r *registrar) claimID(ctx context.Context, session coordination.Session) (int64, error) {
	store, self := r.b.cfg.Coordination, r.b.cfg.ID
	directory := r.b.cfg.Store.Node().Directory
	if err := r.removeOwn(ctx, directory); err != nil {
		return 0, err
	}
	level, err := r.supportedLevel(ctx)
	if err != nil {
		return 0, err
	}
	lastKV, known, err := store.Get(ctx, brokerLastKey(self))
	if err != nil {
		return 0, err
	}
	if lastKV.Revision < r.b.cfg.Store.Node().BrokerEpoch {
		return 0, fmt.Errorf("%w: it knows this broker as of %d, the directory has seen %d",
			ErrCoordinationBehind, lastKV.Revision, r.b.cfg.Store.Node().BrokerEpoch)
	}
	var last lastLife
	if known {
		if err := json.Unmarshal(lastKV.Value, &last); err != nil {
			return 0, fmt.Errorf("tidemark: key %s: %w", lastKV.Key, err)
		}
	}
	// Once replaced, it stays so until the Controller has taken the broker out of
	// every set that counts on the lost data.
	replaced := known && (last.Replaced && !r.b.planted.has(bugReplacedForgotten) ||
		last.Directory != directory && !r.b.planted.has(bugDirectoryIgnored))
	// An unclean end is told once per open, by its first registration: when the
	// Controller has cleared it, what is there now was got anew (D25).
	sameOpen := last.Incarnation == r.incarnation
	unclean := last.Unclean || !sameOpen && r.b.cfg.Store.Node().Unclean && !r.b.planted.has(bugUncleanIgnored)
	next := lastLife{
		Directory: directory, Incarnation: r.incarnation, Rack: r.b.cfg.Rack, Replaced: replaced, Unclean: unclean,
	}
	value := marshal(registration{
		Address: r.b.cfg.Address, Rack: r.b.cfg.Rack, Directory: directory, Incarnation: r.incarnation,
		MinLevel: r.b.levels.min, MaxLevel: r.b.levels.max,
	})
	res, err := store.Do(ctx, coordination.Txn{
		Guards: []coordination.Guard{
			{Key: brokerIDKey(self)}, {Key: brokerLastKey(self), Revision: lastKV.Revision}, {Key: featuresKey, Revision: level},
		},
		Ops: []coordination.Op{
			{Key: brokerIDKey(self), Value: value, Session: session.ID()},
			{Key: brokerLastKey(self), Value: marshal(next)},
			{Key: newestKey, Value: marshal(newestBroker{self})},
		},
	})
	if err == nil && res.Applied {
		return res.Revision, nil
	}
	kv, ok, getErr := store.Get(ctx, brokerIDKey(self))
	if getErr != nil {
		return 0, firstError(err, getErr)
	}
	if ok && kv.Session == session.ID() {
		return kv.Revision, nil
	}
	return 0, firstError(err, errRegistrationRaced)
}

// supportedLevel returns the revision of the feature level in force, or refuses
// when this broker does not support it (B12). A cluster begins with the lowest level
// that its first broker supports.
func (r *registrar) supportedLevel(ctx context.Context) (revision int64, err error) {
	store := r.b.cfg.Coordination
	for {
		kv, ok, err := store.Get(ctx, featuresKey)
		if err != nil {
			return 0, err
		}
		if !ok {
			if _, err := store.Do(ctx, coordination.Txn{
				Guards: []coordination.Guard{{Key: featuresKey}},
				Ops:    []coordination.Op{{Key: featuresKey, Value: marshal(features{Level: r.b.levels.min})}},
			}); err != nil {
				return 0, err
			}
			continue
		}
		f, err := readFeatures(kv)
		if err == nil && !r.b.levels.include(f.Level) {
			err = unsupportedLevel(f.Level, r.b.levels)
		}
		return kv.Revision, err
	}
}

func unsupportedLevel(level int32, has levelRange) error {
	return fmt.Errorf("%w: level %d is in force, this broker supports %v", ErrUnsupportedLevel, level, has)
}

var errRegistrationRaced = errors.New("tidemark: registration changed meanwhile")

// removeOwn deletes a registration that an earlier life of this directory left
// behind. One of another directory is somebody else's, until it expires.
func (r *registrar) removeOwn(ctx context.Context, directory protocol.UUID) error {
	store := r.b.cfg.Coordination
	kv, ok, err := store.Get(ctx, brokerIDKey(r.b.cfg.ID))
	if err != nil || !ok {
		return err
	}
	var old registration
	if err := json.Unmarshal(kv.Value, &old); err != nil {
		return fmt.Errorf("tidemark: key %s: %w", kv.Key, err)
	}
	if old.Directory != directory {
		where := "it gave no address"
		if old.Address != "" {
			where = "at " + old.Address
		}
		return fmt.Errorf("%w: broker %d, %s", ErrDuplicateBroker, r.b.cfg.ID, where)
	}
	_, err = store.Do(ctx, coordination.Txn{
		Guards: []coordination.Guard{{Key: kv.Key, Revision: kv.Revision}},
		Ops:    []coordination.Op{{Key: kv.Key, Delete: true}},
	})
	return err
}

// remember writes the broker epoch into the directory before anything is done
// under it. One that is not above the last means that the coordination store has
// forgotten what this directory has seen.
func (r *registrar) remember(epoch int64) error {
	node := r.b.cfg.Store.Node()
	if epoch <= node.BrokerEpoch {
		return fmt.Errorf("%w: broker epoch %d, directory has seen %d", ErrCoordinationBehind, epoch, node.BrokerEpoch)
	}
	node.Cluster, node.BrokerID, node.BrokerEpoch = r.b.cluster(), r.b.cfg.ID, epoch
	r.b.nodeWrite.Store(int64(r.b.now())) // a disk that hangs must show here as well
	err := r.b.cfg.Store.SetNode(node)
	r.b.nodeWrite.Store(0)
	if err != nil {
		return because(ErrStorage, err)
	}
	return nil
}

// serve lives in a session until it ends, the broker stops, or it finds itself
// unfit. It deregisters in the end, if it still can, so that the others need not
// wait for the session to expire.
func (r *registrar) serve(session coordination.Session, epoch int64) {
	r.b.epoch.Store(epoch)
	r.b.attached.Store(true)
	defer r.b.attached.Store(false)
	r.b.setRegistrationError(nil)
	r.b.log.Info("broker registered", "broker", r.b.cfg.ID, "broker_epoch", epoch)
	r.b.observer.registration(RegistrationEvent{Registered: true, BrokerEpoch: epoch})
	r.b.control.post(func(time.Duration) { r.b.control.onRegistered(session, epoch) })
	g, ctx := errgroup.WithContext(r.b.ctx)
	g.Go(func() error { return r.renew(ctx, session) })
	g.Go(func() error { return r.watch(ctx) })
	err := g.Wait()
	if r.b.ctx.Err() == nil {
		r.b.log.Warn("broker session ended", "broker", r.b.cfg.ID, "broker_epoch", epoch, "reason", err)
	}
	r.b.observer.registration(RegistrationEvent{BrokerEpoch: epoch, Err: err})
	if !errors.Is(err, coordination.ErrSessionExpired) {
		closeCtx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = session.Close(closeCtx)
	}
}

// renew keeps the session while the store makes progress (D16): a broker whose
// disk hangs must not look alive.
func (r *registrar) renew(ctx context.Context, session coordination.Session) error {
	interval := r.b.cfg.SessionTimeout / 4
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-session.Done():
			return coordination.ErrSessionExpired
		case <-ticker.C:
		}
		if err := r.b.unfitReason(); err != nil {
			return err // the control loop looks after the store
		}
		callCtx, cancel := context.WithTimeout(ctx, interval)
		err := session.Renew(callCtx)
		cancel()
		r.b.setRenewalError(err)
		if errors.Is(err, coordination.ErrSessionExpired) || errors.Is(err, coordination.ErrClosed) {
			return err
		}
	}
}

// watch follows the registrations and the Controller's keys. Each watch begins
// where its list ended, so that nothing is missed in between.
func (r *registrar) watch(ctx context.Context) error {
	for {
		err := r.watchOnce(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.b.warn("watch on the coordination store ended", "error", err)
		if !r.b.sleep(min(100*time.Millisecond, r.b.cfg.SessionTimeout/10)) {
			return context.Cause(ctx)
		}
	}
}

func (r *registrar) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	store := r.b.cfg.Coordination
	keys := make(map[string]coordination.KV)
	var changes [4]<-chan coordination.Changes
	for i, prefix := range [...]string{brokerIDsPrefix, brokerLastPrefix, controllerKey, featuresKey} {
		kvs, revision, err := store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, kv := range kvs {
			keys[kv.Key] = kv
		}
		if changes[i], err = store.Watch(ctx, prefix, revision); err != nil {
			return err
		}
	}
	for {
		reg, err := parseRegistry(keys)
		if err != nil {
			return err
		}
		r.b.control.post(func(time.Duration) { r.b.control.onRegistry(reg) })
		var c coordination.Changes
		var open bool
		select {
		case c, open = <-changes[0]:
		case c, open = <-changes[1]:
		case c, open = <-changes[2]:
		case c, open = <-changes[3]:
		}
		if !open || c.Err != nil {
			return firstError(c.Err, context.Cause(ctx), coordination.ErrClosed)
		}
		for _, ev := range c.Events {
			if ev.Deleted {
				delete(keys, ev.Key)
			} else {
				keys[ev.Key] = ev.KV
			}
		}
	}
}

// parseRegistry reads the keys of brokers and Controller. A key that cannot be
// read is an error, not an absence (D3).
func parseRegistry(keys map[string]coordination.KV) (registry, error) {
	reg := registry{live: make(map[int32]registered), last: make(map[int32]brokerView)}
	for key, kv := range keys {
		var err error
		if id, ok := parseBrokerKey(key, brokerIDsPrefix); ok {
			v := registered{epoch: kv.Revision}
			err = json.Unmarshal(kv.Value, &v.registration)
			reg.live[id] = v
		} else if id, ok := parseBrokerKey(key, brokerLastPrefix); ok {
			v := brokerView{lastRevision: kv.Revision}
			err = json.Unmarshal(kv.Value, &v.last)
			reg.last[id] = v
		} else if key == controllerKey {
			reg.controller = kv
		} else if key == featuresKey {
			reg.features = kv
		} else if key == controllerEpochKey {
			var term controllerTerm
			err = json.Unmarshal(kv.Value, &term)
			reg.term = term.Epoch
		}
		if err != nil {
			return reg, fmt.Errorf("tidemark: key %s: %w", key, err)
		}
	}
	return reg, nil
}
