package activity

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

// An eventStream returns the key of its event i.
type eventStream struct {
	name string
	key  func(r *rand.Rand, i int) string
}

func eventStreams(r *rand.Rand) []eventStream {
	flat, steep := rand.NewZipf(r, 1.05, 1, 1<<20), rand.NewZipf(r, 1.3, 1, 1<<20)
	return []eventStream{
		{"Zipf 1.05", func(*rand.Rand, int) string { return fmt.Sprint("user:", flat.Uint64()) }},
		{"Zipf 1.3", func(*rand.Rand, int) string { return fmt.Sprint("user:", steep.Uint64()) }},
		{"new identities all the time, and five heavy ones", func(r *rand.Rand, i int) string {
			if r.IntN(20) == 0 {
				return fmt.Sprint("heavy:", r.IntN(5))
			}
			return fmt.Sprint("new:", i)
		}},
		{"new identities first, then a heavy one", func(r *rand.Rand, i int) string {
			if i%2 == 0 && i > 100_000 {
				return "late"
			}
			return fmt.Sprint("new:", i)
		}},
		{"one identity more than the sketch keeps, in turn", func(_ *rand.Rand, i int) string { return fmt.Sprint(i % (sketchSize + 1)) }},
		{"one", func(*rand.Rand, int) string { return "one" }},
	}
}

var testSeed = maphash.MakeSeed()

// feed adds a key to a sketch.
func feed(s *sketch, key string, weight uint64) {
	const gap = 1 // every event is added
	if e := s.add(maphash.String(testSeed, key), weight, gap); e != nil {
		e.limit, e.length = &limit{Rule: "rule", Name: "limit"}, uint8(copy(e.name[:], key))
	}
}

// checkTop compares a Top with exact weights. bound is the largest error that is allowed.
func checkTop(t *testing.T, what string, top *Top, exact map[string]uint64, bound uint64) {
	t.Helper()
	var total uint64
	for _, n := range exact {
		total += n
	}
	if top.Total != total {
		t.Errorf("%s: the total is %d, want %d", what, top.Total, total)
	}
	listed := make(map[string]bool)
	for _, item := range top.Items {
		listed[item.Name] = true
		least, most := item.Bounds()
		if n := exact[item.Name]; n < least || n > most {
			t.Fatalf("%s: the bounds of %s are %d to %d; want bounds around its true weight, %d", what, item.Name, least, most, n)
		}
		if item.Error > bound {
			t.Fatalf("%s: %s has an error of %d; the bound is %d", what, item.Name, item.Error, bound)
		}
	}
	for key, n := range exact {
		if !listed[key] && n > top.Floor {
			t.Fatalf("%s: %s is missing with a count of %d; want it listed, because the floor is only %d", what, key, n, top.Floor)
		}
		if !listed[key] && n > bound {
			t.Fatalf("%s: the heavy item %s is missing with a count of %d of %d; want it listed", what, key, n, total)
		}
	}
}

func TestSketchKeepsEveryHeavyItemWithinItsError(t *testing.T) {
	effort.SkipUnderRace(t)
	seed := effort.Seed()
	t.Logf("PENSTOCK_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	n := effort.Of(100_000, 3_000_000)
	for _, stream := range eventStreams(r) {
		one, exact := newSketch(sketchSize), make(map[string]uint64)
		parts := make([]*sketch, 10)
		for i := range parts {
			parts[i] = newSketch(sketchSize)
		}
		for i := range n {
			key, weight := stream.key(r, i), uint64(1+r.IntN(3))
			exact[key] += weight
			feed(one, key, weight)
			feed(parts[r.IntN(len(parts))], key, weight)
		}
		bound := one.total / sketchSize
		checkTop(t, stream.name, one.top(), exact, bound)
		tops := make([]*Top, len(parts))
		for i, p := range parts {
			tops[i] = p.top()
		}
		merged := MergeTops(sketchSize, tops...)
		// Each part has an error of at most its total/sketchSize; they add up to the bound of one.
		checkTop(t, stream.name+", merged of ten", merged, exact, bound)
		const few = 50 // items
		for i, p := range parts {
			tops[i] = p.top()
			tops[i].Cut(few)
		}
		// A part that is cut to few items has at most total/(few+1) as its floor.
		checkTop(t, stream.name+", merged of ten with 50 items each", MergeTops(few, tops...), exact, one.total/(few+1)+one.total/sketchSize)
		heaviest := slices.SortedFunc(maps.Keys(exact), func(a, b string) int { return int(exact[b]) - int(exact[a]) })
		t.Logf("counted: %s: %d events of %d keys; the heaviest has %d; errors up to %d, bound %d", stream.name, n, len(exact), exact[heaviest[0]], one.top().Floor, bound)
	}
}

// knownSeed is the seed of tests whose bounds hold with a high probability only. With random seeds,
// they would fail by chance.
const knownSeed = 1

func TestSampledWeightsAreWithinTheirBounds(t *testing.T) {
	effort.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(knownSeed, 1))
	for _, stream := range eventStreams(r) {
		s, exact := newSketch(sketchSize), make(map[string]uint64)
		gap := uint64(64)
		for i := range 300_000 {
			switch i { // gaps may change
			case 150_000:
				gap = 16
			case 250_000:
				gap = 1
			}
			key := stream.key(r, i)
			exact[key]++
			if r.Uint64N(gap) == 0 {
				if e := s.add(maphash.String(testSeed, key), gap, gap); e != nil {
					e.limit, e.length = &limit{}, uint8(copy(e.name[:], key))
				}
			}
		}
		for _, item := range s.top().Items {
			if least, most := item.Bounds(); exact[item.Name] < least || exact[item.Name] > most {
				t.Errorf("%s: the bounds of %s are %d to %d; want bounds around its true weight, %d", stream.name, item.Name, least, most, exact[item.Name])
			}
		}
	}
}

// Fewer than one in three million items have a true weight that is out of their bounds. If one in
// gap events is sampled, the number of samples has about a Poisson distribution.
func TestBoundsOfSamplesHold(t *testing.T) {
	const gap, rare = 64, 1.0 / 3e6
	atMost := func(n int, mean float64) (p float64) { // the probability of at most n samples
		for i, term := 0, math.Exp(-mean); i <= n; i++ {
			p += term
			term *= mean / float64(i+1)
		}
		return p
	}
	for n := 1; n <= 200; n++ {
		weight := uint64(n * gap)
		item := Item{Weight: weight, Variance: float64(weight) * gap, Largest: gap}
		least, most := item.Bounds()
		if p := atMost(n, float64(most)/gap); p > rare {
			t.Errorf("%d samples: an item of weight %d has so many or fewer with probability %g; want at most %g", n, most, p, rare)
		}
		if p := 1 - atMost(n-1, float64(least)/gap); p > rare {
			t.Errorf("%d samples: an item of weight %d has so many or more with probability %g; want at most %g", n, least, p, rare)
		}
		if float64(most) > 3*float64(weight)+40*gap {
			t.Errorf("%d samples: the upper bound is %d; want at most 3 times the weight %d, plus 40 gaps", n, most, weight)
		}
	}
}

func TestTableAgreesWithAMap(t *testing.T) {
	seed := effort.Seed()
	t.Logf("PENSTOCK_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	const most = 20
	table, model := newTable(most), make(map[uint64]int32)
	for range 200_000 {
		hash := r.Uint64N(64) * 0x0101 // many collide
		if _, ok := model[hash]; ok && r.IntN(2) == 0 {
			table.remove(hash)
			delete(model, hash)
		} else if !ok && len(model) < most {
			n := r.Int32N(1000)
			table.put(hash, n)
			model[hash] = n
		}
		want, ok := model[hash]
		if !ok {
			want = -1
		}
		if got := table.find(hash); got != want {
			t.Fatalf("the number of the hash %x is %d; want %d", hash, got, want)
		}
	}
}
