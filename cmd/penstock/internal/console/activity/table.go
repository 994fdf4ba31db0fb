package activity

// A table maps 64-bit hashes to numbers. Its size is fixed, so it allocates memory only when it is
// made. It must be at most half full.
type table struct {
	hashes  []uint64
	numbers []int32 // number plus 1; 0: the place is free
	mask    uint64  // the size minus 1
}

// newTable makes a table for at most n hashes.
func newTable(n int) table {
	size := 4
	for size < 2*n {
		size *= 2
	}
	return table{make([]uint64, size), make([]int32, size), uint64(size - 1)}
}

// place returns the index of a hash, or the index at which put would store it.
func (t *table) place(hash uint64) uint64 {
	i := hash & t.mask
	for t.numbers[i] != 0 && t.hashes[i] != hash {
		i = (i + 1) & t.mask
	}
	return i
}

func (t *table) find(hash uint64) int32 { return t.numbers[t.place(hash)] - 1 }

func (t *table) put(hash uint64, number int32) {
	i := t.place(hash)
	t.hashes[i], t.numbers[i] = hash, number+1
}

// remove removes a hash. It moves those hashes behind it that place would no longer find.
func (t *table) remove(hash uint64) {
	free := t.place(hash)
	if t.numbers[free] == 0 {
		return
	}
	for i := (free + 1) & t.mask; t.numbers[i] != 0; i = (i + 1) & t.mask {
		// The hash at i stays if its search begins between free and i.
		if (i-t.hashes[i])&t.mask >= (i-free)&t.mask {
			t.hashes[free], t.numbers[free] = t.hashes[i], t.numbers[i]
			free = i
		}
	}
	t.numbers[free] = 0
}

func (t *table) clear() { clear(t.numbers) }
