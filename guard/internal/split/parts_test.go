package split

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
)

// A limit is split into as many parts as asked for, but each part must have a unit, and a Burst if
// the limit has one. The parts are never more than 32.
func TestPartsOfALimit(t *testing.T) {
	perHour := func(count, burst int64) penstock.Limit {
		return penstock.Limit{Name: "l", Count: count, Period: time.Hour, Burst: burst}
	}
	counting := perHour(10, 0)
	counting.ShouldCountDenied = true
	for _, row := range []struct {
		name  string
		limit penstock.Limit
		n     int
		units []int64 // of each part
	}{
		{"three parts", perHour(14, 0), 3, []int64{5, 5, 4}},
		{"as many parts as units", perHour(3, 0), 3, []int64{1, 1, 1}},
		{"more parts than units", perHour(3, 0), 5, []int64{1, 1, 1}},
		{"more parts than the Burst", perHour(100, 2), 5, []int64{1, 1}},
		{"more parts than the Count", perHour(2, 100), 3, []int64{34, 33, 33}},
		{"two parts", perHour(14, 0), 2, []int64{7, 7}},
		{"one part", perHour(14, 0), 1, nil},
		{"no parts", perHour(14, 0), 0, nil},
		{"one unit", perHour(1, 0), 2, nil},
		{"32 parts", perHour(64, 0), 32, slices.Repeat([]int64{2}, 32)},
		{"more than 32 parts", perHour(66, 0), 33, append([]int64{3, 3}, slices.Repeat([]int64{2}, 30)...)},
		{"windows", perHour(14, 0).With(penstock.FixedWindow), 3, []int64{5, 5, 4}},
		{"slots", penstock.InFlight(14, time.Minute), 3, []int64{5, 5, 4}},
		{"a limit that counts denials", counting, 3, nil},
		{"an algorithm that cannot be split", perHour(10, 9).With(penstock.LeakyBucket), 3, nil},
		{"an invalid limit", penstock.Limit{}, 3, nil},
	} {
		p := PartsOf(row.limit, row.n)
		if p == nil {
			if row.units != nil {
				t.Errorf("%s: the limit is not split; want parts of %d units", row.name, row.units)
			}
			continue
		}
		var units, whole []int64
		for shard, plan := range p.plans {
			units, whole = append(units, plan.Capacity()), append(whole, p.unitsOf(shard))
		}
		if !slices.Equal(units, row.units) || !slices.Equal(whole, row.units) || p.Len() != len(units) || p.MinUnits != slices.Min(units) {
			t.Errorf("%s: the parts have %d units, by unitsOf %d, and the smallest has %d; want %d", row.name, units, whole, p.MinUnits, row.units)
		}
		if p.capacity != row.limit.MustCompile().Capacity() || p.hasHolds != (row.name == "slots") {
			t.Errorf("%s: the whole has %d units, and holds: %v", row.name, p.capacity, p.hasHolds)
		}
	}
}

// A bucket counts fractions of a unit. If four parts would have too many of them, the limit is
// split into three.
func TestLimitIsSplitIntoFewerParts(t *testing.T) {
	limit := penstock.Limit{Name: "l", Count: 6, Period: 8 * 365 * 24 * time.Hour, Burst: 40}
	p := PartsOf(limit, 4)
	if p == nil || p.Len() != 3 || p.plans[0].Capacity() != 14 || p.plans[2].Capacity() != 13 || p.MinUnits != 13 {
		t.Errorf("the parts are %+v; want three of 14, 13 and 13 units", p)
	}
}

// The first shard of a limit is random. That of a hold is a hash of its holder, so that all
// instances find it.
func TestFirstShard(t *testing.T) {
	var counts [3]int
	random := PartsOf(penstock.PerHour(14), 3)
	const tries = 1000
	for range tries {
		counts[random.firstShard(&penstock.Charge{Holder: "h"})]++
	}
	if slices.Min(counts[:]) == 0 { // the chance of that is below 10^-170
		t.Errorf("of %d first shards, the numbers of each are %d; want some of each", tries, counts)
	}
	slots := PartsOf(penstock.InFlight(96, time.Minute), 32)
	for holder, want := range map[string]int{"": 0x811c9dc5 % 32, "a": 0xe40c292c % 32, "foobar": 0xbf9cf968 % 32} { // the test vectors of FNV-1a
		if got := slots.firstShard(&penstock.Charge{Holder: holder}); got != want {
			t.Errorf("the first shard of the holder %q is %d; want %d", holder, got, want)
		}
	}
}

// The key of a shard has at most MaxKey bytes.
func TestKeyOfAShard(t *testing.T) {
	for shard, suffix := range map[int]string{0: "~00", 9: "~09", 10: "~10", 31: "~31"} {
		for _, length := range []int{0, 1, penstock.MaxKey - 4} {
			key := strings.Repeat("k", length)
			if got := shardKey(key, shard); got != key+suffix {
				t.Errorf("the key of %d bytes has %d bytes with the suffix of shard %d; want the suffix %q", length, len(got), shard, suffix)
			}
		}
		for _, length := range []int{penstock.MaxKey - 3, penstock.MaxKey - 2, penstock.MaxKey} {
			key := strings.Repeat("k", length)
			sum := sha256.Sum256([]byte(key))
			if got, want := shardKey(key, shard), key[:penstock.MaxKey-32-3]+string(sum[:])+suffix; got != want {
				t.Errorf("the key of %d bytes ends in %x at shard %d, and has %d bytes; want it to end in its hash and %q, with %d", length, got[len(got)-35:], shard, len(got), suffix, penstock.MaxKey)
			}
		}
	}
}

// A batch without a split charge goes to the store as it is. The first split charge may be any of
// the batch.
func TestBatchesWithoutASplitChargePass(t *testing.T) {
	for _, row := range []struct {
		charges []penstock.Charge
		sent    string
	}{
		{charges(charge("k", whole, penstock.Spend, 1)), "k spend 1"},
		{charges(charge("k", counting, penstock.Spend, 1)), "k spend 1"},
		{charges(penstock.Charge{Key: "k", Cost: 1}), "k spend 1"},
		{charges(charge("k", slots, penstock.Spend, 1)), "k~01 spend 1"},
		{charges(charge("k", whole, penstock.Spend, 1), charge("k", slots, penstock.Spend, 1)), "k spend 1, free if denied; k~01 spend 1"},
	} {
		var sent []string
		s := New(penstock.StoreFunc(func(_ context.Context, all []penstock.Charge) (penstock.Decision, error) {
			texts, statuses := []string{}, []penstock.Status{}
			for i := range all {
				text := all[i].Key + " " + all[i].Mode.String() + " 1"
				if all[i].IsFreeIfDenied {
					text += ", free if denied"
				}
				texts, statuses = append(texts, text), append(statuses, grants(1, 1))
			}
			sent = append(sent, strings.Join(texts, "; "))
			return penstock.NewDecision(statuses), nil
		}), inThree)
		if d, err := s.Decide(t.Context(), row.charges); err != nil || !d.Allowed || d.Len() != len(row.charges) || !slices.Equal(sent, []string{row.sent}) {
			t.Errorf("%+v, %v after the calls %q; want one call, %q", d, err, sent, row.sent)
		}
	}
}

// The batches of a list are decided as if each came alone. Only those without split charges go on
// as a list.
func TestListsWithSplitBatches(t *testing.T) {
	var lists []int // the number of batches of each list
	next := batches.Func(func(_ context.Context, list []*batches.Batch) {
		lists = append(lists, len(list))
		for _, b := range list {
			b.Decision = penstock.Single(grants(1, int64(len(b.Charges[0].Key))))
		}
	})
	s := New(next, inThree)
	var list []*batches.Batch
	for _, c := range []penstock.Charge{charge("abcdefg", whole, penstock.Spend, 1), charge("k", slots, penstock.Spend, 1), charge("abc", whole, penstock.Spend, 1)} {
		list = append(list, &batches.Batch{Charges: charges(c)})
	}
	for _, some := range [][]*batches.Batch{list[:1], list[1:2], {list[0], list[2]}} {
		batches.Of(s)(t.Context(), some)
	}
	if !slices.Equal(lists, []int{1, 1, 2}) {
		t.Errorf("the store got lists of %d batches; want 1, 1 and 2", lists)
	}
	for i, left := range []int64{7, 12, 3} { // three shards with the 4 bytes of their keys
		if b := list[i]; b.Err != nil || b.Decision.Remaining() != left {
			t.Errorf("batch %d: %+v, %v; want %d left", i, b.Decision, b.Err, left)
		}
	}
}

// The memory of batches is used again, and refers to nothing of the batches before.
func TestMemoryOfBatchesIsReused(t *testing.T) {
	next := penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return penstock.NewDecision(slices.Repeat([]penstock.Status{grants(1, 1)}, len(charges))), nil
	})
	var made []*splitBatch
	s := &store{shardsOf: inThree, next: batches.Of(next)}
	s.pool.New = func() any {
		made = append(made, new(splitBatch))
		return made[len(made)-1]
	}
	const decisions = 200
	for range decisions {
		s.decide(t.Context(), []*batches.Batch{{Charges: charges(charge("k", slots, penstock.Spend, 1))}})
	}
	if len(made) == decisions { // with the race detector, a pool drops a quarter of its values
		t.Errorf("%d decisions used as many batches; want fewer", decisions)
	}
	for _, b := range made {
		if b.charges != nil || b.states[0].parts != nil || b.outgoing[:1][0].Plan != nil {
			t.Errorf("after a decision, its memory is %+v; want no references to charges and parts", b)
		}
	}
}

func TestMixedListIsDivided(t *testing.T) {
	s := New(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return penstock.Single(grants(1, int64(len(charges[0].Key)))), nil
	}), inThree)
	list := []*batches.Batch{
		{Charges: charges(charge("abcdefg", whole, penstock.Spend, 1))}, {Charges: charges(charge("k", slots, penstock.Spend, 1))},
		{Charges: charges(charge("l", slots, penstock.Spend, -1))}, {Charges: charges(charge("abc", whole, penstock.Spend, 1))},
	}
	batches.Of(s)(t.Context(), list[:2])
	batches.Of(s)(t.Context(), list[2:])
	for i, left := range []int64{7, 12, 0, 3} {
		b := list[i]
		if isInvalid := i == 2; isInvalid != errors.Is(b.Err, penstock.ErrInvalid) || !isInvalid && (b.Err != nil || b.Decision.Remaining() != left) {
			t.Errorf("batch %d: %+v, %v; want %d left, or an error for the invalid one", i, b.Decision, b.Err, left)
		}
	}
}

// Two counters are enough to split a limit.
func TestLimitOfTwoCountersIsSplit(t *testing.T) {
	for n, want := range map[int]string{-1: "k", 0: "k", 1: "k", 2: "k~0"} {
		sent := ""
		s := New(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			sent = charges[0].Key
			return penstock.Single(grants(1, 1)), nil
		}), func(*penstock.Plan) int { return n })
		if _, err := s.Decide(t.Context(), charges(charge("k", window, penstock.Spend, 1))); err != nil || sent[:min(len(sent), 3)] != want {
			t.Errorf("with %d counters, the key %q is charged, %v; want %q", n, sent, err, want)
		}
	}
}

// A batch of the store may need MaxCharges shards, and not more.
func TestBatchOfManyShards(t *testing.T) {
	limit := penstock.PerHour(64).With(penstock.FixedWindow).MustCompile()
	s := New(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return penstock.NewDecision(slices.Repeat([]penstock.Status{grants(1, 1)}, len(charges))), nil
	}), func(plan *penstock.Plan) int {
		if plan == limit {
			return 32
		}
		return 1
	})
	batch := charges(charge("a", limit, penstock.Spend, 32), charge("b", limit, penstock.Spend, 32), charge("c", whole, penstock.Spend, 1))
	if d, err := s.Decide(t.Context(), batch[:2]); err != nil || d.Status(1).Granted != 32 {
		t.Errorf("a batch of 64 shards: %+v, %v; want it granted", d, err)
	}
	if d, err := s.Decide(t.Context(), batch); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a batch of 64 shards and another charge: %+v, %v; want ErrInvalid", d, err)
	}
}
