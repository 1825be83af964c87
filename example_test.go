package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/coordination/memory"
	"github.com/tidemark-log/tidemark/local"
	"github.com/tidemark-log/tidemark/storage/memstore"
	"github.com/tidemark-log/tidemark/transport/inproc"
)

// orders appends three records to a cluster of three brokers in this process, and
// reads them back. The README shows it too.
func orders(ctx context.Context, o local.Options) error {
	c, err := local.Open(ctx, "data", o)
	if err != nil {
		return err
	}
	defer c.Close()
	topic := tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}
	if err := c.Controller().EnsureTopic(ctx, "orders", topic); err != nil {
		return err
	}
	p := c.Partition("orders", 0)
	for _, v := range []string{"placed", "paid", "shipped"} {
		if _, err := p.Append(ctx, tidemark.Record{Key: []byte("17"), Value: []byte(v)}); err != nil {
			return err // tidemark.OutcomeOf(err) says whether the record may be in the log
		}
	}
	for rec, err := range p.Records(ctx, tidemark.Earliest()) {
		if err != nil {
			return err
		}
		fmt.Printf("%d %s %s\n", rec.Offset, rec.Key, rec.Value)
		if rec.Offset == 2 {
			break // otherwise it waits for the next record
		}
	}
	return nil
}

func ExamplePartition() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := orders(ctx, local.Options{InMemory: true}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 0 17 placed
	// 1 17 paid
	// 2 17 shipped
}

// A Producer keeps the order of each key and makes batches by itself.
func ExampleProducer() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := local.Open(ctx, "", local.Options{InMemory: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if err := c.Controller().EnsureTopic(ctx, "clicks", tidemark.TopicConfig{Partitions: 3}); err != nil {
		fmt.Println(err)
		return
	}
	producer := c.Topic("clicks").Producer(tidemark.ProducerOptions{})
	defer producer.Close(ctx)
	var acked int // of the Producer's goroutine until Flush has returned
	for i := range 1000 {
		rec := tidemark.Record{Key: fmt.Appendf(nil, "user-%d", i%10), Value: fmt.Append(nil, i)}
		err := producer.AppendAsync(ctx, rec, func(_ tidemark.Result, err error) {
			if err == nil {
				acked++
			}
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := producer.Flush(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(acked)
	// Output: 1000
}

// Open runs one broker on what the host gives it. Here three of them share a
// process; in production each has a process, a transport that reaches the others,
// and a store on disk.
func ExampleOpen() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	network := inproc.New(inproc.Options{})
	coord := memory.New(memory.Options{})
	defer coord.Close()
	var brokers []*tidemark.Broker
	for id := range int32(3) {
		store, err := memstore.NewDisk().Open()
		if err != nil {
			fmt.Println(err)
			return
		}
		defer store.Close() // after the brokers: deferred calls run last in, first out
		b, err := tidemark.Open(ctx, tidemark.Config{
			ID: id, Store: store, Coordination: coord.Connect(), Transport: network.Transport(id),
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer b.Close()
		brokers = append(brokers, b)
	}
	for _, b := range brokers {
		if err := b.Ready(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Every broker's handles reach every partition; a Client over several goes straight to the leader.
	client := tidemark.NewClient(func() []*tidemark.Broker { return brokers }, tidemark.ClientOptions{})
	if err := client.Controller().EnsureTopic(ctx, "orders", tidemark.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	res, err := brokers[2].Partition("orders", 0).Append(ctx, tidemark.Record{Value: []byte("placed")})
	fmt.Println(res.Base, tidemark.OutcomeOf(err))
	// Output: 0 appended
}

// cluster opens a cluster of so many brokers in memory. It ends with the process.
func cluster(ctx context.Context, brokers int) *local.Cluster {
	c, err := local.Open(ctx, "", local.Options{Brokers: brokers, InMemory: true})
	if err != nil {
		panic(err)
	}
	return c
}

// Validate reports everything that is wrong at once, and changes nothing.
func ExampleConfig_Validate() {
	err := tidemark.Config{ID: -1, MaxLag: time.Millisecond}.Validate()
	fmt.Println(errors.Is(err, tidemark.ErrInvalidConfig))
	fmt.Println(err)
	// Output:
	// true
	// tidemark: invalid configuration: ID must be 0 or above, not -1
	// Store is required
	// Coordination is required
	// MaxLag must be at least 100ms, not 1ms
}

// Shutdown finishes what clients have under way; Status says how a broker is.
func ExampleBroker() {
	ctx := context.Background()
	store, err := memstore.NewDisk().Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	coord := memory.New(memory.Options{})
	b, err := tidemark.Open(ctx, tidemark.Config{ID: 7, Store: store, Coordination: coord.Connect()})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(b.Ready(ctx))
	s := b.Status()
	fmt.Println(s.Broker, s.Registered, s.Controller, s.Store, s.NotReady)
	fmt.Println(b.Shutdown(ctx), store.Close(), coord.Close())
	fmt.Println(b.Ready(ctx))
	// Output:
	// <nil>
	// 7 true 7 ok <nil>
	// <nil> <nil> <nil>
	// tidemark: closed
}

// One append is one batch: all of its records, or none, at consecutive offsets.
func ExamplePartition_AppendWith() {
	ctx := context.Background()
	c := cluster(ctx, 1)
	defer c.Close()
	if err := c.Controller().CreateTopic(ctx, "orders", tidemark.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	p := c.Partition("orders", 0)
	o := tidemark.AppendOptions{Acks: tidemark.AcksAll, Compression: tidemark.Zstd}
	res, err := p.AppendWith(ctx, o,
		tidemark.Record{Key: []byte("17"), Value: []byte("placed"), Headers: []tidemark.Header{{Key: "via", Value: []byte("web")}}},
		tidemark.Record{Key: []byte("17"), Value: []byte("paid")},
	)
	fmt.Println(res.Base, res.Last, err)
	res, err = p.Append(ctx, tidemark.Record{Key: []byte("17"), Value: []byte("shipped")})
	fmt.Println(res.Base, res.Last, err)
	// Output:
	// 0 1 <nil>
	// 2 2 <nil>
}

// Records begins at a position and waits for more at the end.
func ExamplePartition_Records() {
	ctx := context.Background()
	c := cluster(ctx, 1)
	defer c.Close()
	if err := c.Controller().CreateTopic(ctx, "orders", tidemark.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	p := c.Partition("orders", 0)
	noon := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for i, v := range []string{"placed", "paid", "shipped"} {
		rec := tidemark.Record{Value: []byte(v), Timestamp: noon.Add(time.Duration(i) * time.Hour)}
		if _, err := p.Append(ctx, rec); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, from := range []tidemark.Position{tidemark.Earliest(), tidemark.At(2), tidemark.AfterTime(noon.Add(time.Minute))} {
		for rec, err := range p.Records(ctx, from) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(rec.Offset, string(rec.Value))
			if rec.Offset == 2 {
				break // otherwise it waits for the next record
			}
		}
	}
	// Output:
	// 0 placed
	// 1 paid
	// 2 shipped
	// 2 shipped
	// 1 paid
	// 2 shipped
}

// Fetch returns what is there, and where the log ends.
func ExamplePartition_Fetch() {
	ctx := context.Background()
	c := cluster(ctx, 1)
	defer c.Close()
	if err := c.Controller().CreateTopic(ctx, "orders", tidemark.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	p := c.Partition("orders", 0)
	if _, err := p.Append(ctx, tidemark.Record{Value: []byte("placed")}, tidemark.Record{Value: []byte("paid")}); err != nil {
		fmt.Println(err)
		return
	}
	from, err := p.Find(ctx, tidemark.Earliest())
	if err != nil {
		fmt.Println(err)
		return
	}
	for {
		f, err := p.Fetch(ctx, from, tidemark.FetchOptions{MaxBytes: 64 << 10, MaxWait: time.Second})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, rec := range f.Records {
			fmt.Println(rec.Offset, string(rec.Value))
			from = rec.Offset + 1
		}
		if from == f.HighWatermark {
			break
		}
	}
	_, err = p.Fetch(ctx, 99, tidemark.FetchOptions{})
	fmt.Println(err)
	// Output:
	// 0 placed
	// 1 paid
	// tidemark: offset out of range: 99 outside [0, 2]
}

// Writable says whether an append would be taken now, and if not, why.
func ExamplePartition_Writable() {
	ctx := context.Background()
	c := cluster(ctx, 1)
	defer c.Close()
	if err := c.Controller().CreateTopic(ctx, "orders", tidemark.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Partition("orders", 0).Writable(ctx))
	err := c.Partition("orders", 8).Writable(ctx)
	fmt.Println(errors.Is(err, tidemark.ErrUnknownPartition), err)
	// Output:
	// <nil>
	// true tidemark: unknown partition: orders/8 of 1
}

// A Topic is a handle by name. Keys keep to one partition.
func ExampleTopic() {
	ctx := context.Background()
	c := cluster(ctx, 1)
	defer c.Close()
	topic := c.Topic("orders") // it need not exist yet
	_, err := topic.Config(ctx)
	fmt.Println(errors.Is(err, tidemark.ErrUnknownTopic))
	if err := c.Controller().CreateTopic(ctx, topic.Name(), tidemark.TopicConfig{Partitions: 6}); err != nil {
		fmt.Println(err)
		return
	}
	n, err := topic.Partitions(ctx)
	fmt.Println(n, err)
	where := tidemark.PartitionFor([]byte("customer 17"), n)
	fmt.Println(topic.Partition(where).Number() == where)
	// Output:
	// true
	// 6 <nil>
	// true
}

// The Controller handle works from any broker.
func ExampleController() {
	ctx := context.Background()
	c := cluster(ctx, 1)
	defer c.Close()
	admin := c.Controller()
	fmt.Println(admin.CreateTopic(ctx, "orders", tidemark.TopicConfig{Partitions: 2}))
	fmt.Println(admin.EnsureTopic(ctx, "orders", tidemark.TopicConfig{Partitions: 2}))
	err := admin.EnsureTopic(ctx, "orders", tidemark.TopicConfig{Partitions: 3})
	fmt.Println(errors.Is(err, tidemark.ErrTopicMismatch))
	fmt.Println(admin.CreateTopic(ctx, "orders", tidemark.TopicConfig{}))
	fmt.Println(admin.Topics(ctx))
	status, err := admin.Status()
	fmt.Println(status.Broker, err)
	// Output:
	// <nil>
	// <nil>
	// true
	// tidemark: topic exists: "orders"
	// [orders] <nil>
	// 1 <nil>
}

// A Replica is one copy of a partition as it is at one moment. Copies are equal,
// byte for byte.
func ExampleReplica() {
	ctx := context.Background()
	c := cluster(ctx, 3)
	defer c.Close()
	if err := c.Controller().CreateTopic(ctx, "orders", tidemark.TopicConfig{MinISR: 3}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := c.Partition("orders", 0).Append(ctx, tidemark.Record{Value: []byte("placed")}); err != nil {
		fmt.Println(err)
		return
	}
	leaders, copies := 0, make(map[string]int)
	for _, b := range c.Brokers() {
		rep, err := b.Replica(ctx, "orders", 0)
		if err != nil {
			fmt.Println(err)
			return
		}
		if rep.Role == "leader" {
			leaders++
			fmt.Println(rep.LogEnd, rep.StoredEnd, rep.HighWatermark, len(rep.ISR), len(rep.OSR))
		}
		var log []byte
		for batch, err := range rep.Batches(ctx, 0) {
			if err != nil {
				fmt.Println(err)
				return
			}
			log = append(log, batch...)
		}
		copies[string(log)]++
	}
	fmt.Println(leaders, len(copies))
	// Output:
	// 1 1 1 3 0
	// 1 1
}

// An Observer is told what happens at one broker.
func ExampleObserver() {
	ctx := context.Background()
	leads := make(chan tidemark.LeadershipEvent, 1)
	c, err := local.Open(ctx, "", local.Options{Brokers: 1, InMemory: true, Observer: func(int32) *tidemark.Observer {
		return &tidemark.Observer{
			Leadership: func(e tidemark.LeadershipEvent) { leads <- e },
			Unfit:      func(reason error) { fmt.Println("replace this broker:", reason) },
		}
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if err := c.Controller().CreateTopic(ctx, "orders", tidemark.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	e := <-leads
	fmt.Println(e.Topic, e.Partition, e.Leading, e.LeaderEpoch, e.ISR)
	// Output: orders 0 true 0 [1]
}

// An error of an append says what is known of its records. Only NotAppended is safe
// to repeat without asking what happened.
func ExampleOutcomeOf() {
	ctx := context.Background()
	c := cluster(ctx, 1)
	defer c.Close()
	_, err := c.Partition("nowhere", 0).Append(ctx, tidemark.Record{Value: []byte("placed")})
	switch tidemark.OutcomeOf(err) {
	case tidemark.Appended:
		fmt.Println("it is in the log")
	case tidemark.NotAppended:
		fmt.Println("it is not, and will not be:", err)
	case tidemark.Unknown:
		fmt.Println("it may be: read before you repeat it")
	}
	// Output: it is not, and will not be: tidemark: append to nowhere/0: unknown topic: "nowhere" (records: not appended)
}

// The code in the README is code that runs: every line of it is in this file.
func TestReadmeCode(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, code, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	code, _, found = strings.Cut(code, "```")
	require.True(t, found)
	require.Contains(t, string(source), code)
}
