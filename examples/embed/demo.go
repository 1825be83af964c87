package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	clients   = 8
	eachWrite = 200 // answered events of one client before it stops
)

// report is the result of the demo.
type report struct {
	Answered int `json:"answered"` // events that got an offset
	Found    int `json:"found"`    // of those, in the log at that offset
	Lost     int `json:"lost"`
	Refused  int `json:"refused"`  // requests that the shutdown cut off, and that were sent again
	Restarts int `json:"restarts"` // of the service, under load
}

// demo runs clients against the service, which is shut down and opened again in
// the middle, and checks what they were told.
func demo(ctx context.Context, dir string, stdout io.Writer, log *slog.Logger) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "tidemark-embed-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w := &writers{half: make(chan struct{}), told: make(map[int64]string)}
	w.aim(listener)
	defer w.client.CloseIdleConnections()

	first, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	g, writing := errgroup.WithContext(ctx)
	for n := range clients {
		g.Go(func() error { return w.write(writing, n) })
	}
	served := make(chan error, 1)
	go func() { served <- serve(first, dir, listener, log) }()
	select {
	case <-w.half:
	case <-writing.Done():
	}
	stopFirst()
	if err := <-served; err != nil {
		return errors.Join(err, ctx.Err())
	}

	if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	w.aim(listener)
	second, stopSecond := context.WithCancel(ctx)
	defer stopSecond()
	go func() { served <- serve(second, dir, listener, log) }()
	err = g.Wait()
	var rep report
	if err == nil {
		rep, err = w.check(ctx)
	}
	stopSecond()
	if err := errors.Join(err, <-served); err != nil {
		return err
	}
	line, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
		return err
	}
	if rep.Lost > 0 || rep.Found != clients*eachWrite {
		return fmt.Errorf("%d events were answered, %d of them are there", rep.Answered, rep.Found)
	}
	return nil
}

// writers are the service's clients.
type writers struct {
	client http.Client
	half   chan struct{} // closed when half of the events were answered

	mu      sync.Mutex
	url     string
	told    map[int64]string // offset to event, as answered
	refused int
}

// aim has requests go to the service behind the listener.
func (w *writers) aim(l net.Listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.url = fmt.Sprintf("http://%s/events", l.Addr())
}

func (w *writers) target() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.url
}

// write posts events until enough of them were answered. One that was not
// answered is sent again under the same name.
func (w *writers) write(ctx context.Context, n int) error {
	for i := 0; i < eachWrite; {
		name := fmt.Sprintf("client %d, event %d", n, i)
		offset, err := w.post(ctx, name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.mu.Lock()
		if err != nil {
			w.refused++
		} else {
			i++
			w.told[offset] = name
			if len(w.told) == clients*eachWrite/2 {
				close(w.half)
			}
		}
		w.mu.Unlock()
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond): // the service is away
			}
		}
	}
	return nil
}

func (w *writers) post(ctx context.Context, name string) (offset int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.target(), strings.NewReader(name))
	if err != nil {
		return 0, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	var answer struct{ Offset int64 }
	return answer.Offset, json.NewDecoder(resp.Body).Decode(&answer)
}

// check follows the log through the service up to the last offset that was told.
func (w *writers) check(ctx context.Context) (report, error) {
	last := int64(-1)
	for offset := range w.told {
		last = max(last, offset)
	}
	rep := report{Answered: len(w.told), Refused: w.refused, Restarts: 1}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.target()+"?from=0", nil)
	if err != nil {
		return rep, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return rep, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for next := int64(0); next <= last; next++ {
		if !lines.Scan() {
			return rep, fmt.Errorf("the log ended at offset %d of %d: %w", next, last, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
		}
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return rep, err
		}
		if e.Offset != next {
			return rep, fmt.Errorf("offset %d came after %d", e.Offset, next-1)
		}
		if w.told[next] == e.Value {
			rep.Found++
		}
	}
	rep.Lost = rep.Answered - rep.Found
	return rep, nil
}
