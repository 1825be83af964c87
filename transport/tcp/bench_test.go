package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/protocol"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
	"github.com/tidemark-log/tidemark/transport"
)

// benchPair returns a started sender, and the peer to which it sends.
func benchPair(b *testing.B, secure bool, h transport.Handler) (*Transport, transport.Peer) {
	ca, err := devcert.NewAuthority("c")
	require.NoError(b, err)
	open := func(id int32, h transport.Handler) *Transport {
		c := Config{ID: id, Cluster: "c", Listen: "127.0.0.1:0", Plaintext: !secure}
		if secure {
			c.TLS, err = ca.Config(id)
			require.NoError(b, err)
		}
		tr, err := New(c)
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, tr.Close()) })
		require.NoError(b, tr.Start(h))
		return tr
	}
	to := open(2, h)
	return open(1, func(*protocol.Message) {}), transport.Peer{ID: 2, Address: to.Addr().String()}
}

func appendOf(size int) *protocol.Message {
	m := &protocol.Message{Kind: protocol.Data, From: 1, To: 2, MinVersion: 1, MaxVersion: 1}
	m.Appends = []protocol.Append{{Batch: bytes.Repeat([]byte{7}, size)}}
	return m
}

// BenchmarkThroughput sends with as much under way as a link has: 16 MiB.
func BenchmarkThroughput(b *testing.B) {
	for _, secure := range []bool{false, true} {
		for _, size := range []int{100, 4 << 10, 64 << 10, 1 << 20} {
			name := map[bool]string{false: "plain", true: "TLS"}[secure]
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				window := make(chan struct{}, min(16<<20/size, 1024))
				tr, peer := benchPair(b, secure, func(*protocol.Message) { <-window })
				m := appendOf(size)
				window <- struct{}{}
				require.NoError(b, tr.Send(peer, m)) // connected
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					window <- struct{}{}
					if err := tr.Send(peer, m); err != nil {
						b.Fatal(err)
					}
				}
				for range cap(window) {
					window <- struct{}{}
				}
			})
		}
	}
}

// BenchmarkRoundTrip is a lone message and its answer.
func BenchmarkRoundTrip(b *testing.B) {
	for _, secure := range []bool{false, true} {
		b.Run(map[bool]string{false: "plain", true: "TLS"}[secure], func(b *testing.B) {
			got := make(chan struct{}, 1)
			tr, peer := benchPair(b, secure, func(*protocol.Message) { got <- struct{}{} })
			m := appendOf(1000)
			for b.Loop() {
				if err := tr.Send(peer, m); err != nil {
					b.Fatal(err)
				}
				<-got
			}
		})
	}
}

// BenchmarkSend is what the goroutine that sends pays, for a peer that is slow.
func BenchmarkSend(b *testing.B) {
	tr, err := New(Config{ID: 1, Cluster: "c", Listen: "127.0.0.1:0", Plaintext: true})
	require.NoError(b, err)
	defer tr.Close()
	require.NoError(b, tr.Start(func(*protocol.Message) {}))
	m := appendOf(1000)
	peer := transport.Peer{ID: 2, Address: tr.Addr().String()} // which is another broker
	b.ReportAllocs()
	for b.Loop() {
		_ = tr.Send(peer, m)
	}
}

// BenchmarkBareTCP is what the loopback interface carries in writes of 256 KiB.
func BenchmarkBareTCP(b *testing.B) {
	for _, secure := range []bool{false, true} {
		b.Run(map[bool]string{false: "plain", true: "TLS"}[secure], func(b *testing.B) {
			ca, err := devcert.NewAuthority("c")
			require.NoError(b, err)
			conf, err := ca.Config(1)
			require.NoError(b, err)
			conf.InsecureSkipVerify = true
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			defer l.Close()
			done := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil && secure {
					c = tls.Server(c, conf)
				}
				if err == nil {
					_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
					_ = c.Close()
				}
				done <- err
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			require.NoError(b, err)
			if secure {
				c = tls.Client(c, conf)
			}
			buf := make([]byte, 256<<10)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, c.Close())
			require.NoError(b, <-done)
		})
	}
}

// BenchmarkTLSRatio appends to a cluster of three over TCP, with fsync before each
// acknowledgement and 1,024 records of 1 KiB under way, with and without TLS in turns.
// It reports the median of what TLS leaves of the throughput, and fails below 0.7.
func BenchmarkTLSRatio(b *testing.B) {
	const rounds, records = 7, 60_000
	var appends [2]func() time.Duration
	for i, secure := range []bool{false, true} {
		appends[i] = benchCluster(b, secure, records)
		appends[i]() // warm
	}
	var ratios []float64
	var plain time.Duration
	for b.Loop() {
		ratios, plain = ratios[:0], 0
		for range rounds {
			without := appends[0]()
			ratios = append(ratios, float64(without)/float64(appends[1]()))
			plain += without
		}
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[rounds/2], "ratio")
	b.ReportMetric(float64(rounds*records)/1024/plain.Seconds(), "MiB/s-plain")
	if ratios[rounds/2] < 0.7 {
		b.Errorf("with TLS %.2f of the throughput without: %.2f", ratios[rounds/2], ratios)
	}
}

// benchCluster starts three brokers on disk, and returns a function that appends records
// and waits for all of them.
func benchCluster(b *testing.B, secure bool, records int) func() time.Duration {
	ca, err := devcert.NewAuthority("c")
	require.NoError(b, err)
	coord := memory.New(memory.Options{})
	b.Cleanup(func() { require.NoError(b, coord.Close()) })
	var brokers []*tidemark.Broker
	for id := range int32(3) {
		conf := Config{ID: id, Cluster: "c", Listen: "127.0.0.1:0", Plaintext: !secure}
		if secure {
			conf.TLS, err = ca.Config(id)
			require.NoError(b, err)
		}
		tr, err := New(conf)
		require.NoError(b, err)
		store, err := pebblestore.Open(b.TempDir(), pebblestore.Options{})
		require.NoError(b, err)
		broker, err := tidemark.Open(b.Context(), tidemark.Config{ID: id, Address: tr.Addr().String(), Transport: tr, Store: store, Coordination: coord.Connect()})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, errors.Join(broker.Close(), store.Close())) })
		require.NoError(b, broker.Ready(b.Context()))
		brokers = append(brokers, broker)
	}
	broker := brokers[0]
	require.NoError(b, broker.Controller().EnsureTopic(b.Context(), "t", tidemark.TopicConfig{Partitions: 1, ReplicationFactor: 3, MinISR: 2}))
	p := broker.Topic("t").Producer(tidemark.ProducerOptions{})
	b.Cleanup(func() { require.NoError(b, p.Close(context.Background())) })
	value := make([]byte, 1<<10)
	rand.NewChaCha8([32]byte{}).Read(value)
	return func() time.Duration {
		began, window := time.Now(), make(chan struct{}, 1024)
		for range records {
			window <- struct{}{}
			require.NoError(b, p.AppendAsync(b.Context(), tidemark.Record{Value: value}, func(_ tidemark.Result, err error) {
				if err != nil {
					b.Error(err)
				}
				<-window
			}))
		}
		for range cap(window) {
			window <- struct{}{}
		}
		return time.Since(began)
	}
}
