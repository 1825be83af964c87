package interop_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/tidemark-log/tidemark/record"
)

var rewrite = flag.Bool("rewrite", false, "write ../record/testdata")

const (
	topic    = "orders"
	testdata = "../record/testdata"
)

// wire is a Kafka broker made of kfake, and the batches that it was sent.
type wire struct {
	*kfake.Cluster
	mu      sync.Mutex
	batches [][]byte
}

func newWire(t *testing.T) *wire {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	w := &wire{Cluster: c}
	c.ControlKey(int16(kmsg.Produce), func(q kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, topic := range q.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				w.batches = append(w.batches, bytes.Clone(p.Records))
			}
		}
		return nil, nil, false
	})
	return w
}

// take returns the batches that were sent since the last call.
func (w *wire) take() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.batches
	w.batches = nil
	return taken
}

func (w *wire) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(w.ListenAddrs()...))...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// produced are the records that the tests produce: n of them, all of the ways in
// which a key, a value or a header can be there or not.
func produced(n int) []record.Record {
	at := time.UnixMilli(1_700_000_000_000).UTC()
	fields := [][]byte{nil, {}, []byte("x"), bytes.Repeat([]byte("tide "), 100)}
	headers := [][]record.Header{
		nil,
		{{Key: "content-type", Value: []byte("text/plain")}},
		{{Key: "", Value: nil}, {Key: "twice", Value: []byte{}}, {Key: "twice", Value: []byte("schlüssel")}},
	}
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = record.Record{
			Offset: int64(i), LeaderEpoch: -1,
			Timestamp: at.Add(time.Duration(i*i%7-3) * 1234 * time.Millisecond), // neither rising nor falling
			Key:       fields[i%4], Value: fields[i/4%4], Headers: headers[i%3],
		}
	}
	return recs
}

func toKgo(recs []record.Record) []*kgo.Record {
	out := make([]*kgo.Record, len(recs))
	for i, r := range recs {
		out[i] = &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
		for _, h := range r.Headers {
			out[i].Headers = append(out[i].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	return out
}

// produce sends recs with franz-go's producer and returns the batches that it made.
func produce(t *testing.T, c codec, idempotent bool, recs []record.Record) [][]byte {
	w := newWire(t)
	opts := []kgo.Opt{kgo.ProducerBatchCompression(c.codec), kgo.ManualFlushing()}
	if !idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	if c.streaming {
		opts = append(opts, kgo.StreamingCompression(), kgo.ProducerBatchMaxBytes(2048))
	}
	client := w.client(t, opts...)
	put := func(recs []record.Record) {
		for _, r := range toKgo(recs) {
			client.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
		require.NoError(t, client.Flush(t.Context()))
	}
	// The first has the client find the partition; those after it then gather
	// until they are flushed.
	put(recs[:1])
	w.take()
	put(recs)
	return w.take()
}

// Check and All read the batches of franz-go's producer, and find what went in.
func TestWeReadTheProducer(t *testing.T) {
	for name, c := range codecs {
		for _, idempotent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/idempotent=%v", name, idempotent), func(t *testing.T) {
				recs := produced(300)
				batches := produce(t, c, idempotent, recs)
				next := int64(0)
				for _, b := range batches {
					record.Stamp(b, next, -1)
					var v kmsg.RecordBatch
					require.NoError(t, v.ReadFrom(b))
					info, err := record.Check(b)
					require.NoError(t, err)
					require.Equal(t, headerOf(v), info)
					require.Equal(t, c.want, info.Compression)
					require.Equal(t, idempotent, info.ProducerID >= 0 && info.ProducerEpoch >= 0 && info.BaseSequence >= 0)
					next = info.End()
				}
				require.Equal(t, recs, collect(t, slices.Concat(batches...)))
				if name == "snappy-stream" {
					require.True(t, slices.ContainsFunc(batches, func(b []byte) bool {
						return bytes.HasPrefix(b[record.HeaderSize:], []byte("\x82SNAPPY\x00"))
					}), "the framing of Java's client is not tried")
				}
			})
		}
	}
}

// What the producer writes uncompressed, Encode writes too, byte for byte but for
// the sequence: without a producer id, franz-go writes 0 there, and Kafka's own
// client -1.
func TestEncodeEqualsTheProducer(t *testing.T) {
	for _, n := range []int{1, 2, 40, 300} {
		batches := produce(t, codecs["none"], false, produced(n))
		require.Len(t, batches, 1)
		ours, err := record.Encode(nil, produced(n), time.Time{})
		require.NoError(t, err)
		theirs := batches[0]
		binary.BigEndian.PutUint32(theirs[53:], math.MaxUint32)
		binary.BigEndian.PutUint32(theirs[17:], uint32(castagnoli(theirs[21:])))
		require.Equal(t, theirs, ours)
	}
}

// A broker of franz-go's takes our batches, and its consumer reads them.
func TestTheConsumerReadsOurs(t *testing.T) {
	for _, c := range compressions {
		t.Run(c.String(), func(t *testing.T) {
			w := newWire(t)
			recs := produced(300)
			batch, err := record.EncodeCompressed(nil, recs, time.Time{}, c)
			require.NoError(t, err)
			send(t, w.client(t, kgo.MaxVersions(kversion.V3_0_0())), batch) // which name topics in requests

			consumer := w.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var got []*kgo.Record
			for len(got) < len(recs) {
				fetches := consumer.PollFetches(ctx)
				require.NoError(t, fetches.Err())
				got = append(got, fetches.Records()...)
			}
			for i, k := range got {
				require.Equal(t, int8(c), int8(k.Attrs.CompressionType()))
				require.Equal(t, recs[i], fromKgo(k))
			}
		})
	}
}

func fromKgo(k *kgo.Record) record.Record {
	r := record.Record{Offset: k.Offset, LeaderEpoch: -1, Timestamp: k.Timestamp.UTC(), Key: k.Key, Value: k.Value}
	for _, h := range k.Headers {
		r.Headers = append(r.Headers, record.Header{Key: h.Key, Value: h.Value})
	}
	return r
}

// send produces a batch as it is.
func send(t *testing.T, c *kgo.Client, batch []byte) {
	q := kmsg.NewProduceRequest()
	q.Acks, q.TimeoutMillis = -1, 10_000
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = batch
	qt := kmsg.NewProduceRequestTopic()
	qt.Topic, qt.Partitions = topic, []kmsg.ProduceRequestTopicPartition{p}
	q.Topics = append(q.Topics, qt)
	a, err := q.RequestWith(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(a.Topics[0].Partitions[0].ErrorCode))
}

// What record's own tests read is what the producer makes today.
func TestTestdata(t *testing.T) {
	for name, c := range codecs {
		if name != c.want.String() && name != "snappy-stream" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			run, next := []byte(nil), int64(0)
			for _, b := range produce(t, c, true, produced(24)) {
				record.Stamp(b, next, -1)
				info, err := record.Check(b)
				require.NoError(t, err)
				run, next = append(run, b...), info.End()
			}
			path := filepath.Join(testdata, "franz-go-"+name+".batches")
			if *rewrite {
				require.NoError(t, os.MkdirAll(testdata, 0o755))
				require.NoError(t, os.WriteFile(path, run, 0o644))
			}
			kept, err := os.ReadFile(path)
			require.NoError(t, err)
			// Compressed bytes, and where one batch ends, may differ with the version.
			require.Equal(t, collect(t, run), collect(t, kept))
		})
	}
}
