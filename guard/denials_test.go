package guard

import "testing"

// All entries of a set have the same tag. Only the whole key distinguishes them.
func TestDenialsOfOneTagAreDistinct(t *testing.T) {
	table := newDenials(1)
	if len(table.sets) != 1 {
		t.Fatalf("a table for one entry has %d sets; want 1", len(table.sets))
	}
	var put []*denial
	for i := range uint64(placesPerSet) {
		e := &denial{key: denialKey{low: i<<32 | 1, high: i * 3}, validUntil: int64(100 + i)}
		table.put(e, nil, nil, nil)
		put = append(put, e)
	}
	for _, e := range put {
		if got := table.find(e.key); got != e {
			t.Errorf("key %v finds denial %v; want %v", e.key, got, e)
		}
		if got := table.find(denialKey{e.key.low, e.key.high + 1}); got != nil {
			t.Errorf("a key that was never put finds %v; want nil", got)
		}
	}
}

func TestDenialThatEndsFirstIsEvictedFirst(t *testing.T) {
	table := newDenials(8)
	for i, until := range []int64{80, 30, 90, 60, 50, 70, 40, 99} {
		table.put(&denial{key: denialKey{low: uint64(2 * i)}, validUntil: until}, nil, nil, nil)
	}
	for i, want := range []uint64{1, 6, 4} { // the denials that end at 30, 40 and 50
		e := &denial{key: denialKey{low: uint64(100 + 2*i)}, validUntil: 1000, answeredAt: 35} // the denial that ends at 30 has ended
		table.put(e, nil, nil, nil)
		if table.find(denialKey{low: 2 * want}) != nil {
			t.Errorf("after another put, denial %d is still in the table; want it replaced, because it ends first", want)
		}
		if table.find(e.key) != e {
			t.Errorf("the denial that should replace denial %d is not in the table", want)
		}
	}
	if n, evicted := table.entries.Load(), table.evicted.Load(); n != 8 || evicted != 2 {
		t.Errorf("the table has %d entries, and %d were evicted before they ended; want 8 and 2", n, evicted)
	}
}
