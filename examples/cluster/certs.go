package main

import (
	"fmt"
	"io"

	"github.com/tidemark-log/tidemark/internal/devcert"
	"github.com/tidemark-log/tidemark/transport/tcp"
)

// certFiles are where a broker's certificate is: its own with its key, and that of the
// authority that signed all of them.
func certFiles(dir string, id int32) tcp.Paths {
	ca, certificate, key := devcert.Paths(dir, id)
	return tcp.Paths{CA: ca, Certificate: certificate, Key: key}
}

// makeCerts writes a certificate for every broker, of an authority that nobody has
// afterwards: to add a broker, or to go on after a day, all are made anew.
func makeCerts(o options, stdout io.Writer) error {
	all, err := parsePlaces(o.brokers)
	if err != nil {
		return badInput{fmt.Errorf("-brokers: %w", err)}
	}
	if err := writeCerts(o.certs, all); err != nil {
		return err
	}
	for _, p := range all {
		f := certFiles(o.certs, p.id)
		fmt.Fprintf(stdout, "broker %d, on %s: %s %s %s\n", p.id, p.host, f.CA, f.Certificate, f.Key)
	}
	return nil
}

// Brokers do not care where a certificate comes from, but members of etcd do: so each
// names its broker's host.
func writeCerts(dir string, all places) error {
	authority, err := devcert.NewAuthority(clusterName)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := authority.WriteFiles(dir, p.id, p.host); err != nil {
			return err
		}
	}
	return nil
}
