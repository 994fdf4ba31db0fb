package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/reserved"
)

func TestReservedGroupsHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	rules, err := New(Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string]guard.FailureMode{
		reserved.Once + "a":    guard.FailOpen,
		reserved.Settled + "a": guard.FailClosed,
		reserved.CallerLimits:  guard.FailDefault,
		"penstock":             guard.FailDefault,
	} {
		plan := penstock.Limit{Group: group, Name: "a", Count: 1, Period: time.Second}.MustCompile()
		if s := rules.Settings(plan); s.OnFailure != want {
			t.Errorf("a limit of group %q has the failure mode %v; want %v", group, s.OnFailure, want)
		}
	}
}

func TestNoRuleHasAReservedName(t *testing.T) {
	t.Parallel()
	spec, err := Simple(reserved.CallerLimits, Global(), guard.FailOpen, penstock.PerSecond(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(spec); err == nil || !strings.Contains(err.Error(), "are reserved; rename it") {
		t.Errorf("New with a rule called %q returns the error %v; want an error that the name is reserved", reserved.CallerLimits, err)
	}
}
