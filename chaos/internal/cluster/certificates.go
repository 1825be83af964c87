package cluster

import "github.com/tidemark-log/tidemark/internal/devcert"

// certify writes a certificate for each broker, if they are to use TLS.
func (c *Cluster) certify() error {
	if !c.o.TLS {
		return nil
	}
	authority, err := devcert.NewAuthority(clusterName)
	if err != nil {
		return err
	}
	for id := int32(1); id <= int32(c.o.Brokers); id++ {
		if err := authority.WriteFiles(c.certificates(), id); err != nil {
			return err
		}
	}
	return nil
}
