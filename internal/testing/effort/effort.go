// Package effort sets how many cases a random test tries, and its first seed.
package effort

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// IsSoak is true if tests run long enough to find rare failures. make soak sets PENSTOCK_SOAK for
// this.
var IsSoak = os.Getenv("PENSTOCK_SOAK") != ""

// Of returns how many cases a test tries: usual in make test, soak in make soak, and a quarter of
// usual in make quick. usual may be small, because each run starts at another seed.
func Of(usual, soak int) int {
	switch {
	case IsSoak:
		return soak
	case testing.Short():
		return (usual + 3) / 4
	}
	return usual
}

// Seed returns the first seed of a random test: PENSTOCK_SEED, or a different number in each run. A
// failing test prints the seed that repeats the failure.
var Seed = sync.OnceValue(func() uint64 {
	text := os.Getenv("PENSTOCK_SEED")
	if text == "" {
		return uint64(rand.Uint32())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic("PENSTOCK_SEED: " + err.Error())
	}
	return seed
})
