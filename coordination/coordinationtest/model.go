package coordinationtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/coordination"
)

func key(i, n int) string { return fmt.Sprintf("k/%d/%d", i, n) }

// step is one drawn action; the fields are indexes into what exists by then.
type step struct {
	Kind   string
	Client int
	Session,
	Keys [3]int
	Delete [3]bool
	Guard  [2]int // -1: none; else a key
	Stale  [2]bool
	N      int
	Wait   int // quarters of a ttl
}

var kinds = []string{"txn", "txn", "txn", "txn", "get", "session", "renew", "close", "wait", "wait", "lose", "drop", "fence"}

func drawStep(t *rapid.T) step {
	small := rapid.IntRange(0, 4)
	return step{
		Kind:    rapid.SampledFrom(kinds).Draw(t, "kind"),
		Client:  rapid.IntRange(0, 1).Draw(t, "client"),
		Session: [3]int{small.Draw(t, "s0"), small.Draw(t, "s1"), small.Draw(t, "s2")},
		Keys:    [3]int{small.Draw(t, "k0"), small.Draw(t, "k1"), small.Draw(t, "k2")},
		Delete:  [3]bool{rapid.Bool().Draw(t, "d0"), rapid.Bool().Draw(t, "d1"), rapid.Bool().Draw(t, "d2")},
		Guard:   [2]int{rapid.IntRange(-1, 4).Draw(t, "g0"), rapid.IntRange(-1, 4).Draw(t, "g1")},
		Stale:   [2]bool{rapid.IntRange(0, 3).Draw(t, "x0") == 0, rapid.IntRange(0, 3).Draw(t, "x1") == 0},
		N:       rapid.IntRange(0, 3).Draw(t, "n"),
		Wait:    rapid.IntRange(1, 5).Draw(t, "wait"),
	}
}

// model runs random steps on a server and on a plain map, and compares all that can be seen.
func (c Config) model(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 60).Draw(rt, "steps")
		var err error
		// A failure must not leave the bubble by a panic: it comes back as a value.
		body := func(t *testing.T) { err = c.play(t, steps) }
		if c.RealTime {
			body(t)
		} else {
			synctest.Test(t, body)
		}
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// modelSession is what the model knows of a session.
type modelSession struct {
	handle   coordination.Session
	client   int // -1: it was fenced
	ttl      time.Duration
	deadline time.Time
	alive    bool
}

// player holds the server and the model side by side.
type player struct {
	ctx      context.Context
	config   Config
	server   *Server
	clients  []coordination.Store
	sessions []*modelSession
	keys     map[string]coordination.KV
	watched  map[string]coordination.KV
	watch    <-chan coordination.Changes
	last     int64 // revision of the last event
	revision int64
	count    int
}

func (c Config) play(t *testing.T, steps []step) (err error) {
	p := &player{ctx: context.Background(), config: c, server: c.New(t),
		keys: make(map[string]coordination.KV), watched: make(map[string]coordination.KV)}
	for range 3 {
		p.clients = append(p.clients, p.server.Connect())
	}
	defer func() {
		for _, s := range p.clients {
			_ = s.Close()
		}
		if closeErr := p.server.Close(); err == nil {
			err = closeErr
		}
	}()
	if p.watch, err = p.observer().Watch(p.ctx, "", 0); err != nil {
		return err
	}
	if err := p.compare(); err != nil { // a store's first revision is its own affair
		return fmt.Errorf("at first: %w", err)
	}
	for i, st := range steps {
		if err := p.step(st); err != nil {
			return fmt.Errorf("step %d, %+v: %w", i, st, err)
		}
		if err := p.compare(); err != nil {
			return fmt.Errorf("after step %d, %+v: %w", i, st, err)
		}
	}
	return nil
}

// observer is the handle that is never fenced.
func (p *player) observer() coordination.Store { return p.clients[2] }

func (p *player) step(st step) error {
	s := p.clients[st.Client]
	switch st.Kind {
	case "txn":
		return p.txn(st, s, "")
	case "lose":
		if p.server.LoseReplies != nil {
			p.server.LoseReplies(1)
			return p.txn(st, s, "lose")
		}
	case "drop":
		if p.server.DropRequests != nil {
			p.server.DropRequests(1)
			return p.txn(st, s, "drop")
		}
	case "get":
		name := key(0, st.Keys[0])
		kv, ok, err := s.Get(p.ctx, name)
		want, exists := p.keys[name]
		if err != nil || ok != exists || fmt.Sprint(kv) != fmt.Sprint(want) {
			return fmt.Errorf("got %v, %v, %v; want %v", kv, ok, err, want)
		}
	case "session":
		ttl := p.config.TTL * time.Duration(st.N+2) / 4
		if p.config.RealTime {
			ttl = time.Hour // no session ends by itself
		}
		handle, err := s.NewSession(p.ctx, ttl)
		if err != nil {
			return err
		}
		p.sessions = append(p.sessions, &modelSession{handle: handle, client: st.Client, ttl: ttl, deadline: time.Now().Add(ttl), alive: true})
	case "renew", "close":
		return p.sessionStep(st)
	case "wait":
		if !p.config.RealTime {
			<-time.After(p.config.TTL * time.Duration(st.Wait) / 4)
			synctest.Wait()
			p.expire()
		}
	case "fence":
		return p.fence(st.Client)
	}
	return nil
}

// fence replaces a client by a new one; the old one's sessions will expire.
func (p *player) fence(client int) error {
	if p.server.Fence == nil {
		return nil
	}
	p.server.Fence(p.clients[client])
	if err := p.clients[client].Close(); err != nil {
		return err
	}
	p.clients[client] = p.server.Connect()
	for _, ms := range p.sessions {
		if ms.client == client {
			ms.client = -1
		}
	}
	return nil
}

func (p *player) pick(i int) *modelSession {
	if i == 0 || len(p.sessions) == 0 {
		return nil
	}
	return p.sessions[(i-1)%len(p.sessions)]
}

func (p *player) sessionStep(st step) error {
	ms := p.pick(st.Session[0])
	if ms == nil {
		return nil
	}
	var err error
	if st.Kind == "renew" {
		err = ms.handle.Renew(p.ctx)
	} else {
		err = ms.handle.Close(p.ctx)
	}
	var want error
	switch {
	case ms.client < 0:
		want = coordination.ErrUnavailable
	case st.Kind == "renew" && !ms.alive:
		want = coordination.ErrSessionExpired
	}
	switch {
	case !errors.Is(err, want):
		return fmt.Errorf("%v, want %v", err, want)
	case want != nil:
	case st.Kind == "renew":
		ms.deadline = time.Now().Add(ms.ttl)
	default:
		p.end(ms)
	}
	return nil
}

// expire ends the sessions whose time is over.
func (p *player) expire() {
	for _, ms := range p.sessions {
		if !time.Now().Before(ms.deadline) {
			p.end(ms)
		}
	}
}

func (p *player) end(ms *modelSession) {
	ms.alive = false
	maps.DeleteFunc(p.keys, func(_ string, kv coordination.KV) bool { return kv.Session == ms.handle.ID() })
}

// txn runs a drawn transaction; fault says what the server was told to do to it.
func (p *player) txn(st step, s coordination.Store, fault string) error {
	t, holds := p.build(st)
	p.count++
	dead := false
	for i := range t.Ops {
		// Each value is written once, so that no write can be taken for another.
		t.Ops[i].Value = fmt.Appendf(nil, "%d.%d", p.count, i)
		if ms := p.pick(st.Session[i]); ms != nil && !t.Ops[i].Delete {
			t.Ops[i].Session = ms.handle.ID()
			dead = dead || !ms.alive
		}
	}
	before := p.revision
	res, err := s.Do(p.ctx, t)
	switch {
	case fault != "" && !errors.Is(err, coordination.ErrUnavailable):
		return fmt.Errorf("%s: error is %v", fault, err)
	case fault == "drop":
		return nil
	case dead && fault == "" && !errors.Is(err, coordination.ErrSessionExpired):
		return fmt.Errorf("dead session: error is %v", err)
	case dead:
		return nil
	case fault == "" && err != nil:
		return err
	case fault == "" && res.Applied != holds:
		return fmt.Errorf("applied is %v; guards hold is %v", res.Applied, holds)
	case fault == "" && !holds && res.Revision != before:
		return fmt.Errorf("refused at revision %d, store is at %d", res.Revision, before)
	case !holds:
		return nil
	}
	changed := p.apply(t)
	if fault != "" {
		return p.adopt(t)
	}
	if changed == (res.Revision == before) || res.Revision < before {
		return fmt.Errorf("changed is %v; revision went from %d to %d", changed, before, res.Revision)
	}
	p.stamp(t, res.Revision)
	return nil
}

// build makes a transaction of a step and says whether its guards hold.
func (p *player) build(st step) (t coordination.Txn, holds bool) {
	holds = true
	for i, k := range st.Guard {
		if k < 0 {
			continue
		}
		g := coordination.Guard{Key: key(0, k), Revision: p.keys[key(0, k)].Revision}
		if st.Stale[i] {
			g.Revision++
			holds = false
		}
		t.Guards = append(t.Guards, g)
	}
	used := make(map[int]bool)
	for i := range st.N {
		if k := st.Keys[i]; !used[k] {
			used[k] = true
			t.Ops = append(t.Ops, coordination.Op{Key: key(0, k), Delete: st.Delete[i]})
		}
	}
	return t, holds
}

// apply changes the model's keys, but for their revisions; it returns whether anything changed.
func (p *player) apply(t coordination.Txn) bool {
	changed := false
	for _, op := range t.Ops {
		if _, exists := p.keys[op.Key]; op.Delete {
			changed = changed || exists
			delete(p.keys, op.Key)
		} else {
			changed = true
			p.keys[op.Key] = coordination.KV{Key: op.Key, Value: op.Value, Session: op.Session}
		}
	}
	return changed
}

// stamp gives the keys just put their revision.
func (p *player) stamp(t coordination.Txn, revision int64) {
	for _, op := range t.Ops {
		if !op.Delete {
			kv := p.keys[op.Key]
			kv.Revision = revision
			p.keys[op.Key] = kv
		}
	}
}

// adopt finds out the revision of a transaction whose answer was lost.
func (p *player) adopt(t coordination.Txn) error {
	_, revision, err := p.observer().List(p.ctx, "")
	if err == nil {
		p.stamp(t, revision)
	}
	return err
}

// compare checks everything that can be seen without changing it.
func (p *player) compare() error {
	kvs, rev, err := p.observer().List(p.ctx, "")
	if err != nil {
		return err
	}
	if rev < p.revision {
		return fmt.Errorf("revision fell from %d to %d", p.revision, rev)
	}
	p.revision = rev
	got := make(map[string]coordination.KV)
	for _, kv := range kvs {
		got[kv.Key] = kv
	}
	if err := same(got, p.keys); err != nil {
		return err
	}
	for _, ms := range p.sessions {
		ended := false
		select {
		case <-ms.handle.Done():
			ended = true
		default:
		}
		if ended == ms.alive {
			return fmt.Errorf("session %s: alive is %v, ended is %v", ms.handle.ID(), ms.alive, ended)
		}
	}
	return p.drain()
}

// drain takes what the watch has and compares it with the keys.
func (p *player) drain() error {
	limit := time.After(10 * p.config.TTL)
	for same(p.watched, p.keys) != nil {
		select {
		case c, ok := <-p.watch:
			if !ok || c.Err != nil {
				return fmt.Errorf("watch ended: %v", c.Err)
			}
			var err error
			if p.last, err = fold(p.watched, p.last, c.Events); err != nil {
				return err
			}
		case <-limit:
			return fmt.Errorf("watch: %w", same(p.watched, p.keys))
		}
	}
	return nil
}

func same(got, want map[string]coordination.KV) error {
	equal := maps.EqualFunc(got, want, func(a, b coordination.KV) bool { return fmt.Sprint(a) == fmt.Sprint(b) })
	if !equal {
		return fmt.Errorf("keys are %v, want %v", got, want)
	}
	return nil
}
