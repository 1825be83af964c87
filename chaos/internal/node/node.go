package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/chaos/internal/faultfs"
	"github.com/tidemark-log/tidemark/coordination"
	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport"
)

const (
	// shutdownTime is how long appends that were sent may take to be decided when the
	// process is told to stop.
	shutdownTime = 5 * time.Second
	// farewellTime is how long its callers may take to hang up after that.
	farewellTime = 5 * time.Second
	// memoryBudget is small: many brokers share a machine here.
	memoryBudget = 96 << 20
)

// Stopped is what a broker's process says after Hello once it was shut down, before it
// ends.
const Stopped = "stopped"

// parts are what a broker stands on.
type parts struct {
	control   *control
	transport transport.Transport
	coord     coordination.Store
	store     storage.Store
	broker    *tidemark.Broker
	unfit     chan error // gets why, once
}

// Run is the life of a broker's process: it opens the broker, says Hello on hello, and
// returns the exit code when ctx has ended and the broker was shut down, when it is
// told to stop, or when the broker is unfit.
func Run(ctx context.Context, cfg Config, hello io.Writer, log *slog.Logger) int {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	disk := &faultfs.Disk{}
	setDisk := func(d Disk) {
		log.Info("disk", "full", d.Full, "stalled", d.Stalled)
		disk.SetFull(d.Full)
		disk.SetStalled(d.Stalled)
	}
	setDisk(cfg.Disk)
	p := &parts{unfit: make(chan error, 1)}
	if err := p.listen(cfg, setDisk, stop, hello, log); err != nil {
		log.Error("could not listen", "error", err)
		return ExitFailed
	}
	err := p.open(ctx, cfg, disk, log)
	if err == nil {
		p.control.set(p.broker)
		select {
		case <-ctx.Done():
			log.Info("shutting down")
		case err := <-p.unfit:
			log.Error("unfit: the process ends, to be started again", "error", err)
			return p.abandon(log)
		}
	} else if ctx.Err() == nil {
		log.Error("could not open the broker", "error", err)
	}
	if err = errors.Join(err, p.shutdown()); err != nil {
		log.Error("did not stop cleanly", "error", err)
		return ExitFailed
	}
	_, _ = fmt.Fprintln(hello, Stopped)
	p.control.farewell(farewellTime)
	return ExitClean
}

// listen opens the control interface and the transport, and tells where they are.
func (p *parts) listen(cfg Config, disk func(Disk), stop context.CancelFunc, hello io.Writer, log *slog.Logger) (err error) {
	if p.control, err = newControl(disk, stop); err != nil {
		return err
	}
	var at string
	if p.transport, at, err = openTransport(cfg, log); err != nil {
		return err
	}
	line, err := json.Marshal(Hello{Control: p.control.listener.Addr().String(), Transport: at})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(hello, "%s\n", line)
	return err
}

func (p *parts) open(ctx context.Context, cfg Config, disk *faultfs.Disk, log *slog.Logger) error {
	store, err := pebblestore.Open(filepath.Join(cfg.Dir, "store"), pebblestore.Options{
		FS: disk.Wrap(vfs.Default), MemtableBytes: 16 << 20, CloseTimeout: 2 * time.Second, Logger: log,
	})
	if err != nil {
		return errors.Join(err, p.transport.Close())
	}
	p.store = store
	if cfg.EarlyAck > 0 {
		log.Warn("a bug is planted: groups count as stored before they are", "by", cfg.EarlyAck)
		p.store = newEarlyStore(store, cfg.EarlyAck)
	}
	if p.coord, err = openCoordination(ctx, cfg.Coordination, log); err != nil {
		return errors.Join(err, p.transport.Close())
	}
	p.broker, err = tidemark.Open(ctx, tidemark.Config{
		ID: cfg.ID, Address: fmt.Sprintf("chaos:%d", cfg.ID), Store: p.store, Coordination: p.coord, Transport: p.transport,
		SessionTimeout: cfg.SessionTimeout, MaxLag: cfg.MaxLag, MemoryBudget: memoryBudget, Logger: log,
		Observer: &tidemark.Observer{Unfit: func(reason error) {
			select {
			case p.unfit <- reason:
			default:
			}
		}},
	})
	return err
}

// shutdown stops everything in order.
func (p *parts) shutdown() error {
	var errs []error
	if p.broker != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
		defer cancel()
		err := p.broker.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, tidemark.ErrClosed) {
			errs = append(errs, err) // what is cut off then is the clients' to know
		}
	}
	if p.coord != nil {
		errs = append(errs, p.coord.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	return errors.Join(errs...)
}

// abandon ends an unfit broker as far as that is possible in bounded time.
func (p *parts) abandon(log *slog.Logger) int {
	err := p.broker.Close()
	log.Info("closed", "broker", err, "coordination", p.coord.Close(), "store", p.store.Close())
	return ExitUnfit
}
