// Package suggest finds the limits that access logs support: those that would have denied few or
// none of the clients.
package suggest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/internal/wording"
)

// The bounds of a suggestion.
const (
	maxIdentities = 1_000_000
	maxListed     = 20 // identities in a report
	horizon       = time.Minute
	minIdentities = 10 // beyond the budget, for a quantile that can be trusted
	outlierRatio  = 4  // between an outlier and the busiest of the others
)

// Options configure Run.
type Options struct {
	Log *accesslog.Reader

	// Identity returns the key of a request. Requests whose key is empty are counted apart.
	Identity func(*accesslog.Entry) string

	// IsIncluded reports whether a request counts. Default: all do.
	IsIncluded func(*accesslog.Entry) bool

	// Budget is the share of the identities that the limit may ever deny, from 0 to 0.5.
	Budget float64

	// Headroom multiplies what was measured, because traffic grows. At least 1.
	Headroom float64

	// KeepsOutliers counts identities that send far more than all others too.
	KeepsOutliers bool

	// ShowsIdentities shows the keys in full. By default they are masked.
	ShowsIdentities bool
}

// A Report is what the logs support.
type Report struct {
	Log             accesslog.Stats `json:"log"`
	Requests        int64           `json:"requests"` // that were included and have an identity
	WithoutIdentity int64           `json:"requests_without_identity"`
	Merged          int64           `json:"requests_beyond_identities"` // of identities beyond the first million
	Denied429       int64           `json:"status_429"`
	Identities      int64           `json:"identities"`
	Budget          float64         `json:"budget"`
	Headroom        float64         `json:"headroom"`
	Outliers        []Identity      `json:"outliers"` // not counted below
	Frontier        []Point         `json:"frontier"`
	Windows         []Window        `json:"windows"`
	Chosen          *Point          `json:"chosen"` // of the frontier
	Suggested       *Limit          `json:"suggested"`
	All             []Point         `json:"all_clients_together"`
	Busiest         []Identity      `json:"busiest"`

	// IsUncertain says that there are too few identities for the budget: fewer than ten of them are
	// beyond it.
	IsUncertain bool `json:"is_uncertain"`

	// IsShort says that the log is shorter than the time in which the chosen burst refills. So it does
	// not show whether clients come again meanwhile.
	IsShort bool `json:"is_short"`
}

// A Limit is a suggested token bucket.
type Limit struct {
	Rate  string `json:"rate"`
	Burst int64  `json:"burst"`
}

// A Point is a rate, and the smallest burst with which at most the given share of the identities is
// ever denied.
type Point struct {
	Rate   string           `json:"rate"`
	Bursts map[string]int64 `json:"bursts"` // by budget: "0", "0.001", "0.01", "0.05", and the chosen one

	at int // in rates
}

// A Window is a fixed window, and the smallest count for each budget.
type Window struct {
	Period string           `json:"period"`
	Counts map[string]int64 `json:"counts"`
}

// An Identity is one client.
type Identity struct {
	Key       string `json:"key"`
	Requests  int64  `json:"requests"`
	PerMinute int64  `json:"most_in_a_minute"` // of those that begin with the clock's minutes
	Burst     int64  `json:"burst"`            // for the chosen rate
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
	report := &Report{Budget: o.Budget, Headroom: o.Headroom, Outliers: []Identity{}, Frontier: []Point{}, Windows: []Window{}, All: []Point{}, Busiest: []Identity{}}
	byKey := make(map[string]*curve)
	all := newCurve()
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
		all.add(e.Time)
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
			c = newCurve()
			byKey[strings.Clone(key)] = c
		}
		c.add(e.Time)
	}
	report.Log = o.Log.Stats()
	report.Identities = int64(len(byKey))
	if len(byKey) > 0 {
		report.compute(clientsOf(byKey), all, o)
	}
	return report, nil
}

// clientsOf returns all clients, those with the most requests in a minute first.
func clientsOf(byKey map[string]*curve) []client {
	clients := make([]client, 0, len(byKey))
	for key, c := range byKey {
		clients = append(clients, client{key, c})
	}
	slices.SortFunc(clients, func(a, b client) int {
		return cmp.Or(cmp.Compare(b.inWindow[0].most, a.inWindow[0].most), cmp.Compare(b.requests, a.requests), cmp.Compare(a.key, b.key))
	})
	return clients
}

// outliers returns how many of the first clients send far more than all others. They are above the
// largest gap among the busiest hundredth, or the busiest three, if it is wide enough.
func outliers(clients []client) int {
	const fewest = 10
	if len(clients) < fewest {
		return 0
	}
	count, widest := 0, float64(outlierRatio)
	for i := range max(3, len(clients)/100) {
		if ratio := float64(clients[i].inWindow[0].most) / float64(clients[i+1].inWindow[0].most); ratio >= widest {
			count, widest = i+1, ratio
		}
	}
	return count
}

// compute fills the report from the clients.
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
	for i := range rates {
		r.Frontier = append(r.Frontier, Point{rates[i].String(), quantiles(func(c *curve) int64 { return c.burst(i) }), i})
		r.All = append(r.All, Point{rates[i].String(), map[string]int64{BudgetName(0): all.burst(i)}, i})
	}
	for i, length := range windows {
		r.Windows = append(r.Windows, Window{wording.Period(length), quantiles(func(c *curve) int64 { return c.inWindow[i].most })})
	}
	r.choose()
	r.IsUncertain = o.Budget > 0 && float64(len(counted))*o.Budget < minIdentities
	for i, c := range clients[:min(len(clients), max(maxListed, len(clients)-len(counted)))] {
		id := Identity{c.key, c.requests, c.inWindow[0].most, c.burst(r.Chosen.at)}
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

// choose chooses the point of the frontier that admits least to a client in a minute, and adds the
// headroom. Points whose burst refills within the time of the log come first.
func (r *Report) choose() {
	name, length := BudgetName(r.Budget), r.Log.Last.Sub(r.Log.First).Seconds()
	isShort := func(p *Point) bool {
		return float64(p.Bursts[name])*rates[p.at].period.Seconds()/float64(rates[p.at].count) > length
	}
	admits := func(p *Point) float64 {
		return float64(rates[p.at].count)*horizon.Seconds()/rates[p.at].period.Seconds() + float64(p.Bursts[name])
	}
	r.Chosen = &r.Frontier[0]
	for i := range r.Frontier {
		p := &r.Frontier[i]
		if isShort(r.Chosen) && !isShort(p) || isShort(r.Chosen) == isShort(p) && admits(p) < admits(r.Chosen) {
			r.Chosen = p
		}
	}
	r.IsShort = isShort(r.Chosen)
	chosen := rate{roundUp(float64(rates[r.Chosen.at].count) * r.Headroom), rates[r.Chosen.at].period}
	burst := roundUp(float64(r.Chosen.Bursts[name]) * r.Headroom)
	r.Suggested = &Limit{chosen.String(), max(burst, 1)}
}

// roundUp returns the next number that people like: 1, 2, 3, 5 or 8 times a power of ten.
func roundUp(x float64) int64 {
	for unit := int64(1); ; unit *= 10 {
		for _, n := range []int64{1, 2, 3, 5, 8} {
			if float64(n*unit) >= x || n*unit > math.MaxInt64/100 {
				return n * unit
			}
		}
	}
}

func (r rate) String() string {
	unit := map[time.Duration]string{time.Second: "s", time.Minute: "min", time.Hour: "h"}[r.period]
	return fmt.Sprintf("%d/%s", r.count, unit)
}
