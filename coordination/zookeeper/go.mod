module github.com/tidemark-log/tidemark/coordination/zookeeper

go 1.25.0

replace github.com/tidemark-log/tidemark => ../..

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	golang.org/x/sync v0.20.0 // indirect
)

require (
	github.com/tidemark-log/tidemark v0.0.0-00010101000000-000000000000
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
