package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// customPlan compiles a limit with a custom algorithm.
func customPlan(t *testing.T, lua string) *penstock.Plan {
	t.Helper()
	a := algorithm.Define("custom", lua, func(s int64, _ algorithm.Params, _ algorithm.Request, _ int64) (algorithm.Outcome, int64) {
		return algorithm.Outcome{Keep: algorithm.Unchanged}, s
	}, func(algorithm.Limit) (algorithm.Params, error) { return algorithm.Params{}, nil }, algorithm.Title("my-own"))
	plan, err := penstock.Per(1, time.Second).With(a).Compile()
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// Without this check, the server would reject the script, and a guard would use its fallback.
func TestAlgorithmWithoutLuaIsInvalid(t *testing.T) {
	s, err := redisstore.Open("redis://127.0.0.1:1", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	plan := customPlan(t, "")
	_, decideErr := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Cost: 1}})
	for what, err := range map[string]error{"Decide": decideErr, "Load": s.Load(t.Context(), plan)} {
		if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "algorithm my-own has no Lua") {
			t.Errorf("%s returns the error %v; want an ErrInvalid that names the algorithm", what, err)
		}
	}
}

func TestErrorInLuaNamesTheCustomAlgorithm(t *testing.T) {
	server := redistest.Start(t)
	for what, body := range map[string]string{"that does not compile": "return return", "with an unknown name": "return unknown"} {
		s, err := redisstore.Open(server.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		charges := []penstock.Charge{
			{Key: "k", Plan: customPlan(t, "local function custom()\n  "+body+"\nend\n"), Cost: 1},
			{Key: "k", Plan: penstock.PerMinute(1).MustCompile(), Cost: 1},
		}
		_, err = s.Decide(t.Context(), charges)
		const want = "the Lua of algorithm my-own is probably at fault"
		if e, ok := errors.AsType[*penstock.StoreError](err); !ok || e.Reason != penstock.ReasonRejected || !strings.Contains(err.Error(), want) {
			t.Errorf("Lua %s: the error is %v; want one with ReasonRejected and %q", what, err, want)
		}
	}
}
