package record_test

import (
	"fmt"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

// A producer encodes, the leader checks and stamps, a reader iterates.
func Example() {
	batch, err := record.Encode(nil, []record.Record{
		{Key: []byte("anna"), Value: []byte("signed in")},
		{Key: []byte("ben"), Value: []byte("bought"), Headers: []record.Header{{Key: "item", Value: []byte("tea")}}},
	}, time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC))
	if err != nil {
		fmt.Println(err)
		return
	}

	record.Stamp(batch, 1000, 7)
	info, err := record.Check(batch)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d bytes, offsets %d to %d, epoch %d\n", info.Size, info.Base, info.Last, info.Epoch)

	for rec, err := range record.All(batch) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d %s %s: %s\n", rec.Offset, rec.Timestamp.Format(time.TimeOnly), rec.Key, rec.Value)
		for _, h := range rec.Headers {
			fmt.Printf("     %s=%s\n", h.Key, h.Value)
		}
	}
	// Output:
	// 106 bytes, offsets 1000 to 1001, epoch 7
	// 1000 15:09:26 anna: signed in
	// 1001 15:09:26 ben: bought
	//      item=tea
}

// A compressed batch is checked, stamped and read like any other.
func ExampleEncodeCompressed() {
	recs := make([]record.Record, 100)
	for i := range recs {
		recs[i].Value = fmt.Appendf(nil, "tide gauge %d: nothing to report", i)
	}
	now := time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)
	batch, err := record.EncodeCompressed(nil, recs, now, record.Zstd)
	if err != nil {
		fmt.Println(err)
		return
	}
	info, err := record.Check(batch)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.Count, "records,", info.Compression, info.Size < record.EncodedSize(recs, now)/5)
	// Output:
	// 100 records, zstd true
}
