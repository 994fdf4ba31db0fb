package lease

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
)

// Keys whose hashes select the same cell differ by their names.
func TestKeysOfACell(t *testing.T) {
	table := newKeyTable(1)
	names := []keyName{{"a", "g"}, {"b", "g"}, {"a", "h"}}
	keys := make([]*leasedKey, len(names))
	for i, name := range names {
		keys[i] = &leasedKey{name: name}
		table.addLocked(5, keys[i])
		for j, other := range names {
			if want := keys[j]; table.find(5, other) != want {
				t.Errorf("after %d keys were added, the key %v is %p; want %p", i+1, other, table.find(5, other), want)
			}
		}
	}
	if table.find(6, names[0]) != nil {
		t.Error("a key was found in another cell")
	}
	gone := keys[1]
	table.removeIfLocked(func(k *leasedKey) bool { return k == gone })
	if table.find(5, names[0]) != keys[0] || table.find(5, names[1]) != nil || table.find(5, names[2]) != keys[2] || table.count.Load() != 2 {
		t.Errorf("after the removal of the second of three keys, there are %v; want the other two", table.all())
	}
}

// Each examination for idle keys goes on where the last one ended, and begins again after all.
func TestIdleKeysOfEveryCellAreRemoved(t *testing.T) {
	table := newKeyTable(minCells + 1)
	if len(table.cells) != 2*minCells {
		t.Fatalf("%d keys have %d cells; want a power of two that is as large", minCells+1, len(table.cells))
	}
	for i := range table.cells {
		table.addLocked(uint64(i), &leasedKey{name: keyName{key: fmt.Sprint(i)}})
	}
	seen := make(map[string]int)
	for range len(table.cells) / examinedCells {
		examined := 0
		table.removeIfLocked(func(k *leasedKey) bool {
			examined++
			seen[k.name.key]++
			return seen[k.name.key] == 2
		})
		if examined != examinedCells {
			t.Fatalf("one examination saw %d keys; want %d", examined, examinedCells)
		}
	}
	if len(seen) != len(table.cells) || table.count.Load() != int64(len(table.cells)) {
		t.Errorf("%d of %d keys were examined in a round; want all", len(seen), len(table.cells))
	}
	table.removeIfLocked(func(*leasedKey) bool { return true })
	if n := len(table.all()); n != len(table.cells)-examinedCells || int(table.count.Load()) != n {
		t.Errorf("after one more examination %d keys are left, and %d are counted; want %d", n, table.count.Load(), len(table.cells)-examinedCells)
	}
}

// Keys are found while others are added and removed.
func TestKeysAreFoundWhileOthersChange(t *testing.T) {
	table := newKeyTable(1)
	stays := &leasedKey{name: keyName{key: "stays"}}
	table.addLocked(0, stays)
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if table.find(0, stays.name) != stays {
					t.Error("a key was not found while others were added and removed")
					return
				}
			}
		})
	}
	for i := range 10_000 {
		table.addLocked(0, &leasedKey{name: keyName{key: fmt.Sprint(i)}})
		if i%3 == 2 {
			table.nextCell = 0
			table.removeIfLocked(func(k *leasedKey) bool { return k != stays })
		}
	}
	close(done)
	readers.Wait()
}

func TestUnitsOfAName(t *testing.T) {
	const life, a, sameTag, b = time.Second, uint64(1) << 40, uint64(1)<<40 | 1<<31, uint64(1) << 32
	type request struct {
		hash uint64
		cost int64
		life time.Duration // its number
	}
	for _, row := range []struct {
		name     string
		requests []request
		before   []int64 // units of the name before each request
	}{
		{"one name", []request{{a, 1, 0}, {a, 2, 0}, {a, 1, 0}}, []int64{0, 1, 3}},
		{"the next Life", []request{{a, 1, 7}, {a, 1, 8}, {a, 1, 8}}, []int64{0, 1, 2}},
		{"a later Life", []request{{a, 1, 7}, {a, 1, 8}, {a, 1, 9}, {a, 1, 9}}, []int64{0, 1, 0, 1}},
		{"the last number of a Life", []request{{a, 1, 1<<16 - 1}, {a, 1, 1 << 16}, {a, 1, 1<<16 + 1}}, []int64{0, 1, 0}},
		{"hashes that differ in low bits", []request{{a, 1, 0}, {sameTag, 1, 0}}, []int64{0, 1}},
		{"many units", []request{{a, maxUnits - 1, 0}, {a, 5, 0}, {a, 1 << 40, 0}, {a, 1, 0}}, []int64{0, maxUnits - 1, maxUnits, maxUnits}},
		{"a name with fewer units", []request{{a, 3, 0}, {b, 2, 0}, {a, 1, 0}}, []int64{0, 0, 1}},
		{"a name with as many units", []request{{a, 3, 0}, {b, 3, 0}, {a, 1, 0}, {b, 1, 0}}, []int64{0, 0, 0, 2}},
		{"a name that takes the place", []request{{a, 2, 0}, {b, 1, 0}, {b, 1, 0}, {b, 1, 0}}, []int64{0, 0, 0, 1}},
		{"another name in a later Life", []request{{a, 9, 0}, {b, 1, 2}, {b, 1, 2}}, []int64{0, 0, 1}},
	} {
		var c keyCell
		var got []int64
		for _, r := range row.requests {
			got = append(got, c.addRequest(r.hash, r.cost, life, r.life*life))
		}
		if !slices.Equal(got, row.before) {
			t.Errorf("%s: before its requests, a name had %d units; want %d", row.name, got, row.before)
		}
	}
}

func TestRequestOfANameWithoutAKeyAllocatesNothing(t *testing.T) {
	effort.SkipUnderRace(t)
	l := newStore(10)
	one := &batches.Batch{Charges: []penstock.Charge{{Key: "k", Plan: hourly("a"), Cost: 1}}}
	if n := testing.AllocsPerRun(2*minDraw-2, func() { l.isDecidedAlone(one) }); n > 0 {
		t.Errorf("a request of a name without a key makes %.0f allocations; want none", n)
	}
	if l.keys.count.Load() > 0 {
		t.Error("the key is tracked; want that it was measured before that")
	}
}
