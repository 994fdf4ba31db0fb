// Package effort says how much a random test tries, and where its random numbers begin.
package effort

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
)

// Soak tells whether to take the time to find what is rare: PENSTOCK_SOAK is set, as make soak
// does.
var Soak = os.Getenv("PENSTOCK_SOAK") != ""

// Of is how many cases a test tries: a quick number in make test, a large one in make soak. What is
// quick may be small, because each run begins at another seed.
func Of(quick, soak int) int {
	if Soak {
		return soak
	}
	return quick
}

// Seed is the first seed of a random test: PENSTOCK_SEED, or a number that is new in each run of
// the program. A test that fails prints the seed that replays it.
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
