// Package meter measures: the latency of every record, processor time, bytes written
// and syncs.
package meter
