package policyfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// everySecond is a custom algorithm: it admits one request per period. The state is the time at
// which the next request is admitted. everySecond has no Lua twin, so only a memstore can use it.
var everySecond = algorithm.Define("everysecond", "", everyStep, everyPeriod, algorithm.Title("every-second"))

func everyStep(opensAt int64, p algorithm.Params, request algorithm.Request, now int64) (algorithm.Outcome, int64) {
	period := p[0]
	switch {
	case request.Mode == algorithm.Reset:
		return algorithm.Outcome{Remaining: 1}, 0
	case now < opensAt:
		return algorithm.Outcome{RetryAfter: opensAt - now, ResetAfter: opensAt - now, Keep: algorithm.Unchanged}, opensAt
	case request.Mode != algorithm.Spend:
		return algorithm.Outcome{Remaining: 1, Keep: algorithm.Unchanged}, opensAt
	}
	return algorithm.Outcome{Granted: 1, ResetAfter: period, Keep: period}, now + period
}

func everyPeriod(l algorithm.Limit) (algorithm.Params, error) { return algorithm.Params{l.Period}, nil }

const customAlgorithmPolicy = "rules: [{name: a, per: global, limits: [{rate: 1/s, algorithm: every-second}]}]\n"

func TestFilesMayNameCustomAlgorithms(t *testing.T) {
	config, err := parse("p.yaml", []byte(customAlgorithmPolicy), nil, Options{Algorithms: []*algorithm.Algorithm{everySecond}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.compile()
	if err != nil {
		t.Fatal(err)
	}
	if name := p.Rules.Spec().Rules[0].Limits[0].Algorithm; name != "every-second" {
		t.Errorf("the algorithm is %s; want every-second", name)
	}
	store := memstore.New(memstore.Options{})
	for _, want := range []bool{true, false} {
		var v policy.Evaluation
		p.Rules.Evaluate(testRequest{}, &v)
		if d, err := store.Decide(t.Context(), v.Charges); err != nil || d.Allowed != want {
			t.Errorf("the decision has Allowed %t and the error %v; want %t and no error", d.Allowed, err, want)
		}
	}
}

func TestCustomAlgorithmThatCannotSplitIsNamed(t *testing.T) {
	text := "rules: [{name: a, per: global, limits: [{rate: 1/s, algorithm: every-second, split_into: 2}]}]\n"
	config, err := parse("p.yaml", []byte(text), nil, Options{Algorithms: []*algorithm.Algorithm{everySecond}})
	if err != nil {
		t.Fatal(err)
	}
	const want = "every-second cannot be split; remove split_into, or use token-bucket"
	if _, err := config.compile(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Compile returns the error %v; want %q", err, want)
	}
}

// A candidate has the burst of its limit, also with a custom algorithm.
func TestCandidateOfACustomAlgorithmInheritsTheBurst(t *testing.T) {
	step := func(int64, algorithm.Params, algorithm.Request, int64) (algorithm.Outcome, int64) {
		return algorithm.Outcome{Remaining: 1}, 0
	}
	prepare := func(l algorithm.Limit) (algorithm.Params, error) { return algorithm.Params{l.Period, l.Burst}, nil }
	// BurstIsSpecial: only this algorithm knows what its Burst means.
	withBurst := algorithm.Define("withburst", "", step, prepare, algorithm.Title("with-burst"), algorithm.Burst(algorithm.BurstIsSpecial))
	text := "rules: [{name: a, per: global, limits: [{rate: 1/s, burst: 7, algorithm: with-burst, candidate: {rate: 2/s}}]}]\n"
	config, err := parse("p.yaml", []byte(text), nil, Options{Algorithms: []*algorithm.Algorithm{withBurst}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.compile()
	if err != nil {
		t.Fatal(err)
	}
	if burst := p.Rules.Spec().Rules[0].Limits[0].Candidate.Variants[0].Limit().Burst; burst != 7 {
		t.Errorf("the candidate has the burst %d; want 7, as the limit", burst)
	}
}

// The messages name the custom algorithm, and do not take it for a window.
func TestMistakesNameTheCustomAlgorithm(t *testing.T) {
	twice := algorithm.Define("fixedwindow", "", everyStep, everyPeriod, algorithm.Title("twice"))
	own := Options{Algorithms: []*algorithm.Algorithm{everySecond, twice}}
	for fields, want := range map[string]string{
		"algorithm: every-second, burst: 5":     "every-second has no burst",
		"algorithm: every-second, max_wait: 2s": "every-second cannot make a request wait for its turn",
		"algorithm: twice":                      `p.yaml:1:41: algorithm.Define("fixedwindow"): the built-in algorithm fixed-window has this name`,
	} {
		config, err := parse("p.yaml", []byte("rules: [{name: a, per: global, limits: [{rate: 1/s, "+fields+"}]}]\n"), nil, own)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.compile(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v; want %q", fields, err, want)
		}
	}
}

func TestUnregisteredAlgorithmsAreUnknown(t *testing.T) {
	if err := mistakesOf("p.yaml", customAlgorithmPolicy, nil); err == nil || !strings.Contains(err.Error(), `there is no algorithm "every-second"`) {
		t.Errorf("the error is %v; want one that names the unknown algorithm", err)
	}
}

// A custom algorithm with an existing name would change the meaning of files.
func TestCustomAlgorithmsNeedUniqueNames(t *testing.T) {
	for what, list := range map[string][]*algorithm.Algorithm{
		"one algorithm twice": {everySecond, everySecond}, "a built-in algorithm": {penstock.FixedWindow}, "nil": {nil},
	} {
		_, err := load("testdata/golden/minimal.yaml", Options{Algorithms: list})
		if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "Options.Algorithms") {
			t.Errorf("%s: the error is %v; want an ErrInvalid that names Options.Algorithms", what, err)
		}
	}
	gcra := algorithm.Define("gcra", "", everyStep, everyPeriod)
	_, err := load("testdata/golden/minimal.yaml", Options{Algorithms: []*algorithm.Algorithm{gcra}})
	const want = `Options.Algorithms has an algorithm called "gcra", which policies read as token-bucket; give it another title, such as my-gcra`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("an algorithm called gcra: the error is %v; want %q", err, want)
	}
}
