// Package interop compares what package record reads and writes with franz-go, a
// Kafka client that shares no code with it. It has tests only, and is a module of
// its own so that nobody who imports Tidemark gets franz-go with it.
//
//	cd interop && go test ./...
//
// With -rewrite the tests also write the batches of franz-go's producer that
// record's own tests read, ../record/testdata.
package interop
