package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/pause"
)

// jetStreamPeer is a stream per partition, on three servers that are connected over
// loopback TCP. Each stream's client is connected to the server that leads it.
type jetStreamPeer struct {
	config  Config
	servers []*server.Server
	clients []*jetStreamClient // of the servers
	streams []*jetStreamClient // that leads, by partition
}

// jetStreamClient is a connection to one server, and what was published through it and
// is not acknowledged.
type jetStreamClient struct {
	conn *nats.Conn
	js   jetstream.JetStream

	mu    sync.Mutex
	dones map[*nats.Msg]func(error)
}

func openJetStream(ctx context.Context, c Config) (Peer, error) {
	p := &jetStreamPeer{config: c}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *jetStreamPeer) open(ctx context.Context) (err error) {
	if p.servers, err = startNATS(ctx, p.config.Dir, !p.config.Background); err != nil {
		return err
	}
	for _, s := range p.servers {
		c, err := connectJetStream(s, p.config.InFlight)
		if err != nil {
			return err
		}
		p.clients = append(p.clients, c)
	}
	for i := range p.config.Partitions {
		if err := p.addStream(ctx, i); err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
	}
	return nil
}

func connectJetStream(s *server.Server, inFlight int) (*jetStreamClient, error) {
	conn, err := nats.Connect(s.ClientURL()) // a pipe within the process takes more processor time
	if err != nil {
		return nil, err
	}
	c := &jetStreamClient{conn: conn, dones: make(map[*nats.Msg]func(error))}
	c.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(inFlight+1),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, _ *jetstream.PubAck) { c.end(m, nil) }),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) { c.end(m, err) }))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func streamName(partition int) string { return fmt.Sprintf("bench-%d", partition) }

// addStream makes a stream and waits until all its replicas are current.
func (p *jetStreamPeer) addStream(ctx context.Context, i int) error {
	any := p.clients[0].js
	_, err := any.CreateStream(ctx, jetstream.StreamConfig{
		Name: streamName(i), Subjects: []string{streamName(i)}, Replicas: replicas, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return err
	}
	for {
		s, err := any.Stream(ctx, streamName(i))
		if err != nil {
			return err
		}
		at := s.CachedInfo().Cluster
		current := at != nil && at.Leader != "" && len(at.Replicas) == replicas-1
		for n := 0; current && n < len(at.Replicas); n++ {
			current = at.Replicas[n].Current
		}
		if current {
			for n, srv := range p.servers {
				if srv.Name() == at.Leader {
					p.streams = append(p.streams, p.clients[n])
				}
			}
			return nil
		}
		if err := pause.Shortly(ctx); err != nil {
			return err
		}
	}
}

func (p *jetStreamPeer) Append(_ context.Context, partition int, value []byte, done func(error)) {
	c := p.streams[partition]
	m := &nats.Msg{Subject: streamName(partition), Data: value}
	c.mu.Lock()
	c.dones[m] = done
	c.mu.Unlock()
	if _, err := c.js.PublishMsgAsync(m); err != nil {
		c.end(m, err)
	}
}

// end is called once for each message.
func (c *jetStreamClient) end(m *nats.Msg, err error) {
	c.mu.Lock()
	done := c.dones[m]
	delete(c.dones, m)
	c.mu.Unlock()
	if done != nil {
		done(err)
	}
}

func (p *jetStreamPeer) AppendWait(ctx context.Context, partition int, value []byte) error {
	_, err := p.streams[partition].js.Publish(ctx, streamName(partition), value)
	return err
}

func (p *jetStreamPeer) Read(ctx context.Context, partition int, f func([]byte) error) error {
	s, err := p.streams[partition].js.Stream(ctx, streamName(partition))
	if err != nil {
		return err
	}
	left := s.CachedInfo().State.Msgs
	if left == 0 {
		return nil
	}
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(4096))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for ; left > 0; left-- {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if err := f(m.Data()); err != nil {
			return err
		}
	}
	return nil
}

func (p *jetStreamPeer) Writes() *meter.Writes { return nil }

func (p *jetStreamPeer) Close() error {
	for _, c := range p.clients {
		c.conn.Close()
	}
	for _, s := range p.servers {
		s.Shutdown()
	}
	for _, s := range p.servers {
		s.WaitForShutdown()
	}
	return nil
}
