package etcd

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// leastPace and mostPace bound the time between two looks at the beacons. Between
	// them it is a sixteenth of the shortest ttl. With no session in sight it is idlePace.
	leastPace, mostPace, idlePace = 20 * time.Millisecond, 500 * time.Millisecond, 100 * time.Millisecond
	// leastLook bounds a look: four paces, but not less than this.
	leastLook = 250 * time.Millisecond
	// reportAfter is how long etcd must be out of reach to be worth a line.
	reportAfter = 2 * time.Second
)

// observer looks at the beacons of all sessions, and ends those that have not moved
// for their ttl. Every Store has one: whoever is alive ends the sessions of the dead.
//
// Its clock counts only while it has contact. A look that comes more than half a ttl
// after the one before it shows that etcd, the way to it, or this process stood
// still. Renewals may not have arrived either, so everybody gets one more ttl (D16). A
// session that is renewed every third of its ttl survives shorter gaps. And whatever
// the observer thinks: the end of a session is written only if its beacon is still
// where the observer saw it.
type observer struct {
	s       *Store
	beacons map[sessionID]*beacon
	last    time.Time // when the last look was answered
	lost    time.Time // since when there has been no contact; zero: there is
	told    bool      // that it is lost
}

// beacon is what the observer knows of one session.
type beacon struct {
	revision int64     // 0: it has not been lit yet
	moved    time.Time // when this was seen first, or the clock began anew
	ending   chan struct{}
}

func newObserver(s *Store) *observer {
	now := time.Now()
	return &observer{s: s, beacons: make(map[sessionID]*beacon), last: now}
}

func (o *observer) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-o.s.ctx.Done():
			return
		case <-timer.C:
		}
		begun := time.Now()
		err := o.look(max(4*o.pace(), leastLook))
		if err != nil && o.s.ctx.Err() == nil {
			o.noContact(err)
		}
		if err != nil || o.s.conns.waiting() > o.s.c.StallLimit/2 {
			o.closeStalled()
		}
		timer.Reset(max(jitter(o.pace())-time.Since(begun), leastPace/2))
	}
}

func (o *observer) pace() time.Duration {
	if len(o.beacons) == 0 {
		return idlePace
	}
	pace := mostPace
	for id := range o.beacons {
		pace = min(pace, id.ttl()/16)
	}
	return max(pace, leastPace)
}

// look reads the beacons once.
func (o *observer) look(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(o.s.ctx, limit)
	defer cancel()
	dark, lit := o.s.own() // before the read: what is new after it is not in it
	prefix := []byte(o.s.space.sessions)
	resp, err := o.s.rangeOf(ctx, &etcdserverpb.RangeRequest{Key: prefix, RangeEnd: rangeEnd(prefix), KeysOnly: true})
	if err != nil {
		return err
	}
	o.contact()
	seen := make(map[sessionID]int64, len(resp.Kvs)+len(dark))
	for _, id := range dark {
		seen[id] = 0
	}
	ended := make(map[sessionID]bool)
	for _, kv := range resp.Kvs {
		if id, end, ok := o.s.space.parseSession(kv.Key); ok && end {
			ended[id] = true
		} else if ok {
			seen[id] = kv.ModRevision
		}
	}
	for _, id := range lit {
		if _, there := seen[id]; !there {
			o.s.told(id)
		}
	}
	o.judge(time.Now(), seen, ended)
	return nil
}

// own returns the sessions of this Store that are not known to have ended: those whose
// beacon nobody has lit yet, as far as is known here, and those with one.
func (s *Store) own() (dark, lit []sessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range s.sessions {
		if x.lit.Load() {
			lit = append(lit, id)
		} else {
			dark = append(dark, id)
		}
	}
	return dark, lit
}

// lit notes that the beacons of sessions burn.
func (s *Store) lit(ids ...sessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if x := s.sessions[id]; x != nil {
			x.lit.Store(true)
		}
	}
}

// judge compares what is there with what was there before.
func (o *observer) judge(now time.Time, seen map[sessionID]int64, ended map[sessionID]bool) {
	gap := now.Sub(o.last)
	o.last = now
	for id, b := range o.beacons {
		if revision, there := seen[id]; !there || revision == 0 && b.revision != 0 {
			o.gone(id) // its keys went with it
		}
	}
	for id, revision := range seen {
		b := o.beacons[id]
		switch {
		case b == nil && ended[id]: // the end of one that was never seen alive
			b = &beacon{revision: revision, moved: now}
			o.beacons[id] = b
			o.finish(id, b, true)
		case b == nil:
			o.beacons[id] = &beacon{revision: revision, moved: now}
		case ended[id]:
			o.s.told(id)
			o.finish(id, b, true)
		case b.revision != revision || gap > max(id.ttl()/2, 3*leastPace):
			b.revision, b.moved = revision, now
		case now.Sub(b.moved) >= id.ttl():
			o.finish(id, b, false)
		}
	}
}

// gone forgets a session that has ended.
func (o *observer) gone(id sessionID) {
	delete(o.beacons, id)
	o.s.told(id)
}

// told ends the handle of a session, if it is this Store's.
func (s *Store) told(id sessionID) {
	s.mu.Lock()
	x := s.sessions[id]
	s.mu.Unlock()
	if x != nil {
		x.end()
	}
}

// finish ends a session in the background, unless that is under way. ended: this was
// written already, and only the lease is left.
func (o *observer) finish(id sessionID, b *beacon, ended bool) {
	if b.ending != nil {
		select {
		case <-b.ending:
		default:
			return
		}
	}
	done, revision := make(chan struct{}), b.revision
	b.ending = done
	o.s.start(func() {
		defer close(done)
		// Not for long: the next look tries again.
		ctx, cancel := context.WithTimeout(o.s.ctx, min(max(id.ttl()/4, leastLook), o.s.c.RequestTimeout))
		defer cancel()
		if !ended {
			if over, err := o.s.expire(ctx, id, revision); err != nil || !over {
				return
			}
		}
		if o.s.revoke(ctx, id) == nil {
			o.s.told(id)
		}
	})
}

// expire writes that a session's time is over, if its beacon is still at the revision.
func (s *Store) expire(ctx context.Context, id sessionID, revision int64) (bool, error) {
	resp, err := s.kv.Txn(ctx, &etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{modified(s.space.beacon(id), revision), modified(s.space.ended(id), 0)},
		Success: []*etcdserverpb.RequestOp{put(s.space.ended(id), nil, id)},
	})
	if is(err, rpctypes.ErrLeaseNotFound) {
		return true, nil
	}
	return err == nil && resp.Succeeded, err
}

// contact notes that etcd has answered.
func (o *observer) contact() {
	if o.told {
		o.s.log.Info("etcd is within reach again", "after", time.Since(o.lost).Round(time.Millisecond))
	}
	o.lost, o.told = time.Time{}, false
}

// noContact notes that etcd has not answered.
func (o *observer) noContact(err error) {
	if o.lost.IsZero() {
		o.lost = time.Now()
	}
	if !o.told && time.Since(o.lost) > reportAfter {
		o.told = true
		o.s.log.Warn("etcd is out of reach", "error", err)
	}
}

// closeStalled closes connections that do not answer. Each is asked first, as calls go
// round among them, what a member answers by itself, with a leader or without: so a
// connection on which nothing at all comes back is a dead one.
func (o *observer) closeStalled() {
	ctx, cancel := context.WithTimeout(o.s.ctx, leastPace)
	defer cancel()
	var wg sync.WaitGroup
	for range 2 * len(o.s.c.Endpoints) {
		wg.Go(func() { _, _ = o.s.maintenance.Status(ctx, &etcdserverpb.StatusRequest{}) })
	}
	wg.Wait()
	if n := o.s.conns.closeStalled(o.s.c.StallLimit); n > 0 {
		o.s.log.Warn("closed connections to etcd that did not answer", "connections", n)
	}
}

// jitter makes d up to a quarter shorter, or longer: calls that come at one pace would
// take the same turns among the connections for ever, each always the same one.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)+1))
}
