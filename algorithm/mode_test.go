package algorithm

import "testing"

func TestModesHaveNames(t *testing.T) {
	for mode, want := range map[Mode]string{
		Spend: "spend", Draw: "draw", Peek: "peek", Force: "force", Refund: "refund", Reset: "reset", Attempt: "attempt",
		rejoin + 1: "mode(10)", 255: "mode(255)",
	} {
		if got := mode.String(); got != want {
			t.Errorf("mode %d is called %q; want %q", uint8(mode), got, want)
		}
	}
}
