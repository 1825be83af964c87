package local_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/local"
)

// A cluster lives in a directory, and is there again when that is opened again.
func ExampleOpen() {
	ctx := context.Background()
	parent, err := os.MkdirTemp("", "tidemark-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "cluster")
	for range 2 {
		c, err := local.Open(ctx, dir, local.Options{Brokers: 1})
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := c.Controller().EnsureTopic(ctx, "runs", tidemark.TopicConfig{}); err != nil {
			fmt.Println(err)
			return
		}
		res, err := c.Partition("runs", 0).Append(ctx, tidemark.Record{Value: []byte("started")})
		fmt.Println(res.Base, err)
		fmt.Println(c.Shutdown(ctx))
	}
	// Output:
	// 0 <nil>
	// <nil>
	// 1 <nil>
	// <nil>
}

// Kill and Restart show what an application goes through when a broker dies.
func ExampleCluster_Kill() {
	ctx := context.Background()
	c, err := local.Open(ctx, "", local.Options{InMemory: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if err := c.Controller().EnsureTopic(ctx, "orders", tidemark.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	p := c.Partition("orders", 0)
	if _, err := p.Append(ctx, tidemark.Record{Value: []byte("placed")}); err != nil {
		fmt.Println(err)
		return
	}
	before, err := p.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Kill(before.Leader); err != nil {
		fmt.Println(err)
		return
	}
	for rec, err := range p.Records(ctx, tidemark.Earliest()) { // from whoever leads now
		fmt.Println(string(rec.Value), err)
		break
	}
	after, err := p.Status(ctx)
	fmt.Println(after.Leader != before.Leader, after.LeaderEpoch > before.LeaderEpoch, err)
	fmt.Println(c.Restart(ctx, before.Leader))
	// Output:
	// placed <nil>
	// true true <nil>
	// <nil>
}
