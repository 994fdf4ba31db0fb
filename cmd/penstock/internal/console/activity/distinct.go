package activity

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// A distinctCounter counts how many different hashes were added. The count is exact up to
// distinctSize; above that, it is estimated from the distinctSize smallest hashes. Adding a hash
// takes no lock if the hash was added recently, or is larger than all hashes that are kept.
//
// An item has two hashes: a local hash, which finds recent items, and the hash that is counted.
type distinctCounter struct {
	recent  [1 << 12]atomic.Uint64 // local hashes
	largest atomic.Uint64          // hashes above it are not kept
	missed  atomic.Uint64          // items that were not added, because another one was being added

	mu     sync.Mutex
	hashes []DistinctHash // a heap; the largest first
	table  table          // the set of the hashes; its numbers are not used
}

// distinctSize is how many hashes are kept. The standard error of an estimate is 1/√(size−2): 3 %.
const distinctSize = 1024

// A DistinctHash is the hash of a key that a limit has denied.
type DistinctHash struct {
	Hash        uint64
	Rule, Limit string
}

func newDistinctCounter() *distinctCounter {
	d := &distinctCounter{hashes: make([]DistinctHash, 0, distinctSize), table: newTable(distinctSize)}
	d.largest.Store(math.MaxUint64)
	return d
}

func (d *distinctCounter) isRecent(local uint64) bool {
	return d.recent[local%uint64(len(d.recent))].Load() == local
}

// add adds an item. If another goroutine is adding one, the item counts as missed.
func (d *distinctCounter) add(local uint64, h DistinctHash) {
	if h.Hash > d.largest.Load() {
		d.recent[local%uint64(len(d.recent))].Store(local)
		return
	}
	if !d.mu.TryLock() {
		d.missed.Add(1)
		return
	}
	defer d.mu.Unlock()
	d.recent[local%uint64(len(d.recent))].Store(local)
	if d.table.find(h.Hash) >= 0 {
		return
	}
	if len(d.hashes) < distinctSize {
		d.hashes = append(d.hashes, h)
		d.siftUp(len(d.hashes) - 1)
	} else {
		if h.Hash > d.hashes[0].Hash {
			return
		}
		d.table.remove(d.hashes[0].Hash)
		d.hashes[0] = h
		d.siftDown(0)
	}
	d.table.put(h.Hash, 0)
	if len(d.hashes) == distinctSize {
		d.largest.Store(d.hashes[0].Hash)
	}
}

// siftUp moves a hash toward the root of the heap until its parent is larger.
func (d *distinctCounter) siftUp(at int) {
	for ; at > 0 && d.hashes[at].Hash > d.hashes[(at-1)/2].Hash; at = (at - 1) / 2 {
		d.hashes[at], d.hashes[(at-1)/2] = d.hashes[(at-1)/2], d.hashes[at]
	}
}

// siftDown moves a hash away from the root of the heap until its children are smaller.
func (d *distinctCounter) siftDown(at int) {
	for {
		largest := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(d.hashes); child++ {
			if d.hashes[child].Hash > d.hashes[largest].Hash {
				largest = child
			}
		}
		if largest == at {
			return
		}
		d.hashes[at], d.hashes[largest] = d.hashes[largest], d.hashes[at]
		at = largest
	}
}

// read returns the count. isLast is true for the last read of a minute: the counter then starts
// again from zero.
func (d *distinctCounter) read(isLast bool) *Distinct {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := &Distinct{Size: distinctSize, Hashes: slices.Clone(d.hashes), Missed: d.missed.Load()}
	found.sort()
	if isLast {
		d.missed.Store(0)
		d.largest.Store(math.MaxUint64)
		for i := range d.recent {
			d.recent[i].Store(0)
		}
		clear(d.hashes)
		d.hashes = d.hashes[:0]
		d.table.clear()
	}
	return found
}

// A Distinct counts different keys. A key counts once for each limit that denied it. A Distinct has
// the Size smallest hashes of keys, or all hashes if there are fewer.
type Distinct struct {
	Size   int
	Hashes []DistinctHash // ascending
	Missed uint64         // events that were not added, because another event was being added
}

func (d *Distinct) sort() {
	slices.SortFunc(d.Hashes, func(a, b DistinctHash) int { return cmp.Compare(a.Hash, b.Hash) })
}

func (d *Distinct) IsExact() bool { return len(d.Hashes) < d.Size }

// Count returns how many different keys there were, and the standard error of that number. If the
// k-th smallest of n evenly spread hashes is at the fraction f of their range, n is about (k-1)/f.
func (d *Distinct) Count() (n, deviation float64) {
	if d.IsExact() {
		return float64(len(d.Hashes)), 0
	}
	k := float64(len(d.Hashes))
	n = (k - 1) / (float64(d.Hashes[len(d.Hashes)-1].Hash) / math.MaxUint64)
	return n, n / math.Sqrt(k-2)
}

// ByLimit calls f for each limit with the number of keys that it denied, and its standard error.
func (d *Distinct) ByLimit(f func(rule, limit string, n, deviation float64)) {
	type key struct{ rule, limit string }
	kept := make(map[key]float64) // how many hashes each limit has
	for _, h := range d.Hashes {
		kept[key{h.Rule, h.Limit}]++
	}
	all, _ := d.Count()
	for k, n := range kept {
		if d.IsExact() {
			f(k.rule, k.limit, n, 0)
			continue
		}
		each := all / float64(len(d.Hashes)) // keys for each hash that is kept
		f(k.rule, k.limit, n*each, math.Sqrt(n)*each)
	}
}

// Cut drops all hashes except the n smallest.
func (d *Distinct) Cut(n int) {
	if len(d.Hashes) >= n {
		d.Hashes = d.Hashes[:n:n]
	}
	d.Size = min(d.Size, n)
}

// MergeDistinct merges the counts of several instances or minutes. All must use the same seed.
func MergeDistinct(parts ...*Distinct) *Distinct {
	all := &Distinct{Size: distinctSize}
	seen := make(map[uint64]bool)
	for _, p := range parts {
		all.Size, all.Missed = min(all.Size, p.Size), all.Missed+p.Missed
		for _, h := range p.Hashes {
			if !seen[h.Hash] {
				seen[h.Hash] = true
				all.Hashes = append(all.Hashes, h)
			}
		}
	}
	all.sort()
	all.Cut(all.Size)
	return all
}
