package command

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/internal/wording"
)

// A threshold is what --fail-if has: a number of a report that must not be exceeded.
type threshold struct {
	text, name string
	most       float64 // of a time: in ms
	isShare    bool    // most is in percent
	hasEqual   bool    // most itself is too much
}

var thresholdForm = regexp.MustCompile(`^\s*([a-z][a-z0-9_.]*)\s*(>=?)\s*([0-9]+(?:\.[0-9]+)?)\s*(%|[mnuµ]?s)?\s*$`)

// readThreshold reads a threshold. counts and times are the names that it may have.
func readThreshold(text string, counts, times []string) (*threshold, error) {
	example := "denied > 1%"
	if times != nil {
		example = "p99 > 10ms"
	}
	m := thresholdForm.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("--fail-if is %q; write a count, > and a number, as in '%s'", wording.Clip(text), example)
	}
	t := &threshold{text: text, name: m[1], hasEqual: m[2] == ">=", isShare: m[4] == "%"}
	t.most, _ = strconv.ParseFloat(m[3], 64)
	isTime := slices.Contains(times, t.name)
	switch unit := m[4]; {
	case !isTime && !slices.Contains(counts, t.name):
		return nil, fmt.Errorf("--fail-if has no count %q; %s", wording.Clip(t.name), wording.Suggest(t.name, slices.Concat(counts, times)))
	case isTime && (unit == "" || t.isShare):
		return nil, fmt.Errorf("--fail-if is %q, but %s is a time; write us, ms or s behind the number, as in '%s'", wording.Clip(text), t.name, example)
	case !isTime && unit != "" && !t.isShare:
		return nil, fmt.Errorf("--fail-if is %q, but %s is a count; write a number or a percentage", wording.Clip(text), t.name)
	case isTime:
		most, err := time.ParseDuration(m[3] + unit)
		if err != nil {
			return nil, fmt.Errorf("--fail-if is %q; the time is too long", wording.Clip(text))
		}
		t.most = float64(most) / float64(time.Millisecond)
	}
	return t, nil
}

// isExceeded reports whether a number of the report is too large. of is for shares.
func (t *threshold) isExceeded(value float64, of int64) bool {
	if t.isShare {
		value = value * 100 / float64(max(of, 1))
	}
	return value > t.most || t.hasEqual && value == t.most
}

func (t *threshold) reportExceeded(to io.Writer) error {
	fmt.Fprintf(to, "penstock: --fail-if %s holds\n", printable.Line(t.text))
	return statusOnly(exitProblem)
}
