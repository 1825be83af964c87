package tidemark

import (
	"context"
	"errors"
	"time"
)

// closeLimit bounds how long Close waits for goroutines that hang in a store,
// a coordination store or a transport that does not return.
const closeLimit = 5 * time.Second

// Drain takes no more calls from clients of this broker: they end with ErrClosed,
// or go by another broker where their Client has one. It waits until the appends and
// commands that were sent are decided, and returns ctx's error when ctx ends first.
// Calls that wait for something else, such as a leader, end with ErrClosed, and so
// does what a Producer has not sent yet: Close Producers first.
//
// What the broker leads and follows goes on, so that other brokers can finish what
// they have under way. Drain cannot be undone, and may be called again.
func (b *Broker) Drain(ctx context.Context) error {
	ctx = given(ctx)
	b.draining.Store(true)
	b.appends.drain()
	b.commands.drain()
	return b.finished(ctx, func() int { return b.appends.open() + b.commands.open() })
}

// finished waits until nothing is open.
func (b *Broker) finished(ctx context.Context, open func() int) error {
	for open() > 0 {
		switch err := wait(ctx, nil, b.stopping, 5*time.Millisecond); {
		case errors.Is(err, ErrClosed) && !b.cutOff.Load():
			return nil // another Shutdown has waited for the same
		case err != nil:
			return err
		}
	}
	return nil
}

// Shutdown is Drain and then Close, and hands over what the broker leads in between:
// other members of the ISR lead, and appends by clients elsewhere end as Appended, or
// as NotAppended and are tried again, not as Unknown. That takes a few round trips, at
// most SessionTimeout, and begins when the appends of this broker's clients are decided,
// SessionTimeout later at most; what is led here and not decided then ends as Unknown.
// Where nobody else is in sync the partition has no leader until the broker is back.
//
// It returns the errors of Drain and Close: one that wraps ctx's when that cut
// something off, ErrClosed when Close did.
func (b *Broker) Shutdown(ctx context.Context) error {
	ctx = given(ctx)
	b.draining.Store(true)
	b.appends.drain()
	// One append that nothing decides, to a partition elsewhere, must not use up the time
	// that the hand-over needs.
	limit := b.cfg.SessionTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	err := b.finished(bounded, b.appends.open)
	cancel()
	if !errors.Is(err, ErrClosed) {
		err = nil // Drain says what is not decided in the end
	}
	b.handOver(ctx)
	return errors.Join(err, b.Drain(ctx), b.Close())
}

// Close stops the broker at once: appends under way end as Unknown with
// ErrClosed. It deregisters if the coordination store answers within a second.
// Store and Coordination stay open: they are the host's.
//
// It may be called again, from any goroutine, and from within whatever of the host's
// the broker calls. It returns after 5 s at most, even when a disk, a peer or a
// transport hangs, with ErrAbandoned then.
func (b *Broker) Close() error {
	b.closing.Do(func() {
		b.draining.Store(true)
		b.cutOff.Store(b.appends.close()+b.commands.close() > 0)
		b.reads.close()
		b.cancel()
		b.observer.close()
		done := make(chan error, 1)
		go func() {
			var err error
			if b.cfg.Transport != nil {
				err = b.cfg.Transport.Close()
			}
			b.running.Wait()
			done <- err
		}()
		timer := time.NewTimer(closeLimit)
		defer timer.Stop()
		select {
		case b.closeErr = <-done:
		case <-timer.C:
			b.closeErr = ErrAbandoned
		}
	})
	return b.closeErr
}

// wait returns when changed is closed or the pause is over; an error when ctx or
// stopping ended first. A nil channel never fires.
func wait(ctx context.Context, changed, stopping <-chan struct{}, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-stopping:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
