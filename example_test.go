package tidemark_test

import (
	"context"
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
