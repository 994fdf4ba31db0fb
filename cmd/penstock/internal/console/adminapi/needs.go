package adminapi

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/burst"
	"github.com/penstock/penstock/internal/wording"
)

// Needs are what the clients of a limit have needed in the last hours, at most a day. Denied
// requests count too, so clients that retry at once seem to need more.
type Needs struct {
	Minutes   int64      `json:"minutes" doc:"of traffic; the hour with the largest needs counts"`
	Clients   int        `json:"clients" doc:"in the sample, at most 1024 an hour; an instance with fewer than 20 has no needs"`
	Of        string     `json:"of" doc:"what p95 and p99 are: burst at 10/s, or count in any 1m"`
	P95       int64      `json:"p95" doc:"denies nothing to 95 % of the clients"`
	P99       int64      `json:"p99" doc:"denies nothing to 99 % of the clients"`
	Suggested string     `json:"suggested,omitempty" doc:"a limit as policy files write it, for 99 % of the clients, with a headroom of 1.5; empty if its burst refills in more than the time that was seen"`
	Bursts    []RateNeed `json:"bursts" doc:"of token buckets with other rates"`
}

// A RateNeed is the burst that clients have needed at one rate.
type RateNeed struct {
	Rate string `json:"rate"`
	P95  int64  `json:"p95"`
	P99  int64  `json:"p99"`
}

const (
	sampleLength = time.Hour // of one sample; needs of a longer time are not known
	headroom     = 1.5
)

// needsOf compares what clients have needed with a limit. It returns nil if that is not possible.
func needsOf(n activity.Needs, plan *penstock.Plan) *Needs {
	if n.Clients == 0 {
		return nil
	}
	seen, limit := min(n.Length, sampleLength), plan.Limit()
	found := &Needs{Minutes: int64(n.Length / time.Minute), Clients: n.Clients, Bursts: []RateNeed{}}
	switch use := limit.Algorithm.BurstUse(); {
	case limit.Algorithm.NeedsHolder():
		return nil
	case use == algorithm.BurstIsCapacity:
		at := 0
		for i, r := range burst.Rates { // the fastest that is not above the limit's
			if r.In(time.Hour) <= (burst.Rate{Count: limit.Count, Period: limit.Period}).In(time.Hour) {
				at = i
			}
		}
		found.Of, found.P95, found.P99 = "burst at "+burst.Rates[at].String(), n.P95[at], n.P99[at]
		if s := burst.Suggest(&n.P99, seen, headroom); !s.IsShort {
			found.Suggested = s.String()
		}
	case use == algorithm.BurstUnused && limit.Period <= seen:
		found.Of, found.P95, found.P99 = "count in any "+wording.Period(limit.Period), n.P95.In(limit.Period), n.P99.In(limit.Period)
		rate := burst.Rate{Count: burst.RoundUp(float64(found.P99) * headroom), Period: limit.Period}
		found.Suggested = fmt.Sprintf("rate: %s, algorithm: %s", rate, limit.Algorithm.Title())
	default:
		return nil
	}
	for i, r := range burst.Rates {
		found.Bursts = append(found.Bursts, RateNeed{r.String(), n.P95[i], n.P99[i]})
	}
	return found
}
