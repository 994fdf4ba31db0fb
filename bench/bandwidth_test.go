package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"testing"

	"github.com/penstock/penstock"
)

// docs/performance.md has the bytes of a decision's command. Those of scripts may differ by 5 %, so
// that a change of a few lines leaves the page as it is.
func TestDocsHaveTheBytesOfADecision(t *testing.T) {
	page, err := os.ReadFile("../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, limit := range map[string]penstock.Limit{
		"token bucket":   penstock.PerSecond(10),
		"leaky bucket":   penstock.PerSecond(10).With(penstock.LeakyBucket),
		"fixed window":   penstock.PerSecond(10).With(penstock.FixedWindow),
		"sliding window": penstock.PerSecond(10).With(penstock.SlidingWindow),
		"sliding log":    penstock.PerSecond(10).With(penstock.SlidingLog),
	} {
		bySHA, byText, err := bytesOf(limit)
		if err != nil {
			t.Fatal(err)
		}
		kilobytes, factor := float64(byText)/1000, float64(byText)/float64(bySHA)
		saved := float64(byText-bySHA) * 10_000 / 1e6
		want := fmt.Sprintf("| %s | %d B | %.1f KB | %.0f | %.0f MB/s |", name, bySHA, kilobytes, factor, saved)
		row := regexp.MustCompile(`(?m)^\| ` + name + ` \| \d+ B \| .*$`).FindString(string(page))
		var shownSHA, shownFactor, shownSaved int
		var shownKilobytes float64
		if _, err := fmt.Sscanf(row, "| "+name+" | %d B | %f KB | %d | %d MB/s |", &shownSHA, &shownKilobytes, &shownFactor, &shownSaved); err != nil {
			t.Errorf("docs/performance.md has the row %q; want one as %q: %v", row, want, err)
			continue
		}
		isNear := func(shown, counted float64) bool { return math.Abs(shown-counted) <= 0.05*counted }
		if shownSHA != bySHA || !isNear(shownKilobytes, kilobytes) || !isNear(float64(shownFactor), factor) || !isNear(float64(shownSaved), saved) {
			t.Errorf("docs/performance.md has the row\n%s\nwant\n%s", row, want)
		}
	}
}
