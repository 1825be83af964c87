package scale

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-log/tidemark/bench/cluster"
	"github.com/tidemark-log/tidemark/bench/meter"
	"github.com/tidemark-log/tidemark/bench/pause"
)

const w11InFlight = 4096

// amplification is W11: how much reaches the files per byte appended, with the
// write-ahead log and everything that is rewritten later, of one replica.
func amplification(ctx context.Context, o Options) (res Result, err error) {
	total := o.bytes(8 * gib)
	var written meter.Writes
	r, err := o.open(ctx, "w11", 3*total, cluster.Options{FS: written.FS(vfs.Default)})
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l := newLedger("w11", o.partitions(1000), kib)
	if err := r.create(ctx, l, 3); err != nil {
		return res, err
	}
	before := written.Bytes()
	o.Say("W11: appending %d MiB to %d partitions", total>>20, l.partitions())
	round, err := l.drive(ctx, r.Cluster, flow{inFlight: w11InFlight, bytes: total})
	if err != nil {
		return res, err
	}
	o.Say("W11: waiting until nothing is rewritten any more")
	if err := quiet(ctx, &written); err != nil {
		return res, err
	}
	perByte := float64(written.Bytes()-before) / 3 / float64(round.Bytes)
	res.Figures = []Figure{
		{"written per byte appended, per replica", perByte, "bytes", atMost(2.6)},
		{"appended", round.MBRate(), "MB/s", Bound{}},
	}
	o.Say("W11: reading back")
	return res, l.verify(ctx, r.Cluster)
}

// quiet waits until less than 1 MiB is written in two seconds.
func quiet(ctx context.Context, w *meter.Writes) error {
	for {
		before := w.Bytes()
		if err := pause.For(ctx, 2*time.Second); err != nil {
			return err
		}
		if w.Bytes()-before < 1<<20 {
			return nil
		}
	}
}
