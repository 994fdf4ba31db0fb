package memstore

import (
	"testing"

	"github.com/penstock/penstock"
)

func TestTableReleasesItsMemoryWithItsLastCounter(t *testing.T) {
	table := &table{algorithm: penstock.TokenBucket}
	table.clear()
	const keys = 1000
	for i := range uint64(keys) {
		table.add(hash{low: i})
	}
	for i := range uint64(keys) {
		table.remove(table.find(hash{low: i}))
	}
	if counters, index := cap(table.counters), len(table.index); counters > 1 || index > 8 {
		t.Errorf("after %d counters, an empty table has room for %d in %d places of its index; want 1 in 8, as a new table has", keys, counters, index)
	}
}
