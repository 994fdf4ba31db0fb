// Package suggest finds the limits that access logs support: those that would have denied few or
// none of the clients.
package suggest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/burst"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/internal/wording"
)

// The bounds of a suggestion.
const (
	maxIdentities   = 1_000_000
	maxListed       = 20 // identities in a report
	minBeyondBudget = 10 // with fewer identities beyond the budget, the result depends on a few of them
	outlierRatio    = 4  // between the count of an outlier and that of the busiest other identity
)

// Options configure Run.
type Options struct {
	Log *accesslog.Reader

	// Identity returns the key of a request. Requests whose key is empty are counted as
	// Report.WithoutIdentity, and nowhere else.
	Identity func(*accesslog.Entry) string

	// IsIncluded reports whether a request counts. Default: all do.
	IsIncluded func(*accesslog.Entry) bool

	// Algorithm is the title of one of Algorithms. Default: a token bucket.
	Algorithm string

	// Window is the length of the window, for fixed-window and sliding-log.
	Window time.Duration

	// Budget is the share of the identities that the limit may ever deny, from 0 to 0.5.
	Budget float64

	// Headroom multiplies what was measured, because traffic grows. At least 1.
	Headroom float64

	// KeepsOutliers counts outliers too: identities that send far more than the busiest other one.
	KeepsOutliers bool

	// ShowsIdentities shows the keys in full. By default they are masked.
	ShowsIdentities bool
}

// Algorithms returns the titles of the algorithms for which limits can be suggested.
func Algorithms() []string {
	return []string{penstock.TokenBucket.Title(), penstock.FixedWindow.Title(), penstock.SlidingLog.Title(), penstock.Concurrency.Title()}
}

// ErrNoDurations says that the log cannot tell how many requests were in flight.
var ErrNoDurations = errors.New("no request of the log has a duration, so it does not show how many were in flight; " +
	"add $request_time to the log_format of nginx, or read a log of Envoy, Caddy, Traefik or CloudFront, which has it")

// A Report is what the logs support.
type Report struct {
	Log             accesslog.Stats  `json:"log"`
	Demand          accesslog.Demand `json:"demand"`   // of the included requests
	Requests        int64            `json:"requests"` // included requests that have an identity
	WithoutIdentity int64            `json:"requests_without_identity"`
	Merged          int64            `json:"requests_beyond_identities"` // of identities beyond the first million
	Denied429       int64            `json:"status_429"`
	Identities      int64            `json:"identities"`
	Budget          float64          `json:"budget"`
	Headroom        float64          `json:"headroom"`
	Outliers        []Identity       `json:"outliers"` // the fields below do not count them
	Frontier        []Point          `json:"frontier"`
	Chosen          *Point           `json:"chosen"`            // a point of the frontier; null if the frontier is empty
	Counted         *Counts          `json:"counted,omitempty"` // missing for a token bucket
	Suggested       *Limit           `json:"suggested"`
	Beyond          Beyond           `json:"beyond_suggested"`
	All             []Point          `json:"all_clients_together"`
	Busiest         []Identity       `json:"busiest"`

	// IsUncertain says that there are too few identities for the budget: fewer than ten of them are
	// beyond it.
	IsUncertain bool `json:"is_uncertain"`

	// IsShort says that the log is shorter than the window, or than the time in which the chosen burst
	// refills. So it does not show whether clients come again meanwhile.
	IsShort bool `json:"is_short"`

	at int // index of Chosen
}

// A Limit is a suggested limit: a token bucket, a window or a number of requests in flight.
type Limit struct {
	Algorithm string `json:"algorithm"`
	Rate      string `json:"rate,omitempty"`
	Burst     int64  `json:"burst,omitempty"`
	InFlight  int64  `json:"in_flight,omitempty"`

	count int64 // the burst, or the count of a window or in flight
}

// Beyond counts the clients that the suggested limit may deny at times, with the outliers. The
// headroom may admit some of them.
type Beyond struct {
	Clients  int64 `json:"clients"`
	Requests int64 `json:"requests"` // that these clients sent
}

// String returns the limit as policy files write it.
func (l *Limit) String() string {
	switch {
	case l.InFlight > 0:
		return fmt.Sprintf("in_flight: %d", l.InFlight)
	case l.Burst > 0:
		return fmt.Sprintf("rate: %s, burst: %d", l.Rate, l.Burst)
	}
	return fmt.Sprintf("rate: %s, algorithm: %s", l.Rate, l.Algorithm)
}

// Measure says by what clients are compared: by requests in a minute, in a window or in flight.
func (r *Report) Measure() string {
	switch c := r.Counted; {
	case c == nil:
		return "in a minute"
	case c.Period == "":
		return "in flight"
	case c.Algorithm == penstock.SlidingLog.Title():
		return "in any " + c.Period
	default:
		return "in a window of " + c.Period
	}
}

// Measured returns the number by which a client of the report is compared.
func (id *Identity) Measured(r *Report) int64 {
	if r.Counted != nil {
		return id.Count
	}
	return id.PerMinute
}

// Counts are for a limit that is a window or a number of requests in flight. They have, for each
// budget, the smallest count with which the limit denies no more clients than the budget allows.
type Counts struct {
	Algorithm string           `json:"algorithm"`
	Period    string           `json:"period,omitempty"`     // the length of a window
	Counts    map[string]int64 `json:"counts"`               // by the name of the budget
	All       int64            `json:"all_clients_together"` // the count that one limit for all clients needs

	// IsTooHigh says that the counts may be somewhat too high: there were too many requests to keep
	// the time of each.
	IsTooHigh bool `json:"may_be_too_high"`
}

// A Point is a rate, and the smallest burst with which at most the given share of the identities is
// ever denied.
type Point struct {
	Rate   string           `json:"rate"`
	Bursts map[string]int64 `json:"bursts"` // by budget: "0", "0.001", "0.01", "0.05", and the chosen one
}

// An Identity is one client.
type Identity struct {
	Key       string `json:"key"`
	Requests  int64  `json:"requests"`
	PerMinute int64  `json:"most_in_a_minute"` // of those that begin with the clock's minutes
	Burst     int64  `json:"burst,omitempty"`  // for the chosen rate
	Count     int64  `json:"count,omitempty"`  // of the window, or in flight
}

// Budgets are the shares that each point has, beside the chosen one.
var Budgets = []float64{0, 0.001, 0.01, 0.05}

// BudgetName is the name of a budget in Point.Bursts.
func BudgetName(b float64) string { return fmt.Sprint(b) }

// A client is one identity while the log is read.
type client struct {
	key string
	*curve
}

// Run reads a log and suggests a limit.
func Run(ctx context.Context, o Options) (*Report, error) {
	report := &Report{Budget: o.Budget, Headroom: o.Headroom, Outliers: []Identity{}, Frontier: []Point{}, All: []Point{}, Busiest: []Identity{}}
	byKey := make(map[string]*curve)
	all, held := newCurve(newPeak(o.Algorithm, o.Window)), 0
	isMerged := false
	for {
		e, err := o.Log.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		if o.IsIncluded != nil && !o.IsIncluded(e) {
			continue
		}
		if e.Status == 429 {
			report.Denied429++
		}
		report.Demand.Add(e.Time, false)
		all.add(e.Time, e.Duration, &held)
		key := o.Identity(e)
		if key == "" {
			report.WithoutIdentity++
			continue
		}
		report.Requests++
		c := byKey[key]
		if c == nil {
			if len(byKey) == maxIdentities {
				report.Merged++
				continue
			}
			c = newCurve(newPeak(o.Algorithm, o.Window))
			byKey[strings.Clone(key)] = c
		}
		c.add(e.Time, e.Duration, &held)
		if held > maxHeld {
			var hasMerged bool
			if hasMerged, err = shrink(byKey, all, e.Time.UnixMicro(), &held); err != nil {
				return nil, err
			}
			isMerged = isMerged || hasMerged
		}
	}
	report.Log = o.Log.Stats()
	if o.Algorithm == penstock.Concurrency.Title() && report.Log.Requests > 0 && !report.Log.Durations {
		return nil, ErrNoDurations
	}
	report.Identities = int64(len(byKey))
	if len(byKey) > 0 {
		report.compute(clientsOf(byKey), all, o)
	}
	if report.Counted != nil {
		report.Counted.IsTooHigh = isMerged
	}
	return report, nil
}

// clientsOf returns all clients, the largest first.
func clientsOf(byKey map[string]*curve) []client {
	clients := make([]client, 0, len(byKey))
	for key, c := range byKey {
		clients = append(clients, client{key, c})
	}
	slices.SortFunc(clients, func(a, b client) int {
		return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(b.requests, a.requests), cmp.Compare(a.key, b.key))
	})
	return clients
}

// outliers returns how many of the first clients are outliers. They are the clients above the
// largest gap among the busiest hundredth, or the busiest three. The gap must be at least
// outlierRatio wide.
func outliers(clients []client) int {
	const fewest = 10
	if len(clients) < fewest {
		return 0
	}
	count, widest := 0, float64(outlierRatio)
	for i := range max(3, len(clients)/100) {
		if ratio := float64(clients[i].size()) / float64(clients[i+1].size()); ratio >= widest {
			count, widest = i+1, ratio
		}
	}
	return count
}

func (r *Report) compute(clients []client, all *curve, o Options) {
	counted := clients
	if !o.KeepsOutliers {
		counted = clients[outliers(clients):]
	}
	budgets := append(slices.Clone(Budgets), o.Budget)
	bursts := make([]int64, len(counted))
	quantiles := func(value func(*curve) int64) map[string]int64 {
		for i, c := range counted {
			bursts[i] = value(c.curve)
		}
		slices.Sort(bursts)
		at := make(map[string]int64)
		for _, b := range budgets {
			at[BudgetName(b)] = bursts[len(bursts)-1-int(b*float64(len(bursts)))]
		}
		return at
	}
	for i, rate := range burst.Rates {
		if all.peak == nil {
			r.Frontier = append(r.Frontier, Point{rate.String(), quantiles(func(c *curve) int64 { return c.Burst(i) })})
			r.All = append(r.All, Point{rate.String(), map[string]int64{BudgetName(0): all.Burst(i)}})
		}
	}
	if all.peak != nil {
		r.count(o, quantiles(func(c *curve) int64 { return c.peak.most() }), all.peak.most())
	} else {
		r.choose()
	}
	need := func(c *curve) int64 {
		if c.peak != nil {
			return c.peak.most()
		}
		return c.Burst(r.at)
	}
	for _, c := range clients {
		if need(c.curve) > r.Suggested.count {
			r.Beyond.Clients++
			r.Beyond.Requests += c.requests
		}
	}
	r.IsUncertain = o.Budget > 0 && float64(len(counted))*o.Budget < minBeyondBudget
	for i, c := range clients[:min(len(clients), max(maxListed, len(clients)-len(counted)))] {
		id := Identity{Key: c.key, Requests: c.requests, PerMinute: c.inMinute.most}
		if c.peak != nil {
			id.Count = need(c.curve)
		} else {
			id.Burst = need(c.curve)
		}
		if !o.ShowsIdentities {
			id.Key = redact.Mask(id.Key)
		}
		if i < len(clients)-len(counted) {
			r.Outliers = append(r.Outliers, id)
		}
		if i < maxListed {
			r.Busiest = append(r.Busiest, id)
		}
	}
}

// choose chooses a point of the frontier, and adds the headroom.
func (r *Report) choose() {
	var bursts burst.Bursts
	for i, p := range r.Frontier {
		bursts[i] = p.Bursts[BudgetName(r.Budget)]
	}
	chosen := burst.Suggest(&bursts, r.Log.Last.Sub(r.Log.First), r.Headroom)
	r.at, r.Chosen, r.IsShort = chosen.At, &r.Frontier[chosen.At], chosen.IsShort
	r.Suggested = &Limit{Algorithm: penstock.TokenBucket.Title(), Rate: chosen.Rate.String(), Burst: chosen.Burst, count: chosen.Burst}
}

// count suggests a window, or a number of requests in flight.
func (r *Report) count(o Options, counts map[string]int64, all int64) {
	r.Counted = &Counts{Algorithm: o.Algorithm, Counts: counts, All: all}
	count := burst.RoundUp(float64(counts[BudgetName(r.Budget)]) * r.Headroom)
	r.Suggested = &Limit{Algorithm: o.Algorithm, count: count}
	if o.Algorithm == penstock.Concurrency.Title() {
		r.Suggested.InFlight = count
		return
	}
	r.Counted.Period = wording.Period(o.Window)
	r.Suggested.Rate = burst.Rate{Count: count, Period: o.Window}.String()
	r.IsShort = r.Log.Last.Sub(r.Log.First) < o.Window
}
