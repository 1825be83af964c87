package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tidemark-log/tidemark/local"
)

// frame is how often the table is redrawn.
const frame = 100 * time.Millisecond

// screen shows the table.
type screen struct {
	out    io.Writer
	redraw bool // in place; else once per step
	height int  // lines of the table on the terminal
}

// show shows what is going on until the condition holds, and for the pause after that.
func (s *screen) show(ctx context.Context, c *local.Cluster, l *load, step string, pause time.Duration,
	until func(context.Context, *local.Cluster) (bool, error)) error {
	ticker := time.NewTicker(frame)
	defer ticker.Stop()
	var end time.Time
	for {
		if end.IsZero() {
			ok, err := until(ctx, c)
			if err != nil {
				return err
			}
			if ok {
				end = time.Now().Add(pause)
			}
		}
		over := !end.IsZero() && !time.Now().Before(end)
		if s.redraw || over {
			if err := s.draw(ctx, c, l, step); err != nil {
				return err
			}
		}
		if over {
			s.height = 0 // the last table of a step stays
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// draw prints the table, over the one before it when that is of the same step.
func (s *screen) draw(ctx context.Context, c *local.Cluster, l *load, step string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n%s\n", step)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PARTITION\tBROKER\tROLE\tEPOCH\tISR\tHIGH WATERMARK\tLOG END\tLAG\tACKED")
	for n := range partitions {
		for id := int32(1); id <= brokers; id++ {
			fmt.Fprintln(w, row(ctx, c, l, n, id))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text := b.String()
	if s.redraw && s.height > 0 {
		text = fmt.Sprintf("\x1b[%dA\x1b[J", s.height) + text // up to where the table began, and clear
	}
	s.height = strings.Count(b.String(), "\n")
	_, err := io.WriteString(s.out, text)
	return err
}

// row describes one copy of one partition.
func row(ctx context.Context, c *local.Cluster, l *load, n int, id int32) string {
	broker := c.Broker(id)
	if broker == nil {
		return fmt.Sprintf("%d\t%d\tdown\t\t\t\t\t\t", n, id)
	}
	r, err := broker.Replica(ctx, topic, n)
	if err != nil {
		return fmt.Sprintf("%d\t%d\tnot told yet\t\t\t\t\t\t", n, id)
	}
	in, lag, acked := "no", "", ""
	if slices.Contains(r.ISR, id) {
		in = "yes"
	}
	if r.Role == "leader" {
		acked = fmt.Sprint(l.acked(n))
	} else if lead := c.Broker(r.Leader); lead != nil {
		if leader, err := lead.Replica(ctx, topic, n); err == nil {
			if d, ok := leader.Lags[id]; ok {
				lag = d.Round(time.Millisecond).String()
			}
		}
	}
	return fmt.Sprintf("%d\t%d\t%s\t%d\t%s\t%d\t%d\t%s\t%s", n, id, r.Role, r.LeaderEpoch, in, r.HighWatermark, r.LogEnd, lag, acked)
}
