package activity

import (
	"cmp"
	"math"
	"slices"
)

// A sketch finds the heaviest items of a stream in bounded memory, by the Space-Saving algorithm.
// It keeps size items. If it is full, a new item replaces the lightest one. The new item starts
// with the weight of the old one, and that weight is its error. The true weight of an item is at
// most its weight, and at least its weight minus its error. Every item heavier than total/size is
// kept.
type sketch struct {
	entries []entry
	heap    []int32 // indexes of entries; the lightest first
	table   table   // indexes of entries by hash
	total   uint64  // weight of all events
	gap     uint64  // the largest gap of a sample; at most 1: every event was added
}

// An entry is an item of a sketch. Its name is an array, so that a new item allocates no memory.
type entry struct {
	hash     uint64
	limit    *limit
	weight   uint64
	error    uint64  // the weight is too large by at most this
	variance float64 // of the weight, because events are sampled
	heaviest uint64  // the largest weight of one event
	place    int32   // in the heap
	length   uint8   // of the name
	name     [MaxName]byte
}

// MaxName is the longest name of a key in a store, in bytes.
const MaxName = 128

func newSketch(size int) *sketch {
	return &sketch{entries: make([]entry, 0, size), heap: make([]int32, 0, size), table: newTable(size)}
}

// add adds weight to an item. It returns the item if it is new; the caller sets its limit and name.
// A sample stands for gap events, so its weight is a multiple of gap.
func (s *sketch) add(hash, weight, gap uint64) (added *entry) {
	s.total, s.gap = sum(s.total, weight), max(s.gap, gap)
	n := s.table.find(hash)
	switch {
	case n >= 0:
	case len(s.entries) < cap(s.entries):
		n = int32(len(s.entries))
		s.entries = append(s.entries, entry{hash: hash, place: n})
		s.heap = append(s.heap, n)
		s.table.put(hash, n)
		added = &s.entries[n]
	default:
		n = s.heap[0]
		added = &s.entries[n]
		s.table.remove(added.hash)
		s.table.put(hash, n)
		added.hash, added.error, added.variance, added.heaviest = hash, added.weight, 0, 0
	}
	e := &s.entries[n]
	e.weight, e.heaviest = sum(e.weight, weight), max(e.heaviest, weight/gap)
	if gap > 1 {
		e.variance += float64(weight) * float64(weight)
	}
	s.fixHeap(e.place)
	return added
}

// fixHeap moves an entry whose weight has changed to its place in the heap.
func (s *sketch) fixHeap(at int32) {
	for at > 0 && s.weightAt(at) < s.weightAt((at-1)/2) {
		s.swap(at, (at-1)/2)
		at = (at - 1) / 2
	}
	for {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && int(child) < len(s.heap); child++ {
			if s.weightAt(child) < s.weightAt(least) {
				least = child
			}
		}
		if least == at {
			return
		}
		s.swap(at, least)
		at = least
	}
}

func (s *sketch) weightAt(place int32) uint64 { return s.entries[s.heap[place]].weight }

func (s *sketch) swap(a, b int32) {
	s.heap[a], s.heap[b] = s.heap[b], s.heap[a]
	s.entries[s.heap[a]].place, s.entries[s.heap[b]].place = a, b
}

func (s *sketch) reset() {
	clear(s.entries)
	s.entries, s.heap, s.total, s.gap = s.entries[:0], s.heap[:0], 0, 0
	s.table.clear()
}

// clone copies the sketch, so that its lock need not be held for long. The copy can only be read,
// because it shares the table of the sketch.
func (s *sketch) clone() sketch {
	c := *s
	c.entries = append(make([]entry, 0, cap(s.entries)), s.entries...)
	c.heap = slices.Clone(s.heap)
	return c
}

// top returns the items of the sketch, the heaviest first. While the gap is above 1, events are
// left out. So even if all samples of an item had the gap 1, the item may have had more events.
func (s *sketch) top() *Top {
	t := &Top{Total: s.total, Items: make([]Item, len(s.entries))}
	for i := range s.entries {
		e := &s.entries[i]
		largest := uint64(0)
		if s.gap > 1 {
			largest = e.heaviest * s.gap
		}
		t.Items[i] = Item{e.limit.Rule, e.limit.Name, string(e.name[:e.length]), e.weight, e.error, e.variance, largest}
	}
	if len(s.entries) == cap(s.entries) {
		t.Floor = s.weightAt(0)
	}
	t.sort()
	return t
}

// A Top has the heaviest items of a stream, the heaviest first.
type Top struct {
	Items []Item `json:"items"`

	Total  uint64 `json:"total"`            // weight of all events
	Floor  uint64 `json:"floor"`            // an item that is not in Items has at most this weight plus Missed
	Missed uint64 `json:"missed,omitempty"` // weight of the events that were not added, because another one was being added
}

// An Item is a key with the limit that counted it.
type Item struct {
	Rule  string `json:"r"`
	Limit string `json:"l"`
	Name  string `json:"k"` // the key's name in the store, see Options.Names

	Weight   uint64  `json:"w"`           // at least the weight that was added
	Error    uint64  `json:"e,omitempty"` // Weight is too large by at most this
	Variance float64 `json:"v,omitempty"` // of the weight, because events were sampled
	Largest  uint64  `json:"g,omitempty"` // the largest weight that a sample may have; 0: every event was added
}

// boundsExponent sets how certain the Bounds of sampled items are. By Chernoff's bounds, the true
// weight is outside of them with a probability of e^-boundsExponent: one in three million.
const boundsExponent = 15.0

// Bounds returns the least and the largest true weight of an item. If its events were not sampled,
// the bounds are certain. The upper bound does not include Missed.
func (i *Item) Bounds() (least, most uint64) {
	least, most = i.Weight-min(i.Error, i.Weight), i.Weight
	if i.Largest == 0 {
		return least, most
	}
	sample := float64(i.Largest)
	unseen := float64(i.Error) * sample // variance of the weight that the item may have had before the sketch kept it
	below := math.Sqrt(2 * boundsExponent * i.Variance)
	above := boundsExponent*sample + math.Sqrt(boundsExponent*boundsExponent*sample*sample+2*boundsExponent*(i.Variance+unseen))
	return uint64(max(0, float64(least)-below)), sum(most, uint64(above))
}

// sum returns a+b, or the largest uint64 if that overflows.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

func (t *Top) sort() {
	slices.SortFunc(t.Items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Name, b.Name))
	})
}

// Cut keeps the n heaviest items.
func (t *Top) Cut(n int) {
	if len(t.Items) > n {
		t.Floor = max(t.Floor, t.Items[n].Weight)
		t.Items = t.Items[:n:n]
	}
}

// MergeTops merges the results of several sketches of one kind, such as those of several instances.
// It keeps the size heaviest items. If a part does not have an item, the item may have had a weight
// of up to the Floor of that part. So the floors of such parts are added to the weight and the
// error of the item.
func MergeTops(size int, parts ...*Top) *Top {
	type key struct{ rule, limit, name string }
	type merged struct {
		Item
		floors uint64 // of the parts that have the item
	}
	all := make(map[key]*merged)
	t := new(Top)
	for _, p := range parts {
		t.Total, t.Floor, t.Missed = sum(t.Total, p.Total), sum(t.Floor, p.Floor), sum(t.Missed, p.Missed)
		for _, item := range p.Items {
			at := key{item.Rule, item.Limit, item.Name}
			m := all[at]
			if m == nil {
				m = &merged{Item: Item{Rule: item.Rule, Limit: item.Limit, Name: item.Name}}
				all[at] = m
			}
			m.Weight, m.Error, m.floors = sum(m.Weight, item.Weight), sum(m.Error, item.Error), sum(m.floors, p.Floor)
			m.Variance += item.Variance
			m.Largest = max(m.Largest, item.Largest)
		}
	}
	t.Items = make([]Item, 0, len(all))
	for _, m := range all {
		otherFloors := t.Floor - min(m.floors, t.Floor) // of the parts that do not have the item
		m.Weight, m.Error = sum(m.Weight, otherFloors), sum(m.Error, otherFloors)
		t.Items = append(t.Items, m.Item)
	}
	t.sort()
	t.Cut(size)
	return t
}
