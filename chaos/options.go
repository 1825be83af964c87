package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/chaos/internal/nemesis"
	"github.com/tidemark-log/tidemark/chaos/internal/node"
)

// options are the flags.
type options struct {
	duration               time.Duration
	seed                   uint64
	coordination           string
	only                   []string
	brokers, partitions    int
	producers, inFlight    int
	readers, rate          int
	sessionTimeout, maxLag time.Duration
	tls                    bool
	resend                 bool
	earlyAck               time.Duration
	dir                    string
	keep                   bool
}

// bound is how long a partition may be without acknowledgements.
func (o *options) bound() time.Duration { return o.sessionTimeout + o.maxLag + 5*time.Second }

const (
	replicationFactor = 3
	minISR            = 2
	// callTimeout is how long a broker may try to append or to read, beyond a session.
	callTimeout = 500 * time.Millisecond
	// earlyAckDelay is how long a planted bug keeps in memory what it calls stored.
	earlyAckDelay = 150 * time.Millisecond
)

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var only, plant string
	flags.DurationVar(&o.duration, "duration", time.Minute, "how long faults are made")
	flags.Uint64Var(&o.seed, "seed", 0, "of all choices; 0 takes one at random")
	flags.StringVar(&o.coordination, "coordination", node.Memory, "store of the cluster's metadata: "+strings.Join(node.Kinds, ", "))
	flags.StringVar(&only, "only", "", "kinds of faults, with commas between them: "+strings.Join(nemesis.Names(), ", ")+"; default all")
	flags.IntVar(&o.brokers, "brokers", 3, "processes; at least 3")
	flags.IntVar(&o.partitions, "partitions", 4, "of the topic")
	flags.IntVar(&o.producers, "producers", 3, "of each partition")
	flags.IntVar(&o.inFlight, "in-flight", 4, "appends of each producer")
	flags.IntVar(&o.readers, "readers", 1, "of each partition")
	flags.IntVar(&o.rate, "rate", 1200, "appends a second at most, all together")
	flags.DurationVar(&o.sessionTimeout, "session-timeout", 2*time.Second, "of the brokers")
	flags.DurationVar(&o.maxLag, "max-lag", 3*time.Second, "of the brokers")
	flags.BoolVar(&o.tls, "tls", true, "mutual TLS between brokers")
	flags.BoolVar(&o.resend, "resend", false, "send again what ended as unknown; it may be there twice then")
	flags.StringVar(&plant, "plant", "", "a bug for the checker to find: early-ack acknowledges what is in memory only")
	flags.StringVar(&o.dir, "dir", "", "where logs and stores go; must not exist. Default: a temporary directory, removed when all went well")
	flags.BoolVar(&o.keep, "keep", false, "keep the directory")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	if plant == "early-ack" {
		o.earlyAck = earlyAckDelay
	}
	if o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	wrong := ""
	switch {
	case flags.NArg() > 0:
		wrong = fmt.Sprintf("unexpected argument %q", flags.Arg(0))
	case !slices.Contains(node.Kinds, o.coordination):
		wrong = "-coordination must be one of " + strings.Join(node.Kinds, ", ")
	case plant != "" && plant != "early-ack":
		wrong = "-plant knows early-ack only"
	case o.brokers < replicationFactor || o.brokers > 32:
		wrong = "-brokers must be 3 to 32"
	case min(o.partitions, o.producers, o.inFlight, o.readers, o.rate) < 1:
		wrong = "-partitions, -producers, -in-flight, -readers and -rate must be at least 1"
	case o.duration <= 0 || o.sessionTimeout < time.Second || o.maxLag < 200*time.Millisecond:
		wrong = "-duration must be positive, -session-timeout at least 1s, -max-lag at least 200ms"
	}
	for _, name := range o.only {
		if !slices.Contains(nemesis.Names(), name) {
			wrong = fmt.Sprintf("-only: unknown kind %q", name)
		}
	}
	if wrong != "" {
		err = fmt.Errorf("%s", wrong)
		fmt.Fprintln(stderr, "chaos:", err)
	}
	return o, err
}
