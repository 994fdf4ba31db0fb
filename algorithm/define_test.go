package algorithm

import (
	"testing"
)

// The shares of n instances together admit at least the limit. The parts of a split limit admit
// exactly the limit.
func TestSharesAndPartsAddUp(t *testing.T) {
	checked := 0
	capacity := func(a *Algorithm, l Limit) int64 {
		p, err := a.Prepare(l)
		if err != nil {
			t.Fatalf("%s: %+v: %v", a.Title(), l, err)
		}
		var out Outcome
		states := a.NewStates()
		now := epoch
		p = a.ParamsAt(p, now)
		states.Step(states.Add(), &p, &Request{Mode: Peek}, now, false, &out)
		return out.Remaining
	}
	for _, a := range append(All(), SubWindow(5)) {
		for _, whole := range []Limit{{Count: 100, Period: 60_000_000}, {Count: 7, Period: 1_000_000, Burst: 13}, {Count: 1000, Period: 3_600_000_000, Burst: 64}} {
			for n := int64(1); n <= 7; n++ {
				want := capacity(a, whole)
				if share, ok := a.Share(whole, n); !ok || capacity(a, share)*n < want || capacity(a, share)*n > want+n-1 {
					t.Errorf("%s: each of %d shares of %+v is %+v, %v; want that together they admit %d to %d", a.Title(), n, whole, share, ok, want, want+n-1)
				}
				sum := int64(0)
				for i := range n {
					part, ok := a.Part(whole, n, i)
					if ok != a.CanSplit() {
						t.Errorf("%s: part %d of %d of %+v exists: %v; want %v, as CanSplit returns", a.Title(), i, n, whole, ok, a.CanSplit())
					}
					if ok {
						sum += capacity(a, part)
					}
				}
				if a.CanSplit() && sum != want {
					t.Errorf("%s: %d parts of %+v admit %d together; want %d", a.Title(), n, whole, sum, want)
				}
				checked++
			}
		}
	}
	t.Logf("counted: %d divisions", checked)
}

func TestAlgorithmWithoutOptionsHasTheDefaults(t *testing.T) {
	a := Define("mine", "", func(s int, _ Params, _ Request, _ int64) (Outcome, int) { return Outcome{}, s },
		func(Limit) (Params, error) { return Params{}, nil })
	if a.CanRefund() || a.CanBook() || a.CanSplit() || a.NeedsHolder() || a.OwnsRefunds() || a.IsAdditive() || a.IsCalendar() || a.IsCollection() ||
		a.RefillsSteadily() || a.WindowsDiffer() || a.Decay() != DecayUnknown || a.BurstUse() != BurstUnused {
		t.Errorf("an algorithm without options has the properties %+v; want none", a)
	}
	if a.Title() != "mine" || a.Numbers() != 6 || a.Window(Limit{}) != 0 || a.RetryAfterGrant(&Params{}, 1, 1, 1) != 0 {
		t.Errorf("the default Title is %q, Numbers %d, Window %d, RetryAfterGrant %d; want \"mine\", 6, 0, 0", a.Title(), a.Numbers(), a.Window(Limit{}),
			a.RetryAfterGrant(&Params{}, 1, 1, 1))
	}
	if text := a.Bound(Limit{Count: 3, Period: 1_000_000}, 5); text != `5 at once, and what its algorithm "mine" admits over time` {
		t.Errorf("the default bound is %q; want the capacity and the name", text)
	}
}

// Policy files use these names, so they must differ.
func TestTitlesDiffer(t *testing.T) {
	known := make(map[string]bool)
	for _, a := range All() {
		if known[a.Title()] {
			t.Errorf("two algorithms have the title %q; want different titles", a.Title())
		}
		known[a.Title()] = true
	}
}
