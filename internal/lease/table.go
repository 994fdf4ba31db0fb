package lease

import (
	"hash/fnv"
	"hash/maphash"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// A keyTable has the leased keys, by the hashes of their names. To find a key takes no lock. A name
// without a leased key takes one load of its cell, which also counts the demand of the name.
type keyTable struct {
	seed           maphash.Seed
	hasEqualHashes bool      // in each run of the program
	cells          []keyCell // a power of two of them
	count          atomic.Int64

	mu       sync.Mutex // for adding and removing keys
	nextCell int        // where the next examination for idle keys begins
}

// A keyCell has the keys whose hashes select it, and a count of units for names without a key.
type keyCell struct {
	first atomic.Pointer[leasedKey] // the others follow by leasedKey.next
	units atomic.Uint64             // a unitCount
}

type keyName struct{ key, group string }

// minCells is the smallest number of cells. With fewer, too many names would share a unitCount.
const minCells = 1 << 14

func newKeyTable(maxKeys int) *keyTable {
	cells := minCells
	for cells < maxKeys {
		cells *= 2
	}
	return &keyTable{seed: maphash.MakeSeed(), cells: make([]keyCell, cells)}
}

func (t *keyTable) hash(name keyName) uint64 {
	if t.hasEqualHashes {
		h := fnv.New64a()
		_, _ = io.WriteString(h, name.key)
		return h.Sum64()
	}
	return maphash.String(t.seed, name.key)
}

func (t *keyTable) cell(hash uint64) *keyCell { return &t.cells[hash&uint64(len(t.cells)-1)] }

func (t *keyTable) find(hash uint64, name keyName) *leasedKey {
	k := t.cell(hash).first.Load()
	for k != nil && k.name != name {
		k = k.next.Load()
	}
	return k
}

// all returns the keys that are in the table now.
func (t *keyTable) all() (keys []*leasedKey) {
	for i := range t.cells {
		for k := t.cells[i].first.Load(); k != nil; k = k.next.Load() {
			keys = append(keys, k)
		}
	}
	return keys
}

// addLocked adds a key, whose name must not be in the table.
func (t *keyTable) addLocked(hash uint64, k *leasedKey) {
	c := t.cell(hash)
	k.next.Store(c.first.Load())
	c.first.Store(k)
	t.count.Add(1)
}

// removeIfLocked removes the keys of the next few cells for which isGone returns true.
func (t *keyTable) removeIfLocked(isGone func(*leasedKey) bool) {
	for range examinedCells {
		c := &t.cells[t.nextCell]
		t.nextCell = (t.nextCell + 1) % len(t.cells)
		for link := &c.first; link.Load() != nil; {
			k := link.Load()
			if !isGone(k) {
				link = &k.next
				continue
			}
			link.Store(k.next.Load()) // k.next stays for those who read the list now
			t.count.Add(-1)
		}
	}
}

// examinedCells is how many cells are examined for each key that is added: so few that it takes
// little time.
const examinedCells = 8

// A unitCount counts the units that a name without a leased key has requested. From the highest bit
// on it has: 32 bits of the name's hash, 16 of the number of the Life in which the count began, and
// 16 of units.
type unitCount uint64

const maxUnits = 1<<16 - 1

func newUnitCount(hash, life uint64, units int64) unitCount {
	return unitCount(hash>>32<<32 | life&(1<<16-1)<<16 | uint64(min(units, maxUnits)))
}

// addRequest counts a request of a name without a leased key. It returns the units that the name
// has requested before, since its count began in this Life or in the one before. A request of
// another name with the same cell takes its units from the count. So the name with most requests
// has the cell. The count can be wrong, if goroutines count at the same time, or if names have
// nearly the same hash.
func (c *keyCell) addRequest(hash uint64, cost int64, life, now time.Duration) (before int64) {
	thisLife := uint64(now / life)
	old := unitCount(c.units.Load())
	count := newUnitCount(hash, thisLife, cost)
	units := int64(old & maxUnits)
	isRecent := uint16(thisLife)-uint16(old>>16) <= 1
	switch isSame := old>>32 == count>>32; {
	case isRecent && isSame:
		before = units
		count = old&^maxUnits | unitCount(min(units+cost, maxUnits))
	case isRecent && units > cost:
		count = old - unitCount(cost)
	}
	c.units.Store(uint64(count))
	return before
}
