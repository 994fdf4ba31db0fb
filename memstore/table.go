package memstore

import "github.com/penstock/penstock/algorithm"

// A hash identifies a counter: a key and a limit. It has 128 bits, so collisions do not happen by
// chance. Each Store has a random seed, so an attacker cannot force collisions.
type hash struct{ high, low uint64 }

// freshCell is cell 0, which belongs to no counter. Its state is always that of a new counter. find
// returns it for a hash without a counter.
const freshCell uint32 = 0

// A table is a hash table with the counters of one algorithm. Each counter has a cell, which is its
// number. An open-addressed index finds the cell of a hash, and arrays have the data of each cell.
// So the garbage collector need not follow a pointer per counter.
type table struct {
	algorithm     *algorithm.Algorithm
	weight        int64            // of a counter, in about 100 bytes
	states        algorithm.States // by cell
	counters      []counter        // by cell
	index         []uint32         // cells; 0 where empty. The length of index is a power of two
	usedCells     int              // how many cells have a counter
	sweepCursor   uint32           // the cell that was swept last
	lastFullSweep int64            // when the whole table was swept last, in µs

	// The request and the outcome of the current decision. They are not on the stack, because copies
	// would cost more than the step.
	request algorithm.Request
	outcome algorithm.Outcome
}

type counter struct {
	hash      hash
	expiresAt int64 // when the counter is no longer needed, in µs; 0 if the cell is free
}

// tableLocked returns the table of an algorithm. Algorithms with the same name share their state.
func (s *stripe) tableLocked(a *algorithm.Algorithm) *table {
	for _, t := range s.tables {
		if t.algorithm == a || t.algorithm.Name() == a.Name() {
			return t
		}
	}
	t := &table{algorithm: a, weight: weightOf(a)}
	t.clear()
	s.tables = append(s.tables, t)
	return t
}

// weightOf returns how many usual counters take as much memory as a counter of an algorithm. A log
// and a set of holders grow with the requests that they admit. They count as about 50 entries.
func weightOf(a *algorithm.Algorithm) int64 {
	if a.IsCollection() {
		return 8
	}
	return 1 + int64(a.Numbers())*8/100
}

// clear makes a table without counters as small as a new one.
func (t *table) clear() {
	t.states = t.algorithm.NewStates()
	t.states.Add() // the state of freshCell
	t.counters = make([]counter, 1)
	t.index = make([]uint32, 8)
}

// find returns the cell of the counter for h, or freshCell.
func (t *table) find(h hash) uint32 {
	mask := uint64(len(t.index) - 1)
	for at := h.low & mask; ; at = (at + 1) & mask {
		cell := t.index[at]
		if cell == freshCell {
			return freshCell
		}
		if t.counters[cell].hash == h {
			return cell
		}
	}
}

// add adds a counter for h, which must not have one.
func (t *table) add(h hash) uint32 {
	if 4*(t.usedCells+1) > 3*len(t.index) { // at most three quarters of the index are in use
		t.grow()
	}
	cell := t.states.Add()
	if int(cell) == len(t.counters) {
		t.counters = append(t.counters, counter{})
	}
	t.counters[cell] = counter{hash: h, expiresAt: 1} // above 0: the cell is in use
	t.place(cell)
	t.usedCells++
	return cell
}

func (t *table) place(cell uint32) {
	mask := uint64(len(t.index) - 1)
	at := t.counters[cell].hash.low & mask
	for t.index[at] != freshCell {
		at = (at + 1) & mask
	}
	t.index[at] = cell
}

func (t *table) grow() {
	t.index = make([]uint32, 2*len(t.index))
	for cell := range t.counters {
		if t.counters[cell].expiresAt != 0 {
			t.place(uint32(cell))
		}
	}
}

// remove removes a counter. Later entries of the index fill the gap, if their search begins before
// it, so that find may stop at the first gap.
func (t *table) remove(cell uint32) {
	mask := uint64(len(t.index) - 1)
	gap := t.counters[cell].hash.low & mask
	for t.index[gap] != cell {
		gap = (gap + 1) & mask
	}
	for at := (gap + 1) & mask; t.index[at] != freshCell; at = (at + 1) & mask {
		home := t.counters[t.index[at]].hash.low & mask
		if (at-home)&mask >= (at-gap)&mask { // the search for this entry begins at or before the gap
			t.index[gap] = t.index[at]
			gap = at
		}
	}
	t.index[gap] = freshCell
	t.counters[cell] = counter{}
	t.states.Remove(cell)
	t.usedCells--
	const smallTable = 64 // cells; smaller tables keep their memory
	if t.usedCells == 0 && len(t.counters) > smallTable {
		t.clear()
	}
}
