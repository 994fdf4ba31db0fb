package main

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

func TestLoadersAreCompared(t *testing.T) {
	t.Parallel()
	refused, limits := loadResult{Error: "refused"}, loadResult{Limits: "d.a: unit=DAY\nd.b: unit=DAY\n"}
	for _, row := range []struct {
		theirs, ours loadResult
		isMismatch   bool
	}{
		{theirs: limits, ours: limits, isMismatch: false},
		{theirs: limits, ours: loadResult{Limits: "d.b: unit=DAY\nd.a: unit=DAY\n"}, isMismatch: false},
		{theirs: limits, ours: loadResult{Limits: "d.a: unit=DAY\n"}, isMismatch: true},
		{theirs: refused, ours: refused, isMismatch: false},
		{theirs: limits, ours: refused, isMismatch: true},
		{theirs: refused, ours: limits, isMismatch: true},
	} {
		if outcome, isExpected := compareLoaded(row.theirs, row.ours); isExpected == row.isMismatch {
			t.Errorf("%+v: the outcome is %q, expected: %t; want a mismatch: %t", row, outcome, isExpected, row.isMismatch)
		}
	}
}

// Penstock's loader accepts the random configurations of the generator.
func TestRandomConfigurationsLoad(t *testing.T) {
	t.Parallel()
	seed := effort.Seed()
	for i := range 2000 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		text := newDomain(r, "d").yaml(r)
		if result := loadFile(text); result.Error != "" {
			t.Fatalf("seed %d: the loader returns the error %q; want none for\n%s", seed, result.Error, text)
		}
	}
}
