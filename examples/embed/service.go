package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/tidemark-log/tidemark"
)

const (
	maxEvent     = 64 << 10 // bytes
	shutdownTime = 10 * time.Second
)

// serve runs the service on the listener until ctx ends, and shuts it down.
func serve(ctx context.Context, dir string, listener net.Listener, log *slog.Logger) error {
	n, err := openNode(ctx, dir, log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	// Readers wait at the end of the log: they hear of the shutdown by this context.
	reading, stopReading := context.WithCancel(context.Background())
	defer stopReading()
	server := &http.Server{Handler: (&service{n.events, reading}).handler(), ReadHeaderTimeout: 5 * time.Second}
	server.RegisterOnShutdown(stopReading)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	log.Info("serving", "address", listener.Addr().String())
	select {
	case err = <-failed:
	case <-ctx.Done():
		log.Info("shutting down")
	}
	limit, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	// First the requests, which use the broker; then the broker; then its store.
	if shutErr := server.Shutdown(limit); shutErr != nil {
		err = errors.Join(err, shutErr, server.Close())
	}
	return errors.Join(err, n.shutdown(limit))
}

type service struct {
	events  *tidemark.Partition
	reading context.Context // ends with the service
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /events", s.append)
	mux.HandleFunc("GET /events", s.follow)
	mux.HandleFunc("GET /healthz", s.health)
	return mux
}

// append stores the body as one event.
func (s *service) append(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEvent))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	res, err := s.events.Append(ctx, tidemark.Record{Key: []byte(r.Header.Get("Event-Key")), Value: body})
	switch tidemark.OutcomeOf(err) {
	case tidemark.Appended:
		_ = json.NewEncoder(w).Encode(map[string]int64{"offset": res.Base}) // a client that is gone hears nothing
	case tidemark.NotAppended:
		http.Error(w, err.Error(), http.StatusServiceUnavailable) // safe to send again
	default:
		http.Error(w, err.Error(), http.StatusGatewayTimeout) // may be stored: sent again it may be there twice
	}
}

// event is one line of what follow writes.
type event struct {
	Offset int64     `json:"offset"`
	Time   time.Time `json:"time"`
	Key    string    `json:"key,omitempty"`
	Value  string    `json:"value"`
}

// follow writes the events from an offset on, and waits for new ones, until the
// client or the service goes.
func (s *service) follow(w http.ResponseWriter, r *http.Request) {
	from := tidemark.Earliest()
	if text := r.URL.Query().Get("from"); text != "" {
		offset, err := strconv.ParseInt(text, 10, 64)
		if err != nil || offset < 0 {
			http.Error(w, fmt.Sprintf("from is an offset, not %q", text), http.StatusBadRequest)
			return
		}
		from = tidemark.At(offset)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.reading, cancel)()
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, control := json.NewEncoder(w), http.NewResponseController(w)
	for rec, err := range s.events.Records(ctx, from) {
		if err != nil {
			if ctx.Err() == nil {
				_ = out.Encode(map[string]string{"error": err.Error()})
			}
			return
		}
		if out.Encode(event{rec.Offset, rec.Timestamp, string(rec.Key), string(rec.Value)}) != nil || control.Flush() != nil {
			return
		}
	}
}

// health says whether an event can be written now.
func (s *service) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if err := s.events.Writable(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
