package cluster

import (
	"errors"

	"github.com/tidemark-log/tidemark/chaos/internal/proxy"
)

// Way is from one broker to another.
type Way struct{ From, To int32 }

// network is a proxy for every way that a broker has: to each other one, and to the
// coordination store.
type network struct {
	ways  map[Way]*proxy.Proxy
	coord map[int32]*proxy.Proxy
}

func newNetwork(brokers int) (*network, error) {
	n := &network{ways: make(map[Way]*proxy.Proxy), coord: make(map[int32]*proxy.Proxy)}
	for a := int32(1); a <= int32(brokers); a++ {
		p, err := proxy.Listen()
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		n.coord[a] = p
		for b := int32(1); b <= int32(brokers); b++ {
			if a == b {
				continue
			}
			if p, err = proxy.Listen(); err != nil {
				return nil, errors.Join(err, n.close())
			}
			n.ways[Way{a, b}] = p
		}
	}
	return n, nil
}

// point has all ways to a broker lead to where it listens now.
func (n *network) point(to int32, address string) {
	for w, p := range n.ways {
		if w.To == to {
			p.SetTarget(address)
		}
	}
}

// pointCoordination has all ways to the coordination store lead to an address.
func (n *network) pointCoordination(address string) {
	for _, p := range n.coord {
		p.SetTarget(address)
	}
}

// from is where a broker dials the others.
func (n *network) from(broker int32) map[int32]string {
	m := make(map[int32]string)
	for w, p := range n.ways {
		if w.From == broker {
			m[w.To] = p.Addr()
		}
	}
	return m
}

func (n *network) close() error {
	var errs []error
	for _, p := range n.ways {
		errs = append(errs, p.Close())
	}
	for _, p := range n.coord {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
