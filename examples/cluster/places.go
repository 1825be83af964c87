package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// defaultPort is the first of the ports of a broker.
const (
	defaultPort = 7400
	ports       = 4
)

// place is where a broker runs.
type place struct {
	id   int32
	host string
	port int
}

// The four ports. Other hosts must reach the first two, which only brokers of the
// cluster can use. The others are for this machine.
func (p place) broker() string     { return net.JoinHostPort(p.host, strconv.Itoa(p.port)) }
func (p place) etcdPeer() string   { return net.JoinHostPort(p.host, strconv.Itoa(p.port+1)) }
func (p place) etcdClient() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port+2)) }
func (p place) http() string       { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port+3)) }

// What it listens on for other hosts: its own address or, if that is a name, all that
// this machine has.
func (p place) listenBroker() string   { return listen(p.broker()) }
func (p place) listenEtcdPeer() string { return listen(p.etcdPeer()) }

func listen(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) != nil || host == "localhost" {
		return address
	}
	return net.JoinHostPort("0.0.0.0", port)
}

// collides reports whether two brokers would want the same port of one machine. Which
// address of it they have does not matter: two of their ports are on 127.0.0.1.
func (p place) collides(q place) bool {
	return (p.host == q.host || p.loopback() && q.loopback()) && max(p.port, q.port)-min(p.port, q.port) < ports
}

func (p place) loopback() bool { return p.host == "localhost" || net.ParseIP(p.host).IsLoopback() }

// member is the name of the broker's member of etcd.
func (p place) member() string { return fmt.Sprintf("broker-%d", p.id) }

func (p place) String() string { return fmt.Sprintf("%d=%s", p.id, p.broker()) }

// places is the whole cluster. Who is in it is decided before it is first started.
type places []place

func parsePlaces(list string) (places, error) {
	var all places
	for item := range strings.SplitSeq(list, ",") {
		p, err := parsePlace(item)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		if _, err := all.of(int(p.id)); err == nil {
			return nil, fmt.Errorf("broker %d is there twice", p.id)
		}
		for _, q := range all {
			if p.collides(q) {
				return nil, fmt.Errorf("%v and %v are on one machine, where their ports must be at least %d apart: each has that many", q, p, ports)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

func parsePlace(item string) (place, error) {
	id, address, ok := strings.Cut(item, "=")
	if !ok {
		return place{}, errors.New("not ID=HOST")
	}
	n, err := strconv.ParseInt(id, 10, 32)
	if err != nil || n < 0 {
		return place{}, fmt.Errorf("not a broker's number: %q", id)
	}
	host, port := strings.Trim(address, "[]"), strconv.Itoa(defaultPort)
	if h, p, err := net.SplitHostPort(address); err == nil {
		host, port = h, p
	}
	first, err := strconv.Atoi(port)
	if err != nil || first < 1 || first > 65535-3 {
		return place{}, fmt.Errorf("not a port with three more behind it: %q", port)
	}
	if host == "" {
		return place{}, errors.New("no host")
	}
	return place{id: int32(n), host: host, port: first}, nil
}

func (all places) of(id int) (place, error) {
	for _, p := range all {
		if int(p.id) == id {
			return p, nil
		}
	}
	return place{}, fmt.Errorf("-id %d is not one of the -brokers %v", id, all)
}

func (all places) String() string {
	var items []string
	for _, p := range all {
		items = append(items, p.String())
	}
	return strings.Join(items, ",")
}

// members is what every member of etcd is told of all: name to address.
func (all places) members() map[string]string {
	m := make(map[string]string)
	for _, p := range all {
		m[p.member()] = p.etcdPeer()
	}
	return m
}
