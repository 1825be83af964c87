package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/etcd"
	"github.com/tidemark-log/tidemark/coordination/etcd/embedded"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport/tcp"
)

// clusterName is in every certificate, and what brokers ask each other for.
const clusterName = "example"

// nodeConfig is what one broker of the cluster needs to know.
type nodeConfig struct {
	here    place
	all     places
	dir     string
	certs   string
	session time.Duration
}

// node is a broker and what it stands on, from the bottom up.
type node struct {
	member *embedded.Member   // one member of the etcd that all brokers share
	coord  *etcd.Store        // the broker's way to it
	store  *pebblestore.Store // the logs
	broker *tidemark.Broker

	unfit chan error // gets one when the broker gave up its roles for good
}

// openNode returns when the broker is part of the cluster. For that it waits, until
// ctx ends, for more than half of the brokers to be there.
func openNode(ctx context.Context, c nodeConfig, log *slog.Logger) (*node, error) {
	n := &node{unfit: make(chan error, 1)}
	if err := n.open(ctx, c, log); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) open(ctx context.Context, c nodeConfig, log *slog.Logger) error {
	certs, err := tcp.LoadFiles(certFiles(c.certs, c.here.id), log)
	if err != nil {
		return err
	}
	if err := n.openCoordination(ctx, c, certs, log); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if n.store, err = pebblestore.Open(filepath.Join(c.dir, "logs"), pebblestore.Options{Logger: log}); err != nil {
		return err
	}
	transport, err := tcp.New(tcp.Config{
		ID: c.here.id, Cluster: clusterName, Listen: c.here.listenBroker(), TLS: certs.TLS(), Roots: certs.Roots, Logger: log,
	})
	if err != nil {
		return err
	}
	n.broker, err = tidemark.Open(ctx, tidemark.Config{ // it closes the transport
		ID:             c.here.id,
		Address:        c.here.broker(),
		Transport:      transport,
		Store:          n.store,
		Coordination:   n.coord,
		SessionTimeout: c.session,
		MaxLag:         c.session,
		MemoryBudget:   128 << 20,
		Logger:         log,
		Observer:       &tidemark.Observer{Unfit: n.giveUp},
	})
	if err != nil {
		return err
	}
	return n.broker.Ready(ctx)
}

// giveUp is called once the broker is of no use any more until it is opened again.
func (n *node) giveUp(reason error) {
	select {
	case n.unfit <- reason:
	default: // one is enough
	}
}

// openCoordination starts this broker's member of etcd, and waits for it to have a quorum.
func (n *node) openCoordination(ctx context.Context, c nodeConfig, certs *tcp.Files, log *slog.Logger) (err error) {
	files := certFiles(c.certs, c.here.id)
	identity := &embedded.TLS{CA: files.CA, Cert: files.Certificate, Key: files.Key}
	log.Info("waiting for more than half of the brokers", "all", c.all.String())
	n.member, err = embedded.Start(ctx, embedded.Config{
		Name:      c.here.member(),
		Dir:       filepath.Join(c.dir, "etcd"),
		Client:    c.here.etcdClient(),
		Peer:      c.here.listenEtcdPeer(),
		Cluster:   c.all.members(),
		ClientTLS: identity,
		PeerTLS:   identity,
		// When a member that led etcd dies, the others have a new leader well before
		// the session of any other broker is in danger.
		Heartbeat: c.session / 80,
		Election:  c.session / 8,
		Logger:    log,
	})
	if err != nil {
		return err
	}
	access := certs.TLS()
	access.RootCAs = certs.Roots()
	n.coord, err = etcd.Open(ctx, etcd.Config{Endpoints: n.member.Endpoints(), TLS: access, Logger: log})
	return err
}

// shutdown lets the broker finish what it has under way, until ctx ends.
func (n *node) shutdown(ctx context.Context) error {
	return errors.Join(n.broker.Shutdown(ctx), n.close())
}

// close closes whatever is open, the broker before what it stands on.
func (n *node) close() error {
	var errs []error
	if n.broker != nil {
		errs = append(errs, n.broker.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.coord != nil {
		errs = append(errs, n.coord.Close())
	}
	if n.member != nil {
		errs = append(errs, n.member.Close())
	}
	return errors.Join(errs...)
}
