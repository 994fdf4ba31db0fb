package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A result is what became of the riders' requests.
type result struct {
	backend float64 // requests/s that reached the backend

	mu       sync.Mutex
	allowed  *hdrhistogram.Histogram // µs until they were answered
	denied   *hdrhistogram.Histogram // the same, with 429
	soon     int64                   // allowed, and answered within a second
	failures int64                   // any other answer, or none
}

func newResult() *result {
	return &result{allowed: newHistogram(), denied: newHistogram()}
}

// newHistogram has three digits, up to a minute.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Microseconds(), 3)
}

func (r *result) note(status int, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch status {
	case http.StatusOK:
		r.allowed.RecordValue(took.Microseconds())
		if took <= time.Second {
			r.soon++
		}
	case http.StatusTooManyRequests:
		r.denied.RecordValue(took.Microseconds())
	default:
		r.failures++
	}
}

// failed is the percentage of those let in that were answered with an error, or not at all.
func (r *result) failed() float64 {
	return 100 * float64(r.failures) / float64(max(r.failures+r.allowed.TotalCount(), 1))
}

func at(h *hdrhistogram.Histogram, percentile float64) time.Duration {
	return time.Duration(h.ValueAtPercentile(percentile)) * time.Microsecond
}

// check says what is not as a limiter should make it.
func check(alone, limited *result) (wrong []string) {
	if was, is := at(alone.allowed, 99), at(limited.allowed, 99); is > was/10 {
		wrong = append(wrong, fmt.Sprintf("p99 of allowed requests is %v, and %v without limits; it should fall by 90%%", is, was))
	}
	if failed := limited.failed(); failed >= 1 {
		wrong = append(wrong, fmt.Sprintf("%.1f%% of the requests that were let in failed; it should be less than 1%%", failed))
	}
	if median := at(limited.denied, 50); limited.denied.TotalCount() == 0 || median >= 2*time.Millisecond {
		wrong = append(wrong, fmt.Sprintf("the median of %d denials took %v; it should be less than 2ms", limited.denied.TotalCount(), median))
	}
	return wrong
}

// table shows two results side by side.
func table(alone, limited *result) string {
	var s strings.Builder
	row := func(what string, of func(*result) string) {
		fmt.Fprintf(&s, "%-34s %14s %14s\n", what, of(alone), of(limited))
	}
	latency := func(what string, of func(*result) *hdrhistogram.Histogram, percentiles ...float64) {
		for _, p := range percentiles {
			row(fmt.Sprintf("%s, p%g", what, p), func(r *result) string {
				if of(r).TotalCount() == 0 {
					return "-"
				}
				return fmt.Sprintf("%.1f ms", float64(at(of(r), p).Microseconds())/1000)
			})
		}
	}
	fmt.Fprintf(&s, "%-34s %14s %14s\n", "", "alone", "with Penstock")
	allowed := func(r *result) *hdrhistogram.Histogram { return r.allowed }
	denied := func(r *result) *hdrhistogram.Histogram { return r.denied }
	row("answered with 200", func(r *result) string { return fmt.Sprint(r.allowed.TotalCount()) })
	row("  within a second", func(r *result) string { return fmt.Sprint(r.soon) })
	latency("allowed", allowed, 50, 95, 99)
	row("failed, other than by 429", func(r *result) string { return fmt.Sprintf("%.1f %%", r.failed()) })
	row("answered with 429", func(r *result) string { return fmt.Sprint(r.denied.TotalCount()) })
	latency("denied", denied, 50, 99)
	row("requests at the backend", func(r *result) string { return fmt.Sprintf("%.0f /s", r.backend) })
	return s.String()
}
