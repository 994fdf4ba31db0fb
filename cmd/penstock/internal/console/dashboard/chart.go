package dashboard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

// A chart shows numbers over time, as a picture and a table. With JavaScript, it is live.
type chart struct {
	ID, Title, Note string
	Unit            string // /s or ms
	Source          string // of its numbers: history, store or upstream
	Lines           []line
	End             time.Time     // of the last point
	Step            time.Duration // between two points
	Most            float64       // the upper end of the axis
	Rows            []row         // of the table, the latest first
	events          []adminapi.TimelineEvent
}

func (c chart) AxisUnit() string {
	if c.Unit == "ms" {
		return "ms"
	}
	return "requests/s"
}

// A line has the sum of some series of the history, or one field of the timings.
type line struct {
	Label  string    `json:"label"`
	Style  int       `json:"style"`            // color and dashes: 1 to 6, as in dashboard.css
	Rule   string    `json:"rule,omitempty"`   // "": all rules together
	Series []string  `json:"series,omitempty"` // names in the history
	Field  string    `json:"field,omitempty"`  // name in the timings
	points []float64 // of the picture, the oldest first; -1: not known
}

// A row has the mean of each line over some time.
type row struct {
	Ago    time.Duration // how long ago that time ended
	Values []float64
}

// Spec returns the lines in JSON, from which the script draws the chart.
func (c chart) Spec() (string, error) {
	text, err := json.Marshal(c.Lines)
	return string(text), err
}

// maxRuleLines is how many rules have a line of their own in one chart. There are as many styles.
const maxRuleLines = 6

// makeCharts makes the charts of a history and of timings from the same period, and marks events.
// The lines of the history must be sums by rule. rule is the only rule of the first chart, or ""
// for all.
func makeCharts(rule string, history adminapi.History, timings adminapi.Timings, events []adminapi.TimelineEvent) []chart {
	ofRule := ""
	if rule != "" {
		ofRule = " of rule " + rule
	}
	charts := []chart{
		{ID: "requests", Title: "Requests" + ofRule, Unit: "/s", Source: "history", Lines: []line{
			{Label: "Allowed", Style: 1, Rule: rule, Series: passed},
			{Label: "Denied", Style: 2, Rule: rule, Series: denied},
			{Label: "Allowed after a wait", Style: 3, Rule: rule, Series: []string{"waited"}},
			{Label: "Rejected otherwise", Style: 6, Rule: rule, Series: rejected},
		}},
		{ID: "denied", Title: "Denied by rule", Unit: "/s", Source: "history", Lines: deniedLines(history)},
		{ID: "sources", Title: "Who decided", Note: "Local: the fallback of this instance. Uncounted: a limit that fails open did not count the request. Closed: a limit that fails closed rejected it.", Unit: "/s", Source: "history", Lines: []line{
			{Label: "Store", Style: 1, Series: []string{"source:store"}},
			{Label: "Deny cache", Style: 2, Series: []string{"source:deny_cache"}},
			{Label: "Lease", Style: 4, Series: []string{"source:lease"}},
			{Label: "Local", Style: 3, Series: []string{"source:fallback"}},
			{Label: "Uncounted", Style: 5, Series: []string{activity.Uncounted}},
			{Label: "Closed", Style: 6, Series: []string{"source:closed"}},
		}},
		{ID: "store", Title: "Store latency", Note: "Of decisions, as this instance sees them.", Unit: "ms", Source: "store", Lines: []line{
			{Label: "Median", Style: 1, Field: "p50_us"}, {Label: "95 %", Style: 4, Field: "p95_us"}, {Label: "99 %", Style: 2, Field: "p99_us"},
		}},
	}
	if timings.Upstream != nil {
		charts = append(charts,
			chart{ID: "upstream", Title: "Upstream latency", Note: "Until the headers of a response.", Unit: "ms", Source: "upstream", Lines: []line{
				{Label: "Median", Style: 1, Field: "p50_us"}, {Label: "95 %", Style: 4, Field: "p95_us"}, {Label: "99 %", Style: 2, Field: "p99_us"},
			}},
			chart{ID: "upstream-errors", Title: "Forwarded requests, and upstream errors", Note: "An error is a missing response, or a status of 500 or more.", Unit: "/s", Source: "upstream", Lines: []line{
				{Label: "Forwarded", Style: 1, Field: "calls"}, {Label: "Errors", Style: 2, Field: "failed"},
			}},
		)
	}
	for i := range charts {
		charts[i].End, charts[i].events = history.End, events
		charts[i].fill(history, timings)
	}
	return charts
}

func deniedLines(history adminapi.History) (lines []line) {
	sums := make(map[string]uint64)
	for _, l := range history.Lines {
		if l.Rule != "" && slices.Contains(denied, l.Name) {
			for _, n := range l.Counts {
				sums[l.Rule] += uint64(n)
			}
		}
	}
	var rules []string
	for rule, n := range sums {
		if n > 0 {
			rules = append(rules, rule)
		}
	}
	slices.SortFunc(rules, func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), strings.Compare(a, b))
	})
	for i, rule := range rules[:min(len(rules), maxRuleLines)] {
		style := []int{2, 1, 3, 4, 5, 6}[i] // 2 is the style of denials in other charts
		lines = append(lines, line{Label: rule, Style: style, Rule: rule, Series: denied})
	}
	if lines == nil {
		lines = []line{{Label: "All rules", Style: 2, Series: denied}}
	}
	return lines
}

const (
	chartPoints = 60 // of the picture without JavaScript
	tableRows   = 20

	// The admin API keeps the counts of so many seconds, and of so many minutes.
	maxSeconds = 600
	maxMinutes = 1440
)

// fill computes the points of the picture and the rows of the table.
func (c *chart) fill(history adminapi.History, timings adminapi.Timings) {
	unit := unitOf(history.Span)
	for i := range c.Lines {
		l := &c.Lines[i]
		values := c.values(l, history, timings, unit)
		values = values[max(len(values)-shownUnits(history.Last, len(values)), 0):]
		perPoint := len(values) / chartPoints
		c.Step = time.Duration(perPoint) * unit
		for n := range chartPoints {
			l.points = append(l.points, mean(values[n*perPoint:(n+1)*perPoint]))
		}
		c.Most = max(c.Most, slices.Max(l.points))
	}
	c.Most = axisEnd(c.Most)
	const perRow = chartPoints / tableRows // points
	for n := tableRows - 1; n >= 0; n-- {
		r := row{Ago: time.Duration(tableRows-1-n) * perRow * c.Step}
		for i := range c.Lines {
			r.Values = append(r.Values, mean(c.Lines[i].points[n*perRow:(n+1)*perRow]))
		}
		c.Rows = append(c.Rows, r)
	}
}

// shownUnits returns how many seconds or minutes a chart shows: those since the start, rounded up
// to a multiple of 60, and at most all.
func shownUnits(last int64, all int) int {
	return min(chartPoints*(int(last/chartPoints)+1), all)
}

// values returns the numbers of a line, one for each unit: a second or a minute. Rates are per
// second. Times are in milliseconds, and -1 without calls.
func (c *chart) values(l *line, history adminapi.History, timings adminapi.Timings, unit time.Duration) []float64 {
	values := make([]float64, len(timings.Store.Calls))
	if c.Source == "history" {
		for _, from := range history.Lines {
			if from.Rule != l.Rule || !slices.Contains(l.Series, from.Name) {
				continue
			}
			for i, count := range from.Counts {
				values[i] += float64(count) / unit.Seconds()
			}
		}
		return values
	}
	times := &timings.Store
	if c.Source == "upstream" {
		times = timings.Upstream
	}
	if times == nil {
		return values
	}
	for i := range values {
		quantile := func(us []int64) float64 {
			if times.Calls[i] == 0 {
				return -1
			}
			return float64(us[i]) / 1000
		}
		switch l.Field {
		case "calls":
			values[i] = float64(times.Calls[i]) / unit.Seconds()
		case "failed":
			values[i] = float64(times.Failed[i]) / unit.Seconds()
		case "p50_us":
			values[i] = quantile(times.P50)
		case "p95_us":
			values[i] = quantile(times.P95)
		case "p99_us":
			values[i] = quantile(times.P99)
		}
	}
	return values
}

// mean returns the mean of the values that are known, or -1 if none is.
func mean(values []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range values {
		if v >= 0 {
			sum += v
			n++
		}
	}
	if n == 0 {
		return -1
	}
	return sum / float64(n)
}

// axisStep returns the distance between two ticks of an axis from 0 to most, or to axisEnd(most).
// It is 1, 2 or 5 times a power of ten, and at least 0.01. From a most of 0.02 on, the axis has 3
// to 5 ticks.
func axisStep(most float64) float64 {
	for power := 0.01; ; power *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if step := n * power; 4*step >= most {
				return step
			}
		}
	}
}

// axisEnd returns the upper end of an axis: the first tick from most on; 1 without numbers.
func axisEnd(most float64) float64 {
	if most <= 0 {
		return 1
	}
	step := axisStep(most)
	return step * math.Ceil(most/step)
}

// Ticks returns the labels of the vertical axis, the highest first.
func (c chart) Ticks() (labels []string) {
	step := axisStep(c.Most)
	for n := math.Round(c.Most / step); n >= 0; n-- {
		labels = append(labels, strconv.FormatFloat(math.Round(100*n*step)/100, 'f', -1, 64)) // steps are at least 0.01
	}
	return labels
}

// Times returns the labels of the time axis: of its start, its middle and its end.
func (c chart) Times() (labels []string) {
	layout := "15:04:05"
	if c.Step >= time.Minute {
		layout = "15:04"
	}
	for n := range time.Duration(3) {
		labels = append(labels, c.End.UTC().Add(-(2-n)*c.Step*(chartPoints-1)/2).Format(layout))
	}
	return labels
}

// Grid returns the horizontal lines at the ticks, as the path of an SVG.
func (c chart) Grid() string {
	var b strings.Builder
	for step, y := axisStep(c.Most), 0.0; y <= c.Most+step/2; y += step {
		fmt.Fprintf(&b, "M0 %.1fH%d", pictureHeight*(1-y/c.Most), pictureWidth)
	}
	return b.String()
}

// Marks returns the vertical lines at the events, as the path of an SVG: of those that are signs of
// trouble, or of the others.
func (c chart) Marks(isBad bool) string {
	var b strings.Builder
	for _, e := range c.events {
		span := c.Step * (chartPoints - 1)
		if at := e.Time.Sub(c.End.Add(-span)); e.IsBad == isBad && at >= 0 && at <= span {
			fmt.Fprintf(&b, "M%.1f 0V%d", pictureWidth*at.Seconds()/span.Seconds(), pictureHeight)
		}
	}
	return b.String()
}

// The size of the picture, in units of its SVG.
const pictureWidth, pictureHeight = 600, 160

// Path returns the line in the picture, as the path of an SVG.
func (c chart) Path(l line) string {
	var b strings.Builder
	isDown := false // whether the pen draws
	for i, v := range l.points {
		if v < 0 {
			isDown = false
			continue
		}
		command := 'M'
		if isDown {
			command = 'L'
		}
		isDown = true
		fmt.Fprintf(&b, "%c%.0f %.1f", command, float64(i)*pictureWidth/(chartPoints-1), pictureHeight*(1-v/c.Most))
	}
	return b.String()
}

// Latest returns the number beside a label: the last point of the line.
func (c chart) Latest(l line) float64 { return l.points[len(l.points)-1] }
