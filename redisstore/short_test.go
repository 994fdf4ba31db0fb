package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// The short form of a batch is decided as the general form is: with equal answers, equal strings,
// and TTLs that are long enough. A holder, which a token bucket ignores, makes the form general.
func TestShortFormIsDecidedAlike(t *testing.T) {
	effort.SkipUnderRace(t)
	server := redistest.Shared(t)
	client := dialURL(t, server.URL())
	seed, batches := effort.Seed(), 0
	for trace := range uint64(effort.Of(20, 20_000)) {
		n, err := compareForms(client, server, rand.New(rand.NewPCG(seed, trace)))
		if err != nil {
			t.Fatalf("PENSTOCK_SEED=%d (trace %d): %v", seed, trace, err)
		}
		batches += n
	}
	t.Logf("counted: %d batches with equal answers in both forms", batches)
}

// compareForms decides random batches in one store in the short form, and in another one in the
// general form. It returns how many batches had the short form.
func compareForms(client Client, server *redistest.Server, rng *rand.Rand) (count int, err error) {
	clock, started := time.UnixMicro(1_700_000_000_000_000+rng.Int64N(1e15)), time.Now()
	var stores [2]*Store
	for i := range stores {
		options := Options{Now: func() time.Time { return clock }, Prefix: fmt.Sprintf("f%x", rng.Uint64())}
		if stores[i], err = New(keptOpenClient{client}, options); err != nil {
			return 0, err
		}
		defer stores[i].Close()
	}
	limits := make([]*penstock.Plan, 1+rng.IntN(3))
	for i := range limits {
		limits[i] = usualLimit(rng, i)
	}
	for range 50 {
		clock = clock.Add(time.Duration(pick(rng, 0, 1, 1000, 100_000, 1_000_000, 60_000_000, 86_400_000_000, -1, -1_000_000, -10_000_000)) * time.Microsecond)
		list := [][]penstock.Charge{spendSome(rng, limits)}
		if rng.IntN(2) == 0 { // most lists have equal batches, which share a flight
			for _, key := range []string{"b", "c"} {
				other := slices.Clone(list[0])
				if rng.IntN(4) == 0 {
					other = spendSome(rng, limits)
				}
				for n := range other {
					other[n].Key = key
				}
				list = append(list, other)
			}
		}
		first := &list[0][0]
		switch rng.IntN(12) { // a call in the general form, for both stores
		case 0:
			first.Mode = []penstock.Mode{penstock.Draw, penstock.Peek, penstock.Refund, penstock.Reset}[rng.IntN(4)]
		case 1:
			first.Mode, first.Cost = penstock.Force, pick(rng, 1, 5, 1000, penstock.MaxCost)
		case 2:
			first.IsRefundable = true
		case 3:
			i := rng.IntN(len(limits))
			limits[i] = usualLimit(rng, i)
			continue
		default:
			for _, b := range list {
				if !haveShortForm(b) {
					return count, fmt.Errorf("the batch has no short form:\n%s", describe(b))
				}
			}
			count += len(list)
		}
		general := make([][]penstock.Charge, len(list))
		for i := range list {
			general[i] = slices.Clone(list[i])
			general[i][0].Holder = "x"
		}
		got, _, err := stores[0].decideList(context.Background(), list)
		if err != nil {
			return count, err
		}
		want, _, err := stores[1].decideList(context.Background(), general)
		if err != nil {
			return count, err
		}
		for i, b := range list {
			for n := range b {
				if got[i].Status(n) != want[i].Status(n) {
					return count, fmt.Errorf("at %d µs, charge %d of\n%sthe short form gets %+v; the general form %+v", clock.UnixMicro(), n, describe(b), got[i].Status(n), want[i].Status(n))
				}
			}
			short, shortTTL, err := stored(server, stores[0], &b[0])
			if err != nil {
				return count, err
			}
			long, longTTL, err := stored(server, stores[1], &b[0])
			if err != nil || short != long {
				return count, fmt.Errorf("at %d µs, after\n%sthe short form has stored %x; the general form %x (%v)", clock.UnixMicro(), describe(b), short, long, err)
			}
			if most := time.Since(started); (shortTTL - longTTL).Abs() > most { // both keys were set one after the other
				return count, fmt.Errorf("after\n%sthe TTLs are %v and %v; want at most %v between them", describe(b), shortTTL, longTTL, most)
			}
		}
	}
	return count, nil
}

// usualLimit draws a limit that refills one part per µs.
func usualLimit(rng *rand.Rand, i int) *penstock.Plan {
	l := penstock.Limit{Name: fmt.Sprintf("l%d", i), Group: "g", Algorithm: algorithm.TokenBucket}
	l.Count = pick(rng, 1, 2, 5, 10, 100, 1000)
	l.Period = time.Duration(pick(rng, 1, 60, 3600, 86_400)) * time.Second
	l.Burst = pick(rng, 1, 2, 3, l.Count)
	return l.MustCompile()
}

// spendSome returns a batch that spends some units of each limit, under the key a.
func spendSome(rng *rand.Rand, limits []*penstock.Plan) (batch []penstock.Charge) {
	for _, l := range limits {
		batch = append(batch, penstock.Charge{Key: "a", Plan: l, Cost: min(pick(rng, 1, 1, 1, 2, 7), l.Capacity())})
	}
	return batch
}

// stored returns the string of a charge's limit, or "", and its TTL.
func stored(server *redistest.Server, s *Store, c *penstock.Charge) (text string, ttl time.Duration, err error) {
	key := string(s.keys.Append(nil, c.Key, c.Plan))
	value, err := server.Do("GET", key)
	if err != nil || value == nil {
		return "", 0, err
	}
	left, err := server.Do("PTTL", key)
	if err != nil {
		return "", 0, err
	}
	return value.(string), time.Duration(left.(int64)) * time.Millisecond, nil
}
