package load

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
)

// A sample is a request and its answer. Its times count from the start.
type sample struct {
	target         int
	client         int64
	due, planned   time.Duration // planned is due, or for a client when it woke up
	sent, received time.Duration
	isQueued       bool // MaxInFlight delayed it, not the machine
	answer         Answer
}

// A tally counts samples. Its memory does not grow with their number.
type tally struct {
	allowedStatuses []int
	hasStream       bool
	unsent          atomic.Int64

	mu       sync.Mutex
	result   Report // the counts until now
	lastSent time.Duration
	judge    judge

	allowed, service, denied, late *hdrhistogram.Histogram
	targets                        []*hdrhistogram.Histogram // those of Target.Latency
}

// maxLatency is the longest latency that is recorded exactly. A histogram takes 0.2 MB.
const maxLatency = time.Hour

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, maxLatency.Microseconds(), 3)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d, 0), maxLatency).Microseconds())
}

func newTally(targets int, limit *penstock.Plan) *tally {
	t := &tally{judge: newJudge(limit), allowed: newHistogram(), service: newHistogram(), denied: newHistogram(), late: newHistogram()}
	t.result = Report{Statuses: make(map[int]int64), Failures: make(map[Failure]int64), Targets: make([]Target, targets)}
	for range targets {
		t.targets = append(t.targets, newHistogram())
	}
	return t
}

// Counts are numbers of requests.
type Counts struct {
	Sent       int64 `json:"sent"`
	Allowed    int64 `json:"allowed"`    // answered with a status below 400, or one of Options.Allowed
	Denied     int64 `json:"denied"`     // answered with 429
	Failed     int64 `json:"failed"`     // answered with another status
	Unanswered int64 `json:"unanswered"` // see Failures
}

func (c *Counts) add(a *Answer, isAllowed bool) {
	c.Sent++
	switch {
	case a.Status == 0:
		c.Unanswered++
	case a.Status == http.StatusTooManyRequests:
		c.Denied++
	case isAllowed:
		c.Allowed++
	default:
		c.Failed++
	}
}

func (t *tally) add(s *sample) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.result
	isAllowed := s.answer.Status < 400 || slices.Contains(t.allowedStatuses, s.answer.Status)
	r.Counts.add(&s.answer, isAllowed)
	r.Targets[s.target].add(&s.answer, isAllowed)
	t.lastSent = max(t.lastSent, s.sent)
	if s.isQueued {
		r.Queued++
	} else {
		record(t.late, s.sent-s.due)
	}
	a := &s.answer
	if a.Status == 0 {
		r.Failures[a.Failure]++
		if r.Error == "" && a.Error != nil {
			r.Error = a.Error.Error()
		}
	} else {
		r.Statuses[a.Status]++
	}
	switch {
	case a.Status == http.StatusTooManyRequests:
		record(t.denied, s.received-s.planned)
	case a.Status > 0 || a.Failure == Timeout: // a timeout counts, because the answer would have taken longer
		record(t.allowed, s.received-s.planned)
		record(t.targets[s.target], s.received-s.planned)
		record(t.service, s.received-s.sent)
	}
	if a.Status > 0 && isAllowed {
		t.judge.admit(s)
	}
}

// A Latency has quantiles, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p99.9_ms"`
	Max   float64 `json:"max_ms"`
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	at := func(percent float64) float64 { return float64(h.ValueAtPercentile(percent)) / 1000 }
	return Latency{h.TotalCount(), h.Mean() / 1000, at(50), at(90), at(99), at(99.9), float64(h.Max()) / 1000}
}

// A Target has the numbers of one target.
type Target struct {
	Name string `json:"target"`
	Counts
	Latency Latency `json:"latency"`
}

// A Report is the result of a load test.
type Report struct {
	Arrivals      string  `json:"arrivals"`
	IsInterrupted bool    `json:"interrupted"`
	Seconds       float64 `json:"seconds"`         // until the last answer
	Rate          float64 `json:"sent_per_second"` // until the last request was sent
	Counts
	Statuses map[int]int64     `json:"statuses"`
	Failures map[Failure]int64 `json:"failures"` // requests without an answer
	Error    string            `json:"first_error,omitempty"`
	Queued   int64             `json:"queued"` // requests that waited because MaxInFlight others were in flight
	Unsent   int64             `json:"unsent"` // requests of streams that were not sent, because they were 30 s late

	// Latency counts from the planned time until the answer was read. It has all answers except
	// denials, and timeouts as if the answer had come then. Service is the same from the time at which
	// the request was sent, Denials that of denials.
	Latency Latency `json:"latency"`
	Service Latency `json:"service"`
	Denials Latency `json:"denials"`

	Store   *StoreUse    `json:"store,omitempty"` // if it was measured
	Client  Client       `json:"client"`
	Limit   *LimitReport `json:"limit"`
	Targets []Target     `json:"targets"`
}

// A StoreUse says how busy Redis was during the test, with what other programs did there.
type StoreUse struct {
	Store string  `json:"store"` // without its password
	Cores float64 `json:"cores"` // of the busiest server's main thread, which has at most one
}

// A Client says whether this machine was fast enough.
type Client struct {
	IsLimit bool     `json:"is_bottleneck"` // then the latencies are not those of the server
	Reasons []string `json:"reasons,omitempty"`
	Cores   float64  `json:"cores_used"` // 0 if the system does not report it
	Of      int      `json:"cores"`
	Late    Latency  `json:"late"` // how late requests were sent, without those that waited because of MaxInFlight
}

// The client is the bottleneck if its requests are sent later than this.
const (
	maxLate      = 10.0 // ms: the 99th percentile
	maxSmallLate = 1.0  // ms: of a stream, if that is more than lateShare of the time that answers take
	lateShare    = 0.1
	maxCores     = 0.9 // of the processor time that the process may use
)

func (t *tally) report(took, busy time.Duration, isInterrupted bool) *Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.result
	r.IsInterrupted, r.Seconds, r.Unsent = isInterrupted, took.Seconds(), t.unsent.Load()
	r.Latency, r.Service, r.Denials, r.Limit = latencyOf(t.allowed), latencyOf(t.service), latencyOf(t.denied), t.judge.report()
	if t.lastSent > 0 {
		r.Rate = float64(r.Sent-1) / t.lastSent.Seconds() // the first request was sent at 0
	}
	for i, h := range t.targets {
		r.Targets[i].Latency = latencyOf(h)
	}
	c := &r.Client
	c.Of, c.Late = runtime.GOMAXPROCS(0), latencyOf(t.late)
	if took > 0 {
		c.Cores = busy.Seconds() / took.Seconds()
	}
	answers := max(r.Service.P99, r.Denials.P99)
	if late := c.Late.P99; late > maxLate || t.hasStream && late > maxSmallLate && late > lateShare*answers {
		c.Reasons = append(c.Reasons, fmt.Sprintf("1 %% of the requests were sent at least %s too late", wording.Period(time.Duration(late*1000)*time.Microsecond)))
	}
	if c.Cores > maxCores*float64(c.Of) {
		c.Reasons = append(c.Reasons, fmt.Sprintf("this process used %.2f of %d processors", c.Cores, c.Of))
	}
	for _, f := range []Failure{NoFiles, NoPorts} {
		if n := r.Failures[f]; n > 0 {
			c.Reasons = append(c.Reasons, fmt.Sprintf("%d requests could not be sent: %s", n, f))
		}
	}
	c.IsLimit = len(c.Reasons) > 0
	return r
}

// Quantiles returns the latencies with the names of the variable Quantiles.
func (l Latency) Quantiles() []float64 { return []float64{l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max} }

// Quantiles are the names of latencies.
var Quantiles = []string{"mean", "p50", "p90", "p99", "p99.9", "max"}
