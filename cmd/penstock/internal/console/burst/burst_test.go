package burst

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestNumbersAreRoundedUp(t *testing.T) {
	for x, want := range map[float64]int64{0: 1, 1: 1, 1.5: 2, 4: 5, 7.5: 8, 8.1: 10, 31: 50, 1234: 2000} {
		if got := RoundUp(x); got != want {
			t.Errorf("RoundUp(%v) is %d; want %d", x, got, want)
		}
	}
}

// TestBurstIsTheLargestExcess: the burst of a rate is the largest excess of any interval's costs
// over what the rate refills in the interval.
func TestBurstIsTheLargestExcess(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var c Curve
		var times, costs []int64
		now := int64(1)
		for range 100 {
			now += rng.Int64N(int64(10 * time.Second / time.Microsecond))
			times, costs = append(times, now), append(costs, 1+rng.Int64N(20))
			c.Add(now, costs[len(costs)-1])
		}
		for i, r := range Rates {
			want := 0.0
			for from := range times {
				sum := 0.0
				for to := from; to < len(times); to++ {
					sum += float64(costs[to])
					want = max(want, sum-r.In(time.Duration(times[to]-times[from])*time.Microsecond))
				}
			}
			if got := float64(c.Burst(i)); got < want-1e-6 || got > want+1 {
				t.Errorf("seed %d: the burst for %v is %v; want the smallest integer from %v", seed, r, got, want)
			}
		}
	}
}

// TestHugeCostsDoNotOverflow: costs that no level can hold leave the burst positive.
func TestHugeCostsDoNotOverflow(t *testing.T) {
	var c Curve
	for range 10 {
		c.Add(1, math.MaxInt64)
	}
	for i, r := range Rates {
		if got := c.Burst(i); got < maxCost {
			t.Errorf("the burst for %v is %d; want at least %d", r, got, maxCost)
		}
	}
}
