package tidemark_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// A cluster of three brokers in this process. A directory instead of InMemory
// makes it last.
func ExamplePartition() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := local.Open(ctx, "", local.Options{Brokers: 3, InMemory: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	topic := tidemark.TopicConfig{Partitions: 3, ReplicationFactor: 3, MinISR: 2}
	if err := c.Controller().EnsureTopic(ctx, "orders", topic); err != nil {
		fmt.Println(err)
		return
	}
	p := c.Partition("orders", 0)
	for _, v := range []string{"placed", "paid", "shipped"} {
		res, err := p.Append(ctx, tidemark.Record{Key: []byte("order-17"), Value: []byte(v)})
		fmt.Println(res.Base, tidemark.OutcomeOf(err)) // on the disks of every in-sync replica
	}
	for rec, err := range p.Records(ctx, tidemark.Earliest()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d %s: %s\n", rec.Offset, rec.Key, rec.Value)
		if string(rec.Value) == "shipped" {
			break // else it waits for more
		}
	}
	// Output:
	// 0 appended
	// 1 appended
	// 2 appended
	// 0 order-17: placed
	// 1 order-17: paid
	// 2 order-17: shipped
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
