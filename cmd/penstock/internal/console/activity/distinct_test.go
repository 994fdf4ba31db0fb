package activity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

func TestDistinctKeysAreCountedExactlyThenEstimated(t *testing.T) {
	effort.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(knownSeed, 0))
	salt := r.Uint64()
	for _, want := range []int{0, 1, 500, distinctSize - 1, distinctSize, 5_000, 100_000} {
		one := newDistinctCounter()
		parts := make([]*distinctCounter, 10)
		for i := range parts {
			parts[i] = newDistinctCounter()
		}
		byLimit := make(map[string]float64)
		for i := range want {
			h := DistinctHash{Hash: sharedHash(salt, nil, fmt.Sprint("key:", i)), Rule: "rule", Limit: fmt.Sprint(i % 3)}
			byLimit[h.Limit]++
			for range 1 + r.IntN(3) { // often seen again
				for _, d := range []*distinctCounter{one, parts[r.IntN(len(parts))]} {
					if local := h.Hash * 3; !d.isRecent(local) { // any other hash of the key
						d.add(local, h)
					}
				}
			}
		}
		const isLast = true
		counted := one.read(!isLast)
		read := make([]*Distinct, len(parts))
		for i, p := range parts {
			read[i] = p.read(isLast)
		}
		merged := MergeDistinct(read...)
		for what, d := range map[string]*Distinct{"one": counted, "merged of ten": merged} {
			n, deviation := d.Count()
			if d.IsExact() != (want < distinctSize) {
				t.Errorf("%s: with %d different keys, IsExact returns %v; want %v", what, want, d.IsExact(), want < distinctSize)
			}
			if math.Abs(n-float64(want)) > 5*deviation {
				t.Errorf("%s: counted %.0f ± %.0f different keys; want %d", what, n, deviation, want)
			}
			d.ByLimit(func(_, limit string, n, deviation float64) {
				if math.Abs(n-byLimit[limit]) > 5*deviation {
					t.Errorf("%s: counted %.0f ± %.0f different keys of limit %s; want %.0f", what, n, deviation, limit, byLimit[limit])
				}
			})
		}
		if a, _ := counted.Count(); want >= distinctSize {
			if b, _ := merged.Count(); a != b {
				t.Errorf("merged of ten: counted %.0f different keys of %d; want %.0f, as one counter does", b, want, a)
			}
		}
		if n, _ := parts[0].read(!isLast).Count(); n != 0 {
			t.Errorf("a counter that began anew has %.0f keys; want 0", n)
		}
	}
}
