package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A result is the outcome of all requests of the riders.
type result struct {
	backend float64 // requests/s that reached the backend

	mu       sync.Mutex
	allowed  *hdrhistogram.Histogram // time to the response, in µs
	denied   *hdrhistogram.Histogram // the same, for responses with 429
	inTime   int64                   // allowed requests with a response within a second
	failures int64                   // any other response, or none
}

func newResult() *result {
	return &result{allowed: newHistogram(), denied: newHistogram()}
}

// newHistogram makes a histogram of times from 1 µs to a minute, with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Microseconds(), 3)
}

func (r *result) record(status int, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch status {
	case http.StatusOK:
		r.allowed.RecordValue(took.Microseconds())
		if took <= time.Second {
			r.inTime++
		}
	case http.StatusTooManyRequests:
		r.denied.RecordValue(took.Microseconds())
	default:
		r.failures++
	}
}

// failedPercent returns the percentage of admitted requests that got an error or no response.
func (r *result) failedPercent() float64 {
	return 100 * float64(r.failures) / float64(max(r.failures+r.allowed.TotalCount(), 1))
}

func percentileOf(h *hdrhistogram.Histogram, percentile float64) time.Duration {
	return time.Duration(h.ValueAtPercentile(percentile)) * time.Microsecond
}

// check returns the goals that the limiter missed.
func check(alone, limited *result) (failures []string) {
	if unlimitedP99, limitedP99 := percentileOf(alone.allowed, 99), percentileOf(limited.allowed, 99); limitedP99 > unlimitedP99/10 {
		failures = append(failures, fmt.Sprintf("p99 of allowed requests is %v, and %v without limits; want a drop of 90%%", limitedP99, unlimitedP99))
	}
	if failed := limited.failedPercent(); failed >= 1 {
		failures = append(failures, fmt.Sprintf("%.1f%% of the admitted requests failed; want less than 1%%", failed))
	}
	if median := percentileOf(limited.denied, 50); limited.denied.TotalCount() == 0 || median >= 2*time.Millisecond {
		failures = append(failures, fmt.Sprintf("the median of %d denials took %v; want less than 2ms", limited.denied.TotalCount(), median))
	}
	return failures
}

// table shows two results side by side.
func table(alone, limited *result) string {
	var s strings.Builder
	row := func(what string, textOf func(*result) string) {
		fmt.Fprintf(&s, "%-34s %14s %14s\n", what, textOf(alone), textOf(limited))
	}
	latency := func(what string, histogramOf func(*result) *hdrhistogram.Histogram, percentiles ...float64) {
		for _, p := range percentiles {
			row(fmt.Sprintf("%s, p%g", what, p), func(r *result) string {
				if histogramOf(r).TotalCount() == 0 {
					return "-"
				}
				return fmt.Sprintf("%.1f ms", float64(percentileOf(histogramOf(r), p).Microseconds())/1000)
			})
		}
	}
	fmt.Fprintf(&s, "%-34s %14s %14s\n", "", "alone", "with Penstock")
	allowed := func(r *result) *hdrhistogram.Histogram { return r.allowed }
	denied := func(r *result) *hdrhistogram.Histogram { return r.denied }
	row("responses with 200", func(r *result) string { return fmt.Sprint(r.allowed.TotalCount()) })
	row("  within a second", func(r *result) string { return fmt.Sprint(r.inTime) })
	latency("allowed", allowed, 50, 95, 99)
	row("failed, except with 429", func(r *result) string { return fmt.Sprintf("%.1f %%", r.failedPercent()) })
	row("responses with 429", func(r *result) string { return fmt.Sprint(r.denied.TotalCount()) })
	latency("denied", denied, 50, 99)
	row("denied, mean", func(r *result) string {
		if r.denied.TotalCount() == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f ms", r.denied.Mean()/1000)
	})
	row("requests at the backend", func(r *result) string { return fmt.Sprintf("%.0f /s", r.backend) })
	return s.String()
}
