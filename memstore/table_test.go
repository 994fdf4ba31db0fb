package memstore

import (
	"testing"

	"github.com/penstock/penstock"
)

// Len counts the same counters as the tables have.
func TestRemovedCountersLeaveTheirTable(t *testing.T) {
	s := New(Options{Locks: 1})
	plan := penstock.PerDay(10).MustCompile()
	decide := func(mode penstock.Mode) {
		t.Helper()
		if _, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Cost: 1, Mode: mode}}); err != nil {
			t.Fatal(err)
		}
		if inTable := s.stripes[0].tables[0].usedCells; inTable != s.Len() {
			t.Errorf("after %v, the table has %d counters, and Len returns %d; want the same", mode, inTable, s.Len())
		}
	}
	for _, mode := range []penstock.Mode{penstock.Spend, penstock.Reset, penstock.Spend, penstock.Refund} {
		decide(mode)
	}
	if s.Len() != 0 {
		t.Errorf("after a refund of all units, Len returns %d; want 0", s.Len())
	}
}

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
