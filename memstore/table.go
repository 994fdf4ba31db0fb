package memstore

import "github.com/penstock/penstock/algorithm"

// A hash stands for a key and a limit. It is 128 bits wide and seeded in this process, so that
// neither chance nor malice makes two of them meet.
type hash struct{ high, low uint64 }

// fresh is the cell that no counter has: its state is always fresh.
const fresh uint32 = 0

// A table finds the counters of one algorithm by hash: an open-addressed index of numbers into
// dense arrays, with no pointer per counter for the garbage collector to follow.
type table struct {
	algorithm *algorithm.Algorithm
	cells     algorithm.Cells
	counters  []counter // by cell
	index     []uint32  // cells; 0 where empty. Its length is a power of two
	live      int
	cursor    uint32 // where the sweep stands
	swept     int64  // when all of it was swept

	// The ask and the outcome of the decision under way stand here rather than on the stack: copies
	// cost more than the step.
	ask algorithm.Ask
	out algorithm.Outcome
}

type counter struct {
	hash    hash
	expires int64 // when the state equals a fresh one; 0 if the cell is free
}

// tableLocked is the table of an algorithm. Algorithms of one name share their state.
func (s *shard) tableLocked(a *algorithm.Algorithm) *table {
	for _, t := range s.tables {
		if t.algorithm == a || t.algorithm.Name == a.Name {
			return t
		}
	}
	t := &table{algorithm: a}
	t.clear()
	s.tables = append(s.tables, t)
	return t
}

func (t *table) clear() {
	t.cells = t.algorithm.NewCells()
	t.cells.Add() // fresh
	t.counters = make([]counter, 1)
	t.index = make([]uint32, 8)
	t.live, t.cursor = 0, 0
}

// find is the cell of h, or fresh.
func (t *table) find(h hash) uint32 {
	mask := uint64(len(t.index) - 1)
	for at := h.low & mask; ; at = (at + 1) & mask {
		cell := t.index[at]
		if cell == fresh {
			return fresh
		}
		if t.counters[cell].hash == h {
			return cell
		}
	}
}

// add makes a counter for h, which must not have one.
func (t *table) add(h hash) uint32 {
	if (t.live+1)*4 > len(t.index)*3 {
		t.grow()
	}
	cell := t.cells.Add()
	if int(cell) == len(t.counters) {
		t.counters = append(t.counters, counter{})
	}
	t.counters[cell] = counter{hash: h, expires: 1}
	t.place(cell)
	t.live++
	return cell
}

func (t *table) place(cell uint32) {
	mask := uint64(len(t.index) - 1)
	at := t.counters[cell].hash.low & mask
	for t.index[at] != fresh {
		at = (at + 1) & mask
	}
	t.index[at] = cell
}

func (t *table) grow() {
	t.index = make([]uint32, 2*len(t.index))
	for cell := range t.counters {
		if t.counters[cell].expires != 0 {
			t.place(uint32(cell))
		}
	}
}

// remove forgets a counter. Those behind it in the index move up, so that a search may stop at the
// first gap.
func (t *table) remove(cell uint32) {
	mask := uint64(len(t.index) - 1)
	gap := t.counters[cell].hash.low & mask
	for t.index[gap] != cell {
		gap = (gap + 1) & mask
	}
	for at := (gap + 1) & mask; t.index[at] != fresh; at = (at + 1) & mask {
		home := t.counters[t.index[at]].hash.low & mask
		if (at-home)&mask >= (at-gap)&mask {
			t.index[gap] = t.index[at]
			gap = at
		}
	}
	t.index[gap] = fresh
	t.counters[cell] = counter{}
	t.cells.Remove(cell)
	t.live--
	if t.live == 0 && len(t.counters) > 64 {
		t.clear() // gives the memory back
	}
}
