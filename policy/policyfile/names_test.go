package policyfile

import (
	"strings"
	"testing"
)

// An algorithm has the same name in the file and in every output. The period of a calendar window
// is a unit of the calendar.
func TestAlgorithmsHaveOneName(t *testing.T) {
	for name := range algorithms {
		if name == "gcra" {
			continue // another name for token-bucket
		}
		l := rulesOf(t, "rules: [{name: a, per: global, limits: [{rate: 10/min, algorithm: "+name+"}]}]\n").Spec().Rules[0].Limits[0]
		if text := l.Variants[0].String(); l.Algorithm != name || !strings.HasSuffix(text, " ("+name+")") {
			t.Errorf("algorithm: %s gives a limit with the algorithm %s, described as %q; want %[1]s in both", name, l.Algorithm, text)
		}
	}
	for written, want := range map[string]string{
		"in_flight: 5":              "in_flight",
		"rate: 10 per calendar day": "calendar-window", "rate: 10 per calendar week": "calendar-window", "rate: 10 per calendar month": "calendar-window",
	} {
		l := rulesOf(t, "rules: [{name: a, per: global, limits: [{"+written+"}]}]\n").Spec().Rules[0].Limits[0]
		_, period, isCalendar := strings.Cut(written, " per ")
		if text := l.Variants[0].String(); l.Algorithm != want || isCalendar && !strings.Contains(text, "10 per "+period+" (") {
			t.Errorf("%q gives a limit with the algorithm %s, described as %q; want %s, and the period as written", written, l.Algorithm, text, want)
		}
	}
}
