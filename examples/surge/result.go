package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A result is the outcome of all requests of the riders.
type result struct {
	backend *load // nil: unknown

	mu        sync.Mutex
	all       *counts
	endpoints []*counts // in the order of the scenario
}

// A counts counts responses.
type counts struct {
	allowed  *hdrhistogram.Histogram // time to the response, in µs
	denied   *hdrhistogram.Histogram // the same, for responses with 429
	inTime   int64                   // allowed requests with a response within a second
	failures int64                   // any other response, or none
}

func newResult(endpoints int) *result {
	r := &result{all: newCounts()}
	for range endpoints {
		r.endpoints = append(r.endpoints, newCounts())
	}
	return r
}

func newCounts() *counts { return &counts{allowed: newHistogram(), denied: newHistogram()} }

// newHistogram makes a histogram of times from 1 µs to a minute, with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Microseconds(), 3)
}

// record records a response of an endpoint. The status is 0 if no response came.
func (r *result) record(endpoint, status int, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.record(status, took)
	r.endpoints[endpoint].record(status, took)
}

func (c *counts) record(status int, took time.Duration) {
	switch status {
	case http.StatusOK:
		c.allowed.RecordValue(took.Microseconds())
		if took <= time.Second {
			c.inTime++
		}
	case http.StatusTooManyRequests:
		c.denied.RecordValue(took.Microseconds())
	default:
		c.failures++
	}
}

// total returns the number of requests.
func (c *counts) total() int64 { return c.allowed.TotalCount() + c.denied.TotalCount() + c.failures }

// failedPercent returns the percentage of admitted requests that got an error or no response.
func (c *counts) failedPercent() float64 {
	return 100 * float64(c.failures) / float64(max(c.failures+c.allowed.TotalCount(), 1))
}

func percentileOf(h *hdrhistogram.Histogram, percentile float64) time.Duration {
	return time.Duration(h.ValueAtPercentile(percentile)) * time.Microsecond
}

// check returns the goals that a limiter with the rule backend missed. On a busy machine, times
// should not be checked.
func check(alone, limited *result, shouldCheckTimes bool) (failures []string) {
	if unlimitedP99, limitedP99 := percentileOf(alone.all.allowed, 99), percentileOf(limited.all.allowed, 99); shouldCheckTimes && limitedP99 > unlimitedP99/10 {
		failures = append(failures, fmt.Sprintf("p99 of allowed requests is %v, and %v without limits; want a drop of 90%%", limitedP99, unlimitedP99))
	}
	if failed := limited.all.failedPercent(); failed >= 1 {
		failures = append(failures, fmt.Sprintf("%.1f%% of the admitted requests failed; want less than 1%%", failed))
	}
	denied := limited.all.denied
	if median := percentileOf(denied, 50); denied.TotalCount() == 0 || shouldCheckTimes && median >= 2*time.Millisecond {
		failures = append(failures, fmt.Sprintf("the median of %d denials took %v; want less than 2ms", denied.TotalCount(), median))
	}
	return failures
}

// A column is a result with its name.
type column struct {
	name string
	*result
}

// table shows results side by side, as Markdown.
func table(endpoints []endpoint, columns []column) string {
	rows := [][]string{{""}, {"---"}}
	for _, c := range columns {
		rows[0], rows[1] = append(rows[0], c.name), append(rows[1], "---")
	}
	row := func(what string, textOf func(*result) string) {
		cells := []string{what}
		for _, c := range columns {
			cells = append(cells, textOf(c.result))
		}
		rows = append(rows, cells)
	}
	latencies := func(c *counts) string { return timeOf(c.allowed, 50) + " / " + timeOf(c.allowed, 99) }
	failed := func(c *counts) string { return fmt.Sprintf("%.1f %%", c.failedPercent()) }

	row("responses with 200, at most 1 s after the request", func(r *result) string { return thousands(r.all.inTime) })
	row("allowed requests, p50 / p99", func(r *result) string { return latencies(r.all) })
	for i, e := range endpoints {
		row("– "+e.name, func(r *result) string { return latencies(r.endpoints[i]) })
	}
	row("failures other than 429", func(r *result) string { return failed(r.all) })
	for i, e := range endpoints {
		row("– "+e.name, func(r *result) string { return failed(r.endpoints[i]) })
	}
	row("responses with 429", func(r *result) string { return thousands(r.all.denied.TotalCount()) })
	row("denied requests, mean / p99", func(r *result) string {
		if r.all.denied.TotalCount() == 0 {
			return "–"
		}
		return milliseconds(time.Duration(r.all.denied.Mean())*time.Microsecond) + " / " + timeOf(r.all.denied, 99)
	})
	if columns[0].backend != nil {
		row("requests at the backend", func(r *result) string { return fmt.Sprintf("%.0f/s", r.backend.rate) })
		row("connections of its pool in use", func(r *result) string { return fmt.Sprintf("%.0f %%", r.backend.inUse) })
		row("wait for a connection, mean / p99", func(r *result) string {
			return milliseconds(r.backend.waitMean) + " / " + milliseconds(r.backend.waitP99)
		})
	}
	return markdown(rows)
}

// markdown aligns the cells of a table.
func markdown(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var s strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			s.WriteString("| " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+1))
		}
		s.WriteString("|\n")
	}
	return s.String()
}

// timeOf formats a percentile.
func timeOf(h *hdrhistogram.Histogram, percentile float64) string {
	if h.TotalCount() == 0 {
		return "–"
	}
	return milliseconds(percentileOf(h, percentile))
}

func milliseconds(d time.Duration) string {
	if ms := float64(d.Microseconds()) / 1000; ms < 20 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return thousands(d.Milliseconds()) + " ms"
}

// thousands formats a number with commas: 1234567 becomes 1,234,567.
func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
