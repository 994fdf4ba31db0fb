package priority

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestElementsComeInOrder(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		q := NewQueue(cmp.Less[int])
		var all, got []int
		for range 1 + rng.IntN(200) {
			x := rng.IntN(100)
			all = append(all, x)
			q.Push(x)
			if rng.IntN(3) == 0 { // a removed element comes again
				q.Push(q.Pop())
			}
		}
		for q.Len() > 0 {
			got = append(got, q.Pop())
		}
		if slices.Sort(all); !slices.Equal(got, all) {
			t.Fatalf("seed %d: the elements come as %v; want %v", seed, got, all)
		}
	}
}
