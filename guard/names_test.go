package guard_test

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/guard"
)

func TestStatesAndFailureModesHaveNames(t *testing.T) {
	for value, want := range map[fmt.Stringer]string{
		guard.StateClosed: "closed", guard.StateOpen: "open", guard.StateHalfOpen: "half_open", guard.StateHalfOpen + 1: "state(3)", guard.State(255): "state(255)",
		guard.FailDefault: "default", guard.FailOpen: "open", guard.FailClosed: "closed", guard.FailLocal: "local", guard.FailLocal + 1: "FailureMode(4)", guard.FailureMode(255): "FailureMode(255)",
	} {
		if got := value.String(); got != want {
			t.Errorf("%T %[1]d is called %q; want %q", value, got, want)
		}
	}
}
