package algorithm

import (
	"strings"
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
					if ok != (a.possibleParts != nil) {
						t.Errorf("%s: part %d of %d of %+v exists: %v; want %v", a.Title(), i, n, whole, ok, a.possibleParts != nil)
					}
					if ok {
						sum += capacity(a, part)
					}
				}
				if (a.possibleParts != nil) && sum != want {
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
	if a.CanRefund() || a.CanBook() || a.possibleParts != nil || a.NeedsHolder() || a.OwnsRefunds() || a.IsAdditive() || a.IsCalendar() || a.IsCollection() ||
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

// defined defines an algorithm whose state is an S.
func defined[S any](name, lua string, options ...Option) *Algorithm {
	return Define(name, lua, func(s S, _ Params, _ Request, _ int64) (Outcome, S) { return Outcome{}, s },
		func(Limit) (Params, error) { return Params{}, nil }, options...)
}

func TestPrepareRejectsWrongDefinitions(t *testing.T) {
	const lua = "local function mine(a)\n  return a\nend\n"
	for what, row := range map[string]struct {
		algorithm *Algorithm
		want      string // in the error; "" for none
	}{
		"integers":            {defined[struct{ A, B, C, D, E, F int64 }]("mine", lua), ""},
		"a number":            {defined[uint32]("mine", lua), ""},
		"no Lua":              {defined[int64]("mine_2", ""), ""},
		"a comment":           {defined[int64]("mine", "-- It needs no redis.call.\n"+lua), ""},
		"a space":             {defined[int64]("Cool Down", ""), `algorithm.Define("Cool Down"): the name must be`},
		"a keyword":           {defined[int64]("end", ""), "the name must be"},
		"a capital":           {defined[int64]("coolDown", ""), "the name must be"},
		"a digit first":       {defined[int64]("2nd", ""), "the name must be"},
		"no name":             {defined[int64]("", ""), "the name must be"},
		"a name of Across":    {defined[int64]("cool_across", ""), "names that end in _across"},
		"a built-in name":     {defined[int64]("tokenbucket", ""), "the built-in algorithm token-bucket"},
		"a built-in title":    {defined[int64]("mine", lua, Title("token-bucket")), "the built-in algorithm token-bucket"},
		"the word sub-window": {defined[int64]("mine", lua, Title("sub-window")), "the built-in algorithm sub-window"},
		"seven numbers":       {defined[struct{ A, B, C, D, E, F, G int64 }]("mine", lua), "has 7 fields; it must have at most 6"},
		"a string field":      {defined[struct{ Who string }]("mine", lua), "Who is a string; a state has only integers"},
		"a string":            {defined[string]("mine", lua), "it is a string; a state has only integers"},
		"Lua with no lines":   {defined[int64]("mine", "\n"), "local function mine("},
		"another function":    {defined[int64]("mine", "local function other(a)\n  return a\nend\n"), "local function mine("},
		"only a comment":      {defined[int64]("mine", "--\n-- local function mine(a)\n"), "local function mine("},
		"a call of Redis":     {defined[int64]("mine", lua+"redis.call('GET', 'x')\n"), "remove redis.call"},
		"a pcall of Redis":    {defined[int64]("mine", lua+"redis.pcall('GET', 'x')\n"), "remove redis.call"},
	} {
		_, err := row.algorithm.Prepare(Limit{Count: 1, Period: 1})
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: the error is %v; want %q", what, err, row.want)
		}
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
