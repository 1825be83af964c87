package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	maxRecord    = 64 << 10 // bytes
	requestTime  = 5 * time.Second
	shutdownTime = 10 * time.Second
)

// serve runs a broker and its service until ctx ends, and shuts both down.
func serve(ctx context.Context, address string, c nodeConfig, log *slog.Logger) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot serve HTTP (-http changes where): %w", err)
	}
	n, err := openNode(ctx, c, log)
	switch {
	case err != nil && ctx.Err() != nil:
		log.Info("shut down before it was part of the cluster", "error", err)
		return listener.Close()
	case err != nil:
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{Handler: (&service{n.broker}).handler(), ReadHeaderTimeout: requestTime}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	log.Info("serving", "address", listener.Addr().String())
	select {
	case err = <-failed:
	// Only a new start helps then, which is for whoever started us.
	case err = <-n.unfit:
	case <-n.member.Failed():
		err = n.member.Err()
	case <-ctx.Done():
		log.Info("shutting down")
	}
	limit, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	// First the requests, which use the broker; then the broker; then what it stands on.
	if shutErr := server.Shutdown(limit); shutErr != nil {
		err = errors.Join(err, shutErr, server.Close())
	}
	err = errors.Join(err, n.shutdown(limit))
	if err == nil {
		log.Info("shut down")
	}
	return err
}

// service is HTTP to the cluster, by way of one broker. Any broker will do: it finds
// the leader.
type service struct{ broker *tidemark.Broker }

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /{topic}", s.create)
	mux.HandleFunc("POST /{topic}/{partition}", s.onPartition(s.append))
	mux.HandleFunc("GET /{topic}/{partition}", s.onPartition(s.read))
	mux.HandleFunc("GET /{topic}/{partition}/status", s.onPartition(s.status))
	mux.HandleFunc("GET /{topic}/{partition}/replica", s.onPartition(s.replica))
	return mux
}

// onPartition gives a handler the partition that the path names, and a limit of time.
func (s *service) onPartition(handle func(http.ResponseWriter, *http.Request, *tidemark.Partition)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		number, err := strconv.ParseUint(r.PathValue("partition"), 10, 31)
		if err != nil {
			http.Error(w, "the path is /TOPIC/PARTITION, and partitions are numbers", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTime)
		defer cancel()
		handle(w, r.WithContext(ctx), s.broker.Partition(r.PathValue("topic"), int(number)))
	}
}

// create makes a topic unless it exists: ?partitions=N, of three replicas each.
func (s *service) create(w http.ResponseWriter, r *http.Request) {
	partitions, err := strconv.ParseInt(r.FormValue("partitions"), 10, 32)
	if r.FormValue("partitions") == "" {
		partitions, err = 1, nil
	}
	if err != nil {
		http.Error(w, "partitions is a number", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTime)
	defer cancel()
	err = s.broker.Controller().EnsureTopic(ctx, r.PathValue("topic"), tidemark.TopicConfig{Partitions: int32(partitions)})
	switch {
	case errors.Is(err, tidemark.ErrInvalidTopic):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, tidemark.ErrTopicMismatch):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// ack is the answer to an append.
type ack struct {
	Offset int64 `json:"offset"`
	Epoch  int32 `json:"epoch"` // of the leader that took it
}

// append stores the body as one record on all in-sync replicas.
func (s *service) append(w http.ResponseWriter, r *http.Request, p *tidemark.Partition) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRecord))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	res, err := p.Append(r.Context(), tidemark.Record{Value: body})
	switch {
	case err == nil:
		answer(w, ack{res.Base, res.LeaderEpoch})
	case notFound(err):
		http.Error(w, err.Error(), http.StatusNotFound)
	case tidemark.OutcomeOf(err) == tidemark.NotAppended:
		http.Error(w, err.Error(), http.StatusServiceUnavailable) // safe to send again
	default:
		http.Error(w, err.Error(), http.StatusGatewayTimeout) // may be stored: sent again it may be there twice
	}
}

// line is one record of what read answers.
type line struct {
	Offset int64  `json:"offset"`
	Epoch  int32  `json:"epoch"`
	Value  string `json:"value"`
}

// read writes what is committed from ?offset=N on, a JSON object a line: at most about
// 1 MiB of it, and nothing only at the log's end. With ?wait=1 it waits there for more.
func (s *service) read(w http.ResponseWriter, r *http.Request, p *tidemark.Partition) {
	offset, err := strconv.ParseInt(r.FormValue("offset"), 10, 64)
	if r.FormValue("offset") == "" {
		offset, err = 0, nil
	}
	if err != nil || offset < 0 {
		http.Error(w, "offset is a number, 0 or above", http.StatusBadRequest)
		return
	}
	var o tidemark.FetchOptions
	if r.FormValue("wait") != "" {
		o.MaxWait = requestTime / 2
	}
	got, err := p.Fetch(r.Context(), offset, o)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	for _, rec := range got.Records {
		_ = json.NewEncoder(w).Encode(line{rec.Offset, rec.LeaderEpoch, string(rec.Value)}) // a client that is gone hears nothing
	}
}

// partitionStatus is what status answers.
type partitionStatus struct {
	Leader        int32   `json:"leader"` // -1: none
	Epoch         int32   `json:"epoch"`
	ISR           []int32 `json:"isr"`
	HighWatermark int64   `json:"high_watermark"` // -1: the leader did not answer
	LogEnd        int64   `json:"log_end"`
}

func (s *service) status(w http.ResponseWriter, r *http.Request, p *tidemark.Partition) {
	st, err := p.Status(r.Context())
	if err != nil {
		refuse(w, err)
		return
	}
	out := partitionStatus{st.Leader, st.LeaderEpoch, st.ISR, -1, -1}
	if st.Ends != nil {
		out.HighWatermark, out.LogEnd = st.Ends.HighWatermark, st.Ends.LogEnd
	}
	answer(w, out)
}

// replicaStatus is what replica answers: this broker's copy, whoever leads.
type replicaStatus struct {
	Role          string `json:"role"`
	HighWatermark int64  `json:"high_watermark"`
	LogEnd        int64  `json:"log_end"`
	StoredEnd     int64  `json:"stored_end"`
	SHA256        string `json:"sha256"` // of all batches, as the disk has them
}

func (s *service) replica(w http.ResponseWriter, r *http.Request, p *tidemark.Partition) {
	rep, err := s.broker.Replica(r.Context(), p.Topic(), p.Number())
	if err != nil {
		refuse(w, err)
		return
	}
	sum := sha256.New()
	if rep.LogStart < rep.LogEnd {
		for batch, err := range rep.Batches(r.Context(), rep.LogStart) {
			if err != nil {
				refuse(w, err)
				return
			}
			sum.Write(batch)
		}
	}
	answer(w, replicaStatus{rep.Role, rep.HighWatermark, rep.LogEnd, rep.StoredEnd, hex.EncodeToString(sum.Sum(nil))})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that is gone hears nothing
}

func refuse(w http.ResponseWriter, err error) {
	code := http.StatusServiceUnavailable
	switch {
	case notFound(err):
		code = http.StatusNotFound
	case errors.Is(err, tidemark.ErrOffsetOutOfRange):
		code = http.StatusRequestedRangeNotSatisfiable
	}
	http.Error(w, fmt.Sprint(err), code)
}

func notFound(err error) bool {
	return errors.Is(err, tidemark.ErrUnknownTopic) || errors.Is(err, tidemark.ErrUnknownPartition)
}
